"""Floating-point instructions round once, in the direction asked for: judged by exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact import FORMATS, round_exact
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import apply, compile_gpu, elementwise, kernel, run

from mlirstitch.runtime import emulator

_DTYPE: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
_COUNT = 48
_EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-3, 65504.0, float("inf"), float("-inf"), float("nan")]


def _values(kind: str, rng: np.random.Generator, spread: int) -> Any:
    """Numbers of all sizes, near ties and near each other's negation, in the format."""
    numbers = rng.standard_normal(_COUNT) * np.exp2(rng.integers(-spread, spread, _COUNT).astype(float))
    numbers[: len(_EDGES)] = rng.permutation(_EDGES)
    with np.errstate(all="ignore"):
        return numbers.astype(_DTYPE[kind])


def _same(got: float, want: float) -> bool:
    if math.isnan(want):
        return math.isnan(got)
    return got == want and math.copysign(1, got) == math.copysign(1, want)


def _judge(got: Any, columns: list[Any], kind: str, mode: str, exactly: Callable[..., Fraction]) -> None:
    """Compare with the exact value, rounded; special values with double precision, which gets those right."""
    for result, *operands in zip(got, *columns, strict=True):
        values = [float(x) for x in operands]
        if all(math.isfinite(v) for v in values):
            try:
                want = round_exact(exactly(*(Fraction(v) for v in values)), kind, mode)
            except ZeroDivisionError:
                continue
            if want == 0:
                assert float(result) == 0, (kind, mode, values)
                continue
            assert _same(float(result), want), (kind, mode, values, float(result), want)


def _register(kind: str, array: Any) -> Any:
    return array.view(np.uint16) if kind == "bf16" else array


_CASES = [
    ("add", ["f32", "f64"], ["rn", "rz", "rm", "rp"], 2, lambda a, b: a + b),
    ("sub", ["f32", "f64"], ["rn", "rz", "rm", "rp"], 2, lambda a, b: a - b),
    ("mul", ["f32", "f64"], ["rn", "rz", "rm", "rp"], 2, lambda a, b: a * b),
    ("div", ["f32", "f64"], ["rn", "rz", "rm", "rp"], 2, lambda a, b: a / b),
    ("rcp", ["f32", "f64"], ["rn", "rz", "rm", "rp"], 1, lambda a: 1 / a),
    ("fma", ["f32", "f64"], ["rn", "rz", "rm", "rp"], 3, lambda a, b, c: a * b + c),
    ("add", ["f16", "bf16"], ["rn"], 2, lambda a, b: a + b),
    ("sub", ["f16", "bf16"], ["rn"], 2, lambda a, b: a - b),
    ("mul", ["f16", "bf16"], ["rn"], 2, lambda a, b: a * b),
    ("fma", ["f16", "bf16"], ["rn"], 3, lambda a, b, c: a * b + c),
]


@pytest.mark.parametrize(
    ("op", "kind", "mode", "arity", "exactly"),
    [(op, kind, mode, arity, f) for op, kinds, modes, arity, f in _CASES for kind in kinds for mode in modes],
)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([2, 14, 60, 130, 500]))
def test_arithmetic_rounds_once(
    op: str, kind: str, mode: str, arity: int, exactly: Callable[..., Fraction], seed: int, spread: int
) -> None:
    rng = np.random.default_rng(seed)
    spread = min(spread, FORMATS[kind][2])
    columns = [_values(kind, rng, spread) for _ in range(arity)]
    if arity > 1:
        # Cancellation, and addends of very different size.
        with np.errstate(all="ignore"):
            columns[-1][::5] = (
                -columns[0][::5].astype("f8") * (columns[1][::5].astype("f8") if arity == 3 else 1)
            ).astype(_DTYPE[kind])
    got = apply(f"{op}.{mode}.{kind}", kind, [kind] * arity, [_register(kind, c) for c in columns], _DTYPE[kind])
    _judge(got, columns, kind, mode, exactly)
    if mode == "rn" and op != "rcp":
        with np.errstate(all="ignore"):
            plain = exactly(*(c.astype("f8") for c in columns))
        special = ~np.isfinite(np.stack([c.astype("f8") for c in columns])).all(axis=0)
        for result, want in zip(got[special], plain[special], strict=True):
            assert _same(float(result), float(want)) or (math.isnan(want) and math.isnan(float(result)))


