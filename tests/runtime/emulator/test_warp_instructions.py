"""Shuffles, votes, warp reductions and atomic updates against a thread-by-thread model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import kernel, run

_STORE = "mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; st.global.b32 [%d1], %r1;\n"
_LOAD = "mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; ld.global.b32 %r2, [%d1]; add.u64 %d2, %a1, %d0;\n"


def _source(mode: str, lane: int, other: int, clamp: int) -> tuple[int, bool]:
    """Source lane and predicate, from the pseudo code of ``shfl.sync`` in the PTX ISA."""
    bound, segment = clamp & 31, clamp >> 8 & 31
    last = (lane & segment) | (bound & ~segment)
    least = lane & segment
    if mode == "up":
        source, valid = lane - other, lane - other >= last
    elif mode == "down":
        source, valid = lane + other, lane + other <= last
    elif mode == "bfly":
        source, valid = lane ^ other, lane ^ other <= last
    else:
        source = least | (other & ~segment)
        valid = source <= last
    return (source if valid else lane), valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8])
@settings(max_examples=5, deadline=None)
@given(other=st.integers(0, 31))
def test_shuffle_by_a_constant(mode: str, width: int, other: int) -> None:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    body = (
        f"{_LOAD}shfl.sync.{mode}.b32 %r1|%p1, %r2, {other}, {clamp}, -1; selp.b32 %r3, 1000, 0, %p1;\n"
        "add.u32 %r1, %r1, %r3; st.global.b32 [%d2], %r1;"
    )
    values = np.arange(64, dtype=np.uint32) + 7
    out = np.zeros(64, np.uint32)
    run(kernel(body, pointers=2), [values, out], block=64)
    for thread in range(64):
        source, valid = _source(mode, thread & 31, other, clamp)
        assert out[thread] == values[(thread & ~31) + source] + 1000 * valid


@settings(max_examples=8, deadline=None)
@given(lanes=st.lists(st.integers(0, 63), min_size=64, max_size=64))
def test_shuffle_by_a_lane_each_thread_chooses(lanes: list[int]) -> None:
    body = f"{_LOAD}shfl.sync.idx.b32 %r1, %r0, %r2, 31, -1; st.global.b32 [%d2], %r1;"
    out = np.zeros(64, np.uint32)
    run(kernel(body, pointers=2), [np.array(lanes, np.uint32), out], block=64)
    assert out.tolist() == [(t & ~31) + (lane & 31) for t, lane in enumerate(lanes)]


def test_shuffle_in_a_partial_warp_and_under_divergence() -> None:
    body = (
        "mov.b32 %r1, 0; setp.ge.u32 %p1, %r0, 20; @%p1 bra $end;\n"
        f"shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xfffff;\n$end:\n{_STORE}"
    )
    out = np.zeros(24, np.uint32)
    run(kernel(body, pointers=1), [out], block=24)
    assert out.tolist() == [t ^ 1 if t < 20 else 0 for t in range(24)]


def test_shuffle_of_a_value_equal_in_all_threads_still_has_its_predicate() -> None:
    body = f"mov.b32 %r2, 5; shfl.sync.down.b32 %r3|%p1, %r2, 4, 31, -1; selp.b32 %r1, %r3, 0, %p1;\n{_STORE}"
    out = np.zeros(32, np.uint32)
    run(kernel(body, pointers=1), [out])
    assert out.tolist() == [5] * 28 + [0] * 4


def test_warp_sum_by_butterflies_over_several_chunks() -> None:
    rounds = "".join(f"shfl.sync.bfly.b32 %r3, %r2, {n}, 31, -1; add.rn.f32 %r2, %r2, %r3;\n" for n in (16, 8, 4, 2, 1))
    body = f"""mov.u32 %r4, %ctaid.x; mad.lo.u32 %r5, %r4, 64, %r0; mul.wide.u32 %d0, %r5, 4; add.u64 %d1, %a0, %d0;
ld.global.b32 %r2, [%d1];
{rounds}
and.b32 %r6, %r0, 31; setp.ne.u32 %p1, %r6, 0; @%p1 bra $end;
shr.u32 %r7, %r5, 5; mul.wide.u32 %d2, %r7, 4; add.u64 %d2, %a1, %d2; st.global.b32 [%d2], %r2;
$end:"""
    values = np.random.default_rng(0).integers(-50, 50, 64 * 700).astype("f4")
    out = np.zeros(2 * 700, "f4")
    run(kernel(body, pointers=2), [values, out], block=64, grid=700)
    assert out.tolist() == values.reshape(-1, 32).sum(axis=1).tolist()


@settings(max_examples=8, deadline=None)
@given(bits=st.integers(0, 2**48 - 1))
def test_votes(bits: int) -> None:
    flags = [bits >> t & 1 for t in range(48)]
    body = f"""{_LOAD}setp.ne.u32 %p1, %r2, 0; vote.sync.ballot.b32 %r3, %p1, -1; vote.sync.any.pred %p2, %p1, -1;
