"""Instructions beyond what LLVM prints for our kernels: newer chips, other compilers, hints that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact import round_exact
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import apply, kernel, run

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import emulator

_COUNT = 24
_WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=_COUNT, max_size=_COUNT)
_SMALL = st.lists(st.integers(0, 40), min_size=_COUNT, max_size=_COUNT)
_LOAD = "mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; ld.global.b32 %r2, [%d1]; add.u64 %d2, %a1, %d0;\n"


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _apply_words(mnemonic: str, columns: list[list[int]]) -> list[int]:
    arrays = [np.array(column, np.uint32) for column in columns]
    return apply(mnemonic, "b32", ["b32"] * len(columns), arrays, np.uint32).tolist()


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@settings(max_examples=6, deadline=None)
@given(position=_SMALL, width=_SMALL)
def test_bit_mask(mode: str, position: list[int], width: list[int]) -> None:
    def expected(start: int, count: int) -> int:
        if mode == "wrap":
            start, count = start & 31, count & 31
        return ((1 << count) - 1) << start & 0xFFFFFFFF

    pairs = list(zip(position, width, strict=True))
    assert _apply_words(f"bmsk.{mode}.b32", [position, width]) == [expected(*pair) for pair in pairs]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("kind", ["u32", "s32"])
@settings(max_examples=6, deadline=None)
@given(value=_WORDS, width=_SMALL)
def test_extension_of_a_field(mode: str, kind: str, value: list[int], width: list[int]) -> None:
    def expected(word: int, count: int) -> int:
        count = min(count, 32) if mode == "clamp" else count & 31
        field = word & ((1 << count) - 1)
        return (_signed(field, count) if kind == "s32" and count else field) & 0xFFFFFFFF

    pairs = list(zip(value, width, strict=True))
    assert _apply_words(f"szext.{mode}.{kind}", [value, width]) == [expected(*pair) for pair in pairs]


@pytest.mark.parametrize("kind", ["u32", "s32"])
@settings(max_examples=6, deadline=None)
@given(a=_WORDS, b=_WORDS, c=_WORDS)
def test_products_of_24_bits(kind: str, a: list[int], b: list[int], c: list[int]) -> None:
    read: Callable[[int], int] = (lambda v: _signed(v, 24)) if kind == "s32" else (lambda v: v & 0xFFFFFF)
    products = [read(x) * read(y) for x, y in zip(a, b, strict=True)]
    assert _apply_words(f"mul24.lo.{kind}", [a, b]) == [p & 0xFFFFFFFF for p in products]
    assert _apply_words(f"mul24.hi.{kind}", [a, b]) == [(p >> 16) & 0xFFFFFFFF for p in products]
    found = _apply_words(f"mad24.lo.{kind}", [a, b, c])
    assert found == [(p + z) & 0xFFFFFFFF for p, z in zip(products, c, strict=True)]


@pytest.mark.parametrize("kinds", ["u32.u32", "u32.s32", "s32.u32", "s32.s32"])
@settings(max_examples=6, deadline=None)
@given(a=_WORDS, b=_WORDS, c=_WORDS)
def test_dot_product_of_bytes(kinds: str, a: list[int], b: list[int], c: list[int]) -> None:
    first, second = kinds.split(".")

    def part(word: int, byte: int, kind: str) -> int:
        value = word >> (8 * byte) & 255
        return _signed(value, 8) if kind == "s32" else value

    expected = [
        (z + sum(part(x, n, first) * part(y, n, second) for n in range(4))) & 0xFFFFFFFF
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert _apply_words(f"dp4a.{kinds}", [a, b, c]) == expected


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_pairs_of_singles_round_once_each(op: str, mode: str) -> None:
    random = np.random.default_rng(5)
    values = [(random.standard_normal(2 * _COUNT) * 10.0**-n).astype(np.float32) for n in range(3)]
    count = 3 if op == "fma" else 2
    words = [v.view(np.uint64) for v in values[:count]]
    got = apply(f"{op}.{mode}.f32x2", "b64", ["b64"] * count, words, np.uint64).view(np.float32)
    for position, result in enumerate(got.tolist()):
        a, b, c = (Fraction(float(v[position])) for v in values)
        exact = {"add": a + b, "sub": a - b, "mul": a * b, "fma": a * b + c}[op]
        assert result == round_exact(exact, "f32", mode)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
def test_minimum_and_maximum_of_three(op: str, nan: str) -> None:
    values = [np.array(column, np.float32) for column in ([1, np.nan, -0.0, 5], [2, 3, 0.0, np.nan], [0.5, 4, 0, 7])]
    got = apply(f"{op}{nan}.f32", "f32", ["f32"] * 3, values, np.float32)
    for position, result in enumerate(got):
        row = [float(v[position]) for v in values]
        numbers = [v for v in row if v == v]
        if nan and len(numbers) < 3:
            assert np.isnan(result)
        else:
            assert result == (min(numbers) if op == "min" else max(numbers))


def test_minimum_and_maximum_of_magnitudes_with_the_product_of_the_signs() -> None:
    a, b = np.array([-3, 2, -1, 4], np.float32), np.array([2, -5, -6, 3], np.float32)
    sign = np.sign(a) * np.sign(b)
    for op, pick in (("min", np.minimum), ("max", np.maximum)):
        got = apply(f"{op}.xorsign.abs.f32", "f32", ["f32", "f32"], [a, b], np.float32)
        assert got.tolist() == (sign * pick(np.abs(a), np.abs(b))).tolist()


@pytest.mark.parametrize("op", ["min", "max"])
def test_integer_minimum_and_maximum_with_relu(op: str) -> None:
    a, b = np.array([-3, 2, -1], np.int32), np.array([-2, -5, 6], np.int32)
    got = apply(f"{op}.relu.s32", "s32", ["s32", "s32"], [a, b], np.int32)
    assert got.tolist() == [max(0, min(x, y) if op == "min" else max(x, y)) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("form", ["and", "or", "xor"])
def test_comparison_combined_with_a_negated_predicate(form: str) -> None:
    body = f"""{_LOAD}setp.gt.u32 %p1, %r2, 5; setp.lt.{form}.u32 %p2, %r0, 4, !%p1; selp.b32 %r3, 1, 0, %p2;
