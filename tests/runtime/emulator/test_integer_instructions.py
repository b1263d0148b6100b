"""Every integer and bit instruction against Python integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import apply, kernel, run

_NUMPY = {
    "u16": "u2",
    "s16": "i2",
    "u32": "u4",
    "s32": "i4",
    "u64": "u8",
    "s64": "i8",
    "b16": "u2",
    "b32": "u4",
    "b64": "u8",
}
_COUNT = 24


def _bits(kind: str) -> int:
    return int(kind[1:])


def _edges(kind: str) -> st.SearchStrategy[int]:
    limits = np.iinfo(_NUMPY[kind])
    low, high = int(limits.min), int(limits.max)
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, 1, max(low, -1), high // 2, high // 2 + 1]))


def _columns(kinds: list[str]) -> st.SearchStrategy[list[list[int]]]:
    return st.tuples(*(st.lists(_edges(k), min_size=_COUNT, max_size=_COUNT) for k in kinds)).map(list)


def _check(
    mnemonic: str, result: str, kinds: list[str], data: Any, reference: Callable[..., int], tail: str = ""
) -> None:
    columns = data.draw(_columns(kinds))
    arrays = [np.array(c, _NUMPY[k]) for c, k in zip(columns, kinds, strict=True)]
    got = apply(mnemonic, result, kinds, arrays, f"u{_bits(result) // 8}", tail)
    want = [reference(*row) % (1 << _bits(result)) for row in zip(*columns, strict=True)]
    assert got.tolist() == want


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("op", sorted(_BINARY))
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_arithmetic_wraps(op: str, kind: str, data: Any) -> None:
    _check(f"{op}.{kind}", kind, [kind, kind], data, _BINARY[op])


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_upper_half_of_a_product(kind: str, data: Any) -> None:
    _check(f"mul.hi.{kind}", kind, [kind, kind], data, lambda a, b: (a * b) >> _bits(kind))


@pytest.mark.parametrize(("kind", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_wide_products(kind: str, wide: str, data: Any) -> None:
    _check(f"mul.wide.{kind}", wide, [kind, kind], data, lambda a, b: a * b)
    _check(f"mad.wide.{kind}", wide, [kind, kind, wide], data, lambda a, b, c: a * b + c)
    _check(f"mad.lo.{kind}", kind, [kind, kind, kind], data, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_division_truncates_towards_zero(kind: str, data: Any) -> None:
    columns = data.draw(_columns([kind, kind]))
    columns[1] = [b if b else 1 for b in columns[1]]
    lowest = int(np.iinfo(_NUMPY[kind]).min)
    columns[1] = [2 if (a == lowest and b == -1) else b for a, b in zip(*columns, strict=True)]
    arrays = [np.array(c, _NUMPY[kind]) for c in columns]
    pairs = list(zip(*columns, strict=True))
    modulus = 1 << _bits(kind)
    unsigned = f"u{_bits(kind) // 8}"
    assert apply(f"div.{kind}", kind, [kind, kind], arrays, unsigned).tolist() == [
        _truncated(a, b) % modulus for a, b in pairs
    ]
    want = [(a - _truncated(a, b) * b) % modulus for a, b in pairs]
    assert apply(f"rem.{kind}", kind, [kind, kind], arrays, unsigned).tolist() == want


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_logic(kind: str, data: Any) -> None:
    _check(f"and.{kind}", kind, [kind, kind], data, lambda a, b: a & b)
    _check(f"or.{kind}", kind, [kind, kind], data, lambda a, b: a | b)
    _check(f"xor.{kind}", kind, [kind, kind], data, lambda a, b: a ^ b)
    _check(f"not.{kind}", kind, [kind], data, lambda a: ~a)
    _check(f"cnot.{kind}", kind, [kind], data, lambda a: int(a == 0))


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64"])
@settings(max_examples=4, deadline=None)
@given(data=st.data(), amount=st.integers(0, 80))
def test_shifts_clamp_their_amount(kind: str, data: Any, amount: int) -> None:
    bits = _bits(kind)

    def right(a: int, n: int) -> int:
        return a >> min(n, bits)

    values = data.draw(_columns([kind]))[0]
    amounts = data.draw(
        st.lists(
            st.sampled_from([0, 1, 5, bits - 1, bits, bits + 1, 2**31, 2**32 - 1]), min_size=_COUNT, max_size=_COUNT
        )
    )
    arrays = [np.array(values, _NUMPY[kind]), np.array(amounts, np.uint32)]
    unsigned = f"u{bits // 8}"
    got = apply(f"shr.{kind}", kind, [kind, "u32"], arrays, unsigned).tolist()
    assert got == [right(a, n) % (1 << bits) for a, n in zip(values, amounts, strict=True)]
    assert apply(f"shr.{kind}", kind, [kind], arrays[:1], unsigned, f", {amount}").tolist() == [
        right(a, amount) % (1 << bits) for a in values
    ]
    if kind[0] == "b":
        got = apply(f"shl.{kind}", kind, [kind, "u32"], arrays, unsigned).tolist()
        assert got == [(a << min(n, bits)) % (1 << bits) for a, n in zip(values, amounts, strict=True)]


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_funnel_shifts(data: Any) -> None:
    kinds = ["b32", "b32", "b32"]
    _check("shf.l.wrap.b32", "b32", kinds, data, lambda a, b, c: (((b << 32) | a) << (c & 31)) >> 32)
    _check("shf.r.wrap.b32", "b32", kinds, data, lambda a, b, c: ((b << 32) | a) >> (c & 31))
    _check("shf.l.clamp.b32", "b32", kinds, data, lambda a, b, c: (((b << 32) | a) << min(c, 32)) >> 32)
    _check("shf.r.clamp.b32", "b32", kinds, data, lambda a, b, c: ((b << 32) | a) >> min(c, 32))


@pytest.mark.parametrize("kind", ["b32", "b64"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_bit_counts(kind: str, data: Any) -> None:
    bits = _bits(kind)
    _check(f"popc.{kind}", "u32", [kind], data, lambda a: bin(a).count("1"))
    _check(f"clz.{kind}", "u32", [kind], data, lambda a: bits - a.bit_length())
    _check(f"brev.{kind}", kind, [kind], data, lambda a: int(f"{a:0{bits}b}"[::-1], 2))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_find_leading_bit(kind: str, data: Any) -> None:
    def position(a: int) -> int:
        return (~a if a < 0 else a).bit_length() - 1

    _check(f"bfind.{kind}", "u32", [kind], data, position)

    def shift(a: int) -> int:
        found = position(a)
        return -1 if found < 0 else _bits(kind) - 1 - found

    _check(f"bfind.shiftamt.{kind}", "u32", [kind], data, shift)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize(("start", "length"), [(0, 8), (4, 12), (31, 1), (20, 40), (0, 0), (60, 10), (3, 64), (0, 32)])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_bit_field_extract(kind: str, start: int, length: int, data: Any) -> None:
    bits = _bits(kind)

    def reference(a: int) -> int:
        # The pseudo code of the PTX ISA: bit by bit, the sign bit is the last one of the field or of the word.
        word = a % (1 << bits)
        last = bits - 1
        sign = 0 if kind[0] == "u" or length == 0 else word >> min(start + length - 1, last) & 1
        result = 0
        for bit in range(bits):
            taken = word >> (start + bit) & 1 if bit < length and start + bit <= last else sign
            result |= taken << bit
        return result

    _check(f"bfe.{kind}", kind, [kind], data, reference, f", {start}, {length}")


@pytest.mark.parametrize("kind", ["b32", "b64"])
@pytest.mark.parametrize(("start", "length"), [(0, 8), (4, 12), (31, 1), (20, 40), (0, 0), (63, 5)])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_bit_field_insert(kind: str, start: int, length: int, data: Any) -> None:
    bits = _bits(kind)

    def reference(a: int, b: int) -> int:
        mask = (((1 << length) - 1) << start) % (1 << bits)
        return (b & ~mask) | ((a << start) & mask)

    _check(f"bfi.{kind}", kind, [kind, kind], data, reference, f", {start}, {length}")


@settings(max_examples=8, deadline=None)
@given(data=st.data(), selector=st.integers(0, 0xFFFF))
def test_byte_permutation(data: Any, selector: int) -> None:
    def reference(a: int, b: int) -> int:
        source = (a | b << 32).to_bytes(8, "little")
        result = bytearray()
        for place in range(4):
            control = selector >> 4 * place & 15
            byte = source[control & 7]
            result.append(byte if control < 8 else 255 * (byte >> 7))
        return int.from_bytes(result, "little")

    _check("prmt.b32", "b32", ["b32", "b32"], data, reference, f", {selector:#x}U")


@pytest.mark.parametrize(
    ("mode", "selector", "want"),
    [
        ("f4e", 1, [1, 2, 3, 4]),
        ("b4e", 1, [1, 0, 7, 6]),
        ("rc8", 2, [2, 2, 2, 2]),
        ("ecl", 1, [1, 1, 2, 3]),
        ("ecr", 1, [0, 1, 1, 1]),
        ("rc16", 1, [2, 3, 2, 3]),
    ],
)
def test_byte_permutation_modes(mode: str, selector: int, want: list[int]) -> None:
    a, b = np.frombuffer(bytes(range(4)), "u4"), np.frombuffer(bytes(range(4, 8)), "u4")
    got = apply(f"prmt.b32.{mode}", "b32", ["b32", "b32"], [a, b], "u4", f", {selector}")
    assert list(got.tobytes()) == want


@settings(max_examples=6, deadline=None)
@given(data=st.data(), table=st.integers(0, 255))
def test_three_input_logic(data: Any, table: int) -> None:
    def reference(a: int, b: int, c: int) -> int:
        return sum((table >> ((a >> n & 1) << 2 | (b >> n & 1) << 1 | (c >> n & 1)) & 1) << n for n in range(32))

    _check("lop3.b32", "b32", ["b32", "b32", "b32"], data, reference, f", {table}")


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_saturation_absolute_value_and_select(data: Any) -> None:
    low, high = -(2**31), 2**31 - 1
    _check("add.sat.s32", "s32", ["s32", "s32"], data, lambda a, b: min(max(a + b, low), high))
    _check("sub.sat.s32", "s32", ["s32", "s32"], data, lambda a, b: min(max(a - b, low), high))
    _check("abs.s64", "s64", ["s64"], data, abs)
    _check("neg.s32", "s32", ["s32"], data, lambda a: -a)
    _check("sad.s32", "s32", ["s32", "s32", "s32"], data, lambda a, b, c: abs(a - b) + c)
    _check("slct.b32.s32", "b32", ["b32", "b32", "s32"], data, lambda a, b, c: a if c >= 0 else b)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_carry_chain_multiplies_128_bits(data: Any) -> None:
    # 64 x 64 -> 128 bits out of 32-bit pieces, as libdevice does it.
    columns = data.draw(_columns(["b64", "b64"]))
    body = """cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 3;
