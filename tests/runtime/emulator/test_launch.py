"""Arguments and extents of a launch are checked; what fits runs, whatever its shape."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptx_text import compile_gpu, elementwise, kernel, run

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import emulator

_SCALE = kernel(
    """mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; ld.global.b32 %r1, [%d1]; mul.rn.f32 %r1, %r1, %s1;
setp.ge.u32 %p1, %r0, %s2; @%p1 bra $end;
st.global.b32 [%d1], %r1;
$end:""",
    1,
    ["f32", "u32"],
)


def test_entries_describe_the_kernels() -> None:
    before = ".shared .align 16 .b8 fixed[100];\n.extern .shared .align 16 .b8 dynamic[];\n"
    text = kernel("st.shared.b32 [fixed], 1; st.shared.b32 [dynamic+4], 2;", 1, ["f32", "u32"], before=before)
    text = text.replace(")\n{", ")\n.maxntid 128, 1, 1\n{")
    info = emulator.load(text).entries["k"]
    assert [(p.name, p.bytes, p.kind) for p in info.parameters] == [
        ("p0", 8, "pointer"), ("p1", 4, "float"), ("p2", 4, "integer"),
    ]  # fmt: skip
    assert (info.shared_bytes, info.dynamic_shared, info.local_bytes, info.max_threads) == (100, True, 0, 128)
    assert info.required_block is None


def test_dynamic_shared_memory_starts_behind_the_static_one() -> None:
    before = ".shared .align 4 .b8 fixed[4];\n.extern .shared .align 16 .b8 dynamic[];\n"
    body = "mov.u32 %r1, dynamic; mov.u32 %r2, fixed; sub.u32 %r1, %r1, %r2; st.shared.b32 [dynamic+4], %r1;\n"
    body += "ld.shared.b32 %r3, [dynamic+4]; st.global.b32 [%a0], %r3;"
    out = np.zeros(1, np.uint32)
    run(kernel(body, 1, before=before), [out], block=1, shared_bytes=8)
    assert out[0] == 16
    with pytest.raises(LaunchError, match="out of bounds of the 23 bytes of shared memory"):
        run(kernel(body, 1, before=before), [out], block=1, shared_bytes=7)


def test_scalars_and_arrays() -> None:
    data = np.arange(32, dtype=np.float32)
    run(_SCALE, [data, np.float32(0.5), np.uint32(10)])
    assert data.tolist() == [t * 0.5 if t < 10 else float(t) for t in range(32)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "takes 3 arguments, not 0"),
        ([np.zeros(32, "f4"), np.float32(1), np.uint32(1), np.uint32(1)], "takes 3 arguments, not 4"),
        ([np.zeros(32, "f4"), 1.0, np.uint32(1)], r"argument 1 \(p1, \.f32\): got float"),
        ([np.zeros(32, "f4"), np.float64(1), np.uint32(1)], "has 4 bytes: got a scalar float64 of 8"),
        ([np.zeros(32, "f4"), np.int32(1), np.uint32(1)], "is of kind float: got a scalar int32"),
        ([np.zeros(32, "f4"), np.float32(1), np.float32(1)], "is of kind integer: got a scalar float32"),
        ([np.float32(1), np.float32(1), np.uint32(1)], "argument 0 .* is a pointer: got a scalar float32"),
        (
            [np.zeros(32, "f4"), np.zeros(1, "f4"), np.uint32(1)],
            r"argument 1 .* is no pointer: got an array float32\[1\]",
        ),
        ([np.zeros((32, 2), "f4")[:, 0], np.float32(1), np.uint32(1)], "is not contiguous"),
        ([np.array([None] * 32), np.float32(1), np.uint32(1)], "array of Python objects"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: list[Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        run(_SCALE, args)


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (0, 32, "grid must be"),
        ((1, 1, 1, 1), 32, "grid must be"),
        (1, -1, "block must be"),
        (1, 2048, "1024 threads"),
        (1, (1, 1, 65), "exceeds"),
        ((1, 70000), 1, "grid .* exceeds"),
        (1, "32", "block must be"),
    ],
)
def test_extents_a_device_does_not_have_are_refused(grid: Any, block: Any, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        run(kernel(""), [], block=block, grid=grid)


def test_limits_compiled_into_the_kernel_hold() -> None:
    text = kernel("").replace("()\n{", "()\n.maxntid 64\n{")
    run(text, [], block=64)
    with pytest.raises(LaunchError, match="at most 64"):
        run(text, [], block=65)
    text = kernel("").replace("()\n{", "()\n.reqntid 8, 4, 1\n{")
    run(text, [], block=(8, 4))
    with pytest.raises(LaunchError, match=r"compiled for \(8, 4, 1\)"):
        run(text, [], block=(4, 8))


def test_too_much_shared_memory_is_refused() -> None:
    with pytest.raises(LaunchError, match="bytes of shared memory"):
        run(kernel(""), [], shared_bytes=300_000)


def test_missing_kernel_names_the_ones_there_are() -> None:
    with pytest.raises(LaunchError, match="no kernel 'other'") as caught:
        emulator.load(kernel("")).launch("other", 1, 1, [])
    assert "it has k" in str(caught.value)


def test_empty_arrays_and_arrays_of_no_dimension() -> None:
    body = "setp.ge.u32 %p1, %r0, %s2; @%p1 bra $end;\nmul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0;\n"
    body += "ld.global.b32 %r1, [%d1]; st.global.b32 [%a1], %r1;\n$end:"
    text = kernel(body, 2, ["u32"])
    run(text, [np.zeros((0, 3), np.int32), np.zeros(0, np.int32), np.uint32(0)])
    out = np.array(0, np.int32)
    run(text, [np.array([9], np.int32), out, np.uint32(1)])
    assert out == 9
    with pytest.raises(LaunchError, match="out of bounds"):
        run(text, [np.zeros((0, 3), np.int32), out, np.uint32(1)])


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_arrays_of_any_type_are_memory(dtype: Any) -> None:
    data = np.ones(16, dtype)
    text = kernel("cvt.u64.u32 %d0, %r0; add.u64 %d1, %a0, %d0; st.global.b8 [%d1], 0;", 1)
    run(text, [data], block=16)
    assert not data.view(np.uint8)[:16].any()


@pytest.mark.parametrize("block", [1, 7, 32, 33, 100, 256, 1024, (4, 3, 2), (16, 16)])
@pytest.mark.parametrize("grid", [1, 3, (2, 3), (2, 2, 2)])
def test_thread_and_block_numbers(block: Any, grid: Any) -> None:
    body = """mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x;
