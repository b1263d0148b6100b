"""A part of the graph that is explored at once, with reachability as bit sets.

A set of nodes is a Python integer with one bit a node, so that convexity, closure and overlap are a few operations on
machine words each (V / 64 for V nodes).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mlirstitch.passes.stitching.graph import Graph, reachability


@dataclass(frozen=True)
class Pattern:
    """Nodes of a window that may share a kernel.

    Attributes:
        mask: the nodes.
        below, above: the nodes that depend on them, and those they depend on; members included.
        gain: seconds that one kernel saves over one for every node.
    """

    mask: int
    below: int
    above: int
    gain: float

    @property
    def first(self) -> int:
        """The member that stands first in program order, its place in the window."""
        return (self.mask & -self.mask).bit_length() - 1

    @property
    def is_convex(self) -> bool:
        """No path leaves the pattern and comes back."""
        return not self.below & self.above & ~self.mask


class Window:
    """Nodes of a graph; no path between two of them may leave the window, but through ``hidden`` nodes, which every
    reader computes for itself: what such a path connects depends on each other as if they were not there.

    Attributes:
        nodes: numbers of the nodes in the graph, ascending. A node's place is its index here; places are topological.
        predecessors, successors: places of the nodes read from, and read by.
        below, above: for every place the nodes reachable from it, and those it is reachable from, itself included.
        leaving: the set of nodes with a result that is returned, or read outside the window.
    """

    def __init__(self, graph: Graph, nodes: Iterable[int], hidden: Collection[int] = frozenset()) -> None:
        self.nodes = tuple(sorted(nodes))
        place = {node: index for index, node in enumerate(self.nodes)}
        self.successors = _inside(graph.successors, place, hidden)
        self.predecessors = _inside(graph.predecessors, place, hidden)
        self.below = tuple(reachability(self.successors))
        backwards = [[len(self.nodes) - 1 - other for other in others] for others in reversed(self.predecessors)]
        self.above = tuple(_mirrored(mask, len(self.nodes)) for mask in reversed(reachability(backwards)))
        self.leaving = mask_of(index for node, index in place.items() if _leaves(graph, node, place, hidden))

    def members(self, mask: int) -> tuple[int, ...]:
        """Numbers of the nodes of a set, ascending."""
        return tuple(self.nodes[place] for place in places(mask))

    def reach(self, mask: int) -> tuple[int, int]:
        """What depends on a set, and what it depends on; members included."""
        below = above = 0
        for place in places(mask):
            below |= self.below[place]
            above |= self.above[place]
        return below, above

    def closure(self, mask: int) -> int:
        """The smallest convex set that contains ``mask``: every node on a path between members joins."""
        below, above = self.reach(mask)
        return mask | (below & above)

    def with_producers(self, mask: int, leaving: bool = True) -> int:
        """``mask`` with every node that only members read, and with those that only such nodes read.

        ``leaving``: others outside the window may read them as well.
        """
        highest = mask.bit_length() - 1
        for place in range(highest, -1, -1):
            targets = self.successors[place]
            if not leaving and self.leaving >> place & 1:
                continue
            if targets and all(mask >> target & 1 for target in targets):
                mask |= 1 << place
        return mask


def places(mask: int) -> Iterator[int]:
    """The places in a set, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def mask_of(found: Iterable[int]) -> int:
    """The set of some places."""
    mask = 0
    for place in found:
        mask |= 1 << place
    return mask


def _leaves(graph: Graph, node: int, place: Collection[int], hidden: Collection[int]) -> bool:
    """A result of the node is returned, or read outside ``place``; hidden nodes are looked through."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current in graph.returned:
            return True
        for other in graph.successors[current]:
            if other in hidden:
                stack.append(other)
            elif other not in place:
                return True
    return False


def _inside(
    edges: Sequence[Sequence[int]], place: dict[int, int], hidden: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """For every place the places next to it, hidden nodes looked through; ascending."""
    found: list[tuple[int, ...]] = []
    for node in place:
        reached: set[int] = set()
        stack = [node]
        while stack:
            for other in edges[stack.pop()]:
                if other in place:
                    reached.add(place[other])
                elif other in hidden:
                    stack.append(other)
        found.append(tuple(sorted(reached)))
    return tuple(found)


def _mirrored(mask: int, count: int) -> int:
    return mask_of(count - 1 - place for place in places(mask))