vote.sync.all.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1; selp.b32 %r4, 1, 0, %p2; selp.b32 %r5, 2, 0, %p3;
selp.b32 %r6, 4, 0, %p4; or.b32 %r4, %r4, %r5; or.b32 %r4, %r4, %r6; shl.b64 %d0, %d0, 1; add.u64 %d2, %a1, %d0;
st.global.v2.b32 [%d2], {{%r3, %r4}};"""
    out = np.zeros(96, np.uint32)
    run(kernel(body, pointers=2), [np.array(flags, np.uint32), out], block=48)
    for thread in range(48):
        warp = flags[:32] if thread < 32 else flags[32:]
        assert out[2 * thread] == sum(flag << n for n, flag in enumerate(warp))
        assert out[2 * thread + 1] == any(warp) + 2 * all(warp) + 4 * (len(set(warp)) == 1)


@pytest.mark.parametrize(
    ("kind", "op", "function"),
    [
        ("u32", "add", lambda v: sum(v) % 2**32),
        ("s32", "min", min),
        ("s32", "max", max),
        ("u32", "max", max),
        ("b32", "and", lambda v: int(np.bitwise_and.reduce(v))),
        ("b32", "xor", lambda v: int(np.bitwise_xor.reduce(v))),
    ],
)
def test_warp_reduction_of_the_active_threads(kind: str, op: str, function: Callable[[Any], int]) -> None:
    body = f"""{_LOAD}setp.lt.u32 %p1, %r0, 3; @%p1 bra $end;
redux.sync.{op}.{kind} %r1, %r2, 0xfffffff8; st.global.b32 [%d2], %r1;
$end:"""
    dtype = np.int32 if kind[0] == "s" else np.uint32
    values = np.random.default_rng(1).integers(-(2**31), 2**31, 32).astype(dtype)
    out = np.zeros(32, dtype)
    run(kernel(body, pointers=2), [values, out])
    assert out.tolist() == [0] * 3 + [function(values[3:].tolist())] * 29


def test_active_mask_and_lane_masks() -> None:
    body = f"""mov.b32 %r1, 0; setp.lt.u32 %p1, %r0, 4; @!%p1 bra $end;
