"""Graphs of functions given as text, and the clusters of their plans."""

from __future__ import annotations

from mlir import ir

from mlirstitch.dialects import parse_module
from mlirstitch.passes.stitching.fusion_plan import FusionPlan
from mlirstitch.passes.stitching.graph import Graph, build_graph
from mlirstitch.passes.structured import main_function

_KEPT: list[ir.Module] = []
"""A graph refers to the ops of its module."""


def graph_of(text: str) -> Graph:
    """The graph of a module's entry function."""
    module = parse_module(text)
    _KEPT.append(module)
    main = main_function(module.operation)
    assert main is not None
    return build_graph(main)


def nodes_of(plan: FusionPlan) -> list[tuple[int, ...]]:
    """The nodes of each cluster, in the order of the plan."""
    return [cluster.nodes for cluster in plan.clusters]