@pytest.mark.parametrize(
    ("scale", "addend"),
    [(2.0**-12, 1 + 2.0**-23), (2.0**-75, (2**22 + 1) * 2.0**-149)],
    ids=["normal result", "subnormal result"],
)
def test_fma_f32_is_not_rounded_to_double_first(scale: float, addend: float) -> None:
    # The product lies 2**-46 of itself below half a unit of the odd addend. Double precision drops that, sees a tie,
    # and a second rounding would go up to even.
    a, b, c = (np.array([v], "f4") for v in (scale * (1 + 2.0**-23), scale * (1 - 2.0**-23), addend))
    got = apply("fma.rn.f32", "f32", ["f32"] * 3, [a, b, c], np.float32)
    assert got[0] == c[0]
    assert np.float32(a.astype("f8") * b + c)[0] > c[0]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_fma_f32_near_ties(seed: int) -> None:
    """Products whose sum with the addend lies on or next to the middle between two floats."""
    rng = np.random.default_rng(seed)
    a = (rng.integers(1, 2**24, _COUNT).astype("f8") * 2.0**-40).astype("f4")
    b = (rng.integers(1, 2**12, _COUNT).astype("f8") * 2.0**-20).astype("f4")
    target = rng.integers(2**23, 2**24, _COUNT).astype("f8") + 0.5
    c = (target - a.astype("f8") * b.astype("f8")).astype("f4")
    a[::2], b[::2] = np.float32(0.5), np.float32(1 + 2.0**-23)
    c[1::4] = 2.0**-149 * rng.integers(1, 1000, c[1::4].size)
    a[1::4] = np.float32(2.0**-75) * rng.integers(1, 2**20, c[1::4].size).astype("f4")
    b[1::4] = np.float32(2.0**-75) * rng.integers(1, 2**20, c[1::4].size).astype("f4")
    got = apply("fma.rn.f32", "f32", ["f32"] * 3, [a, b, c], np.float32)
    _judge(got, [a, b, c], "f32", "rn", lambda x, y, z: x * y + z)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_square_root_rounds_once(kind: str, mode: str) -> None:
    rng = np.random.default_rng(3)
    values = np.abs(_values(kind, rng, 40))
    values = values[np.isfinite(values) & (values > 0)]
    got = apply(f"sqrt.{mode}.{kind}", kind, [kind], [values], _DTYPE[kind])
    for result, value in zip(got, values, strict=True):
        # Bracket the root by integers scaled far below the last place.
        scaled = Fraction(float(value)) * Fraction(4) ** 400
        root = math.isqrt(scaled.numerator // scaled.denominator)
        exact = root * root * scaled.denominator == scaled.numerator
        low = Fraction(root if exact else root * 2 + 1, 2**400 * (1 if exact else 2))
        assert float(result) == round_exact(low, kind, mode)


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_min_and_max_order_zeros_and_treat_nan_as_told(kind: str, op: str, nan: str) -> None:
    table = [(0.0, -0.0), (-0.0, 0.0), (1.0, 2.0), (math.nan, 3.0), (3.0, math.nan), (math.nan, math.nan), (-0.0, -0.0)]
    a, b = (np.array(column, _DTYPE[kind]) for column in zip(*table, strict=True))
    got = apply(f"{op}{nan}.{kind}", kind, [kind] * 2, [_register(kind, a), _register(kind, b)], _DTYPE[kind])
    lower = op == "min"
    want = [-0.0 if lower else 0.0] * 2 + [1.0 if lower else 2.0]
    want += [math.nan] * 2 if nan else [3.0, 3.0]
    want += [math.nan, -0.0]
    assert all(_same(float(g), w) for g, w in zip(got, want, strict=True)), got


_ORDERED: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a < b or a > b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "num": lambda a, b: a == a and b == b,
}  # fmt: skip
_UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", [*_ORDERED, *_UNORDERED, "nan"])
def test_comparisons_ordered_and_unordered(kind: str, name: str) -> None:
    points = [0.0, -0.0, 1.0, 2.0, math.inf, -math.inf, math.nan]
    pairs = [(a, b) for a in points for b in points]
    a, b = (np.array(column, _DTYPE[kind]) for column in zip(*pairs, strict=True))
    got = apply(f"setp.{name}.{kind}", "pred", [kind] * 2, [_register(kind, a), _register(kind, b)], np.uint8)
    for result, (x, y) in zip(got, pairs, strict=True):
        unordered = math.isnan(x) or math.isnan(y)
        if name == "nan":
            want = unordered
        elif name in _UNORDERED:
            want = unordered or _ORDERED[_UNORDERED[name]](x, y)
        else:
            want = _ORDERED[name](x, y)
        assert bool(result) == want, (x, y)