add.u64 %d1, %a0, %d0; ld.global.v2.b32 {%r1, %r2}, [%d1]; add.u64 %d2, %a1, %d0; ld.global.v2.b32 {%r3, %r4}, [%d2];
mul.lo.u32 %r10, %r1, %r3; mul.hi.u32 %r11, %r1, %r3;
mad.lo.cc.u32 %r11, %r1, %r4, %r11; madc.hi.u32 %r12, %r1, %r4, 0;
mad.lo.cc.u32 %r11, %r2, %r3, %r11; madc.hi.cc.u32 %r12, %r2, %r3, %r12; addc.u32 %r13, 0, 0;
mad.lo.cc.u32 %r12, %r2, %r4, %r12; madc.hi.u32 %r13, %r2, %r4, %r13;
shl.b64 %d0, %d0, 1; add.u64 %d3, %a2, %d0; st.global.v4.b32 [%d3], {%r10, %r11, %r12, %r13};"""
    a, b = (np.array(c, np.uint64) for c in columns)
    out = np.zeros(2 * _COUNT, np.uint64)
    run(kernel(body, pointers=3), [a, b, out], block=_COUNT)
    got = [int(lo) | int(hi) << 64 for lo, hi in out.reshape(-1, 2)]
    assert got == [x * y for x, y in zip(*columns, strict=True)]


@pytest.mark.parametrize("width", ["u32", "u64"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_borrow_chain_subtracts_double_width(width: str, data: Any) -> None:
    bits = _bits(width)
    register, size = ("%r", 4) if width == "u32" else ("%d", 8)
    columns = data.draw(_columns([width] * 4))
    loads = "".join(f"add.u64 %d50, %a{n}, %d0; ld.global.b{bits} {register}{n + 10}, [%d50];\n" for n in range(4))
    r = register
    body = (
        f"cvt.u64.u32 %d0, %r0; mul.lo.u64 %d0, %d0, {size};\n{loads}"
        f"sub.cc.{width} {r}20, {r}10, {r}12; subc.cc.{width} {r}21, {r}11, {r}13; subc.{width} {r}22, 0, 0;\n"
        + "".join(f"add.u64 %d50, %a{n + 4}, %d0; st.global.b{bits} [%d50], {r}{20 + n};\n" for n in range(3))
    )
    arrays = [np.array(c, _NUMPY[width]) for c in columns]
    outs = [np.zeros(_COUNT, _NUMPY[width]) for _ in range(3)]
    run(kernel(body, pointers=7), [*arrays, *outs], block=_COUNT)
    for n, (a0, a1, b0, b1) in enumerate(zip(*columns, strict=True)):
        want = (a0 + (a1 << bits) - b0 - (b1 << bits)) % (1 << 3 * bits)
        assert sum(int(o[n]) << bits * k for k, o in enumerate(outs)) == want


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_comparisons(kind: str, data: Any) -> None:
    columns = data.draw(_columns([kind, kind]))
    columns[1][::3] = columns[0][::3]
    arrays = [np.array(c, _NUMPY[kind]) for c in columns]
    names: dict[str, Callable[[int, int], bool]] = {
        "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    }  # fmt: skip
    if kind[0] == "u":
        names |= {"lo": names["lt"], "ls": names["le"], "hi": names["gt"], "hs": names["ge"]}
    for name, reference in names.items():
        got = apply(f"setp.{name}.{kind}", "pred", [kind, kind], arrays, np.uint8)
        assert got.tolist() == [int(reference(a, b)) for a, b in zip(*columns, strict=True)], name
    got = apply(f"set.lt.u32.{kind}", "u32", [kind, kind], arrays, np.uint32)
    assert got.tolist() == [0xFFFFFFFF * (a < b) for a, b in zip(*columns, strict=True)]


def test_comparison_combined_with_a_predicate_and_its_complement() -> None:
    body = """setp.lt.u32 %p1, %r0, 6; setp.ge.and.u32 %p2|%p3, %r0, 3, %p1; setp.eq.xor.u32 %p4, %r0, 5, %p1;