mov.u32 %r4, %ntid.y; mov.u32 %r5, %ntid.z;
mad.lo.u32 %r6, %r2, %r4, %r1; mad.lo.u32 %r6, %r6, %r3, %r0;
mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %ctaid.z;
mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y;
mad.lo.u32 %r12, %r9, %r11, %r8; mad.lo.u32 %r12, %r12, %r10, %r7;
mul.lo.u32 %r13, %r3, %r4; mul.lo.u32 %r13, %r13, %r5; mad.lo.u32 %r14, %r12, %r13, %r6;
mul.wide.u32 %d0, %r14, 4; add.u64 %d1, %a0, %d0; mov.u32 %r15, %laneid; mov.u32 %r16, %warpid;
mad.lo.u32 %r15, %r16, 32, %r15; mad.lo.u32 %r15, %r12, 10000, %r15; st.global.b32 [%d1], %r15;"""
    threads, blocks = int(np.prod(block)), int(np.prod(grid))
    out = np.zeros(threads * blocks, np.uint32)
    run(kernel(body, 1), [out], block=block, grid=grid)
    assert out.tolist() == [b * 10000 + t for b in range(blocks) for t in range(threads)]


def test_generic_addresses_reach_every_space() -> None:
    before = ".shared .align 8 .b8 tile[256];\n.global .align 4 .u32 cell = 41;\n"
    body = """.local .align 8 .b8 depot[8];
mov.u64 %d1, tile; cvta.shared.u64 %d1, %d1; mul.wide.u32 %d2, %r0, 4; add.u64 %d1, %d1, %d2; st.b32 [%d1], %r0;
mov.u64 %d3, depot; cvta.local.u64 %d3, %d3; st.b32 [%d3+4], 7; ld.b32 %r1, [%d3+4]; ld.b32 %r2, [%d1];
mov.u64 %d4, cell; cvta.global.u64 %d4, %d4; ld.b32 %r3, [%d4]; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
cvta.to.shared.u64 %d5, %d1; ld.shared.b32 %r4, [%d5]; add.u32 %r1, %r1, %r4; cvta.to.global.u64 %d6, %a0;
add.u64 %d6, %d6, %d2; st.global.b32 [%d6], %r1;"""
    out = np.zeros(32, np.uint32)
    run(kernel(body, 1, before=before), [out])
    assert out.tolist() == [48 + 2 * t for t in range(32)]


def test_local_arrays_are_private_to_each_thread() -> None:
    body = """.local .align 8 .b8 depot[64];
mov.u64 %d1, depot; mov.b32 %r1, 0;
$fill: mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %d1, %d2; mad.lo.u32 %r2, %r0, 100, %r1; st.local.b32 [%d2], %r2;
add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 16; @%p1 bra $fill;
and.b32 %r3, %r0, 15; mul.wide.u32 %d3, %r3, 4; add.u64 %d3, %d1, %d3; ld.local.b32 %r4, [%d3];
mul.wide.u32 %d4, %r0, 4; add.u64 %d4, %a0, %d4; st.global.b32 [%d4], %r4;"""
    out = np.zeros(64, np.uint32)
    run(kernel(body, 1), [out], block=64)
    assert out.tolist() == [t * 100 + t % 16 for t in range(64)]


def test_asynchronous_copy_to_shared_memory() -> None:
    body = """mul.wide.u32 %d0, %r0, 16; add.u64 %d1, %a0, %d0; shl.b32 %r1, %r0, 4;
