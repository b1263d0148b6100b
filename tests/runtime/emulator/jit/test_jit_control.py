"""Divergence, loops, barriers, local and shared memory, atomics: both engines agree, counters included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_pairs import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import kernel

_OWN = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0; cvt.u64.u32 %d0, %r3;
shl.b64 %d0, %d0, 2; add.u64 %d1, %a0, %d0; add.u64 %d2, %a1, %d0;
"""
_BLOCKS = [(1,), (7,), (32,), (33,), (96,), (256,), (4, 3, 2), (16, 16), (32, 4), (64, 2)]


@pytest.mark.parametrize("block", _BLOCKS, ids=str)
def test_thread_numbers_of_every_block_shape(block: tuple[int, ...]) -> None:
    body = """mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y;
mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %nctaid.x; mad.lo.u32 %r8, %r2, %r4, %r1;
mad.lo.u32 %r8, %r8, %r3, %r0;
mad.lo.u32 %r9, %r6, %r7, %r5; mov.u32 %r10, %ntid.z; mul.lo.u32 %r11, %r3, %r4; mul.lo.u32 %r11, %r11, %r10;
mad.lo.u32 %r9, %r9, %r11, %r8; mul.wide.u32 %d0, %r9, 16; add.u64 %d0, %d0, %a0;
mov.u32 %r20, %laneid; mov.u32 %r21, %warpid; shr.u32 %r22, %r0, 5; and.b32 %r23, %r0, 31; and.b32 %r24, %r0, -32;
add.u32 %r20, %r20, %r21; add.u32 %r22, %r22, %r23; shl.b32 %r25, %r0, 2; and.b32 %r25, %r25, 124;
or.b32 %r26, %r24, %r23;
st.global.v4.b32 [%d0], {%r9, %r20, %r22, %r25}; mov.u32 %r30, %lanemask_lt; add.u32 %r30, %r30, %r26;
st.global.b32 [%d0+12], %r30;"""
    threads = int(np.prod(block))
    assert_same(kernel(body, 1), [np.zeros((6 * threads, 4), np.uint32)], grid=(2, 3), block=block)


_DIVERGENT = {
    "if": "and.b32 %r4, %r3, 1; setp.eq.u32 %p1, %r4, 0; @%p1 bra $skip;\nadd.u32 %r9, %r9, 7;\n$skip:",
    "if and else": "and.b32 %r4, %r3, 3; setp.lt.u32 %p1, %r4, 2; @%p1 bra $a;\nadd.u32 %r9, %r9, 7; bra $b;\n"
    "$a: mul.lo.u32 %r9, %r9, 3;\n$b: add.u32 %r9, %r9, 1;",
    "loop of different length": "and.b32 %r4, %r3, 15;\n$l: add.u32 %r9, %r9, %r4; mul.lo.u32 %r9, %r9, 3;\n"
    "sub.u32 %r4, %r4, 1; setp.gt.s32 %p1, %r4, 0; @%p1 bra $l;",
    "loop with continue": "and.b32 %r4, %r3, 15; mov.b32 %r5, 0;\n$l: add.u32 %r5, %r5, 1; and.b32 %r6, %r5, %r3;\n"
    "setp.eq.u32 %p2, %r6, 0; @%p2 bra $c;\nadd.u32 %r9, %r9, %r5;\n$c: setp.lt.u32 %p1, %r5, %r4; @%p1 bra $l;",
    "nested loops": "and.b32 %r4, %r3, 3; mov.b32 %r5, 0;\n$o: mov.b32 %r6, 0;\n"
    "$i: add.u32 %r9, %r9, %r6; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r4; @%p1 bra $i;\n"
    "add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 3; @%p2 bra $o;",
    "value of the loop a thread left": "and.b32 %r4, %r3, 7; mov.b32 %r5, 0;\n$l: mul.lo.u32 %r7, %r5, 10;\n"
    "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %r4; @%p1 bra $l;\nadd.u32 %r9, %r9, %r7;",
    "early return": "and.b32 %r4, %r3, 5; setp.eq.u32 %p1, %r4, 5; @%p1 ret;\nadd.u32 %r9, %r9, 1;",
    "guarded write": "and.b32 %r4, %r3, 1; setp.eq.u32 %p1, %r4, 0; @%p1 add.u32 %r9, %r9, 5; @!%p1 mov.b32 %r9, %r3;",
    "guarded store": "setp.gt.u32 %p1, %r9, 3; @%p1 st.global.b32 [%d2], %r3; @!%p1 ld.global.b32 %r9, [%d2];",
    "switch": "$T: .branchtargets $A, $B, $C;\nrem.u32 %r4, %r3, 3; brx.idx %r4, $T;\n$A: add.u32 %r9, %r9, 1;\n"
    "bra $E;\n"
    "$B: add.u32 %r9, %r9, 100;\n$C: mul.lo.u32 %r9, %r9, 7;\n$E: add.u32 %r9, %r9, 2;",
    "uniform loop": "mov.b32 %r4, 0;\n$l: add.u32 %r9, %r9, %r4; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 9;\n"
    "@%p1 bra $l;",
    "vote and ballot": "and.b32 %r4, %r3, 3; setp.eq.u32 %p1, %r4, 0; vote.sync.ballot.b32 %r5, %p1, -1;\n"
    "vote.sync.any.pred %p2, %p1, -1; selp.b32 %r6, 3, 4, %p2; activemask.b32 %r7; add.u32 %r9, %r9, %r5;\n"
    "add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r7; redux.sync.add.u32 %r8, %r9, -1; add.u32 %r9, %r9, %r8;",
    "shuffles": "shfl.sync.bfly.b32 %r4, %r9, 3, 31, -1; shfl.sync.up.b32 %r5|%p1, %r9, 2, 0, -1;\n"
    "shfl.sync.down.b32 %r6|%p2, %r9, 5, 0x181f, -1; shfl.sync.idx.b32 %r7, %r9, %r4, 31, -1;\n"
    "selp.b32 %r8, 5, 9, %p1;\n"
    "add.u32 %r9, %r4, %r5; add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r7; add.u32 %r9, %r9, %r8; "
    "selp.b32 %r8, 2, 1, %p2; add.u32 %r9, %r9, %r8;",
}


