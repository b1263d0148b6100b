"""Which loops may be split, why others may not, and the layouts that follow."""

from __future__ import annotations

import pytest
from graph_harness import FILL, GATHER, SCAN, function, graph, only

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.graph import GraphOp
from mlirstitch.passes.partitioning.layout import DimSplit, Layout, split
from mlirstitch.passes.partitioning.splits import (
    explain_splits,
    layout_of,
    legal_splits,
    partial_refusal,
    refusal_of_split,
)


def _op(line: str, result: str, **arguments: str) -> GraphOp:
    type_ = result.rpartition(" ")[2]
    found = graph(function(f"%r = {line} : {result}\nreturn %r : {type_}", type_, **arguments))
    return found.ops[-1]


def _matmul() -> GraphOp:
    body = f"""{FILL.format(value="0.0")}
    %r = linalg.matmul ins(%x, %y : tensor<4x8xf32>, tensor<8x6xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
    return %r : tensor<4x6xf32>"""
    return only(graph(function(body, "tensor<4x6xf32>", x="tensor<4x8xf32>", y="tensor<8x6xf32>")), "linalg.matmul")


def _convolution() -> GraphOp:
    body = """%z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2x5x4x4xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<2x5x4x4xf32>) -> tensor<2x5x4x4xf32>
    %r = linalg.conv_2d_nchw_fchw {strides = dense<2> : vector<2xi64>}
      ins(%x, %w : tensor<2x3x9x9xf32>, tensor<5x3x3x3xf32>) outs(%f : tensor<2x5x4x4xf32>) -> tensor<2x5x4x4xf32>
    return %r : tensor<2x5x4x4xf32>"""
    text = function(body, "tensor<2x5x4x4xf32>", x="tensor<2x3x9x9xf32>", w="tensor<5x3x3x3xf32>")
    return only(graph(text), "linalg.conv_2d_nchw_fchw")


def test_every_loop_of_a_contraction_may_be_split_and_the_reduced_one_leaves_partial_sums() -> None:
    op = _matmul()
    found = legal_splits(op)
    assert [(s.combiner, s.inputs, s.results) for s in found.values()] == [
        ("", (0, -1, 0), (0,)),
        ("", (-1, 1, 1), (1,)),
        ("add", (1, 0, -1), (-1,)),
    ]
    space = {0: ("dp",), 2: ("tp", "pp")}
    assert layout_of(op, op.inputs[0], space) == Layout((split(("dp",), 4), split(("tp", "pp"), 8)))
    assert layout_of(op, op.inputs[1], space) == Layout((split(("tp", "pp"), 8), DimSplit()))
    assert layout_of(op, op.results[0], space) == Layout(
        (split(("dp",), 4), DimSplit()), (("pp", "add"), ("tp", "add"))
    )


def test_rows_of_a_window_are_read_with_a_halo_and_its_taps_stay() -> None:
    op = _convolution()
    assert sorted(legal_splits(op)) == [0, 1, 2, 3, 4]
    assert "window" in (refusal_of_split(op, 5) or "")
    image = layout_of(op, op.inputs[0], {2: ("tp",)})
    assert image.dims[2] == DimSplit(("tp",), 4, 2, 0, 3)
    assert [image.dims[2].range(9, {"tp": k}, {"tp": 2}) for k in range(2)] == [(0, 5), (4, 9)]
    assert layout_of(op, op.results[0], {2: ("tp",)}).covers_once((2, 5, 4, 4))


def test_a_collapsed_dim_is_split_along_its_outermost_part() -> None:
    op = _op(
        "tensor.collapse_shape %x [[0, 1, 2], [3]]",
        "tensor<1x4x3x5xf32> into tensor<12x5xf32>",
        x="tensor<1x4x3x5xf32>",
    )
    assert sorted(legal_splits(op)) == [1, 3]
    assert "extent 1" in (refusal_of_split(op, 0) or "")
    assert "outermost" in (refusal_of_split(op, 2) or "")
    assert layout_of(op, op.results[0], {1: ("dp",)}).dims[0] == DimSplit(("dp",), 4, 3, 0, 3)
    op = _op(
        "tensor.expand_shape %x [[0, 1]] output_shape [4, 3]", "tensor<12xf32> into tensor<4x3xf32>", x="tensor<12xf32>"
    )
    assert sorted(legal_splits(op)) == [0]


def test_the_dim_of_a_scan_and_what_has_no_combiner_stay() -> None:
    scan = only(graph(function(SCAN, "tensor<4x8xf32>", x="tensor<4x8xf32>")), "linalg.generic")
    assert sorted(legal_splits(scan)) == [0]
    assert "scan" in (refusal_of_split(scan, 1) or "")


def test_a_gather_is_split_along_its_places_and_its_columns() -> None:
    more = "%t = tensor.extract %w[%p, %q] : tensor<11x9xf32>"
    text = function(GATHER.format(more=more), "tensor<5x8xf32>", i="tensor<5xi64>", w="tensor<11x9xf32>")
    op = only(graph(text), "linalg.generic")
    assert layout_of(op, op.inputs[1], {0: ("dp",), 1: ("tp",)}).dims == (DimSplit(), DimSplit(("tp",), 8))


def test_two_loops_along_one_dim_are_not_split_together() -> None:
    body = """%e = tensor.empty() : tensor<4x3xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0 * 3 + d1)>, #id2],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<12xf32>) outs(%e : tensor<4x3xf32>) {
      ^bb0(%a: f32, %o: f32):
        linalg.yield %a : f32
    } -> tensor<4x3xf32>
    return %r : tensor<4x3xf32>"""
    op = only(graph(function(body, "tensor<4x3xf32>", x="tensor<12xf32>")), "linalg.generic")
    assert sorted(legal_splits(op)) == [0, 1]
    assert "same dim" in (refusal_of_split(op, 1, {0: ("dp",)}) or "")
    with pytest.raises(PlanError, match="same dim"):
        layout_of(op, op.inputs[0], {0: ("dp",), 1: ("tp",)})


def test_partial_values_pass_where_the_op_is_linear_or_a_view() -> None:
    op = _matmul()
    assert partial_refusal(op, (), "add") is None
    assert partial_refusal(op, (0,), "add") is None
    assert "partial operands must be 0 or 1" in (partial_refusal(op, (0, 1), "add") or "")
    assert "max" in (partial_refusal(op, (0,), "max") or "")
    view = _op("tensor.collapse_shape %x [[0, 1]]", "tensor<4x3xf32> into tensor<12xf32>", x="tensor<4x3xf32>")
    assert partial_refusal(view, (0,), "max") is None


def test_splits_are_explained_with_names_and_reasons() -> None:
    op = _convolution()
    lines = explain_splits(op).splitlines()
    assert lines[0].startswith("linalg.conv_2d_nchw_fchw (op 1)")
    assert lines[3] == (
        "  d2 (4, parallel): operand 0 dim 2 with a halo of 1, operand 1 replicated, operand 2 dim 2, result dim 2"
    )
    assert lines[5].endswith("operand 2 replicated, results partial (add)")
    assert lines[6] == "  d5 (3, reduction): refused: operand 0: d5 walks over a window of dim 2"


def test_loops_that_do_not_exist_are_refused() -> None:
    assert "d9 is none of them" in (refusal_of_split(_matmul(), 9) or "")
