"""Kernel packing: clusters that do not depend on each other share a launch, only to save launches.

The last step of clustering (FusionStitching, arXiv 2009.10924, section 2, the scheme "kernel packing"). Clusters at the
same depth of the graph of clusters depend on each other in no way, and uniting some of them makes no cycle: every edge
still goes to a greater depth. So packing needs no search for paths, takes near-linear time, and does the same in every
one of many identical layers, whose packed kernels are then equal too. Depth is counted twice: from the start (biases of
the queries, keys and values of one layer), then from the end (updates of all parameters).

A cluster joins a pack if that saves more than it costs: a launch against what parts lose by having the registers,
shared memory and block size of the greediest among them (``packing_cost``). Packs that would keep tensors in memory for
long are not made: a bias gradient does not wait for those of other layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.passes.op_kind import Kind
from mlirstitch.passes.stitching.cluster_key import cluster_key
from mlirstitch.passes.stitching.fusion_plan import FusionPlan, PlannedCluster
from mlirstitch.passes.stitching.graph import Graph, root, tensor_bytes
from mlirstitch.passes.stitching.judge import Limits
from mlirstitch.passes.stitching.packing_cost import Load, seconds_lost
from mlirstitch.passes.stitching.packing_memory import Lifetimes, run_order_edges
from mlirstitch.passes.stitching.requests import Requests
from mlirstitch.passes.stitching.template import PACKED, Cluster, Schedule, find_template, templates
from mlirstitch.target import MAX_KERNEL_ARGUMENT_BYTES, Target

KEPT_BYTES = 1 << 20
"""Memory that a pack may keep alive longer than its parts would."""

_POINTER_BYTES = 8


def pack_independent(
    graph: Graph, plan: FusionPlan, target: Target, limits: Limits, fixed: Collection[int] = frozenset()
) -> FusionPlan:
    """``plan`` with clusters packed, at most ``limits.parts`` in one kernel; the pairs left apart stay as they are.

    Clusters that hold nodes of ``fixed`` are left alone. Equal plans give equal results.
    """
    if limits.parts < 2 or len(plan.clusters) < 2 or all(template.name != PACKED for template in templates()):
        return plan
    packer = _Packer(graph, plan, target, limits, fixed)
    packer.pack(packer.depths_from_start())
    packer.pack(packer.depths_from_end())
    return FusionPlan(packer.clusters(), plan.apart)


@dataclass(frozen=True)
class _Candidate:
    """A cluster that may share a launch.

    Attributes:
        place: its position in the plan.
        cluster: what it computes.
        load: what it asks of the chip.
        roots: the tensors it reads, views looked through, and those it makes.
        workspace: scratch buffers and tickets.
    """

    place: int
    cluster: Cluster
    load: Load
    roots: frozenset[ir.Value]
    workspace: int


@dataclass
class _Pack:
    """Candidates that are to share a launch."""

    members: list[_Candidate] = field(default_factory=list)
    lost: float = 0.0


class _Packer:
    """One run: groups of clusters, each named by its first place in the plan."""

    def __init__(self, graph: Graph, plan: FusionPlan, target: Target, limits: Limits, fixed: Collection[int]) -> None:
        self._graph = graph
        self._plan = plan
        self._target = target
        self._limits = limits
        self._fixed = frozenset(fixed)
        self._requests = Requests.of(graph)
        self._duplicated = plan.duplicated()
        self._lifetimes = Lifetimes(graph, plan)
        self._before = run_order_edges(graph, plan)
        self._groups: dict[int, list[int]] = {place: [place] for place in range(len(plan.clusters))}
        self._candidates: dict[int, _Candidate | None] = {}
        self._schedules: dict[Hashable, Schedule | None] = {}
        self._packable: dict[Hashable, bool] = {}

    # Depths ---------------------------------------------------------------------------------------------------------

    def depths_from_start(self) -> dict[int, int]:
        """For every group the length of the longest path that leads to it."""
        before = self._group_edges()
        depth: dict[int, int] = {}
        for name in self._order():
            depth[name] = 1 + max((depth[source] for source in before[name]), default=-1)
        return depth

    def depths_from_end(self) -> dict[int, int]:
        """For every group the length of the longest path that leads on from it."""
        before = self._group_edges()
        depth = dict.fromkeys(before, 0)
        for name in reversed(self._order()):
            for source in before[name]:
                depth[source] = max(depth[source], depth[name] + 1)
        return depth

    def _group_edges(self) -> dict[int, set[int]]:
        owner = {place: name for name, places in self._groups.items() for place in places}
        return {
            name: {owner[source] for place in places for source in self._before[place]} - {name}
            for name, places in self._groups.items()
        }

    def _order(self) -> list[int]:
        """The groups in an order in which they can run: each as late as its last cluster stood, if it can."""
        before = self._group_edges()
        after: dict[int, list[int]] = {name: [] for name in before}
        for name, sources in before.items():
            for source in sorted(sources):
                after[source].append(name)
        waiting = {name: len(sources) for name, sources in before.items()}
        ready = [(max(self._groups[name]), name) for name, count in waiting.items() if not count]
        heapq.heapify(ready)
        ordered: list[int] = []
        while ready:
            name = heapq.heappop(ready)[1]
            ordered.append(name)
            for target in after[name]:
                waiting[target] -= 1
                if not waiting[target]:
                    heapq.heappush(ready, (max(self._groups[target]), target))
        return ordered

    def clusters(self) -> tuple[PlannedCluster, ...]:
        """The clusters of the result."""
        found: list[PlannedCluster] = []
        for name in self._order():
            places = self._groups[name]
            nodes = {node for place in places for node in self._plan.clusters[place].nodes}
            found.append(PlannedCluster(tuple(sorted(nodes)), self._plan.clusters[name].library))
        return tuple(found)

    # Packs ----------------------------------------------------------------------------------------------------------

    def pack(self, depths: dict[int, int]) -> None:
        """Pack groups of equal depth."""
        levels: dict[int, list[int]] = {}
        for name in sorted(depths):
            levels.setdefault(depths[name], []).append(name)
        for depth in sorted(levels):
            names = [name for name in levels[depth] if len(self._groups[name]) == 1 and self._may_pack(name)]
            if len(names) > 1:
                near = frozenset(place for name in levels[depth] for place in self._groups[name])
                self._pack_level([self._candidate(name) for name in names], near)

    def _pack_level(self, found: Sequence[_Candidate | None], near: frozenset[int]) -> None:
        candidates = [candidate for candidate in found if candidate is not None]
        # Like to like: what asks the same of the chip stands together.
        candidates.sort(key=lambda c: (-c.load.threads, c.load.registers, c.place))
        packs: list[_Pack] = []
        for candidate in candidates:
            for pack in packs:
                lost = self._lost_with(pack, candidate, near)
                if lost is not None:
                    pack.members.append(candidate)
                    pack.lost = lost
                    break
            else:
                packs.append(_Pack([candidate]))
        for pack in packs:
            places = sorted(member.place for member in pack.members)
            if len(places) > 1 and self._is_accepted(pack):
                self._groups[places[0]] = places
                for place in places[1:]:
                    del self._groups[place]

    def _may_pack(self, place: int) -> bool:
        """A kernel computes the cluster in the time of its memory accesses, and nobody wants it as it is."""
        planned = self._plan.clusters[place]
        if planned.library or not self._fixed.isdisjoint(planned.nodes):
            return False
        return all(self._graph.kinds[node] is not Kind.COMPUTE for node in planned.nodes)

    def _candidate(self, place: int) -> _Candidate | None:
        """What is known of a cluster; None if it needs no launch."""
        if place not in self._candidates:
            self._candidates[place] = self._examine(place)
        return self._candidates[place]

    def _examine(self, place: int) -> _Candidate | None:
        cluster = self._graph.cluster(self._plan.clusters[place].nodes, self._duplicated)
        schedule = self._schedule(cluster)
        if schedule is None or schedule.cooperative or schedule.cluster_blocks > 1 or not schedule.grid[0]:
            return None
        roots = frozenset(root(value) for value in (*cluster.inputs, *cluster.outputs))
        workspace = len(schedule.scratch) + (1 if schedule.tickets else 0)
        return _Candidate(place, cluster, Load.of(cluster, schedule, self._target), roots, workspace)

    def _schedule(self, cluster: Cluster) -> Schedule | None:
        """How the cluster would run alone; None if no template takes it. Equal clusters are looked at once."""
        key = cluster_key(cluster)
        if key not in self._schedules:
            template, _ = find_template(cluster, self._target)
            self._schedules[key] = None if template is None else template.schedules(cluster, self._target)[0]
        return self._schedules[key]

    def _lost_with(self, pack: _Pack, candidate: _Candidate, near: frozenset[int]) -> float | None:
        """The seconds that ``pack`` loses with one more member, None if that does not pay or is not allowed."""
        members = [*pack.members, candidate]
        if len(members) > self._limits.parts or not self._within_limits(members):
            return None
        lost = seconds_lost([member.load for member in members], self._target)
        if lost - pack.lost >= self._target.launch_seconds:
            return None
        places = [member.place for member in members]
        if self._lifetimes.kept_bytes(places, near) > KEPT_BYTES:
            return None
        return lost

    def _within_limits(self, members: Sequence[_Candidate]) -> bool:
        union = [node for member in members for node in self._plan.clusters[member.place].nodes]
        if self._requests.why_apart(union):
            return False
        nodes = len(union)
        tensors = len(frozenset[ir.Value]().union(*(member.roots for member in members)))
        pointers = tensors + sum(member.workspace for member in members)
        return (
            nodes <= self._limits.ops
            and tensors <= self._limits.arguments
            and pointers * _POINTER_BYTES <= MAX_KERNEL_ARGUMENT_BYTES
        )

    def _is_accepted(self, pack: _Pack) -> bool:
        """The template takes the union, the chip can run it, and it moves no more than its members."""
        nodes = {node for member in pack.members for node in self._plan.clusters[member.place].nodes}
        cluster = self._graph.cluster(nodes, self._duplicated)
        moved = sum(tensor_bytes(value) for value in (*cluster.inputs, *cluster.outputs))
        if moved > sum(member.load.bytes for member in pack.members):
            return False
        if len(cluster.inputs) + len(cluster.outputs) > self._limits.arguments:
            return False
        key = cluster_key(cluster)
        if key not in self._packable:
            template, _ = find_template(cluster, self._target, (PACKED,))
            # A part alone may have registers that it has not in the largest block of all parts.
            self._packable[key] = template is not None and len(template.candidates(cluster, self._target, 1)) > 0
        return self._packable[key]