@pytest.mark.parametrize("name", sorted(_DIVERGENT))
def test_control_flow_and_warp_operations(name: str) -> None:
    body = f"{_OWN}ld.global.b32 %r9, [%d1];\n{_DIVERGENT[name]}\nst.global.b32 [%d2], %r9;"
    data = np.random.default_rng(3).integers(0, 9, 5 * 64).astype(np.uint32)
    assert_same(kernel(body, 2), [data, np.zeros_like(data)], grid=5, block=64)


def test_partial_warps_and_accesses_of_every_stride() -> None:
    for scale in (0, 1, 2, 4, 5, 8, 33):
        body = f"""setp.ge.u32 %p1, %r0, %s2; @%p1 bra $end;
mul.lo.u32 %r4, %r0, {scale}; mul.wide.u32 %d3, %r4, 4; add.u64 %d4, %a0, %d3; ld.global.b32 %r5, [%d4+8];
mul.wide.u32 %d3, %r0, 4; add.u64 %d4, %a1, %d3; st.global.b32 [%d4], %r5;
$end:"""
        for threads in (1, 31, 40, 64):
            data = np.arange(64 * 33 + 8, dtype=np.uint32)
            assert_same(kernel(body, 2, ["u32"]), [data, np.zeros(64, np.uint32), np.uint32(threads)], block=64)


@pytest.mark.parametrize("kind", ["b8", "s8", "b16", "b32", "b64", "v2.b8", "v4.b8", "v2.b16", "v4.b16", "v2.b32",
                                  "v4.b32", "v2.b64", "v4.b64", "v8.b32"])  # fmt: skip
