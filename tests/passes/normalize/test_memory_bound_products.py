"""Which contractions become sums of products, and what those compute."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirstitch.dialects import parse_module
from mlirstitch.driver import reference
from mlirstitch.passes.normalize.memory_bound_products import is_memory_bound
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.structured import block_ops, main_function, structured
from mlirstitch.target import TARGETS

PIPELINE = "builtin.module(stitch-set-module-attributes,normalize-accumulators,normalize-memory-bound-products)"
FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
SHAPES = {
    "matvec": ((4, 8), (8,), (4,)),
    "vecmat": ((8,), (8, 4), (4,)),
    "dot": ((8,), (8,), ()),
    "batch_matvec": ((3, 4, 8), (3, 8), (3, 4)),
    "batch_vecmat": ((3, 8), (3, 8, 4), (3, 4)),
    "matmul": ((1, 8), (8, 4), (1, 4)),
    "batch_matmul": ((3, 4, 8), (3, 8, 1), (3, 4, 1)),
}


def _type(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{'x'.join((*map(str, shape), element))}>"


def _program(name: str, shapes: tuple[tuple[int, ...], ...], element: str) -> str:
    a, b, c = (_type(shape, element) for shape in shapes)
    return f"""
func.func @main(%a: {a}, %b: {b}, %c: {c}) -> {c} {{
  %0 = linalg.{name} ins(%a, %b : {a}, {b}) outs(%c : {c}) -> {c}
  return %0 : {c}
}}"""


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("name", [*SHAPES, "outer"])
def test_the_sum_of_products_is_what_the_contraction_adds_to_its_init(name: str, element: str) -> None:
    op, shapes = ("matmul", ((4, 1), (1, 8), (4, 8))) if name == "outer" else (name, SHAPES[name])
    module = parse_module(_program(op, shapes, element))
    run_pipeline(module, PIPELINE)
    text = str(module)
    assert f"linalg.{op}" not in text
    assert "math.fma" in text
    source = np.random.default_rng(1)
    values = [source.standard_normal(shape).astype(FLOATS[element]) for shape in shapes]
    a, b, c = (value.astype(np.float64) for value in values)
    product = np.matmul(a, b[..., None])[..., 0] if name == "batch_matvec" else None
    if name == "batch_vecmat":
        product = np.matmul(a[:, None], b)[:, 0]
    expected = c + (np.matmul(a, b) if product is None else product)
    found = reference.run(text, values)[0].astype(np.float64)
    step = float(ml_dtypes.finfo(FLOATS[element]).eps)
    sizes = np.abs(c) + 8 * np.abs(a).max() * np.abs(b).max()
    assert np.all(np.abs(found - expected) <= step * sizes)


@pytest.mark.parametrize("chip", TARGETS)
@pytest.mark.parametrize("element", ["f32", "f64", "i32"])
def test_every_chip_multiplies_faster_than_its_memory_delivers(chip: str, element: str) -> None:
    assert _is_memory_bound("matvec", SHAPES["matvec"], element, TARGETS[chip])


def test_a_chip_that_multiplies_slower_than_its_memory_delivers_keeps_the_contraction() -> None:
    target = TARGETS["sm_90"]
    fast = target.override(bandwidth=100 * target.bandwidth)
    assert not _is_memory_bound("matvec", SHAPES["matvec"], "f32", fast)
    assert _is_memory_bound("matvec", SHAPES["matvec"], "f32", target)


@pytest.mark.parametrize("shapes", [((2, 8), (8, 2), (2, 2)), ((1, 0), (0, 4), (1, 4)), ((2, 2), (2, 2), (2, 2))])
def test_a_product_of_matrices_and_an_empty_sum_stay(shapes: tuple[tuple[int, ...], ...]) -> None:
    assert not _is_memory_bound("matmul", shapes, "f32", TARGETS["sm_90"])


def _is_memory_bound(name: str, shapes: tuple[tuple[int, ...], ...], element: str, target) -> bool:
    module = parse_module(_program(name, shapes, element))
    main = main_function(module.operation)
    assert main is not None
    view = structured(block_ops(main)[0])
    assert view is not None
    return is_memory_bound(view, target)
