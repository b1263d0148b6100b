"""Normalisation keeps what a program computes, and repairs what importers get wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirstitch.dialects import invariants, parse_module
from mlirstitch.driver import reference
from mlirstitch.errors import PassError
from mlirstitch.passes.normalize import NORMALIZE_PASSES
from mlirstitch.passes.pipeline import run_pipeline

PIPELINE = f"builtin.module(stitch-set-module-attributes,{','.join(NORMALIZE_PASSES)})"
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}


def _normalized(text: str) -> str:
    module = parse_module(text)
    run_pipeline(module, PIPELINE)
    invariants.check(module, "linalg")
    return str(module)


def _sum(element: str, count: int) -> str:
    return f"""
func.func @main(%x: tensor<{count}x{element}>) -> tensor<{element}> {{
  %z = arith.constant 0.0 : {element}
  %e = tensor.empty() : tensor<{element}>
  %f = linalg.fill ins(%z : {element}) outs(%e : tensor<{element}>) -> tensor<{element}>
  %0 = linalg.reduce {{ arith.addf }} ins(%x : tensor<{count}x{element}>) outs(%f : tensor<{element}>) dimensions = [0]
  return %0 : tensor<{element}>
}}"""


@pytest.mark.parametrize("element", ["f32", "f16", "bf16", "f64"])
def test_4096_ones_sum_to_4096(element: str) -> None:
    ones = np.ones(4096, FLOATS[element])
    before, after = (reference.run(text, [ones])[0] for text in (_sum(element, 4096), _normalized(_sum(element, 4096))))
    assert float(after) == 4096
    if element in ("f16", "bf16"):
        assert float(before) < 4096  # the fault is real: the program's own accumulator stalls


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_a_matmul_of_narrow_floats_is_rounded_once(element: str) -> None:
    text = f"""