mov.u32 %r2, tile; add.u32 %r2, %r1, %r2;
cp.async.cg.shared.global [%r2], [%d1], 16; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
xor.b32 %r3, %r1, 16; mov.u32 %r4, tile; add.u32 %r3, %r3, %r4; ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r3];
add.u64 %d2, %a1, %d0; st.global.v4.b32 [%d2], {%r5, %r6, %r7, %r8};"""
    source = np.arange(256, dtype=np.int32)
    target = np.zeros(256, np.int32)
    run(kernel(body, 2, before=".shared .align 16 .b8 tile[1024];\n"), [source, target], block=64)
    assert target.tolist() == source.reshape(-1, 2, 4)[:, ::-1].reshape(-1).tolist()


def test_compiled_vector_kernel_of_halves() -> None:
    text = compile_gpu("""gpu.func @k(%x: memref<2048xf16> {llvm.noalias}, %o: memref<2048xf16> {llvm.noalias}) kernel {
      %t = gpu.thread_id x
      %c8 = arith.constant 8 : index
      %i = arith.muli %t, %c8 : index
      %v = vector.load %x[%i] {alignment = 16 : i64} : memref<2048xf16>, vector<8xf16>
      %e = math.exp %v : vector<8xf16>
      %w = arith.mulf %e, %v : vector<8xf16>
      %z = arith.maximumf %w, %v : vector<8xf16>
      vector.store %z, %o[%i] {alignment = 16 : i64} : memref<2048xf16>, vector<8xf16>
      gpu.return }""")
    assert "v4.b32" in text
    x = np.random.default_rng(0).uniform(-3, 3, 2048).astype("f2")
    out = np.zeros_like(x)
    counters = emulator.launch(text, "k", 1, 256, [x, out])
    e = np.exp(x.astype("f8")).astype("f2")
    assert out.tolist() == np.maximum(e * x, x).tolist()
    assert counters.argument_bytes_loaded == (4096, 0)
    assert counters.argument_bytes_stored == (0, 4096)


def test_compiled_switch_table_and_integer_kernels() -> None:
    text = compile_gpu("""memref.global "private" constant @table : memref<8xf32> = dense<[0.,1.,2.,3.,4.,5.,6.,7.5]>
    gpu.func @k(%x: memref<256xi64> {llvm.noalias}, %o: memref<256xf32> {llvm.noalias}) kernel {
      %t = gpu.thread_id x
      %v = memref.load %x[%t] : memref<256xi64>
      %i = arith.index_cast %v : i64 to index
      %g = memref.get_global @table : memref<8xf32>
      %f = memref.load %g[%i] : memref<8xf32>
      %r = scf.index_switch %i -> f32
      case 0 { %q = math.cos %f : f32  scf.yield %q : f32 }
      case 1 { %q = math.exp %f : f32  scf.yield %q : f32 }
      case 2 { %q = math.log %f : f32  scf.yield %q : f32 }
      case 3 { %q = math.sqrt %f : f32  scf.yield %q : f32 }
      case 4 { %q = math.tanh %f : f32  scf.yield %q : f32 }
      case 5 { %q = math.sin %f : f32  scf.yield %q : f32 }
      default { scf.yield %f : f32 }
      memref.store %r, %o[%t] : memref<256xf32>
      gpu.return }""")
    assert "brx.idx" in text
    x = np.random.default_rng(0).integers(0, 8, 256)
    out = np.zeros(256, "f4")
    emulator.launch(text, "k", 1, 256, [x, out])
    values = [np.cos(0.0), np.exp(1.0), np.log(2.0), np.sqrt(3.0), np.tanh(4.0), np.sin(5.0), 6.0, 7.5]
    assert np.allclose(out, np.array(values)[x], rtol=1e-6)


def test_same_launch_gives_the_same_bits_with_and_without_checks_and_counters() -> None:
    text = compile_gpu(elementwise("k", "f32", "%e = math.tanh %x0 : f32\n%r = math.exp %e : f32", 1))
    x = np.random.default_rng(0).standard_normal(4096).astype("f4")
    results = []
    for checks, counters in ((True, True), (False, False)):
        out = np.zeros_like(x)
        emulator.load(text).launch("k", 32, 128, [x, out], checks=checks, counters=counters)
        results.append(out.tobytes())
    assert results[0] == results[1]


def test_emulator_needs_numpy_alone() -> None:
    code = (
        "import sys; from mlirstitch.runtime import emulator; import numpy as np;"
        "emulator.launch(sys.stdin.read(), 'k', 1, 32, [np.zeros(32, 'f4'), np.float32(2), np.uint32(3)]);"
        "bad = {'torch', 'mlir', 'torch_mlir', 'ml_dtypes', 'safetensors'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], input=_SCALE, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
