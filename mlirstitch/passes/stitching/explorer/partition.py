"""The clusters of a function while they are being replaced: who reads whom, and which of them form a convex window."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from mlirstitch.passes.stitching.graph import Graph


class Partition:
    """Disjoint clusters of nodes without cycles between them.

    Nodes that several kernels compute are in no cluster; dependences through them count.

    Attributes:
        clusters: the nodes of every cluster, ascending, by a number that is never given twice.
    """

    def __init__(self, graph: Graph, clusters: Iterable[Sequence[int]]) -> None:
        """Raises ValueError for clusters that share a node, or need each other's results."""
        self.clusters: dict[int, tuple[int, ...]] = {}
        self._graph = graph
        self._owner: dict[int, int] = {}
        self._before: dict[int, set[int]] = {}
        self._after: dict[int, set[int]] = {}
        self._rank: dict[int, int] = {}
        self._next = 0
        self._add(clusters)
        self._sort()
        self._check()

    def neighbours(self, number: int) -> list[int]:
        """Clusters that a cluster reads, or that read it; ascending."""
        return sorted(self._before[number] | self._after[number])

    def is_convex(self, numbers: Collection[int]) -> bool:
        """No path leaves the clusters and comes back to one of them through others."""
        last = max(self._rank[number] for number in numbers)
        stack = [other for number in numbers for other in self._after[number] if other not in numbers]
        seen = set(stack)
        while stack:
            for other in self._after[stack.pop()]:
                if other in numbers:
                    return False
                if other not in seen and self._rank[other] < last:
                    seen.add(other)
                    stack.append(other)
        return True

    def replace(self, numbers: Collection[int], parts: Iterable[Sequence[int]]) -> list[int]:
        """Other clusters for the nodes of some that are convex together; returns their numbers.

        Parts among which there is no cycle make none with the rest: every path that leaves a convex set stays outside.
        """
        for number in numbers:
            del self.clusters[number]
            for other in self._before.pop(number):
                self._after.get(other, set[int]()).discard(number)
            for other in self._after.pop(number):
                self._before.get(other, set[int]()).discard(number)
        added = self._add(parts)
        self._sort()
        return added

    def _check(self) -> None:
        """What shares a node looks like a cycle, too: each of the two reads what the other owns."""
        count = sum(map(len, self.clusters.values()))
        if count != len(self._owner):
            raise ValueError(f"clusters share {count - len(self._owner)} nodes")
        stuck = sorted(self.clusters.keys() - self._rank.keys())
        if stuck:
            shown = ", ".join(str(self.clusters[number]) for number in stuck[:4])
            raise ValueError(f"clusters need each other's results: {shown}")

    def _add(self, clusters: Iterable[Sequence[int]]) -> list[int]:
        added: list[int] = []
        for nodes in clusters:
            number = self._next
            self._next += 1
            self.clusters[number] = tuple(sorted(nodes))
            self._owner.update(dict.fromkeys(nodes, number))
            self._before[number], self._after[number] = set(), set()
            added.append(number)
        for number in added:
            for node in self.clusters[number]:
                self._link(number, self._placed(node, self._graph.predecessors), self._before, self._after)
                self._link(number, self._placed(node, self._graph.successors), self._after, self._before)
        return added

    def _placed(self, node: int, edges: Sequence[Sequence[int]]) -> list[int]:
        """Nodes of clusters next to a node. Those in no cluster, since every reader computes them, are seen through."""
        found: list[int] = []
        stack = list(edges[node])
        while stack:
            other = stack.pop()
            if other in self._owner:
                found.append(other)
            else:
                stack += edges[other]
        return found

    def _link(self, number: int, nodes: Iterable[int], to: dict[int, set[int]], back: dict[int, set[int]]) -> None:
        for node in nodes:
            other = self._owner[node]
            if other != number:
                to[number].add(other)
                back[other].add(number)

    def _sort(self) -> None:
        """Number the clusters in an order in which they can run."""
        waiting = {number: len(sources) for number, sources in self._before.items()}
        ready = [number for number, count in waiting.items() if not count]
        heapq.heapify(ready)
        self._rank = {}
        while ready:
            number = heapq.heappop(ready)
            self._rank[number] = len(self._rank)
            for other in self._after[number]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, other)
