"""Every kind of fault that parallel plans are known for, put back in: the judge must see it.

A case is a function, a plan, and a mutation of the code under test. Without the mutation all devices compute what the
function computes; with it they must not, or the program must be refused or stop with an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from mlir import ir

import mlirstitch.driver.partition.partitioned as partitioned_module
from mlirstitch.dialects import dist, parse_module
from mlirstitch.driver.partition import partition
from mlirstitch.driver.reference import run
from mlirstitch.errors import LaunchError, MlirstitchError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning import device_programs, localize
from mlirstitch.passes.partitioning.graph import Graph, GraphOp
from mlirstitch.passes.partitioning.layout import DimSplit
from mlirstitch.passes.partitioning.local_build import First
from mlirstitch.passes.partitioning.plan import Plan

TOLERANCE = 1e-5
Patch = pytest.MonkeyPatch

HEAD = "#id = affine_map<(d0, d1) -> (d0, d1)>\n#row = affine_map<(d0, d1) -> (d0)>\n"
MATMUL = """
func.func @main(%x: tensor<{m}x{k}xf32> {{stitch.name = "x"}}, %w: tensor<{k}x{n}xf32> {{stitch.name = "w"}},
                %b: tensor<{m}x{n}xf32> {{stitch.name = "b"}}) -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %p = linalg.matmul ins(%x, %w : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>) outs({init} : tensor<{m}x{n}xf32>)
    -> tensor<{m}x{n}xf32>
  {more}
}}"""


def matmul(more: str = "return %p : tensor<4x6xf32>", init: str = "%f", m: int = 4, k: int = 8, n: int = 6) -> str:
    return HEAD + MATMUL.format(m=m, k=k, n=n, init=init, more=more)


def pointwise(body: str, *operands: str, shape: str = "4x6") -> str:
    maps = ", ".join(["#id"] * (len(operands) + 1))
    types = ", ".join([f"tensor<{shape}xf32>"] * len(operands))
    names = ", ".join(f"%i{n}: f32" for n in range(len(operands)))
    return (
        f'%y = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel"]}}\n'
        f"  ins({', '.join(operands)} : {types}) outs(%e : tensor<{shape}xf32>) {{\n^bb0({names}, %o: f32):\n"
        f"%r = {body} : f32\nlinalg.yield %r : f32\n}} -> tensor<{shape}xf32>\nreturn %y : tensor<{shape}xf32>"
    )


PAD = (
    HEAD
    + """
func.func @main(%x: tensor<6x4xf32> {stitch.name = "x"}) -> tensor<8xf32> {
  %one = arith.constant 1.0 : f32
  %zero = arith.constant 0.0 : f32
  %p = tensor.pad %x low[1, 1] high[1, 1] {
  ^bb0(%i: index, %j: index):
    tensor.yield %one : f32
  } : tensor<6x4xf32> to tensor<8x6xf32>
  %e = tensor.empty() : tensor<8xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%p : tensor<8x6xf32>) outs(%f : tensor<8xf32>) {
    ^bb0(%a: f32, %o: f32):
      %r = arith.addf %a, %o : f32
      linalg.yield %r : f32
  } -> tensor<8xf32>
  return %s : tensor<8xf32>
}"""
)
TABLE = (
    HEAD
    + """
