"""A graph whose nodes are merged step by step, with a topological order kept up to date.

Clusters that are convex one by one can still depend on each other; what must stay free of cycles is the graph in which
every cluster is one node. Testing that from scratch for every merge would dominate the compile time. The order is kept
by the rule of Pearce and Kelly ("A dynamic topological sort algorithm for directed acyclic graphs", JEA 2006): only
nodes that stand between the two merged ones are looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Contraction:
    """Clusters of nodes; each cluster is named by its smallest node.

    Attributes:
        members: nodes of every cluster, ascending.
        owner: cluster of every node.
        version: changes whenever the cluster of that name grows, so that decisions can be remembered.
    """

    def __init__(self, predecessors: Sequence[Sequence[int]], successors: Sequence[Sequence[int]]) -> None:
        """Start with one cluster per node; nodes are numbered in topological order."""
        count = len(predecessors)
        self.members: dict[int, list[int]] = {node: [node] for node in range(count)}
        self.owner = list(range(count))
        self.version = [0] * count
        self._before: dict[int, set[int]] = {node: set(sources) for node, sources in enumerate(predecessors)}
        self._after: dict[int, set[int]] = {node: set(targets) for node, targets in enumerate(successors)}
        self._order: list[int | None] = list(range(count))
        self._position = list(range(count))

    def clusters(self) -> list[int]:
        """Names of all clusters in a topological order."""
        return [name for name in self._order if name is not None]

    def in_program_order(self) -> list[int]:
        """Names of all clusters in the topological order that follows the nodes' numbers as far as it can."""
        waiting = {name: len(sources) for name, sources in self._before.items()}
        ready = [name for name, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        ordered: list[int] = []
        while ready:
            name = heapq.heappop(ready)
            ordered.append(name)
            for target in self._after[name]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    heapq.heappush(ready, target)
        return ordered

    def predecessors(self, name: int) -> list[int]:
        """Clusters read by a cluster, ascending."""
        return sorted(self._before[name])

    def successors(self, name: int) -> list[int]:
        """Clusters that read a cluster, ascending."""
        return sorted(self._after[name])

    def can_merge(self, first: int, second: int) -> bool:
        """Merging two clusters leaves the graph acyclic: no path from one to the other goes through a third."""
        return self._between(*self._sorted(first, second)) is not None

    def merge(self, first: int, second: int) -> int:
        """Merge two clusters and return the name of the result. Raises ValueError if that makes a cycle."""
        early, late = self._sorted(first, second)
        pushed = self._between(early, late)
        if pushed is None:
            raise ValueError(f"merging clusters {first} and {second} makes a cycle")
        name, gone = min(early, late), max(early, late)
        self._reorder(early, late, name, pushed)
        self.members[name] = sorted(self.members[early] + self.members[late])
        del self.members[gone]
        for node in self.members[name]:
            self.owner[node] = name
        self.version[name] += 1
        self._join_edges(self._before, self._after, name, gone)
        self._join_edges(self._after, self._before, name, gone)
        return name

    def compact(self) -> None:
        """Close the gaps that merges left in the order; worth doing after many merges."""
        self._order = list(self.clusters())
        for position, name in enumerate(self._order):
            if name is not None:
                self._position[name] = position

    def _sorted(self, first: int, second: int) -> tuple[int, int]:
        return (first, second) if self._position[first] < self._position[second] else (second, first)

    def _between(self, early: int, late: int) -> set[int] | None:
        """Clusters reachable from ``early`` that stand before ``late``; None if one of them leads to ``late``."""
        limit = self._position[late]
        stack = [name for name in self._after[early] if name != late and self._position[name] < limit]
        seen = set(stack)
        while stack:
            name = stack.pop()
            for target in self._after[name]:
                if target == late:
                    return None
                if target not in seen and self._position[target] < limit:
                    seen.add(target)
                    stack.append(target)
        return seen

    def _reorder(self, early: int, late: int, name: int, pushed: set[int]) -> None:
        start, end = self._position[early], self._position[late]
        window = [other for other in self._order[start + 1 : end] if other is not None]
        placed = [other for other in window if other not in pushed] + [name]
        placed += [other for other in window if other in pushed]
        for offset in range(end - start + 1):
            other = placed[offset] if offset < len(placed) else None
            self._order[start + offset] = other
            if other is not None:
                self._position[other] = start + offset

    @staticmethod
    def _join_edges(edges: dict[int, set[int]], reverse: dict[int, set[int]], name: int, gone: int) -> None:
        """Give ``name`` the edges of ``gone`` in one direction and correct the other ends."""
        joined = (edges[name] | edges.pop(gone)) - {name, gone}
        edges[name] = joined
        for other in joined:
            ends = reverse[other]
            ends.discard(gone)
            ends.add(name)