@pytest.mark.parametrize(
    ("target", "source"), [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64"), ("bf16", "f64")]
)
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_narrowing_conversions_round_once(target: str, source: str, mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = _values(source, rng, 20)
    # Just above and below the middle between two neighbours of the target.
    middle = (1 + rng.integers(0, 100, _COUNT) * 2.0 ** (1 - FORMATS[target][0]) + 2.0 ** -FORMATS[target][0]).astype(
        _DTYPE[source]
    )
    values[20:] = middle[20:]
    values[20::3] = np.nextafter(values[20::3], _DTYPE[source](4))
    values[21::3] = np.nextafter(values[21::3], _DTYPE[source](0))
    got = apply(f"cvt.{mode}.{target}.{source}", target, [source], [values], _DTYPE[target])
    _judge(got, [values], target, mode, lambda a: a)
    assert np.isnan(got[np.isnan(values)].astype("f4")).all()
    assert np.isinf(got[np.isinf(values)].astype("f4")).all()


@pytest.mark.parametrize("source", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("mode", ["rzi", "rni", "rmi", "rpi"])
def test_float_to_integer_clamps_and_maps_nan(source: str, target: str, mode: str) -> None:
    points = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        -2.5,
        127.7,
        -128.9,
        255.5,
        3e4,
        -3e9,
        1e10,
        -1e19,
        1e20,
        math.inf,
        -math.inf,
        math.nan,
    ]
    with np.errstate(all="ignore"):
        values = np.array(points).astype(_DTYPE[source])
    bits = int(target[1:])
    out = target if bits > 8 else f"{target[0]}32"
    code = {"s": "i", "u": "u"}[target[0]]
    got = apply(
        f"cvt.{mode}.{target}.{source}", out, [source], [_register(source, values)], f"{code}{int(out[1:]) // 8}"
    )
    rounding = {"rzi": math.trunc, "rni": round, "rmi": math.floor, "rpi": math.ceil}[mode]
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if target[0] == "s" else (0, 2**bits - 1)
    for result, value in zip(got, values.astype("f8"), strict=True):
        if math.isnan(value):
            marked = source == "f64" or bits == 64
            want = (low if target[0] == "s" else 1 << (bits - 1)) if marked else 0
        elif math.isinf(value):
            want = high if value > 0 else low
        else:
            want = min(max(rounding(float(value)), low), high)
        assert int(result) == want, value


@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_integer_to_float_rounds_once(source: str, target: str, mode: str, data: Any) -> None:
    code = {"s": "i", "u": "u"}[source[0]] + str(int(source[1:]) // 8)
    limits = np.iinfo(code)
    points = [int(limits.min), int(limits.max), 0, 1, 2**24 + 1, 2**25 + 3, 257, 2049, 65519, 65520]
    points += data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), min_size=20, max_size=20))
    if source[1:] == "64":
        points += [
            2**53 + 1,
            2**54 + 3,
            (1 << 62) + (1 << 37) + 1,
            (1 << 62) + (1 << 53) + 1,
            (1 << 62) + (1 << 54) - 1,
        ]
    values = np.array(points, code)
    got = apply(f"cvt.{mode}.{target}.{source}", target, [source], [values], _DTYPE[target])
    for result, value in zip(got, points, strict=True):
        assert float(result) == round_exact(Fraction(value), target, mode), value


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_rounding_to_an_integral_value_keeps_the_sign_of_zero(mode: str) -> None:
    values = np.array([0.4, -0.4, 0.5, 1.5, -1.5, -0.0, 3.7], "f4")
    got = apply(f"cvt.{mode}.f32.f32", "f32", ["f32"], [values], np.float32)
    want = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](values)
    assert got.view("u4").tolist() == want.view("u4").tolist()


