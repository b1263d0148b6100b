"""Classes of ops that hand-written and imported IR may confuse."""

from __future__ import annotations

import pytest

from mlirstitch.dialects import parse_module
from mlirstitch.passes.op_kind import Kind, is_contraction, is_convolution, is_named_compute, is_pooling, op_kind
from mlirstitch.passes.structured import block_ops, main_function, structured


def _op(arguments: str, text: str, name: str):
    module = parse_module(f"func.func @main({arguments}) {{\n{text}\nreturn\n}}")
    main = main_function(module.operation)
    assert main is not None
    return module, next(op for op in block_ops(main) if op.name == name)


DOT = """
%z = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (MAP)>,
    affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
    ins(%a, %b : tensor<4x8xf32>, TYPE) outs(%o : tensor<4xf32>) {
^bb0(%x: f32, %y: f32, %s: f32):
  %p = arith.mulf %x, %y : f32
  %r = arith.addf %p, %s : f32
  linalg.yield %r : f32
} -> tensor<4xf32>
"""


@pytest.mark.parametrize(("indices", "type_"), [("d0, d1", "tensor<4x8xf32>"), ("d1", "tensor<8xf32>")])
def test_a_sum_of_products_that_reads_each_element_of_an_operand_once_is_a_reduction(indices: str, type_: str) -> None:
    arguments = f"%a: tensor<4x8xf32>, %b: {type_}, %o: tensor<4xf32>"
    _, op = _op(arguments, DOT.replace("MAP", indices).replace("TYPE", type_), "linalg.generic")
    assert op_kind(op) is Kind.REDUCTION


NAMED = {
    "linalg.matvec": "linalg.matvec ins(%a, %b : tensor<4x8xf32>, tensor<8xf32>) outs(%o : tensor<4xf32>)",
    "linalg.dot": "linalg.dot ins(%b, %b : tensor<8xf32>, tensor<8xf32>) outs(%s : tensor<f32>)",
    "linalg.pooling_nchw_max": "linalg.pooling_nchw_max ins(%i, %w : tensor<1x2x8x8xf32>, tensor<2x2xf32>) "
    "outs(%p : tensor<1x2x7x7xf32>)",
    "linalg.depthwise_conv_2d_nchw_chw": "linalg.depthwise_conv_2d_nchw_chw "
    "ins(%i, %k : tensor<1x2x8x8xf32>, tensor<2x2x2xf32>) outs(%p : tensor<1x2x7x7xf32>)",
    "linalg.exp": "linalg.exp ins(%b : tensor<8xf32>) outs(%b : tensor<8xf32>)",
}
ARGUMENTS = (
    "%a: tensor<4x8xf32>, %b: tensor<8xf32>, %o: tensor<4xf32>, %s: tensor<f32>, %i: tensor<1x2x8x8xf32>, "
    "%w: tensor<2x2xf32>, %k: tensor<2x2x2xf32>, %p: tensor<1x2x7x7xf32>"
)


@pytest.mark.parametrize("name", NAMED)
def test_named_compute_ops_are_recognised(name: str) -> None:
    result = NAMED[name].rpartition(": ")[2].rstrip(")")
    _, op = _op(ARGUMENTS, f"%r = {NAMED[name]} -> {result}", name)
    recognised = (is_contraction(op), is_convolution(op), is_pooling(op))
    expected = {
        "linalg.matvec": (True, False, False),
        "linalg.dot": (True, False, False),
        "linalg.pooling_nchw_max": (False, False, True),
        "linalg.depthwise_conv_2d_nchw_chw": (False, True, False),
        "linalg.exp": (False, False, False),
    }
    assert recognised == expected[name]
    assert is_named_compute(op) is any(recognised)
    assert op_kind(op) is (Kind.COMPUTE if any(recognised) else Kind.EXPENSIVE)


def test_loop_sizes_of_a_strided_pooling_come_from_window_and_result() -> None:
    text = (
        "%r = linalg.pooling_nchw_max {strides = dense<2> : vector<2xi64>} "
        "ins(%i, %w : tensor<1x2x8x8xf32>, tensor<2x3xf32>) outs(%p : tensor<1x2x4x3xf32>) -> tensor<1x2x4x3xf32>"
    )
    _, op = _op(
        "%i: tensor<1x2x8x8xf32>, %w: tensor<2x3xf32>, %p: tensor<1x2x4x3xf32>", text, "linalg.pooling_nchw_max"
    )
    view = structured(op)
    assert view is not None
    assert view.loop_sizes() == (1, 2, 4, 3, 2, 3)
    assert view.iterators == ("parallel",) * 4 + ("reduction",) * 2
