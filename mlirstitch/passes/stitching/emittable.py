"""The last word on every cluster has the code generator: what it cannot emit is cut until it can.

While clusters grow, templates are asked whether they apply, which is quick and looks at no single schedule. Afterwards,
whatever has changed the clusters meanwhile, each must have a schedule that its template emits and the chip can run
(``find_schedule``, which ``stitch-schedule`` asks as well). One that has none is cut in two, and its halves in two,
down to single ops. A single op that has none because of what it computes for itself besides reads that from memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.stitching.cluster_key import find_schedule_once
from mlirstitch.passes.stitching.fusion_plan import in_several
from mlirstitch.passes.stitching.graph import Graph, edges_without
from mlirstitch.passes.stitching.judge import Judge
from mlirstitch.passes.stitching.keep_together import between
from mlirstitch.passes.stitching.template import PACKED


@dataclass(frozen=True)
class Cut:
    """Nodes that were to share a kernel, and why they do not: what the templates said."""

    nodes: frozenset[int]
    reason: str


@dataclass(frozen=True)
class Emittable:
    """Sets of nodes that kernels compute.

    Attributes:
        sets: each ascending, in an order in which they can run; a node that several compute is in all of them.
        hidden: the nodes that several compute.
        cuts: what was refused.
    """

    sets: tuple[tuple[int, ...], ...]
    hidden: frozenset[int]
    cuts: tuple[Cut, ...]


def with_hidden(graph: Graph, nodes: Collection[int], hidden: Collection[int]) -> tuple[int, ...]:
    """The nodes, and those of ``hidden`` that a kernel for them computes for itself; ascending."""
    found = set(nodes)
    stack = list(nodes) if hidden else []
    while stack:
        for source in graph.predecessors[stack.pop()]:
            if source in hidden and source not in found:
                found.add(source)
                stack.append(source)
    return tuple(sorted(found))


def cut_to_emittable(graph: Graph, judge: Judge, sets: Sequence[Collection[int]], fixed: Collection[int]) -> Emittable:
    """Cut every set that no kernel can compute. What library calls compute stays as it is.

    ``sets`` stand in an order in which they can run. Of ``fixed``, nodes that a request wants together stay so.
    Raises :class:`PassError` for a single op, or ops that are wanted together, that no kernel can compute.
    """
    return _Cutter(graph, judge, fixed).run([tuple(sorted(nodes)) for nodes in sets])


def why_not_emitted(graph: Graph, judge: Judge, nodes: Collection[int], hidden: Collection[int], free: bool) -> str:
    """Why one kernel cannot compute the nodes, "" if it can. ``free``: any template may, not just the judge's choice.

    Otherwise the template that compiles everything counts only for what it was chosen for: it would compute the same
    values many times.
    """
    if judge.routine(nodes):
        return ""
    free = free or len(nodes) == 1 or judge.is_anchored(nodes)
    among = None if free else (*judge.stitching, PACKED)
    schedule, reasons = find_schedule_once(graph, graph.cluster(nodes, hidden), judge.target, among)
    return "" if schedule is not None else reasons


class _Cutter:
    """One run over the sets of a graph."""

    def __init__(self, graph: Graph, judge: Judge, fixed: Collection[int]) -> None:
        self._graph = graph
        self._judge = judge
        self._fixed = frozenset(fixed)
        self._cuts: list[Cut] = []
        self._predecessors: dict[frozenset[int], list[list[int]]] = {}

    def run(self, sets: list[tuple[int, ...]]) -> Emittable:
        """Cut until nothing is refused; every round either ends, or has fewer nodes that several compute."""
        hidden = in_several(sets)
        while True:
            found: list[tuple[int, ...]] = []
            stored: set[int] = set()
            for nodes in sets:
                found += self._cut(nodes, hidden, stored)
            if not stored:
                return Emittable(tuple(found), hidden, tuple(self._cuts))
            hidden -= stored
            sets = list(_stored(self._graph, found, hidden, stored))

    def _cut(self, nodes: tuple[int, ...], hidden: frozenset[int], stored: set[int]) -> list[tuple[int, ...]]:
        """Sets that kernels compute; what they compute for themselves and should read instead goes into ``stored``."""
        reason = self._why_not(nodes, hidden)
        if not reason:
            return [nodes]
        units = self._units([node for node in nodes if node not in hidden], hidden)
        if len(units) == 1:
            besides = hidden.intersection(nodes)
            if not besides:
                raise self._refuse(nodes, reason)
            stored.update(besides)
            return [nodes]
        self._cuts.append(Cut(frozenset(nodes), reason))
        halves = units[: len(units) // 2], units[len(units) // 2 :]
        parts = ([node for unit in half for node in unit] for half in halves)
        return [cut for part in parts for cut in self._cut(with_hidden(self._graph, part, hidden), hidden, stored)]

    def _why_not(self, nodes: Collection[int], hidden: Collection[int]) -> str:
        return why_not_emitted(self._graph, self._judge, nodes, hidden, not self._fixed.isdisjoint(nodes))

    def _units(self, nodes: Sequence[int], hidden: frozenset[int]) -> list[list[int]]:
        """The nodes in groups that must stay together, mostly single ones, in an order in which they can run."""
        owner = {node: node for node in nodes}
        if not self._fixed.isdisjoint(nodes):
            for wanted in self._judge.requests.together.values():
                together = [node for node in sorted((*wanted, *between(self._graph, wanted))) if node in owner]
                gone = {owner[node] for node in together}
                owner.update({node: min(gone) for node in nodes if owner[node] in gone})
        groups: dict[int, list[int]] = {}
        for node in nodes:
            groups.setdefault(owner[node], []).append(node)
        if hidden not in self._predecessors:
            self._predecessors[hidden] = edges_without(self._graph, hidden)[0]
        return [groups[name] for name in _in_order(groups, owner, self._predecessors[hidden])]

    def _refuse(self, nodes: Sequence[int], reason: str) -> Exception:
        ops = "this op" if len(nodes) == 1 else f"the {len(nodes)} ops that are wanted together with it"
        hint = "rewrite it with simpler ops" if len(nodes) == 1 else "ask for fewer ops in one kernel"
        return refusal(self._graph.ops[nodes[0]], f"no kernel template can compute {ops}: {reason}", hint)


def _stored(
    graph: Graph, sets: Sequence[Collection[int]], hidden: Collection[int], stored: Collection[int]
) -> Iterable[tuple[int, ...]]:
    """``sets`` where each of ``stored`` is a set of its own, before the first that computed it."""
    done: set[int] = set()
    for nodes in sets:
        for node in sorted(stored):
            if node in nodes and node not in done:
                done.add(node)
                yield with_hidden(graph, [node], hidden)
        own = [node for node in nodes if node not in stored and node not in hidden]
        if own:
            yield with_hidden(graph, own, hidden)


def _in_order(groups: Collection[int], owner: dict[int, int], predecessors: Sequence[Sequence[int]]) -> Iterable[int]:
    """Names of the groups, each after those it reads, otherwise ascending."""
    before: dict[int, set[int]] = {name: set() for name in groups}
    after: dict[int, set[int]] = {name: set() for name in groups}
    for node, name in owner.items():
        for source in predecessors[node]:
            other = owner.get(source, name)
            if other != name:
                before[name].add(other)
                after[other].add(name)
    ready = [name for name, sources in before.items() if not sources]
    heapq.heapify(ready)
    while ready:
        name = heapq.heappop(ready)
        yield name
        for other in sorted(after[name]):
            before[other].discard(name)
            if not before[other]:
                heapq.heappush(ready, other)