def test_saturation_and_flush_to_zero() -> None:
    values = np.array([-1.0, 0.25, 3.0, math.nan, -0.0, 1e-40], "f4")
    assert apply("cvt.sat.f32.f32", "f32", ["f32"], [values], "f4").tolist() == [0, 0.25, 1, 0, 0, np.float32(1e-40)]
    one = np.ones(6, "f4")
    got = apply("mul.rn.ftz.f32", "f32", ["f32"] * 2, [values, one], "f4")
    assert got[5] == 0
    assert np.signbit(got[4])
    small = np.array([2.0**-100, -(2.0**-100)], "f4")
    got = apply("mul.rn.ftz.f32", "f32", ["f32"] * 2, [small, np.full(2, 2.0**-40, "f4")], "f4")
    assert got.tolist() == [0, 0]
    assert np.signbit(got).tolist() == [False, True]


def test_pairs_of_halves_are_computed_apart() -> None:
    rng = np.random.default_rng(5)
    for kind, dtype in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        a, b, c = (rng.standard_normal(32).astype(dtype) for _ in range(3))
        words = [x.view(np.uint32) for x in (a, b, c)]
        for op, arity, formula in (
            ("add.rn", 2, lambda x, y: x + y), ("mul.rn", 2, lambda x, y: x * y), ("max", 2, np.maximum),
            ("fma.rn", 3, lambda x, y, z: x * y + z), ("neg", 1, np.negative), ("abs", 1, np.abs),
        ):  # fmt: skip
            got = apply(f"{op}.{kind}", kind, [kind] * arity, words[:arity], np.uint32).view(dtype)
            want = formula(*(x.astype("f8") for x in (a, b, c)[:arity])).astype("f4").astype(dtype)
            assert got.tolist() == want.tolist(), (op, kind)
    high, low = rng.standard_normal(8).astype("f4"), rng.standard_normal(8).astype("f4")
    packed = apply("cvt.rn.f16x2.f32", "f16x2", ["f32", "f32"], [high, low], np.uint32).view(np.float16)
    assert packed[0::2].tolist() == low.astype(np.float16).tolist()
    assert packed[1::2].tolist() == high.astype(np.float16).tolist()


def test_signs_tests_and_set() -> None:
    a = np.array([1.0, -2.0, -0.0, 5.0], "f4")
    b = np.array([-3.0, 4.0, 5.0, -0.0], "f4")
    # PTX copies the sign of the first operand onto the second.
    assert apply("copysign.f32", "f32", ["f32"] * 2, [a, b], "f4").tolist() == [3.0, -4.0, -5.0, 0.0]
    values = np.array([1.0, math.inf, math.nan, 1e-40, 0.0], "f4")
    want = {
        "finite": [1, 0, 0, 1, 1], "infinite": [0, 1, 0, 0, 0], "number": [1, 1, 0, 1, 1],
        "notanumber": [0, 0, 1, 0, 0], "normal": [1, 0, 0, 0, 0], "subnormal": [0, 0, 0, 1, 0],
    }  # fmt: skip
    for name, flags in want.items():
        assert apply(f"testp.{name}.f32", "pred", ["f32"], [values], np.uint8).tolist() == flags
    assert apply("set.gt.f32.f32", "f32", ["f32"] * 2, [a, b], "f4").tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("op", "function", "low", "high"),
    [
        ("ex2.approx.f32", np.exp2, -120, 120),
        ("lg2.approx.f32", np.log2, 1e-20, 1e20),
        ("sin.approx.f32", np.sin, -3, 3),
        ("cos.approx.f32", np.cos, -3, 3),
        ("tanh.approx.f32", np.tanh, -4, 4),
        ("rcp.approx.f32", lambda x: 1 / x, 1e-20, 1e20),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 1e-20, 1e20),
        ("sqrt.approx.f32", np.sqrt, 1e-20, 1e20),
    ],
)
def test_approximate_functions_are_correctly_rounded(op: str, function: Any, low: float, high: float) -> None:
    values = np.random.default_rng(1).uniform(low, high, 512).astype("f4")
    got = apply(op, "f32", ["f32"], [values], "f4")
    assert got.tolist() == function(values.astype("f8")).astype("f4").tolist()


