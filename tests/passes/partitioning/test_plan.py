"""Rules of a plan: what they cut, what they refuse with which reason, and what they note."""

from __future__ import annotations

import pytest
from graph_harness import graph

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.placement import Moment
from mlirstitch.passes.partitioning.plan import Plan

PERCEPTRON = """
func.func @main(%x: tensor<8x6xf32> {stitch.name = "x", stitch.role = "input"},
                %v: tensor<6x12xf32> {stitch.name = "v", stitch.role = "weight"},
                %w: tensor<12x6xf32> {stitch.name = "w", stitch.role = "weight"}) -> tensor<8x6xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x12xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8x12xf32>) -> tensor<8x12xf32>
  %h = linalg.matmul ins(%x, %v : tensor<8x6xf32>, tensor<6x12xf32>) outs(%f : tensor<8x12xf32>) -> tensor<8x12xf32>
  %t = tensor.empty() : tensor<8x6xf32>
  %g = linalg.fill ins(%zero : f32) outs(%t : tensor<8x6xf32>) -> tensor<8x6xf32>
  %y = linalg.matmul ins(%h, %w : tensor<8x12xf32>, tensor<12x6xf32>) outs(%g : tensor<8x6xf32>) -> tensor<8x6xf32>
  return %y : tensor<8x6xf32>
}
"""
SCAN = """
func.func @main(%x: tensor<4x6xf32> {stitch.name = "x", stitch.role = "input"}) -> tensor<4x6xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %s = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%s : tensor<4xf32>) -> tensor<4xf32>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>,
                                          affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x6xf32>) outs(%e, %f : tensor<4x6xf32>, tensor<4xf32>) {
    ^bb0(%in: f32, %out: f32, %total: f32):
      %n = arith.addf %total, %in : f32
      linalg.yield %n, %n : f32, f32
  } -> (tensor<4x6xf32>, tensor<4xf32>)
  return %r#0 : tensor<4x6xf32>
}
"""


def perceptron(mesh: str = "dp=2,tp=3") -> Plan:
    return Plan(graph(PERCEPTRON), Mesh.parse(mesh))


def op_named(plan: Plan, name: str, nth: int = 0) -> int:
    return [op.number for op in plan.graph.ops if op.name == name][nth]


def test_a_class_cuts_every_op_of_it_and_the_arguments_are_stored_cut() -> None:
    plan = perceptron()
    assert plan.trans("v/1", space="tp") == ()
    placed = plan.place()
    first, second = op_named(plan, "linalg.matmul"), op_named(plan, "linalg.matmul", 1)
    assert placed.placements[first].cuts == ((1, ("tp",)),)
    assert placed.placements[second].cuts == ((2, ("tp",)),)
    layouts = {plan.graph.values[v].name: s.layout for v, s in zip(plan.graph.arguments, placed.storage, strict=True)}
    assert [d.axes for d in layouts["v"].dims] == [(), ("tp",)]
    assert [d.axes for d in layouts["w"].dims] == [("tp",), ()]
    assert layouts["x"].axes == ()


def test_time_stands_inside_of_space_whatever_is_said_first() -> None:
    plan = perceptron()
    plan.trans("x/0", time=("micro", 2))
    plan.trans("x/0", space="dp")
    assert plan.place().placements[op_named(plan, "linalg.matmul")].of(0) == ("dp", "micro")


def test_a_second_cut_by_the_same_axis_is_noted_and_the_op_keeps_the_first() -> None:
    plan = perceptron()
    plan.trans("x/0", space="dp")
    notes = plan.trans("v/1", space="dp")
    assert notes
    assert all("axis dp cuts another loop" in note.reason for note in notes)
    assert plan.place().notes == tuple(sorted(notes, key=lambda n: (n.op, n.loop)))
    assert plan.place().placements[op_named(plan, "linalg.matmul")].cuts == ((0, ("dp",)),)


