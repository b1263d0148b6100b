"""The dependency graph of a function and the clusters cut from it."""

from __future__ import annotations

import itertools
import random

import pytest
from linalg_text import Text
from text_graphs import graph_of

from mlirstitch.passes.stitching.graph import MAX_FREE_DEPTH, is_convex, reachability


def _names(values: object) -> list[str]:
    return [value.get_name() for value in values]  # type: ignore[attr-defined]


def test_edges_look_through_views_and_fills_are_no_nodes() -> None:
    text = Text(x="4x8")
    a = text.map("math.exp", "%x")
    flat = text.op(f"tensor.collapse_shape {a} [[0, 1]] : tensor<4x8xf32> into tensor<32xf32>", "tensor<32xf32>")
    b = text.map("math.absf", flat)
    c = text.reduce("arith.addf", a, 1)
    graph = graph_of(text.module(b, c))
    assert [op.name for op in graph.ops] == ["linalg.generic"] * 3
    assert graph.predecessors == ((), (0,), (0,))
    assert graph.successors == ((1, 2), (), ())
    assert graph.returned == {1, 2}


def test_a_view_stays_outside_unless_the_cluster_makes_its_source() -> None:
    text = Text(x="4x8")
    a = text.map("math.exp", "%x")
    flat = text.op(f"tensor.collapse_shape {a} [[0, 1]] : tensor<4x8xf32> into tensor<32xf32>", "tensor<32xf32>")
    b = text.map("math.absf", flat)
    graph = graph_of(text.module(b))
    alone = graph.cluster([1])
    assert _names(alone.inputs) == ["%collapsed"]
    assert [op.name for op in alone.ops] == ["tensor.empty", "linalg.generic"]
    both = graph.cluster([0, 1])
    assert _names(both.inputs) == ["%arg0"]
    assert "tensor.collapse_shape" in [op.name for op in both.ops]
    assert len(both.outputs) == 1


def test_a_tensor_read_in_two_forms_is_one_input() -> None:
    text = Text(x="4x8")
    flat = text.op("tensor.collapse_shape %x [[0, 1]] : tensor<4x8xf32> into tensor<32xf32>", "tensor<32xf32>")
    a, b = text.map("math.absf", flat), text.map("math.exp", "%x")
    cluster = graph_of(text.module(a, b)).cluster([0, 1])
    assert _names(cluster.inputs) == ["%arg0"]


def test_a_result_read_outside_or_returned_through_a_view_is_an_output() -> None:
    text = Text(x="4x8")
    a = text.map("math.exp", "%x")
    b = text.map("math.absf", a)
    flat = text.op(f"tensor.collapse_shape {b} [[0, 1]] : tensor<4x8xf32> into tensor<32xf32>", "tensor<32xf32>")
    c = text.map("math.sqrt", a)
    graph = graph_of(text.module(flat, c))
    assert len(graph.cluster([0, 1]).outputs) == 2
    assert len(graph.cluster([0, 1, 2]).outputs) == 2
    assert len(graph.cluster([0, 2]).outputs) == 2
    assert graph.cluster([0, 1, 2], duplicated={1}).outputs == graph.cluster([2]).outputs


CAPTURE = """
#m = affine_map<(d0) -> (d0)>
func.func @main(%t: tensor<9xf32>, %i: tensor<4xindex>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %f = tensor.empty() : tensor<9xf32>
  %u = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%t : tensor<9xf32>) outs(%f : tensor<9xf32>) {
  ^bb0(%x: f32, %o: f32):
    %r = math.exp %x : f32
    linalg.yield %r : f32
  } -> tensor<9xf32>
  %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%i : tensor<4xindex>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: index, %o: f32):
    %r = tensor.extract %u[%x] : tensor<9xf32>
    linalg.yield %r : f32
  } -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_a_tensor_captured_by_a_body_is_an_edge_and_an_input() -> None:
    graph = graph_of(CAPTURE)
    assert graph.predecessors == ((), (0,))
    assert len(graph.cluster([0]).outputs) == 1
    assert len(graph.cluster([1]).inputs) == 2


def _mask_chain(length: int) -> str:
    text = Text(x="8")
    init = text.empty("tensor<8xf32>")
    zero = text.op("arith.constant 0.0 : f32", "f32")
    value = text.op(f"linalg.fill ins({zero} : f32) outs({init} : tensor<8xf32>) -> tensor<8xf32>", "tensor<8xf32>")
    for _ in range(length):
        value = text.map("math.absf", value)
    return text.module(text.map("arith.addf", "%x", value))


def test_what_reads_no_tensor_is_computed_by_its_user() -> None:
    graph = graph_of(_mask_chain(3))
    assert len(graph.ops) == 1
    assert [op.name for op in graph.cluster([0]).ops].count("linalg.generic") == 4


def test_long_chains_without_input_are_nodes_again() -> None:
    graph = graph_of(_mask_chain(1500))
    assert len(graph.ops) == 1500 - MAX_FREE_DEPTH + 1
    assert len(graph.cluster(range(len(graph.ops))).outputs) == 1


@pytest.mark.parametrize("seed", range(10))
def test_convexity_agrees_with_the_definition(seed: int) -> None:
    source = random.Random(seed)
    text = Text(x="8", y="8")
    values = ["%x", "%y"]
    for _ in range(9):
        values.append(text.map("arith.addf", *source.sample(values, 2)))
    graph = graph_of(text.module(*values[2:]))
    reach = reachability(graph.successors)
    count = len(graph.ops)
    for nodes in itertools.combinations(range(count), 3):
        inside = set(nodes)
        leaves = any(
            reach[a] >> x & 1 and reach[x] >> b & 1
            for a in inside
            for b in inside
            for x in range(count)
            if x not in inside
        )
        assert is_convex(graph, nodes, reach) is not leaves
