"""From plans to tasks: which conversions there are, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from graph_harness import graph

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.materialize import materialize
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.program import COMPUTE, LOCAL, DistributedProgram
from mlirstitch.target import Links, Target

HEAD = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<4x8xf32> {stitch.name = "x"}, %y: tensor<4x8xf32> {stitch.name = "y"},
                %v: tensor<8x6xf32> {stitch.name = "v", stitch.role = "weight"}) -> tensor<4x6xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %a = linalg.matmul ins(%x, %v : tensor<4x8xf32>, tensor<8x6xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
  %b = linalg.matmul ins(%y, %v : tensor<4x8xf32>, tensor<8x6xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
"""


def _pointwise(name: str, op: str, left: str, right: str) -> str:
    return (
        f"  %{name} = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["
        '"parallel", "parallel"]}\n'
        f"    ins({left}, {right} : tensor<4x6xf32>, tensor<4x6xf32>) outs(%e : tensor<4x6xf32>) {{\n"
        f"    ^bb0(%i: f32, %j: f32, %o: f32):\n      %r = {op} : f32\n      linalg.yield %r : f32\n"
        "  } -> tensor<4x6xf32>\n"
    )


def made(body: str, mesh: str, rules: Callable[[Plan], object]) -> DistributedProgram:
    plan = Plan(graph(HEAD + body), Mesh.parse(mesh))
    rules(plan)
    return materialize(plan.place(), Target.parse("sm_90"), Links.parse("dgx-h100"))


def steps(program: DistributedProgram) -> dict[str, int]:
    return dict(Counter(type(task.step).__name__ for task in program.tasks if task.kind != COMPUTE))


SUM = _pointwise("c", "arith.addf %i, %j", "%a", "%b") + "  return %c : tensor<4x6xf32>\n}"
PRODUCT = _pointwise("c", "arith.mulf %i, %j", "%a", "%b") + "  return %c : tensor<4x6xf32>\n}"


def test_two_partial_sums_that_are_added_are_reduced_once() -> None:
    assert steps(made(SUM, "tp=2", lambda p: p.trans("v/0", space="tp"))) == {"AllReduce": 1}


def test_partial_sums_are_reduced_before_they_are_multiplied() -> None:
    assert steps(made(PRODUCT, "tp=2", lambda p: p.trans("v/0", space="tp"))) == {"AllReduce": 2}


def test_a_partial_sum_beside_a_whole_value_is_reduced_first() -> None:
    """Added to every part, the whole value would count as often as there are devices."""
    body = _pointwise("c", "arith.addf %i, %j", "%a", "%f") + "  return %c : tensor<4x6xf32>\n}"
    program = made(body, "tp=2", lambda p: p.trans("v/0", space="tp"))
    assert steps(program) == {"AllReduce": 1}
    reducing = next(task for task in program.tasks if type(task.step).__name__ == "AllReduce")
    adding = next(task for task in program.tasks if task.op == len(program.placed.graph.ops) - 1)
    assert reducing.writes[0] in adding.reads


def test_parts_over_time_are_added_up_on_the_device_before_devices_are() -> None:
    program = made(SUM, "tp=2", lambda p: p.trans("v/0", space="tp", time=4))
    assert steps(program) == {"Slice": 12, "Accumulate": 6, "AllReduce": 1}
    assert all(task.kind == LOCAL for task in program.tasks if type(task.step).__name__ == "Accumulate")


def test_values_can_be_reduced_in_every_part_of_time() -> None:
    def rules(plan: Plan) -> None:
        plan.trans("v/0", space="tp", time=4)
        plan.reduce_in_every_part(v.number for v in plan.graph.values if v.producer >= 0)

    assert steps(made(PRODUCT, "tp=2", rules)) == {"Slice": 12, "AllReduce": 8, "Accumulate": 6}


def test_what_was_gathered_for_one_reader_serves_the_next() -> None:
    assert steps(made(PRODUCT, "tp=2", lambda p: p.store("v", 0, "tp"))) == {"AllGather": 1}


def test_constants_are_computed_on_every_mesh_that_reads_them() -> None:
    def rules(plan: Plan) -> None:
        second = [op.number for op in plan.graph.ops if op.name == "linalg.matmul"][1]
        plan.assign(range(second), plan.mesh.at(pp=0))
        plan.assign(range(second, len(plan.graph.ops)), plan.mesh.at(pp=1))

    program = made(SUM, "pp=2", rules)
    sent = {program.placed.graph.values[t.value].name for t in program.tasks if type(t.step).__name__ == "Transfer"}
    assert sent == {"v", program.placed.graph.values[program.placed.graph.ops[1].results[0].value].name}


def test_every_buffer_is_written_once_before_it_is_read() -> None:
    program = made(SUM, "dp=2,tp=2", lambda p: (p.trans("x/0", space="dp"), p.trans("v/0", space="tp", time=2)))
    written = set(program.arguments)
    for task in program.tasks:
        assert written.issuperset(task.reads)
        assert not written.intersection(task.writes)
        written.update(task.writes)
    assert written == {buffer.number for buffer in program.buffers}