def test_a_rule_for_one_op_is_followed_or_refused_with_op_loop_and_reason() -> None:
    plan = Plan(graph(SCAN), Mesh.parse("dp=2"))
    scan = op_named(plan, "linalg.generic")
    with pytest.raises(PlanError, match=rf"linalg.generic \(op {scan}\), loop 1: a scan runs along it"):
        plan.trans_op(scan, 1, space="dp")
    plan.trans_op(scan, 0, space="dp")
    with pytest.raises(PlanError, match="loop 0: axis dp cuts another loop of it, or this one, already"):
        plan.trans_op(scan, 0, space="dp")
    with pytest.raises(PlanError, match="loop 5: it has loops 0 to 1"):
        plan.trans_op(scan, 5, space="dp")


def test_an_op_cut_by_an_axis_its_devices_do_not_have_is_refused() -> None:
    plan = perceptron("pp=2,tp=3")
    plan.trans("v/1", space="pp")
    plan.assign(range(len(plan.graph.ops)), plan.mesh.at(pp=0))
    with pytest.raises(PlanError, match="cut by axis pp, but placed on a mesh with tp"):
        plan.place()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda p: p.trans("nothing/0", space="dp"), "no dim is named 'nothing/0'"),
        (lambda p: p.trans("x/0", space="ep"), "the mesh has no axis 'ep'"),
        (lambda p: p.trans("x/0", space=("dp", "dp")), "axis named twice"),
        (lambda p: p.trans("x/0"), "names no axis"),
        (lambda p: p.trans("x/0", time="micro"), "there is no time axis 'micro'"),
        (lambda p: p.trans("x/0", time=("dp", 2)), "its name or size is taken"),
        (lambda p: p.trans("x/0", time=0), "time axis 'micro' with 0 parts"),
        (lambda p: p.trans_op(99, 0, space="dp"), "there is no op 99"),
        (lambda p: p.store("x", 2, "dp"), "x has no dim 2"),
        (lambda p: p.store("z", 0, "dp"), "the function has no argument 'z'"),
        (lambda p: p.assign([0], Mesh.of(dp=16)), "device 6 is not in the mesh"),
        (lambda p: p.order(Moment((0,))), "op-order takes two moments"),
        (lambda p: p.moment([0], micro=1), "there is no time micro=1"),
        (lambda p: p.stages(0), "0 stages"),
    ],
)
def test_rules_that_name_what_is_not_there_are_refused(rule, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rule(perceptron())


def test_replication_undoes_cuts() -> None:
    plan = perceptron()
    plan.trans("x/0", space="dp")
    plan.trans("v/1", space="tp")
    first = op_named(plan, "linalg.matmul")
    plan.replicate([first], "dp")
    assert plan.place().placements[first].cuts == ((1, ("tp",)),)
    plan.replicate([first])
    assert plan.place().placements[first].cuts == ()


def test_heads_stay_whole_where_an_argument_is_stored_cut() -> None:
    """Seven columns of two over three devices: a column is never torn."""
    text = PERCEPTRON.replace("12", "14")
    text = text.replace(
        "%y = linalg.matmul ins(%h, %w : tensor<8x14xf32>",
        "%p = tensor.expand_shape %h [[0], [1, 2]] output_shape [8, 7, 2] : tensor<8x14xf32> into tensor<8x7x2xf32>\n"
        "  %q = tensor.collapse_shape %p [[0], [1, 2]] : tensor<8x7x2xf32> into tensor<8x14xf32>\n"
        "  %y = linalg.matmul ins(%q, %w : tensor<8x14xf32>",
    )
    plan = Plan(graph(text), Mesh.parse("tp=3"))
    plan.trans("v/1", space="tp")
    view = op_named(plan, "tensor.expand_shape")
    assert plan.place().placements[view].cuts == ((1, ("tp",)),)


def test_stages_are_cut_where_little_crosses_and_keep_the_order_of_the_data() -> None:
    plan = perceptron()
    first, second = plan.stages(2)
    assert op_named(plan, "linalg.matmul") in first
    assert op_named(plan, "linalg.matmul", 1) in second
    assert sorted((*first, *second)) == list(range(len(plan.graph.ops)))