def test_gross_reciprocal_has_an_empty_lower_half() -> None:
    values = np.random.default_rng(1).uniform(0.1, 100, 64)
    for op, function in (("rcp", lambda x: 1 / x), ("rsqrt", lambda x: 1 / np.sqrt(x))):
        got = apply(f"{op}.approx.ftz.f64", "f64", ["f64"], [values], "f8")
        assert (got.view("u8") & 0xFFFFFFFF == 0).all()
        assert np.allclose(got, function(values), rtol=2e-6)


def test_immediates_of_every_spelling() -> None:
    body = """mov.b32 %r1, 0f3FC00000; add.rn.f32 %r1, %r1, 0.25;
mov.b64 %d1, 0dC004000000000000; cvt.rn.f32.f64 %r2, %d1;
add.rn.f32 %r1, %r1, %r2; mov.u32 %r3, 0b101; mov.u32 %r4, 0x10U; add.u32 %r3, %r3, %r4; add.s32 %r3, %r3, -1;
st.global.v2.b32 [%a0], {%r1, %r3};"""
    out = np.zeros(2, np.uint32)
    run(kernel(body, pointers=1), [out], block=1)
    assert out.view("f4")[0] == 1.5 + 0.25 - 2.5
    assert out[1] == 20


_MATH = {
    "exp": (np.exp, -20, 20), "log": (np.log, 1e-6, 1e6), "tanh": (np.tanh, -5, 5), "erf": (None, -3, 3),
    "sin": (np.sin, -50, 50), "cos": (np.cos, -1e6, 1e6), "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-6, 1e6),
    "sqrt": (np.sqrt, 0, 1e6), "expm1": (np.expm1, -3, 3), "log1p": (np.log1p, -0.9, 10),
}  # fmt: skip


@pytest.mark.parametrize("element", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", sorted(_MATH))
def test_compiled_math_functions(name: str, element: str) -> None:
    function, low, high = _MATH[name]
    if element == "f16":
        low, high = max(low, -9), min(high, 9)
    values = np.random.default_rng(2).uniform(low, high, 4096).astype(_DTYPE[element])
    out = np.zeros(4096, _DTYPE[element])
    text = compile_gpu(elementwise("k", element, f"%r = math.{name} %x0 : {element}", 1))
    emulator.launch(text, "k", 32, 128, [values, out])
    wide = values.astype("f8")
    want = np.array([math.erf(v) for v in wide]) if function is None else function(wide)
    _, least, _ = FORMATS[element]
    unit = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(want) + 1e-300)), least) - FORMATS[element][0] + 1)
    error = np.abs(out.astype("f8") - want) / unit
    assert error.max() <= {"f32": 3.0, "f64": 3.0, "f16": 0.51, "bf16": 0.51}[element]


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ["powf", "atan2"])
def test_compiled_functions_of_two_arguments(name: str, element: str) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.uniform(0.1, 5, 4096).astype(_DTYPE[element]) for _ in range(2))
    out = np.zeros(4096, _DTYPE[element])
    text = compile_gpu(elementwise("k", element, f"%r = math.{name} %x0, %x1 : {element}", 2))
    emulator.launch(text, "k", 32, 128, [a, b, out])
    want = {"powf": np.power, "atan2": np.arctan2}[name](a.astype("f8"), b.astype("f8"))
    assert np.abs(out / want - 1).max() <= 4 * float(np.finfo(_DTYPE[element]).eps)


@pytest.mark.parametrize("narrow", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("op", "exactly"),
    [("add", lambda a, b, c: a + c), ("sub", lambda a, b, c: a - c), ("fma", lambda a, b, c: a * b + c)],
)
def test_mixed_precision_rounds_once(op: str, exactly: Callable[..., Any], narrow: str) -> None:
    """Instructions of sm_100 that take narrow operands and add them to a float32; float64 holds the exact result."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-64, 64, 64).astype(_DTYPE[narrow]) for _ in range(2))
    c = (rng.integers(-(2**23), 2**23, 64) / 2**6).astype(np.float32)
    operands, columns = ([narrow, narrow, "f32"], [a, b, c]) if op == "fma" else ([narrow, "f32"], [a, c])
    got = apply(f"{op}.rn.f32.{narrow}", "f32", operands, columns, "f4")
    want = exactly(a.astype(np.float64), b.astype(np.float64), c.astype(np.float64))
    np.testing.assert_array_equal(got, want.astype(np.float32))