func.func @main(%x: tensor<4x2xf32> {stitch.name = "x"}) -> tensor<4x2xf32> {
  %c = arith.constant dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]> : tensor<4x2xf32>
  %e = tensor.empty() : tensor<4x2xf32>
  """
    + pointwise("arith.addf %i0, %i1", "%x", "%c", shape="4x2")
    + "\n}"
)


@dataclass(frozen=True)
class Fault:
    """A function, a plan for it, and what goes wrong."""

    text: str
    mesh: str
    rules: Callable[[Plan], object]
    mutate: Callable[[Patch], None]


def with_ops(change: Callable[[GraphOp], GraphOp]) -> Callable[[Patch], None]:
    """Ops of the graph, changed: what the planner believes of them is wrong."""
    known = partitioned_module.graph_of

    def changed(function: ir.Operation) -> Graph:
        graph = known(function)
        return dataclasses.replace(graph, ops=tuple(change(op) for op in graph.ops))

    return lambda patch: patch.setattr(partitioned_module, "graph_of", changed)


def believed_linear(*sets: tuple[int, ...]) -> Callable[[GraphOp], GraphOp]:
    return lambda op: dataclasses.replace(op, linear=sets) if op.name == "linalg.generic" else op


def step_rule(name: str, faulty: Callable[..., ir.Value]) -> Callable[[Patch], None]:
    """The rule that builds a step of a conversion, replaced; it gets the right one first."""

    def mutate(patch: Patch) -> None:
        rules = dict(device_programs._DeviceProgram._rules)
        kind = next(kind for kind in rules if kind.__name__ == name)
        right = rules[kind]
        rules[kind] = lambda *arguments: faulty(right, *arguments)
        patch.setattr(device_programs._DeviceProgram, "_rules", rules)

    return mutate


def _twice(right, program, task, step, reads, location) -> ir.Value:
    return right(program, task, step, [right(program, task, step, reads, location)], location)


def _wrong_dim(right, program, task, step, reads, location) -> ir.Value:
    whole = program._type(program._buffer(task.writes[0]))
    turned = ir.RankedTensorType.get(list(reads[0].type.shape)[::-1], whole.element_type)
    order = [ir.AffineMap.get_permutation([1, 0]), ir.AffineMap.get_identity(2)]
    flip = device_programs.build.build_generic(
        [reads[0]], [device_programs.build_empty(list(turned.shape), whole.element_type, location)],
        order, ["parallel"] * 2, lambda arguments: [arguments[0]], location,
    ).result  # fmt: skip
    return dist.all_gather(flip, whole, step.axes, 1 - step.dim, location)


def _keeps_remainder_away(patch: Patch) -> None:
    right = DimSplit.range

    def cut(self, size, coordinate, sizes):
        parts = int(np.prod([sizes[axis] for axis in self.axes], dtype=int))
        even = dataclasses.replace(self, extent=self.extent // parts * parts)
        return right(even, size, coordinate, sizes)

    patch.setattr(DimSplit, "range", cut)


def _pads_every_part(patch: Patch) -> None:
    def pad(op, part):
        clone = localize._clone(op, part, {0: part.operands[0]})
        (first, end), loops = part.boxes[0][0], part.loops[0]
        clone.attributes["static_low"] = ir.DenseI64ArrayAttr.get([loops[1] - loops[0] - (end - first), 1])
        clone.attributes["static_high"] = ir.DenseI64ArrayAttr.get([0, 1])
        return [clone.result]

    patch.setitem(localize._RULES, "tensor.pad", pad)


def _constants_of_the_first_device(patch: Patch) -> None:
    patch.setattr(device_programs._DeviceProgram, "_first", lambda self, buffer, dim: First(0))


def split_sum(plan: Plan) -> None:
    plan.trans("w/0", space="tp")


def in_time(plan: Plan) -> None:
    plan.trans("w/0", time=4)


FAULTS = {
    "bias added by every device": Fault(
        matmul(init="%b"), "tp=2", split_sum, with_ops(lambda op: dataclasses.replace(op, inits=()))
    ),
    "partial sum through an op that is not linear": Fault(
        matmul(pointwise("math.tanh %i0", "%p")), "tp=2", split_sum, with_ops(believed_linear((0,)))
    ),
    "norm of partial values": Fault(
        matmul(pointwise("arith.mulf %i0, %i1", "%p", "%p")), "tp=2", split_sum, with_ops(believed_linear((0, 1)))
    ),
    "sum over devices left away": Fault(
        matmul(), "tp=2", split_sum, step_rule("AllReduce", lambda right, program, task, step, reads, at: reads[0])
    ),
    "sum over devices made twice": Fault(matmul(), "tp=2", split_sum, step_rule("AllReduce", _twice)),
    "sum over micro-batches left away": Fault(
        matmul(),
        "tp=1",
        in_time,
        lambda patch: patch.setattr(device_programs.build, "combine", lambda left, right, combiner, at: left),
    ),
    "uneven parts cut as even ones": Fault(
        matmul(), "tp=4", lambda plan: plan.trans("w/1", space="tp"), _keeps_remainder_away
    ),
    "dim as long as there are devices taken for another": Fault(
        matmul(more="return %p : tensor<4x4xf32>", m=4, n=4),
        "dp=4",
        lambda plan: plan.trans("x/0", space="dp"),
        step_rule("AllGather", _wrong_dim),
    ),
    "padding counted by every part": Fault(PAD, "sp=2", lambda p: p.trans_op(0, 0, space="sp"), _pads_every_part),
    "constants of another device": Fault(
        TABLE, "dp=2", lambda plan: [plan.trans_op(op, 0, space="dp") for op in (0, 1)], _constants_of_the_first_device
    ),
}


def deviation(fault: Fault) -> float:
    """Of what all devices compute together from what the function computes, relative."""
    module = parse_module(fault.text)
    made = partition(module, fault.rules, Mesh.parse(fault.mesh))
    numbers = np.random.default_rng(0)
    graph = made.program.placed.graph
    arguments = [numbers.uniform(0.5, 1, graph.values[v].shape).astype(np.float32) for v in graph.arguments]
    (got,), (wanted,) = made.run(arguments), run(module, arguments)
    return float(np.abs(got - wanted).max() / np.abs(wanted).max()) if np.isfinite(got).all() else float("inf")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_put_back_is_seen(name: str, monkeypatch: Patch) -> None:
    fault = FAULTS[name]
    assert deviation(fault) <= TOLERANCE
    fault.mutate(monkeypatch)
    try:
        seen = deviation(fault)
    except MlirstitchError:
        return  # refused, or stopped with an error
    assert seen > 100 * TOLERANCE


def test_arguments_of_other_shapes_are_refused_by_name() -> None:
    made = partition(parse_module(matmul()), split_sum, Mesh.parse("tp=2"))
    with pytest.raises(LaunchError, match=r"argument w has shape \[8, 7\], not \[8, 6\]"):
        made.run([np.zeros((4, 8), np.float32), np.zeros((8, 7), np.float32), np.zeros((4, 6), np.float32)])


def test_devices_that_hold_the_same_result_must_agree_to_the_bit() -> None:
    made = partition(parse_module(matmul()), lambda plan: None, Mesh.parse("dp=2"))
    parts = {device: [np.full((4, 6), float(device), np.float32)] for device in (0, 1)}
    with pytest.raises(LaunchError, match="devices 0 and 1 give different values"):
        made.whole(parts)