st.global.b32 [%d2], %r3;"""
    values, out = np.array([9, 1, 9, 1, 9, 1, 9, 1], np.uint32), np.zeros(8, np.uint32)
    run(kernel(body, pointers=2), [values, out], block=8)
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[form]
    assert out.tolist() == combine(np.arange(8) < 4, ~(values > 5)).astype(int).tolist()


@settings(max_examples=8, deadline=None)
@given(values=st.lists(st.integers(0, 3), min_size=48, max_size=48), outside=st.integers(0, 31))
def test_match_and_elect(values: list[int], outside: int) -> None:
    body = f"""{_LOAD}setp.eq.u32 %p1, %r0, {outside}; @%p1 bra $end;
mov.u32 %r9, {0xFFFFFFFF & ~(1 << outside)}; setp.ge.u32 %p2, %r0, 32; selp.b32 %r9, 0xffff, %r9, %p2;
match.any.sync.b32 %r3, %r2, %r9; match.all.sync.b32 %r4|%p3, %r2, %r9; selp.b32 %r5, 1, 0, %p3;
elect.sync %r6|%p4, %r9; selp.b32 %r7, 1, 0, %p4; mul.wide.u32 %d3, %r0, 20; add.u64 %d3, %a1, %d3;
st.global.b32 [%d3], %r3; st.global.b32 [%d3+4], %r4; st.global.b32 [%d3+8], %r5; st.global.b32 [%d3+12], %r6;
st.global.b32 [%d3+16], %r7;
$end: mov.b32 %r1, 0;"""
    out = np.zeros((48, 5), np.uint32)
    run(kernel(body, pointers=2), [np.array(values, np.uint32), out], block=48)
    for first in (0, 32):
        members = [t for t in range(first, min(first + 32, 48)) if t != outside]
        every = sum(1 << (t - first) for t in members)
        same = len({values[t] for t in members}) == 1
        for thread in members:
            equal = sum(1 << (t - first) for t in members if values[t] == values[thread])
            leads = thread == members[0]
            assert out[thread].tolist() == [equal, every if same else 0, same, members[0] - first, leads]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("form", ["", ".abs", ".NaN", ".abs.NaN"])
def test_warp_reduction_of_floats(op: str, form: str) -> None:
    values = np.random.default_rng(1).standard_normal(32).astype(np.float32)
    values[5] = np.nan
    out = np.zeros(32, np.float32)
    run(kernel(f"{_LOAD}redux.sync.{op}{form}.f32 %r3, %r2, -1; st.global.b32 [%d2], %r3;", 2), [values, out])
    seen = np.abs(values) if "abs" in form else values
    pick = getattr(np, f"{'' if 'NaN' in form else 'nan'}{op}")
    assert set(out.view(np.uint32).tolist()) == {int(np.float32(pick(seen)).view(np.uint32))}


@pytest.mark.parametrize(("kind", "dtype"), [("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)])
def test_packed_atomic_sums_and_their_old_values(kind: str, dtype: Any) -> None:
    body = f"""{_LOAD}atom.global.add.noftz.{kind} %r3, [%a2], %r2; st.global.b32 [%d2], %r3;"""
    values = np.arange(16, dtype=np.float32).astype(dtype)
    old, total = np.zeros(16, dtype), np.array([100, -100], dtype)
    run(kernel(body, pointers=3), [values, old, total], block=8)
    pairs = values.astype(np.float32).reshape(8, 2)
    before = np.cumsum(pairs, axis=0) - pairs + np.array([100, -100])
    assert old.astype(np.float32).reshape(8, 2).tolist() == before.tolist()
    assert total.astype(np.float32).tolist() == [100 + 56, -100 + 64]


def test_vector_reductions_update_every_element() -> None:
    body = """mov.b32 %r1, 0f3F800000; mov.b32 %r2, 0f40000000;
