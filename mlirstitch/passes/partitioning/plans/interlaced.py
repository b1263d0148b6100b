"""Interlaced pipeline (SuperScaler, arXiv 2301.08984, section 2): embedding and output on all devices, the rest staged.

A large vocabulary would fill the first and the last stage. Here every device has a part of the embedding table and of
the output projection with its loss, and one stage of everything between. For the schedule they are one more stage.
"""

from __future__ import annotations

from collections.abc import Collection

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.access import Whole
from mlirstitch.passes.partitioning.dims import DimClass
from mlirstitch.passes.partitioning.graph import REDUCTION, GraphOp
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plans.pipeline_parallel import AXIS, cut_batch, one_f_one_b_order, order_stages
from mlirstitch.passes.partitioning.splits import legal_splits
from mlirstitch.passes.partitioning.stages import stages_of

_VOCABULARY = "vocabulary"


def interlaced(plan: Plan) -> None:
    """A 1F1B pipeline whose embedding and output are cut along vocabulary or width over all of its devices."""
    if not plan.classes.has(_VOCABULARY):
        raise PlanError("the function has no vocabulary to cut", hint="choose plan pp-1f1b")
    micro_batches = cut_batch(plan)
    everywhere = _everywhere(plan)
    devices = plan.mesh.sizes[AXIS]
    shared = stages_of(plan.graph, plan.phases, devices, everywhere)
    stages = [[op for op in ops if op not in everywhere] for ops in shared]
    for stage, ops in enumerate(stages):
        plan.assign(ops, plan.mesh.at(pp=stage))
    order_stages(plan, stages, [one_f_one_b_order(devices + 1, micro_batches, stage) for stage in range(devices)])


def _everywhere(plan: Plan) -> frozenset[int]:
    """Cut embedding and output over all devices; the ops, with those that lie between parts of the output."""
    outputs = _outputs(plan)
    found: set[int] = set()
    for cut in outputs:
        plan.trans(cut.names[0], space=AXIS)
        found.update(op for op, _ in cut.loops)
    return frozenset(found | _between(plan, found) | _embedding(plan, found))


def _outputs(plan: Plan) -> list[DimClass]:
    """The widths that a forward contraction makes of a weight and that none sums over: the logits."""
    found: list[DimClass] = []
    for candidate in plan.classes.classes:
        weights = {value for value, _ in candidate.dims if plan.graph.values[value].role == "weight"}
        loops = [(plan.graph.ops[op], loop) for op, loop in candidate.loops if op in plan.forward]
        contractions = [(op, loop) for op, loop in loops if op.kind == "compute"]
        made = any(use.value in weights for op, _ in contractions for use in op.inputs)
        if made and all(op.kinds[loop] != REDUCTION for op, loop in contractions):
            found.append(candidate)
    return found


def _between(plan: Plan, output: Collection[int]) -> set[int]:
    """What the loss takes beside the logits, and backward ops that read only what is everywhere."""
    graph = plan.graph
    constant = graph.constant_ops()
    found = {op for op in output if op in plan.forward and op not in constant}
    backward = set(output) - found
    for op in graph.ops:
        producers = {graph.values[use.value].producer for use in op.inputs} - constant - {-1}
        here = [producer in found or producer in backward for producer in sorted(producers)]
        if (op.number in plan.forward and any(producers & found)) or (
            op.number in plan.backward and here and all(here)
        ):
            found.add(op.number)
    return found


def _embedding(plan: Plan, output: Collection[int]) -> set[int]:
    """Cut tables that are read at places that depend on data along their width, unless they are the output's too."""
    graph = plan.graph
    found: set[int] = set()
    for vocabulary in plan.classes.select(_VOCABULARY):
        tables = {value for value, _ in vocabulary.dims if graph.values[value].role == "weight"}
        readers = [op for op in graph.ops if any(_gathers(op, table) for table in tables)]
        ops = {op.number for op in readers} | {op for op, _ in vocabulary.loops}
        found |= ops
        for op in sorted(ops - set(output)):
            _cut_width(plan, graph.ops[op], plan.classes.select(f"{graph.values[min(tables)].name}/1"))
        for table in sorted(tables):
            if not set(output) & set(graph.values[table].users):
                plan.store(graph.values[table].name, 1, AXIS)
    return found


def _gathers(op: GraphOp, table: int) -> bool:
    return any(use.value == table and any(isinstance(access, Whole) for access in use.access) for use in op.inputs)


def _cut_width(plan: Plan, op: GraphOp, widths: list[DimClass]) -> None:
    """Cut the loop of an op that walks along the width of the table; it stays whole if that is not legal."""
    loops = {loop for width in widths for number, loop in width.loops if number == op.number}
    for loop in sorted(loops & set(legal_splits(op))):
        if plan.may_cut(op.number, loop, AXIS):
            plan.trans_op(op.number, loop, space=AXIS)
            return
