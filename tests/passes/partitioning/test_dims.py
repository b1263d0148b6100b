"""Dim classes: what belongs together, and what it is called."""

from __future__ import annotations

import pytest
from graph_harness import function, graph

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.dims import DimClass, DimClasses

ATTENTION = """
#q = affine_map<(b, h, q, k, d) -> (b, q, h, d)>
#k = affine_map<(b, h, q, k, d) -> (b, k, h, d)>
#s = affine_map<(b, h, q, k, d) -> (b, h, q, k)>
#x = affine_map<(b, s, n, k) -> (b, s, k)>
#w = affine_map<(b, s, n, k) -> (n, k)>
#y = affine_map<(b, s, n, k) -> (b, s, n)>
func.func @main(%x: tensor<2x6x8xf32> {stitch.name = "x", stitch.role = "input"},
                %w: tensor<12x8xf32> {stitch.name = "a.query.weight", stitch.role = "weight"}) -> tensor<2x3x6x6xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x6x12xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<2x6x12xf32>) -> tensor<2x6x12xf32>
  %p = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
    ins(%x, %w : tensor<2x6x8xf32>, tensor<12x8xf32>) outs(%f : tensor<2x6x12xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %v = arith.addf %o, %m : f32
      linalg.yield %v : f32
  } -> tensor<2x6x12xf32>
  %h = tensor.expand_shape %p [[0], [1], [2, 3]] output_shape [2, 6, 3, 4] : tensor<2x6x12xf32> into tensor<2x6x3x4xf32>
  %g = tensor.empty() : tensor<2x3x6x6xf32>
  %i = linalg.fill ins(%z : f32) outs(%g : tensor<2x3x6x6xf32>) -> tensor<2x3x6x6xf32>
  %r = linalg.generic {indexing_maps = [#q, #k, #s],
                       iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}
    ins(%h, %h : tensor<2x6x3x4xf32>, tensor<2x6x3x4xf32>) outs(%i : tensor<2x3x6x6xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %v = arith.addf %o, %m : f32
      linalg.yield %v : f32
  } -> tensor<2x3x6x6xf32>
  return %r : tensor<2x3x6x6xf32>
}"""


def _one(classes: DimClasses, name: str) -> DimClass:
    (found,) = classes.select(name)
    return found


def test_attention_has_batch_heads_and_sequence() -> None:
    classes = DimClasses.of(graph(ATTENTION))
    assert [(c.names[0], c.size) for c in classes.classes if c.names and "/" not in c.names[0]] == [
        ("batch", 2),
        ("sequence", 6),
        ("heads", 3),
    ]
    assert "a.query.weight/0" in _one(classes, "heads").names
    assert classes.classes == DimClasses.of(graph(ATTENTION)).classes


def test_a_class_reports_both_loops_of_one_op_in_order() -> None:
    classes = DimClasses.of(graph(ATTENTION))
    last = len(classes.graph.ops) - 1
    assert [loop for op, loop in _one(classes, "sequence").loops if op == last] == [2, 3]
    assert classes.of_loop(last, 2) == classes.of_dim(0, 1) == _one(classes, "sequence")


def test_names_are_chosen_by_patterns_and_near_ones_suggested() -> None:
    classes = DimClasses.of(graph(ATTENTION))
    assert _one(classes, "*.query.weight/0") == _one(classes, "heads")
    assert classes.select("x/*") == [_one(classes, "batch"), _one(classes, "sequence"), _one(classes, "x/2")]
    with pytest.raises(PlanError, match=r"no dim is named 'head'") as error:
        classes.select("head")
    assert "heads" in error.value.hint


def _classes(body: str, result: str, **arguments: str) -> DimClasses:
    return DimClasses.of(graph(function(body, result, **arguments)))


def test_the_outermost_part_of_a_collapsed_dim_belongs_to_it_and_units_to_nothing() -> None:
    body = """%a = tensor.expand_shape %x [[0, 1, 2]] output_shape [1, 4, 6] : tensor<24xf32> into tensor<1x4x6xf32>
    %r = tensor.collapse_shape %a [[0], [1, 2]] : tensor<1x4x6xf32> into tensor<1x24xf32>
    return %r : tensor<1x24xf32>"""
    classes = _classes(body, "tensor<1x24xf32>", x="tensor<24xf32>")
    assert [sorted({classes.graph.values[v].shape[d] for v, d in c.dims}) for c in classes.classes] == [[4, 24], [6]]
    assert classes.of_loop(0, 0) is None


@pytest.mark.parametrize(("size", "together"), [(5, True), (4, False), (3, False)])
def test_a_slice_belongs_to_its_dim_if_it_is_more_than_half_of_it(size: int, together: bool) -> None:
    type_ = f"tensor<{size}xf32>"
    body = f"%r = tensor.extract_slice %x[2] [{size}] [1] : tensor<8xf32> to {type_}\nreturn %r : {type_}"
    classes = _classes(body, type_, x="tensor<8xf32>")
    assert (len(classes.classes) == 1) is together


SHARED = """#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %r = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = linalg.matmul ins(%y, %v : tensor<4x8xf32>, tensor<8x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %r, %s : tensor<4x8xf32>, tensor<4x8xf32>
}""".replace("%y: tensor<4x8xf32>)", "%y: tensor<4x8xf32>, %w: tensor<8x8xf32>, %v: tensor<8x8xf32>)")


def test_a_shared_fill_ties_nothing_together_and_separated_ones_follow_their_readers() -> None:
    shared = DimClasses.of(graph(SHARED))
    assert shared.of_dim(0, 0) != shared.of_dim(1, 0)
    separate = DimClasses.of(graph(SHARED, "dist-separate-fills"))
    assert separate.of_dim(0, 0) != separate.of_dim(1, 0)
    fills = [op.number for op in separate.graph.ops if op.name == "linalg.fill"]
    assert {separate.of_loop(fill, 0) for fill in fills} == {separate.of_dim(0, 0), separate.of_dim(1, 0)}


def test_windows_and_paddings_keep_a_dim_together_and_name_it() -> None:
    body = """%z = arith.constant 0.0 : f32
    %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
      ^bb0(%a: index, %b: index, %c: index, %d: index):
        tensor.yield %z : f32
    } : tensor<2x3x8x8xf32> to tensor<2x3x10x10xf32>
    %e = tensor.empty() : tensor<2x5x4x8xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<2x5x4x8xf32>) -> tensor<2x5x4x8xf32>
    %r = linalg.conv_2d_nchw_fchw {strides = dense<[2, 1]> : vector<2xi64>}
      ins(%p, %w : tensor<2x3x10x10xf32>, tensor<5x3x3x3xf32>) outs(%f : tensor<2x5x4x8xf32>) -> tensor<2x5x4x8xf32>
    return %r : tensor<2x5x4x8xf32>"""
    classes = _classes(body, "tensor<2x5x4x8xf32>", x="tensor<2x3x8x8xf32>", w="tensor<5x3x3x3xf32>")
    assert "x/2" in _one(classes, "height").names
    assert "x/3" in _one(classes, "width").names
    assert {s.shape[d] for v, d in _one(classes, "height").dims for s in [classes.graph.values[v]]} == {4, 8, 10}