func.func @main(%a: tensor<3x512x{element}>, %b: tensor<512x2x{element}>) -> tensor<3x2x{element}> {{
  %z = arith.constant 0.0 : {element}
  %e = tensor.empty() : tensor<3x2x{element}>
  %f = linalg.fill ins(%z : {element}) outs(%e : tensor<3x2x{element}>) -> tensor<3x2x{element}>
  %0 = linalg.matmul ins(%a, %b : tensor<3x512x{element}>, tensor<512x2x{element}>)
      outs(%f : tensor<3x2x{element}>) -> tensor<3x2x{element}>
  return %0 : tensor<3x2x{element}>
}}"""
    source = np.random.default_rng(1)
    a, b = (source.standard_normal(shape).astype(FLOATS[element]) for shape in ((3, 512), (512, 2)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    result = reference.run(_normalized(text), [a, b])[0]
    ulp = np.abs(np.spacing(exact.astype(np.float32))) * 2 ** (23 - ml_dtypes.finfo(FLOATS[element]).nmant)
    assert np.all(np.abs(result.astype(np.float64) - exact) <= 0.51 * ulp + 1e-4)


VARIANCE = """
#m = affine_map<(d0) -> (d0)>
#s = affine_map<(d0) -> ()>
#k = affine_map<() -> ()>
func.func @main(%a: tensor<64xf32>) -> tensor<f32> {
  %z = arith.constant 0.0 : f64
  %n = arith.constant 64.0 : f64
  %e = tensor.empty() : tensor<64xf64>
  %f = tensor.empty() : tensor<f64>
  %g = tensor.empty() : tensor<f32>
  %w = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%a : tensor<64xf32>) outs(%e : tensor<64xf64>) {
  ^bb0(%x: f32, %o: f64):
    %r = arith.extf %x : f32 to f64
    linalg.yield %r : f64
  } -> tensor<64xf64> loc("model.py":WIDEN:0)
  %zero = linalg.fill ins(%z : f64) outs(%f : tensor<f64>) -> tensor<f64>
  %t = linalg.generic {indexing_maps = [#m, #s], iterator_types = ["reduction"]}
      ins(%w : tensor<64xf64>) outs(%zero : tensor<f64>) {
  ^bb0(%x: f64, %o: f64):
    %r = arith.addf %x, %o : f64
    linalg.yield %r : f64
  } -> tensor<f64> loc("model.py":8:0)
  %mean = linalg.generic {indexing_maps = [#k, #k], iterator_types = []}
      ins(%t : tensor<f64>) outs(%f : tensor<f64>) {
  ^bb0(%x: f64, %o: f64):
    %r = arith.divf %x, %n : f64
    linalg.yield %r : f64
  } -> tensor<f64> loc("model.py":8:0)
  %d = linalg.generic {indexing_maps = [#m, #s, #m], iterator_types = ["parallel"]}
      ins(%w, %mean : tensor<64xf64>, tensor<f64>) outs(%e : tensor<64xf64>) {
  ^bb0(%x: f64, %y: f64, %o: f64):
    %r = arith.subf %x, %y : f64
    linalg.yield %r : f64
  } -> tensor<64xf64> loc("model.py":8:0)
  %q = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%d, %d : tensor<64xf64>, tensor<64xf64>) outs(%e : tensor<64xf64>) {
  ^bb0(%x: f64, %y: f64, %o: f64):
    %r = arith.mulf %x, %y : f64
    linalg.yield %r : f64
  } -> tensor<64xf64> loc("model.py":8:0)
  %v = linalg.generic {indexing_maps = [#m, #s], iterator_types = ["reduction"]}
      ins(%q : tensor<64xf64>) outs(%zero : tensor<f64>) {
  ^bb0(%x: f64, %o: f64):
    %r = arith.addf %x, %o : f64
    linalg.yield %r : f64
  } -> tensor<f64> loc("model.py":8:0)
  %u = linalg.generic {indexing_maps = [#k, #k], iterator_types = []}
      ins(%v : tensor<f64>) outs(%g : tensor<f32>) {
  ^bb0(%x: f64, %o: f32):
    %r = arith.divf %x, %n : f64
    %c = arith.truncf %r : f64 to f32
    linalg.yield %c : f32
  } -> tensor<f32> loc("model.py":8:0)
  return %u : tensor<f32>
}"""


def test_an_invented_f64_variance_is_f32_and_survives_a_large_mean() -> None:
    text = _normalized(VARIANCE.replace("WIDEN", "8"))
    assert "f64" not in text
    x = (1e6 + np.linspace(-1, 1, 64)).astype(np.float32)
    result = float(reference.run(text, [x])[0])
    assert result == pytest.approx(float(np.var(x.astype(np.float64))), rel=1e-2)


def test_a_variance_that_the_user_widened_on_a_line_of_its_own_stays_f64() -> None:
    assert "arith.addf %in, %out : f64" in _normalized(VARIANCE.replace("WIDEN", "7"))


def test_division_by_zero_and_negative_indices_survive_the_dropped_assertions() -> None:
    text = """
#m = affine_map<(d0) -> (d0)>
func.func @main(%t: tensor<5xf32>, %i: tensor<3xi64>) -> tensor<3xf32> {
  %zero = arith.constant 0 : i64
  %size = arith.constant 5 : i64
  %one = arith.constant 1.0 : f32
  %nil = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%i : tensor<3xi64>) outs(%e : tensor<3xf32>) {
  ^bb0(%x: i64, %o: f32):
    %c = arith.cmpi slt, %x, %zero : i64
    %w = arith.addi %x, %size : i64
    %s = arith.select %c, %w, %x : i64
    %ok = arith.cmpi sge, %s, %zero : i64
    cf.assert %ok, "index out of range"
    %d = arith.index_cast %s : i64 to index
    %v = tensor.extract %t[%d] : tensor<5xf32>
    %nz = arith.cmpf one, %v, %nil : f32
    cf.assert %nz, "unimplemented: tensor with zero element"
    %r = arith.divf %one, %v : f32
    linalg.yield %r : f32
  } -> tensor<3xf32>
  return %0 : tensor<3xf32>
}"""
    values = np.array([0.0, 1.0, np.nan, 4.0, 8.0], np.float32)
    with np.errstate(divide="ignore"):
        result = reference.run(_normalized(text), [values, np.array([-1, 0, 2])])[0]
    np.testing.assert_array_equal(result, np.array([0.125, np.inf, np.nan], np.float32))


@pytest.mark.parametrize("element", ["f32", "f16"])
def test_softmax_keeps_infinities_and_nan(element: str) -> None:
    text = f"""
func.func @main(%x: tensor<4x3x{element}>) -> tensor<4x3x{element}> {{
  %e = tensor.empty() : tensor<4x3x{element}>
  %0 = linalg.softmax dimension(1) ins(%x : tensor<4x3x{element}>)
      outs(%e : tensor<4x3x{element}>) -> tensor<4x3x{element}>
  return %0 : tensor<4x3x{element}>
}}"""
    rows = np.array([[1, 2, 3], [-np.inf] * 3, [0, -np.inf, 0], [1, np.nan, 0]], FLOATS[element])
    with np.errstate(invalid="ignore"):
        result = reference.run(_normalized(text), [rows])[0]
    assert np.all(np.isnan(result[[1, 3]]))
    np.testing.assert_array_equal(result[2], [0.5, 0, 0.5])
    powers = np.exp(rows[0].astype(np.float64))
    np.testing.assert_allclose(result[0].astype(np.float64), powers / powers.sum(), rtol=1e-3)


def test_scalars_and_dense_constants_survive() -> None:
    text = """
#m = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<3xf32>, %s: tensor<f32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
  %c = arith.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %v = tensor.extract %s[] : tensor<f32>
  %w = arith.mulf %v, %v : f32
  %k = tensor.splat %w : tensor<3xf32>
  %0 = arith.addf %x, %c : tensor<3xf32>
  %1 = arith.mulf %0, %k : tensor<3xf32>
  return %1, %c, %k : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
}"""
    x = np.array([1, 2, 3], np.float32)
    results = reference.run(_normalized(text), [x, np.float32(3)])
    np.testing.assert_array_equal(results, [(x + x) * 9, [1, 2, 3], [9, 9, 9]])


def test_dynamic_dims_are_refused() -> None:
    with pytest.raises(PassError, match="dynamic dims are not supported"):
        _normalized("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }")


def test_a_long_chain_of_scalars_does_not_exhaust_the_stack() -> None:
    lines = ["%v0 = tensor.extract %s[] : tensor<f32>"]
    lines += [f"%v{i + 1} = arith.mulf %v{i}, %v0 : f32" for i in range(1500)]
    text = (
        "func.func @main(%s: tensor<f32>) -> tensor<2xf32> {\n" + "\n".join(lines) + "\n"
        "%r = tensor.splat %v1500 : tensor<2xf32>\nreturn %r : tensor<2xf32>\n}"
    )
    np.testing.assert_array_equal(reference.run(_normalized(text), [np.float32(1)])[0], [1, 1])


def test_a_concat_of_many_tensors_becomes_a_tree() -> None:
    count = 200
    names = ", ".join(f"%x{k}" for k in range(count))
    arguments = ", ".join(f"%x{k}: tensor<1x2xf32>" for k in range(count))
    types = ", ".join(["tensor<1x2xf32>"] * count)
    text = f"""
func.func @main({arguments}) -> tensor<{count}x2xf32> {{
  %0 = tensor.concat dim(0) {names} : ({types}) -> tensor<{count}x2xf32>
  return %0 : tensor<{count}x2xf32>
}}"""
    normalized = _normalized(text)
    assert max(line.count("%arg") for line in normalized.splitlines() if "tensor.concat" in line) <= 64
    inputs = [np.array([[k, -k]], np.float32) for k in range(count)]
    np.testing.assert_array_equal(reference.run(normalized, inputs)[0], np.concatenate(inputs))