activemask.b32 %r1; mov.u32 %r2, %lanemask_lt; mov.u32 %r3, %lanemask_ge; xor.b32 %r2, %r2, %r3; add.u32 %r2, %r2, 1;
add.u32 %r1, %r1, %r2;
$end:
{_STORE}"""
    out = np.zeros(32, np.uint32)
    run(kernel(body, pointers=1), [out])
    assert out.tolist() == [15] * 4 + [0] * 28


_ATOMICS: list[tuple[str, str, Any, Callable[[int, int], int]]] = [
    ("add", "u32", "u4", lambda old, v: old + v),
    ("add", "u64", "u8", lambda old, v: old + v),
    ("min", "s32", "i4", min),
    ("max", "u64", "u8", max),
    ("and", "b32", "u4", lambda old, v: old & v),
    ("or", "b64", "u8", lambda old, v: old | v),
    ("xor", "b32", "u4", lambda old, v: old ^ v),
    ("exch", "b32", "u4", lambda old, v: v),
    ("inc", "u32", "u4", lambda old, v: 0 if old >= v else old + 1),
    ("dec", "u32", "u4", lambda old, v: v if old == 0 or old > v else old - 1),
]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("op", "kind", "dtype", "step"), _ATOMICS, ids=lambda x: x if isinstance(x, str) else "")
def test_atomics_return_the_old_value_in_thread_order(
    op: str, kind: str, dtype: Any, step: Callable[[int, int], int], space: str
) -> None:
    size = int(kind[1:]) // 8
    r = "%r" if size == 4 else "%d"
    target = "%d10" if space == "global" else "%r30"
    place = {
        "global": f"mul.wide.u32 %d10, %r1, {size}; add.u64 %d10, %a1, %d10;\n",
        "shared": f"mov.u32 %r31, cells; mad.lo.u32 %r30, %r1, {size}, %r31;\n"
        f"setp.ne.u32 %p1, %r0, %r1; @%p1 bra $go;\nmul.wide.u32 %d11, %r1, {size}; add.u64 %d11, %a1, %d11;\n"
        f"ld.global.b{8 * size} {r}40, [%d11]; st.shared.b{8 * size} [%r30], {r}40;\n$go: bar.sync 0;\n",
    }[space]
    back = {
        "global": "",
        "shared": f"bar.sync 0; ld.shared.b{8 * size} {r}40, [%r30]; mul.wide.u32 %d11, %r1, {size};\n"
        f"add.u64 %d11, %a1, %d11; st.global.b{8 * size} [%d11], {r}40;",
    }[space]
    body = (
        f"rem.u32 %r1, %r0, 3; mul.wide.u32 %d0, %r0, {size}; add.u64 %d1, %a0, %d0;\n"
        f"ld.global.b{8 * size} {r}20, [%d1];\n"
        f"{place}atom.{space}.{op}.{kind} {r}21, [{target}], {r}20;\n"
        f"add.u64 %d2, %a2, %d0; st.global.b{8 * size} [%d2], {r}21;\n{back}"
    )
    rng = np.random.default_rng(9)
    values = rng.integers(0, 9, 40).astype(dtype)
    cells = rng.integers(0, 9, 3).astype(dtype)
    want_cells, want_old = cells.tolist(), []
    for thread, value in enumerate(values.tolist()):
        want_old.append(want_cells[thread % 3])
        want_cells[thread % 3] = step(want_cells[thread % 3], value)
    old = np.zeros(40, dtype)
    run(kernel(body, 3, before=".shared .align 8 .b8 cells[24];\n"), [values, cells, old], block=40)
    assert cells.tolist() == want_cells
    assert old.tolist() == want_old


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("f32", np.float32), ("f64", np.float64), ("noftz.f16", np.float16), ("noftz.bf16", ml_dtypes.bfloat16)],
)
def test_float_atomics_add_in_thread_order(kind: str, dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    r = {2: "%h", 4: "%r", 8: "%d"}[size]
    body = (
        f"mul.wide.u32 %d0, %r0, {size}; add.u64 %d1, %a0, %d0; ld.global.b{8 * size} {r}20, [%d1];\n"
        f"red.global.add.{kind} [%a1], {r}20;"
    )
    values = np.random.default_rng(2).standard_normal(64).astype(dtype)
    total = np.zeros(1, dtype)
    run(kernel(body, pointers=2), [values, total], block=64)
    want = dtype(0)
    for value in values:
        want = dtype(want + value)
    assert total[0] == want


def test_compare_and_swap_loop_takes_the_maximum_of_all_blocks() -> None:
    body = """mov.u32 %r4, %ctaid.x; mad.lo.u32 %r5, %r4, 32, %r0; mul.wide.u32 %d0, %r5, 4; add.u64 %d1, %a0, %d0;
ld.global.b32 %r1, [%d1]; ld.global.b32 %r2, [%a1];
$again: max.NaN.f32 %r3, %r2, %r1; atom.acq_rel.sys.global.cas.b32 %r6, [%a1], %r2, %r3; setp.ne.b32 %p1, %r6, %r2;
mov.b32 %r2, %r6; @%p1 bra $again;"""
    values = np.random.default_rng(3).standard_normal(320).astype("f4")
    best = np.full(1, -np.inf, "f4")
    run(kernel(body, pointers=2), [values, best], grid=10)
    assert best[0] == values.max()


def test_blocks_that_wait_for_each_other_run_in_a_cooperative_launch() -> None:
    body = """mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r0, 0; @%p1 bra $wait;
atom.global.add.u32 %r2, [%a0], 1; mov.u32 %r3, %nctaid.x;
$spin: ld.acquire.gpu.global.b32 %r4, [%a0]; setp.lt.u32 %p2, %r4, %r3; @%p2 bra $spin;
$wait: bar.sync 0; ld.volatile.global.b32 %r5, [%a0]; mad.lo.u32 %r6, %r1, 32, %r0; mul.wide.u32 %d0, %r6, 4;
add.u64 %d1, %a1, %d0; st.global.b32 [%d1], %r5;"""
    out = np.zeros(32 * 900, np.uint32)
    run(kernel(body, pointers=2), [np.zeros(1, np.uint32), out], grid=900, cooperative=True)
    assert (out == 900).all()
