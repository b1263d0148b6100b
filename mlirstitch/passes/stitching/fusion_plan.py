"""The fusion plan: which nodes share a kernel, and why neighbours do not."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.target import Target


class Rule(StrEnum):
    """Why a producer and its consumer stand in different clusters."""

    TEMPLATE = "template"
    CYCLE = "cycle"
    LIBRARY = "library"
    COMPUTE = "compute"
    RECOMPUTE = "recompute"
    LIMIT = "limit"
    SHARED = "shared"
    ELSEWHERE = "elsewhere"
    KEPT = "kept"
    ASKED = "asked"


RULES = {
    Rule.TEMPLATE: "no kernel template can compute both together",
    Rule.CYCLE: "a third cluster reads the one and feeds the other",
    Rule.LIBRARY: "a library computes one of them",
    Rule.COMPUTE: "each kernel holds at most one contraction, convolution, pooling or loop-nest reduction",
    Rule.RECOMPUTE: "the consumer would compute elements of the producer several times",
    Rule.LIMIT: "the kernel would have too many ops or arguments",
    Rule.SHARED: "others read the tensor too, or @main returns it, so it is stored once and not computed again",
    Rule.ELSEWHERE: "both save more in kernels with their other neighbours",
    Rule.KEPT: "stitch.cluster in the input says which ops one of the two kernels computes",
    Rule.ASKED: "a request keeps them apart",
}
"""What a user reads for every rule."""


@dataclass(frozen=True)
class PlannedCluster:
    """Nodes of one kernel, ascending, and the library routine that computes them, or ""."""

    nodes: tuple[int, ...]
    library: str = ""


@dataclass(frozen=True)
class Apart:
    """A producer and a consumer in different clusters.

    Attributes:
        producer, consumer: node numbers; several clusters may compute the consumer.
        reader: a node of this consumer's cluster that no other computes.
        rule: why.
        detail: what the templates said, or "".
        tensor: type of the tensor that goes through memory.
        bytes: its size, bytes.
    """

    producer: int
    consumer: int
    reader: int
    rule: Rule
    detail: str
    tensor: str
    bytes: int


@dataclass(frozen=True)
class FusionPlan:
    """All clusters of a function, in an order in which they can run, and the pairs left apart."""

    clusters: tuple[PlannedCluster, ...]
    apart: tuple[Apart, ...]

    def duplicated(self) -> frozenset[int]:
        """Nodes that stand in several clusters: every consumer computes them for itself."""
        return in_several(cluster.nodes for cluster in self.clusters)


def in_several(clusters: Iterable[Collection[int]]) -> frozenset[int]:
    """Nodes that stand in more than one of the clusters."""
    seen: set[int] = set()
    twice: set[int] = set()
    for nodes in clusters:
        twice.update(node for node in nodes if node in seen)
        seen.update(nodes)
    return frozenset(twice)


class Clusterer(Protocol):
    """Decides which nodes share a kernel."""

    def plan(self, graph: Graph, target: Target, library: str) -> FusionPlan:
        """A plan for ``graph``; ``library`` is the module's ``stitch.library``."""
        ...


def check_plan(graph: Graph, plan: FusionPlan) -> None:
    """Raise :class:`PassError` unless the plan covers every node and its clusters can run in the given order.

    A node may stand in several clusters only if it is not returned and every cluster that reads it holds it.
    """
    duplicated = plan.duplicated()
    position: dict[int, int] = {}
    for place, cluster in enumerate(plan.clusters):
        position.update(dict.fromkeys(cluster.nodes, place))
    missing = [node for node in range(len(graph.ops)) if node not in position]
    if missing:
        raise PassError(f"the fusion plan leaves out node {missing[0]} ({graph.ops[missing[0]].name})")
    for place, cluster in enumerate(plan.clusters):
        inside = set(cluster.nodes)
        for node in cluster.nodes:
            for source in graph.predecessors[node]:
                if source not in inside and (source in duplicated or position[source] >= place):
                    raise PassError(f"the fusion plan runs node {node} before node {source}, which it reads")
    if duplicated & graph.returned:
        raise PassError(f"the fusion plan duplicates node {min(duplicated & graph.returned)}, which is returned")