@pytest.mark.parametrize("space", ["global", "shared", "local"])
def test_accesses_of_every_width(kind: str, space: str) -> None:
    count = int(kind[1]) if kind[0] == "v" else 1
    width = int(kind.split(".")[-1][1:]) // 8
    letter = {1: "h", 2: "h", 4: "r", 8: "d"}[width]
    names = ", ".join(f"%{letter}{10 + n}" for n in range(count))
    operand = f"{{{names}}}" if count > 1 else names
    size = width * count
    stored = kind.replace("s8", "b8")
    place = {"global": "%d20", "shared": "%d21", "local": "%d22"}[space]
    body = f""".local .align 64 .b8 own[64];
cvt.u64.u32 %d19, %r0; mul.lo.u64 %d20, %d19, {size}; add.u64 %d18, %d20, %a1; add.u64 %d20, %d20, %a0;
mul.lo.u64 %d21, %d19, {size}; mov.u64 %d22, own; xor.b64 %d23, %d19, 1; mul.lo.u64 %d23, %d23, {size};
ld.global.{kind} {operand}, [%d20];
st.{space}.{stored} [{place}], {operand};
bar.sync 0;
ld.{space}.{kind} {operand}, [{place if space != "shared" else "%d23"}];
st.global.{stored} [%d18], {operand};"""
    before = f".shared .align 64 .b8 tile[{64 * size}];\n"
    body += "\nmov.u32 %r40, tile;"
    data = np.random.default_rng(1).integers(0, 256, 64 * size).astype(np.uint8)
    assert_same(kernel(body, 2, before=before), [data, np.zeros_like(data)], block=64)


@pytest.mark.parametrize("scale", [0, 1, 2, 4, 8, 12, 16, 32, 128, 132])
@pytest.mark.parametrize("kind", ["b32 %r9", "v4.b32 {%r9, %r10, %r11, %r12}", "b64 %d9", "b8 %h9"])
def test_bank_conflicts_and_sectors_are_counted_alike(scale: int, kind: str) -> None:
    element, registers = kind.split(" ", 1)
    size = {"b32": 4, "b64": 8, "b8": 1}.get(element, 16)
    scale = scale * size if size > 4 else scale // size * size
    body = f"""mov.u32 %r4, tile; and.b32 %r5, %r0, 31; mad.lo.u32 %r3, %r5, {scale}, %r4; cvt.u64.u32 %d3, %r3;
ld.shared.{element} {registers}, [%d3]; setp.gt.u32 %p1, %r0, 40; @%p1 bra $end;
ld.shared.{element} {registers}, [%d3]; cvt.u64.u32 %d4, %r5; mad.lo.u64 %d4, %d4, {scale}, %a0;
ld.global.{element} {registers}, [%d4];
$end:"""
    memory = np.zeros(132 * 16 * 32 + 16, np.uint8)
    assert_same(kernel(body, 1, before=".shared .align 16 .b8 tile[70000];\n"), [memory], block=64)


_ATOMICS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"), "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"), "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
    "exch": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "kind"), [(o, k) for o, kinds in _ATOMICS.items() for k in kinds])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics(operation: str, kind: str, space: str) -> None:
    bits = {"bf16": 16}.get(kind, int(kind.lstrip("busf")))
    letter = {16: "h", 32: "r", 64: "d"}[bits]
    width = bits // 8
    where = "[%d5]" if space == "global" else "[%d6]"
    noftz = ".noftz" if kind in ("f16", "bf16") else ""
    body = f"""and.b32 %r4, %r0, 3; cvt.u64.u32 %d3, %r4; mul.lo.u64 %d6, %d3, {width}; add.u64 %d5, %d6, %a0;
cvt.u64.u32 %d3, %r0; mul.lo.u64 %d4, %d3, {width}; add.u64 %d4, %d4, %a1; ld.global.b{bits} %{letter}20, [%d4];
st.shared.b{bits} [tile], %{letter}20; st.shared.b{bits} [tile+{width}], %{letter}20;
st.shared.b{bits} [tile+{2 * width}], %{letter}20; st.shared.b{bits} [tile+{3 * width}], %{letter}20;
setp.eq.u32 %p1, %r0, 17; @%p1 bra $end;
atom.{space}.{operation}{noftz}.{kind} %{letter}21, {where}, %{letter}20;
add.u64 %d4, %d4, {64 * width}; st.global.b{bits} [%d4], %{letter}21; ld.{space}.b{bits} %{letter}22, {where};
add.u64 %d4, %d4, {64 * width}; st.global.b{bits} [%d4], %{letter}22;
$end:"""
    rng = np.random.default_rng(5)
    if kind in ("f32", "f64", "f16"):
        data: Any = rng.standard_normal(192).astype(f"f{width}")
    else:
        data = rng.integers(0, 1 << min(bits - 2, 40), 192).astype(f"u{width}") & np.array(0xBFFF, f"u{width}")
    cells = data[:4].copy()
    assert_same(kernel(body, 2, before=".shared .align 8 .b8 tile[64];\n"), [cells, data], block=32)


