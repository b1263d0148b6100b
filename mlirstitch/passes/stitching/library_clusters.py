"""What a library call takes up of its neighbourhood, before anything is stitched.

A contraction that a routine computes takes the ops that move its operands, where it alone reads them, and as many of
the ops on its result as the routine's table allows (``library_capabilities``). Each such op is a tensor less in memory
or a launch less, and never a tensor more. An op that moves an operand of several library calls is left to be computed,
that is addressed, by each of them.
"""

from __future__ import annotations

from collections.abc import Collection

from mlirstitch.passes.op_kind import Kind
from mlirstitch.passes.stitching.contraction import Contraction
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.judge import Judge

MOST_EPILOGUE_OPS = 16
"""Ops after a contraction that are looked at: a GELU, written out, takes ten."""

_ON_ELEMENTS = (Kind.LIGHT, Kind.EXPENSIVE, Kind.MOVEMENT)


def take_up_neighbours(graph: Graph, judge: Judge, contraction: Contraction, fixed: Collection[int]) -> None:
    """Merge into every library cluster of ``contraction`` what its routine computes as well; none of ``fixed``.

    The nodes taken become anchors of ``judge``, so that no other kernel takes them.
    """
    if not judge.routines:
        return
    run = _Neighbourhood(graph, judge, contraction, fixed)
    for node in sorted(judge.routines):
        if node not in fixed:
            run.take_epilogue(node)
    for node in sorted(judge.routines):
        if node not in fixed:
            run.take_operands(node)
    run.share_operands()


class _Neighbourhood:
    """One graph; clusters are named by any of their nodes."""

    def __init__(self, graph: Graph, judge: Judge, contraction: Contraction, fixed: Collection[int]) -> None:
        self.graph = graph
        self.judge = judge
        self.contraction = contraction
        self.fixed = fixed
        self.shared: set[int] = set()

    def take_epilogue(self, node: int) -> None:
        """Grow the cluster by its readers, in program order; keep the largest set that the routine computes."""
        nodes = list(self._members(node))
        best = list(nodes)
        for _ in range(MOST_EPILOGUE_OPS):
            reader = self._next_reader(nodes)
            if reader is None:
                break
            nodes = sorted([*nodes, reader])
            if self._outputs(nodes) == 1 and self.judge.why_apart(nodes, ()) is None:
                best = list(nodes)
        self._merge(node, best)

    def take_operands(self, node: int) -> None:
        """Take movements that nobody else reads, those before them after them."""
        found = True
        while found:
            found = False
            nodes = self._members(node)
            for source in sorted({p for n in nodes for p in self.graph.predecessors[n]} - set(nodes), reverse=True):
                if self._is_private_movement(source, nodes) and self.judge.why_apart(nodes, [source]) is None:
                    self._merge(node, [source])
                    found = True
                    break

    def share_operands(self) -> None:
        """Anchor movements all of whose readers are library clusters that can address them; readers first."""
        for node in reversed(range(len(self.graph.ops))):
            if not self._is_free(node, (Kind.MOVEMENT,)) or not self.graph.successors[node]:
                continue
            readers = sorted({self.contraction.owner[target] for target in self.graph.successors[node]})
            if all(self._takes(reader, node) for reader in readers):
                self.shared.add(node)
                self.judge.anchors.add(node)

    def _takes(self, reader: int, node: int) -> bool:
        """The library cluster, or shared movement, addresses the node's result."""
        if reader in self.shared:
            targets = [self.contraction.owner[target] for target in self.graph.successors[reader]]
            return all(target not in self.shared and self._reads_through(target, reader, node) for target in targets)
        nodes = self._members(reader)
        if not any(member in self.judge.routines for member in nodes):
            return False
        return self.judge.why_apart(nodes, [node], {node}) is None

    def _reads_through(self, target: int, reader: int, node: int) -> bool:
        return self.judge.why_apart(self._members(target), [reader, node], {reader, node}) is None

    def _members(self, node: int) -> list[int]:
        return self.contraction.members[self.contraction.owner[node]]

    def _is_free(self, node: int, kinds: tuple[Kind, ...]) -> bool:
        """The node stands alone, nobody asked for it, and it is of one of the kinds."""
        return (
            node not in self.fixed
            and node not in self.graph.returned
            and self.graph.kinds[node] in kinds
            and self._members(node) == [node]
        )

    def _next_reader(self, nodes: list[int]) -> int | None:
        inside = set(nodes)
        readers = {target for node in nodes for target in self.graph.successors[node]} - inside
        reader = min(readers, default=None)
        if reader is None or reader in self.fixed or self.graph.kinds[reader] not in _ON_ELEMENTS:
            return None
        return reader if self._members(reader) == [reader] else None

    def _outputs(self, nodes: list[int]) -> int:
        """How many of the nodes are read from outside or returned."""
        inside = set(nodes)
        return sum(
            node in self.graph.returned or any(target not in inside for target in self.graph.successors[node])
            for node in nodes
        )

    def _is_private_movement(self, node: int, nodes: list[int]) -> bool:
        inside = set(nodes)
        return self._is_free(node, (Kind.MOVEMENT,)) and all(t in inside for t in self.graph.successors[node])

    def _merge(self, node: int, others: list[int]) -> None:
        """Merge nodes in ascending order, each next to those before it, unless a cycle arises."""
        inside = set(self._members(node))
        wanted = [other for other in sorted(others) if other not in inside]
        if not wanted or not self._can_follow(node, wanted):
            return
        for other in wanted:
            self.contraction.merge(self.contraction.owner[node], self.contraction.owner[other])
            self.judge.anchors.add(other)

    def _can_follow(self, node: int, wanted: list[int]) -> bool:
        """Nothing outside the future cluster both reads it and feeds it."""
        inside = {self.contraction.owner[n] for n in (node, *wanted)}
        feeding = {source for name in inside for source in self.contraction.predecessors(name)} - inside
        stack = [target for name in inside for target in self.contraction.successors(name) if target not in inside]
        seen = set(stack)
        while stack:
            name = stack.pop()
            if name in feeding:
                return False
            for target in self.contraction.successors(name):
                if target in inside:
                    return False
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return True
