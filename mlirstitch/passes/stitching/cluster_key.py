"""What a cluster computes, as a value: equal keys, equal kernels. Layers and steps of one model share most of them."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from mlir import ir

from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.template import Cluster, Schedule, Template, find_schedule, find_template
from mlirstitch.passes.structural_key import structural_key
from mlirstitch.target import Target


def cluster_key(cluster: Cluster, left_out: Collection[str] = ()) -> Hashable:
    """Types of the inputs, the ops without locations, and which results are outputs; ``left_out`` names attributes that
    do not count."""
    names: dict[ir.Value, int] = {}
    for value in (*cluster.inputs, *(result for op in cluster.ops for result in op.results)):
        names.setdefault(value, len(names))
    return (
        tuple(value.type for value in cluster.inputs),
        tuple(structural_key(op, names.get, left_out) for op in cluster.ops),
        tuple(names[value] for value in cluster.outputs),
    )


def find_template_once(
    graph: Graph, cluster: Cluster, target: Target, among: Collection[str] | None = None
) -> tuple[Template | None, str]:
    """What :func:`find_template` answers; the templates are asked once about clusters of ``graph`` that are equal."""
    key = ("template", target, among if among is None else tuple(among), cluster_key(cluster))
    if key not in graph.costs:
        graph.costs[key] = find_template(cluster, target, None if among is None else tuple(among))
    return graph.costs[key]


def find_schedule_once(
    graph: Graph, cluster: Cluster, target: Target, among: Collection[str] | None = None
) -> tuple[Schedule | None, str]:
    """What :func:`find_schedule` answers; the templates are asked once about clusters of ``graph`` that are equal."""
    key = ("schedule", target, among if among is None else tuple(among), cluster_key(cluster))
    if key not in graph.costs:
        graph.costs[key] = find_schedule(cluster, target, None if among is None else tuple(among))
    return graph.costs[key]