def test_compare_and_swap_and_reductions_without_result() -> None:
    body = """and.b32 %r4, %r0, 7; mul.wide.u32 %d3, %r4, 4; add.u64 %d5, %a0, %d3;
atom.global.cas.b32 %r5, [%d5], %r4, %r0; red.global.add.u32 [%d5], 3; mul.wide.u32 %d3, %r0, 4; add.u64 %d6, %a1, %d3;
st.global.b32 [%d6], %r5;"""
    assert_same(kernel(body, 2), [np.arange(8, dtype=np.uint32), np.zeros(32, np.uint32)])


def test_atomics_of_many_blocks_keep_their_order() -> None:
    """Floating-point sums depend on it."""
    body = f"{_OWN}ld.global.b32 %r9, [%d1]; red.global.add.f32 [%a1], %r9;"
    data = np.random.default_rng(2).standard_normal(256 * 64).astype(np.float32)
    first = assert_same(kernel(body, 2), [data, np.zeros(1, np.float32)], grid=64, block=256)
    again = assert_same(kernel(body, 2), [data, np.zeros(1, np.float32)], grid=64, block=256)
    assert first[1].tobytes() == again[1].tobytes()


def test_module_variables_and_generic_addresses() -> None:
    before = ".shared .align 4 .b8 tile[256];\n.global .align 4 .b32 table[4] = {5, 6, 7, 8};\n"
    body = """.local .align 4 .b8 own[8];
and.b32 %r4, %r0, 3; mul.wide.u32 %d3, %r4, 4; mov.u64 %d4, table; add.u64 %d4, %d4, %d3; ld.global.b32 %r5, [%d4];
mov.u64 %d6, tile; cvta.shared.u64 %d6, %d6; mul.wide.u32 %d7, %r0, 4; add.u64 %d6, %d6, %d7; st.b32 [%d6], %r5;
mov.u64 %d8, own; cvta.local.u64 %d8, %d8; st.b32 [%d8+4], %r0; bar.sync 0; ld.b32 %r6, [%d6]; ld.b32 %r7, [%d8+4];
add.u32 %r6, %r6, %r7; add.u64 %d9, %a0, %d7; st.b32 [%d9], %r6;"""
    (out,) = assert_same(kernel(body, 1, before=before), [np.zeros(64, np.uint32)], block=64)
    assert out.tolist() == [5 + t % 4 + t for t in range(64)]


def test_async_copies() -> None:
    body = """.reg .b64 %z; mul.wide.u32 %d3, %r0, 16; add.u64 %d4, %a0, %d3; mov.u64 %d5, tile; add.u64 %d5, %d5, %d3;
cp.async.cg.shared.global [%d5], [%d4], 16; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
xor.b64 %d6, %d3, 16; mov.u64 %d5, tile; add.u64 %d5, %d5, %d6; ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%d5];
add.u64 %d4, %a1, %d3; st.global.v4.b32 [%d4], {%r1, %r2, %r3, %r4};"""
    data = np.arange(256, dtype=np.uint32)
    assert_same(
        kernel(body, 2, before=".shared .align 16 .b8 tile[1024];\n"), [data, np.zeros(256, np.uint32)], block=64
    )


@pytest.mark.parametrize("block", [32, 64, 100, 256])
def test_reduction_through_shared_memory_with_barriers(block: int) -> None:
    body = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %d0, %r3, 4;
