"""Body ops: accuracy against float64, IEEE roots and divisions, integer semantics, refusals by name and type."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import DTYPES, build, random_array, reason, reference


def unary(op: str, element: str, result: str | None = None, count: int = 1024) -> str:
    result = result or element
    types = f"{element}" if result == element else f"{element} to {result}"
    return f"""func.func @f(%a: tensor<{count}x{element}>) -> tensor<{count}x{result}> {{
  %e = tensor.empty() : tensor<{count}x{result}>
  %r = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}}
    ins(%a : tensor<{count}x{element}>) outs(%e : tensor<{count}x{result}>) {{
  ^bb0(%x: {element}, %o: {result}):
    %y = {op} %x : {types}
    linalg.yield %y : {result}
  }} -> tensor<{count}x{result}>
  return %r : tensor<{count}x{result}>
}}"""


def binary(op: str, element: str, result: str | None = None, count: int = 1024) -> str:
    result = result or element
    return f"""func.func @f(%a: tensor<{count}x{element}>, %b: tensor<{count}x{element}>) -> tensor<{count}x{result}> {{
  %e = tensor.empty() : tensor<{count}x{result}>
  %r = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>,
      affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}}
    ins(%a, %b : tensor<{count}x{element}>, tensor<{count}x{element}>) outs(%e : tensor<{count}x{result}>) {{
  ^bb0(%x: {element}, %y: {element}, %o: {result}):
    %z = {op} %x, %y : {element}
    linalg.yield %z : {result}
  }} -> tensor<{count}x{result}>
  return %r : tensor<{count}x{result}>
}}"""


RANGES = {"exp": (-80, 80), "log": (1e-30, 1e30), "tanh": (-9, 9), "erf": (-4, 4), "sin": (-100, 100)}
RANGES |= {"cos": (-100, 100), "expm1": (-10, 10), "log1p": (-0.99, 1e6), "exp2": (-100, 100), "log2": (1e-20, 1e20)}
RANGES |= {"rsqrt": (1e-20, 1e20), "sqrt": (0, 1e30), "atan": (-50, 50), "cbrt": (-1e6, 1e6), "tan": (-1.5, 1.5)}


@pytest.mark.parametrize("name", sorted(RANGES))
@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
def test_functions_stay_within_four_ulp(name, element):
    low, high = RANGES[name]
    rng = np.random.default_rng(0)
    x = rng.uniform(max(low, -6e4), min(high, 6e4), 1024).astype(np.float32)
    if low > 0:
        x = np.exp(rng.uniform(np.log(max(low, 1e-3)), np.log(min(high, 1e3)), 1024)).astype(np.float32)
    x = x.astype(DTYPES[element])
    text = unary(f"math.{name}", element)
    got = build(text, "elementwise").run([x])[0].astype(np.float64)
    exact = np.asarray(reference(text, [x])[0], np.float64)
    rounded = exact.astype(DTYPES[element])
    finite = np.isfinite(rounded.astype(np.float64)) & (np.abs(exact) > 1e-30)
    with np.errstate(invalid="ignore"):
        ulp = np.abs(np.spacing(rounded) if element != "bf16" else np.spacing(exact.astype(np.float32)) * 65536)
    limit = 4 if element == "f32" else 1
    assert (np.abs(got - exact)[finite] <= limit * ulp.astype(np.float64)[finite]).all()


def test_square_root_and_division_are_correctly_rounded():
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-60, 60, 1024)).astype(np.float32)
    y = np.exp(rng.uniform(-20, 20, 1024)).astype(np.float32)
    np.testing.assert_array_equal(build(unary("math.sqrt", "f32"), "elementwise").run([x])[0], np.sqrt(x))
    np.testing.assert_array_equal(build(binary("arith.divf", "f32"), "elementwise").run([x, y])[0], x / y)
    assert "sqrt.rn.f32" in build(unary("math.sqrt", "f32"), "elementwise").ptx
    assert "sqrt.rn.f32" in build(unary("math.sqrt", "f16"), "elementwise").ptx
    assert "div.rn.f32" in build(binary("arith.divf", "f32"), "elementwise").ptx
    h = x.clip(1e-4, 6e4).astype(np.float16)
    np.testing.assert_array_equal(build(unary("math.sqrt", "f16"), "elementwise").run([h])[0], np.sqrt(h))


def test_no_product_and_sum_are_contracted_by_the_compiler():
    text = binary("arith.mulf", "f32").replace("linalg.yield %z", "%w = arith.addf %z, %x : f32\n    linalg.yield %w")
    built = build(text, "elementwise")
    assert "fma" not in built.ptx
    rng = np.random.default_rng(0)
    x, y = random_array(rng, (1024,), "f32"), random_array(rng, (1024,), "f32")
    np.testing.assert_array_equal(built.run([x, y])[0], x * y + x)


def test_promises_of_the_program_about_floats_and_overflow_are_dropped():
    text = binary("arith.mulf", "f32").replace("arith.mulf %x, %y : f32", "arith.mulf %x, %y fastmath<fast> : f32")
    assert "fastmath" not in build(text, "elementwise").gpu_text


@pytest.mark.parametrize("op", ["arith.maximumf", "arith.minimumf"])
@pytest.mark.parametrize("element", ["f32", "f64", "f16", "bf16"])
def test_nan_wins_in_maximum_and_minimum_on_either_side(op, element):
    values = np.array([np.nan, 1, -1, np.inf, -np.inf, 0.0, -0.0, 3], np.float32).astype(DTYPES[element])
    x, y = np.repeat(values, 8), np.tile(values, 8)
    text = binary(op, element, count=64)
    got = build(text, "elementwise").run([x, y])[0].astype(np.float64)
    function = np.maximum if "max" in op else np.minimum
    np.testing.assert_array_equal(got, function(x.astype(np.float64), y.astype(np.float64)))


INTEGER_OPS = ["divsi", "remsi", "floordivsi", "ceildivsi", "maxsi", "minui", "shrsi", "muli"]


@pytest.mark.parametrize("op", INTEGER_OPS)
@pytest.mark.parametrize("element", ["i8", "i32", "i64"])
def test_integer_ops_follow_their_definition(op, element):
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, 1024).astype(DTYPES[element])
    y = rng.integers(1, 6, 1024).astype(DTYPES[element])
    if op in ("divsi", "remsi", "floordivsi", "ceildivsi"):
        y = np.where(rng.random(1024) < 0.5, y, -y).astype(DTYPES[element])
    text = binary(f"arith.{op}", element)
    np.testing.assert_array_equal(build(text, "elementwise").run([x, y])[0], reference(text, [x, y], "ir")[0])


def test_integer_division_of_large_numbers_is_exact():
    x = np.array([2**62 + 1, -(2**62) - 1, 2**53 + 1, 7] * 256, np.int64)
    y = np.full(1024, 3, np.int64)
    got = build(binary("arith.floordivsi", "i64"), "elementwise").run([x, y])[0]
    np.testing.assert_array_equal(got, x // 3)


@pytest.mark.parametrize("power", [-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 11])
def test_integer_powers_of_floats(power):
    text = unary("math.absf", "f32").replace(
        "math.absf %x : f32", "math.fpowi %x, %p : f32, i64\n    %unused = arith.addi %p, %p : i64"
    )
    text = text.replace("%e = tensor", f"%p = arith.constant {power} : i64\n  %e = tensor")
    x = np.random.default_rng(0).uniform(-3, 3, 1024).astype(np.float32)
    got = build(text, "elementwise").run([x])[0]
    np.testing.assert_allclose(got, x.astype(np.float64) ** power, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(("name", "function"), [("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)])
def test_float_classes(name, function):
    x = np.array([np.nan, np.inf, -np.inf, 0, 1, -1, 1e-40, 3e38] * 8, np.float32)
    text = unary(f"math.{name}", "f32", "i1", 64).replace("%x : f32 to i1", "%x : f32")
    np.testing.assert_array_equal(build(text, "elementwise").run([x])[0], function(x))


CASTS = [("arith.extf", "bf16", "f32"), ("arith.truncf", "f32", "bf16"), ("arith.truncf", "f64", "f16")]
CASTS += [("arith.sitofp", "i64", "f32"), ("arith.uitofp", "i8", "f32"), ("arith.fptosi", "f32", "i32")]
CASTS += [("arith.extui", "i1", "i64"), ("arith.trunci", "i64", "i8"), ("arith.extsi", "i8", "i16")]
CASTS += [("arith.sitofp", "i32", "f16"), ("arith.fptosi", "f32", "i8"), ("arith.bitcast", "f32", "i32")]


@pytest.mark.parametrize(("op", "source", "result"), CASTS)
def test_casts_follow_the_ir(op, source, result):
    x = random_array(np.random.default_rng(0), (1024,), source)
    text = unary(op, source, result)
    got = build(text, "elementwise").run([x])[0]
    assert got.tobytes() == np.asarray(reference(text, [x], "ir")[0]).tobytes()


def test_any_nonzero_byte_is_true():
    text = unary("arith.extui", "i1", "i32", 64)
    x = np.arange(64, dtype=np.uint8).view(np.bool_)
    np.testing.assert_array_equal(build(text, "elementwise").run([x])[0], (np.arange(64) != 0).astype(np.int32))


def test_an_op_without_lowering_is_refused_with_its_type():
    why = reason(unary("math.ctlz", "i32"), "elementwise")
    assert why is not None
    assert "math.ctlz" in why
    assert "i32" in why