red.global.add.v2.f32 [%a0], {%r1, %r2}; red.relaxed.gpu.global.add.v4.f32 [%a0+16], {%r1, %r2, %r1, %r2};"""
    out = np.zeros(8, np.float32)
    counters = run(kernel(body, pointers=1), [out], block=8)
    assert out.tolist() == [8, 16, 0, 0, 8, 16, 8, 16]
    assert counters.bytes_stored == 8 * 24


def test_hints_for_caches_and_schedulers_change_nothing() -> None:
    body = f"""{_LOAD}createpolicy.fractional.L2::evict_first.b64 %d9, 0f3F800000; prefetch.global.L2 [%d1];
prefetch.global.L2::evict_last [%d1]; applypriority.global.L2::evict_normal [%a0], 128; griddepcontrol.wait;
ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.b32 %r3, [%d1], %d9;
ld.relaxed.sys.global.L1::evict_last.b32 %r4, [%d1]; ld.volatile.global.b32 %r5, [%d1]; ldu.global.b32 %r6, [%d1];
add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5; add.u32 %r3, %r3, %r6; st.global.L2::cache_hint.b32 [%d2], %r3, %d9;
st.global.cs.b32 [%d2], %r3; st.mmio.relaxed.sys.global.b32 [%d2], %r3; fence.proxy.async; nanosleep.u32 %r3;
fence.mbarrier_init.release.cluster; setmaxnreg.inc.sync.aligned.u32 64; griddepcontrol.launch_dependents;"""
    out = np.zeros(8, np.uint32)
    run(kernel(body, pointers=2), [np.arange(8, dtype=np.uint32), out], block=8)
    assert out.tolist() == [4 * n for n in range(8)]


def test_space_of_a_generic_address() -> None:
    body = """mov.u64 %d1, tile; cvta.shared.u64 %d1, %d1; isspacep.shared %p1, %d1; isspacep.global %p2, %d1;
isspacep.shared %p3, %a0; isspacep.global %p4, %a0; selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2;
selp.b32 %r3, 4, 0, %p3; selp.b32 %r4, 8, 0, %p4; or.b32 %r1, %r1, %r2; or.b32 %r3, %r3, %r4; or.b32 %r1, %r1, %r3;
st.shared.b32 [tile], %r1; setp.eq.u32 %p5, %r0, 0; selp.b64 %d2, %d1, %a0, %p5; ld.b32 %r5, [%d2];
mul.wide.u32 %d3, %r0, 4; add.u64 %d3, %a0, %d3; st.global.b32 [%d3+4], %r5;"""
    out = np.array([77, 0, 0], np.uint32)
    run(kernel(body, pointers=1, before=".shared .align 16 .b8 tile[16];\n"), [out], block=2)
    assert out.tolist() == [77, 9, 77]


def test_sizes_of_shared_memory_and_of_a_warp() -> None:
    body = """mov.u32 %r1, %dynamic_smem_size; mov.u32 %r2, %total_smem_size; mov.u32 %r3, WARP_SZ; mov.u32 %r4, tile;
st.global.v4.b32 [%a0], {%r1, %r2, %r3, %r4};"""
    before = ".shared .align 16 .b8 tile[32];\n.extern .shared .align 16 .b8 more[];\n"
    out = np.zeros(4, np.uint32)
    run(kernel(body + "\nmov.u32 %r5, more;", pointers=1, before=before), [out], block=1, shared_bytes=96)
    assert out.tolist() == [96, 128, 32, 0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("wgmma.fence.sync.aligned;", "unknown instruction 'wgmma'"),
        ("mma.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};", "'.m16n8k64' is not supported"),
        (
            "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
            "needs a shape, .row and .col",
        ),
        ("bar.red.u32 %r1, 0, %p1;", "names no operation"),
        ("bar.red.popc.u32 %r1, 0, %r2;", "register %r2 is no predicate"),
        ("atom.global.min.f32 %r1, [%a0], %r2;", "has no min of f32"),
        ("cp.async.bulk.commit_group;", "unknown modifier '.bulk'"),
        ("add.u32 %r1, %r2, !%r3;", "only a predicate can be negated"),
        ("setp.lt.and.u32 %p1, %r1, %r2, !%r3;", "only a predicate can be negated"),
    ],
)
def test_what_is_not_known_is_refused_with_line_and_kernel(line: str, reason: str) -> None:
    text = kernel(f"mov.b32 %r2, 0;\n{line} // HERE", pointers=1)
    number = next(n for n, part in enumerate(text.splitlines(), 1) if "HERE" in part)
    with pytest.raises(LaunchError) as caught:
        emulator.load(text).engine("k")
    assert reason in str(caught.value)
    assert f"line {number}" in str(caught.value)