add.u64 %d1, %a0, %d0; ld.global.b32 %r9, [%d1]; shl.b32 %r4, %r0, 2; mov.u32 %r5, tile; add.u32 %r4, %r4, %r5;
st.shared.b32 [%r4], %r9; mov.b32 %r6, 1;
$l: bar.sync 0; shl.b32 %r7, %r6, 2; add.u32 %r10, %r0, %r6; setp.ge.u32 %p1, %r10, %r2; mov.b32 %r11, 0; @%p1 bra $no;
add.u32 %r8, %r4, %r7; ld.shared.b32 %r11, [%r8];
$no: bar.sync 0; ld.shared.b32 %r12, [%r4]; add.u32 %r12, %r12, %r11; st.shared.b32 [%r4], %r12;
shl.b32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, %r2; @%p2 bra $l;
bar.sync 0; ld.shared.b32 %r13, [tile]; add.u64 %d2, %a1, %d0; st.global.b32 [%d2], %r13;"""
    data = np.random.default_rng(0).integers(0, 1000, 12 * block).astype(np.uint32)
    out = assert_same(
        kernel(body, 2, before=".shared .align 4 .b8 tile[1024];\n"), [data, np.zeros_like(data)], grid=12, block=block
    )
    assert out[1].tolist() == np.repeat(data.reshape(12, block).sum(axis=1), block).tolist()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_index_arithmetic(seed: int) -> None:
    """Chains of the operations that keep numbers scalar, on %tid, %ctaid, a parameter and constants, 32 and 64 bits."""
    rng = np.random.default_rng(seed)
    lines = ["mov.u32 %r1, %ctaid.x; mov.b32 %r2, %s1; mov.u32 %r3, %ntid.x; mov.u32 %r4, %laneid;"]
    live = ["%r0", "%r1", "%r2", "%r3", "%r4"]
    for step in range(5, 22):
        a, b = (live[int(n)] for n in rng.integers(0, len(live), 2))
        constant = int(rng.choice([0, 1, 2, 3, 4, 7, 31, 32, 124, 127, 255, -1, -4, -32, -128, 1 << 20, 0xFFFF0000]))
        shift = int(rng.integers(0, 31))
        lines.append(
            str(
                rng.choice(
                    [
                        f"add.u32 %r{step}, {a}, {b};", f"sub.u32 %r{step}, {a}, {b};",
                        f"add.u32 %r{step}, {a}, {constant};",
                        f"mul.lo.u32 %r{step}, {a}, {constant};", f"shl.b32 %r{step}, {a}, {shift % 8};",
                        f"shr.u32 %r{step}, {a}, {shift % 8};", f"shr.s32 %r{step}, {a}, {shift};",
                        f"and.b32 %r{step}, {a}, {constant};", f"or.b32 %r{step}, {a}, {b};",
                        f"mad.lo.u32 %r{step}, {a}, {constant}, {b};", f"neg.s32 %r{step}, {a};",
                        f"xor.b32 %r{step}, {a}, {constant};", f"or.b32 %r{step}, {a}, {constant};",
                        f"cvt.u16.u32 %h1, {a}; cvt.u32.u16 %r{step}, %h1;",
                        f"cvt.u64.u32 %d1, {a}; mul.lo.u64 %d1, %d1, {constant}; shr.u64 %d1, %d1, {shift};"
                        f" cvt.u32.u64 %r{step}, %d1;",
                        f"cvt.s64.s32 %d1, {a}; add.s64 %d1, %d1, {constant}; shr.s64 %d1, %d1, {shift};"
                        f" cvt.u32.u64 %r{step}, %d1;",
                        f"mul.wide.u32 %d1, {a}, {abs(constant)}; shr.u64 %d1, %d1, 7; cvt.u32.u64 %r{step}, %d1;",
                        f"mul.wide.s32 %d1, {a}, {constant if constant < 1 << 31 else 3}; cvt.u32.u64 %r{step}, %d1;",
                        f"mad.wide.u32 %d1, {a}, 4, {constant}; cvt.u32.u64 %r{step}, %d1;",
                    ]
                )
            )
        )  # fmt: skip
        live.append(f"%r{step}")
    lines.append("mad.lo.u32 %r40, %r1, %r3, %r0; mul.wide.u32 %d2, %r40, 68; add.u64 %d2, %d2, %a0;")
    lines += [f"st.global.b32 [%d2+{4 * (step - 5)}], %r{step};" for step in range(5, 22)]
    # The scalar is parameter 1.
    text = kernel("\n".join(lines), 1, ["u32"])
    scalar = np.uint32(rng.integers(0, 1 << 32))
    assert_same(text, [np.zeros((3 * 64, 17), np.uint32), scalar], grid=3, block=64)


class _Program:
    """A random structured program on ``%r10..%r17``; conditions are the same for all threads, a block, or differ."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.labels = 0
        self.lines: list[str] = []

    def text(self) -> str:
        self.lines = ["mov.u32 %r30, %ctaid.x; mov.b32 %r31, %s1; mov.b32 %r40, 0; mov.b32 %r41, 0; mov.b32 %r42, 0;"]
        self.lines += [f"mov.b32 %r{n}, {int(self.rng.integers(0, 9))};" for n in range(10, 18)]
        self.statements(3)
        self.lines.append("mad.lo.u32 %r60, %r30, 64, %r0; mul.wide.u32 %d0, %r60, 32; add.u64 %d0, %d0, %a0;")
        self.lines += [f"st.global.b32 [%d0+{4 * n}], %r{10 + n};" for n in range(8)]
        return kernel("\n".join(self.lines), 1, ["u32"])

    def register(self) -> str:
        return f"%r{int(self.rng.integers(10, 18))}"

    def condition(self) -> str:
        """Code that sets ``%p1``."""
        source = str(self.rng.choice(["%r0", "%r30", "%r31", self.register(), self.register()]))
        return (
            f"and.b32 %r50, {source}, {int(self.rng.integers(1, 8))}; "
            f"setp.{self.rng.choice(['eq', 'ne', 'lt'])}.u32 %p1, %r50, {int(self.rng.integers(0, 4))};"
        )

    def statements(self, depth: int) -> None:
        for _ in range(int(self.rng.integers(1, 4))):
            kind = int(self.rng.integers(0, 6)) if depth else 0
            if kind <= 1:
                self.assignment()
            elif kind <= 3:
                self.branch(depth)
            elif kind == 4:
                self.loop(depth)
            else:
                self.lines.append(f"{self.condition()} @%p1 add.u32 {self.register()}, {self.register()}, 3;")

    def assignment(self) -> None:
        a, b, c = (self.register() for _ in range(3))
        self.lines.append(
            str(
                self.rng.choice(
                    [
                        f"add.u32 {a}, {b}, {c};", f"add.u32 {a}, {b}, %r0;", f"mad.lo.u32 {a}, {b}, 3, %r30;",
                        f"xor.b32 {a}, {b}, {int(self.rng.integers(0, 99))};", f"mov.b32 {a}, %r31;",
                        f"shl.b32 {a}, %r0, 2;", f"activemask.b32 {a};",
                        f"mov.b32 {a}, {int(self.rng.integers(0, 9))};",
                        f"cvt.u64.u32 %d3, {b}; mul.lo.u64 %d3, %d3, 3; cvt.u32.u64 {a}, %d3;",
                    ]
                )
            )
        )  # fmt: skip

    def branch(self, depth: int) -> None:
        self.labels += 1
        other, end = f"$O{self.labels}", f"$E{self.labels}"
        self.lines.append(f"{self.condition()} @%p1 bra {other};")
        self.statements(depth - 1)
        self.lines.append(f"bra {end};\n{other}:")
        if self.rng.integers(0, 2):
            self.statements(depth - 1)
        self.lines.append(f"{end}: mov.b32 %r51, 0;")

    def loop(self, depth: int) -> None:
        """At most 8 rounds, counted for each thread; may go back or leave early."""
        self.labels += 1
        head, end, counter = f"$L{self.labels}", f"$X{self.labels}", f"%r{39 + depth}"
        self.lines.append(f"mov.b32 {counter}, 0;\n{head}: add.u32 {counter}, {counter}, 1;")
        self.lines.append(f"setp.gt.u32 %p2, {counter}, 7; @%p2 bra {end};")
        self.statements(depth - 1)
        if self.rng.integers(0, 2):
            self.lines.append(f"{self.condition()} @%p1 bra {head if self.rng.integers(0, 2) else end};")
            self.statements(depth - 1)
        self.lines.append(f"{self.condition()} @%p1 bra {head};\n{end}: mov.b32 %r51, 0;")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_control_flow(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_same(
        _Program(rng).text(), [np.zeros((3 * 64, 8), np.uint32), np.uint32(rng.integers(0, 8))], grid=3, block=64
    )