selp.b32 %r1, 1, 0, %p2; selp.b32 %r2, 2, 0, %p3; selp.b32 %r3, 4, 0, %p4; or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3;
cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d0, %a0, %d0; st.global.b32 [%d0], %r1;"""
    out = np.zeros(8, np.uint32)
    run(kernel(body, pointers=1), [out], block=8)
    want = [(t < 6 and t >= 3) + 2 * (t < 3 and t < 6) + 4 * ((t == 5) != (t < 6)) for t in range(8)]
    assert out.tolist() == want


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_integer_conversions(data: Any) -> None:
    def signed(value: int, bits: int) -> int:
        value %= 1 << bits
        return value - (1 << bits) if value >> (bits - 1) else value

    _check("cvt.s64.s32", "s64", ["s32"], data, lambda a: a)
    _check("cvt.u64.u32", "u64", ["u32"], data, lambda a: a)
    _check("cvt.u32.u64", "u32", ["u64"], data, lambda a: a)
    _check("cvt.s32.s8", "s32", ["s32"], data, lambda a: signed(a, 8))
    _check("cvt.u32.u8", "u32", ["u32"], data, lambda a: a & 255)
    _check("cvt.s16.s32", "s16", ["s32"], data, lambda a: a)
    _check("cvt.sat.s8.s32", "s32", ["s32"], data, lambda a: min(max(a, -128), 127))
    _check("cvt.sat.u8.s32", "s32", ["s32"], data, lambda a: min(max(a, 0), 255))
    _check("cvt.sat.s32.u32", "s32", ["u32"], data, lambda a: min(a, 2**31 - 1))
