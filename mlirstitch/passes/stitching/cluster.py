"""``stitch-cluster``: decide which ops share a kernel, and write it on the ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import source_line
from mlirstitch.options import option
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import MATMUL_OPS
from mlirstitch.passes.stitching.explorer import BeamClusterer
from mlirstitch.passes.stitching.fusion_plan import Apart, Clusterer, FusionPlan, check_plan
from mlirstitch.passes.stitching.graph import Graph, build_graph
from mlirstitch.passes.stitching.greedy import GreedyClusterer
from mlirstitch.passes.stitching.judge import Limits
from mlirstitch.passes.stitching.requests import clear_requests
from mlirstitch.passes.structured import main_function

CLUSTERERS: dict[str, Callable[[Limits], Clusterer]] = {"beam": BeamClusterer, "greedy": GreedyClusterer}
"""The clusterers by name; the first is the default."""


@register_pass
@dataclass(frozen=True)
class StitchCluster(Pass):
    """Group the ops of ``@main`` into clusters, one kernel each.

    Writes ``stitch.cluster = array<i64: n, ...>`` on every op that a kernel computes (several numbers where each of
    several kernels computes the op for itself), ``stitch.library`` on ops given to a library, and ``stitch.apart`` on
    ``@main``: one entry for every tensor that still goes from one kernel to another through memory, with the rule.
    Ops that carry ``stitch.cluster`` already are kept together: those with the same number become one cluster, all
    others are clustered around them, and the numbers are given anew. What cannot be one kernel is refused. Requests
    that ``stitch-control`` wrote on the ops are honoured or refused, and taken off.
    Constants, fills, ``tensor.empty``, masks that read no tensor, and reshapes belong to whoever uses them.
    """

    NAME = "stitch-cluster"

    max_ops: int = option(Limits.ops, "most ops in one kernel")
    max_arguments: int = option(Limits.arguments, "most tensors that one kernel reads and writes")
    max_parts: int = option(Limits.parts, "most independent clusters that share a launch; 1: none do")
    explorer: str = option("beam", "greedy, or beam: look for something better than the greedy plan", tuple(CLUSTERERS))

    def run(self, op: ir.Operation) -> None:
        main = main_function(op)
        if main is None:
            return
        graph = build_graph(main)
        target = stitch.target_of(op)
        clusterer = CLUSTERERS[self.explorer](Limits(self.max_ops, self.max_arguments, self.max_parts))
        plan = clusterer.plan(graph, target, stitch.LIBRARY_MODE.require(op))
        check_plan(graph, plan)
        write_plan(graph, plan)
        clear_requests(graph)


def write_plan(graph: Graph, plan: FusionPlan) -> None:
    """Write a fusion plan onto the ops and the function."""
    places: dict[int, list[int]] = {}
    for number, cluster in enumerate(plan.clusters):
        for node in cluster.nodes:
            places.setdefault(node, []).append(number)
        if cluster.library:
            contraction = next(node for node in cluster.nodes if graph.ops[node].name in MATMUL_OPS)
            stitch.LIBRARY_OP.set(graph.ops[contraction], cluster.library)
    for node, numbers in places.items():
        stitch.MEMBER.set(graph.ops[node], tuple(numbers))
    with graph.function.context:
        stitch.APART.set(graph.function, tuple(_entry(graph, plan, pair, places) for pair in plan.apart))


def _entry(graph: Graph, plan: FusionPlan, pair: Apart, places: dict[int, list[int]]) -> dict[str, ir.Attribute]:
    producer, consumer = graph.ops[pair.producer], graph.ops[pair.consumer]
    clusters = [places[pair.producer][0], places[pair.reader][0]]
    positions = [
        plan.clusters[number].nodes.index(node)
        for number, node in zip(clusters, (pair.producer, pair.consumer), strict=True)
    ]
    fields: dict[str, ir.Attribute] = {
        "clusters": ir.DenseI64ArrayAttr.get(clusters),
        "positions": ir.DenseI64ArrayAttr.get(positions),
        "ops": ir.ArrayAttr.get([ir.StringAttr.get(producer.name), ir.StringAttr.get(consumer.name)]),
        "lines": ir.ArrayAttr.get(
            [ir.StringAttr.get(source_line(producer.location)), ir.StringAttr.get(source_line(consumer.location))]
        ),
        "rule": ir.StringAttr.get(pair.rule.value),
        "tensor": ir.StringAttr.get(pair.tensor),
        "bytes": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), pair.bytes),
    }
    if pair.detail:
        fields["detail"] = ir.StringAttr.get(pair.detail)
    return fields
