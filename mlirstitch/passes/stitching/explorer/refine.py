"""Refining a fusion plan window by window, so that the work grows with the number of clusters, not with its square.

A window is a few neighbouring clusters that are convex together. Its nodes are explored (PatternReduction, then the
beam) as if nothing else were there; another partition of them takes the place of the clusters if it needs no more
kernels, moves no more bytes, and less of one of the two. Windows that compute the same, as those of equal layers do,
are explored once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from mlirstitch.passes.stitching.cluster_key import cluster_key
from mlirstitch.passes.stitching.explorer.beam import beam_search
from mlirstitch.passes.stitching.explorer.candidates import PatternReduction
from mlirstitch.passes.stitching.explorer.legality import Legality
from mlirstitch.passes.stitching.explorer.partition import Partition
from mlirstitch.passes.stitching.explorer.scorer import Scorer
from mlirstitch.passes.stitching.explorer.window import Window, mask_of, places
from mlirstitch.passes.stitching.graph import Graph

Parts = tuple[tuple[int, ...], ...]
"""A partition of a window, as places of its nodes."""


_LEFT_OUT = frozenset(("static_offsets",))


@dataclass(frozen=True)
class Effort:
    """How much the explorer may do; all of it is counted, none of it is time.

    Attributes:
        window: nodes explored at once.
        asked: ops that the templates are asked about, for every op of the function, and at least as many in all.
    """

    window: int = 64
    asked: int = 100
    least: int = 20_000


@dataclass(frozen=True)
class _Cost:
    kernels: int
    bytes: int


class Refinement:
    """One run over the clusters of a function.

    Attributes:
        changed: whether any window was replaced.
    """

    def __init__(
        self,
        graph: Graph,
        partition: Partition,
        fixed: Collection[int],
        legality: Legality,
        scorer: Scorer,
        effort: Effort,
    ) -> None:
        """``fixed`` are nodes whose clusters stay as they are."""
        self.changed = False
        self._graph = graph
        self._partition = partition
        self._fixed = frozenset(fixed)
        self._legality = legality
        self._scorer = scorer
        self._effort = effort
        self._most_asked = max(effort.least, effort.asked * len(graph.ops))
        self._explored: dict[Hashable, Parts | None] = {}
        self._settled: set[int] = set()

    def run(self) -> None:
        """Try a window around every cluster, then around those that came out of one."""
        waiting = sorted(self._partition.clusters)
        while waiting:
            following: list[int] = []
            for number in waiting:
                if number in self._partition.clusters and self._legality.asked <= self._most_asked:
                    following += self._try(self._window(number))
            waiting = following

    def _window(self, seed: int) -> list[int]:
        """The cluster and its neighbours, theirs, and so on, as far as the window has room and stays convex."""
        if seed in self._settled or not self._may_change(seed):
            return []
        inside = [seed]
        room = self._effort.window - len(self._partition.clusters[seed])
        refused: set[int] = set()
        for number in inside:  # grows while it is walked over
            for other in self._partition.neighbours(number):
                size = len(self._partition.clusters[other])
                if other in inside or other in refused or size > room or not self._may_change(other):
                    continue
                if self._partition.is_convex((*inside, other)):
                    inside.append(other)
                    room -= size
                else:
                    refused.add(other)
        return inside

    def _may_change(self, number: int) -> bool:
        nodes = self._partition.clusters[number]
        return len(nodes) <= self._effort.window and self._fixed.isdisjoint(nodes)

    def _try(self, numbers: Sequence[int]) -> list[int]:
        """Replace the clusters of a window if exploring it finds better ones; the numbers of the new ones."""
        if len(numbers) < 2:
            return []
        clusters = [self._partition.clusters[number] for number in sorted(numbers)]
        window = Window(self._graph, (node for nodes in clusters for node in nodes), self._legality.hidden)
        place = {node: index for index, node in enumerate(window.nodes)}
        parts = tuple(sorted(tuple(place[node] for node in nodes) for nodes in clusters))
        key = self._key(window, parts)
        if key not in self._explored or not self._is_legal(window, self._explored[key]):
            self._explored[key] = self._explore(window, parts)
        better = self._explored[key]
        if better is None:
            self._settled.update(self._enclosed(numbers))
            return []
        self.changed = True
        return self._partition.replace(numbers, [[window.nodes[index] for index in part] for part in better])

    def _is_legal(self, window: Window, parts: Parts | None) -> bool:
        """A kernel can compute every part; keys leave out where slices lie."""
        masks = [mask_of(part) for part in parts or ()]
        legal = all(self._legality.refusal(window, mask) is None for mask in masks)
        return legal and all(self._legality.emits(window, mask) for mask in masks)

    def _enclosed(self, numbers: Sequence[int]) -> list[int]:
        """The clusters of a window whose neighbours are all in it: a window around one of them shows nothing new."""
        inside = frozenset(numbers)
        return [number for number in numbers if inside.issuperset(self._partition.neighbours(number))]

    def _explore(self, window: Window, parts: Parts) -> Parts | None:
        """A better partition of the window than ``parts``, or None."""
        largest = max(self._effort.window, max(map(len, parts)))
        reduction = PatternReduction(self._graph, window, self._legality, self._scorer, largest)
        given = [mask_of(part) for part in parts]
        plans = beam_search(reduction.candidates(given), given)
        best, chosen = self._cost(window, parts), None
        for plan in plans:
            found = tuple(sorted(tuple(places(pattern.mask)) for pattern in plan.patterns))
            cost = self._cost(window, found)
            is_better = cost != best and cost.kernels <= best.kernels and cost.bytes <= best.bytes
            if is_better and all(self._legality.emits(window, mask_of(part)) for part in found):
                best, chosen = cost, found
        return chosen

    def _cost(self, window: Window, parts: Iterable[Sequence[int]]) -> _Cost:
        kernels = moved = 0
        for part in parts:
            kernels += 1
            nodes = self._legality.whole([window.nodes[index] for index in part])
            moved += self._scorer.moved_bytes(nodes, self._legality.hidden)
        return _Cost(kernels, moved)

    def _key(self, window: Window, parts: Parts) -> Hashable:
        """What the window computes from what, which of it others read, and its partition.

        Steps of a sequence differ in which slice of a tensor they read, and share a key.
        """
        cluster = self._graph.cluster(self._legality.whole(window.nodes), self._legality.hidden)
        inside = frozenset(window.nodes)
        members = tuple(self._graph.number.get(op) in inside for op in cluster.ops)
        return cluster_key(cluster, _LEFT_OUT), members, parts
