"""Which values a value is computed from, and at which indices: the walk of the evaluator without the evaluation.

Templates that choose their iteration space by what memory is read need no arithmetic, only index expressions. The walk
does what :class:`~mlirstitch.lowering.kernel.evaluate.Evaluator` does with indices, in the same order, so that the
indices it finds for a value are those under which the evaluator remembers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirstitch.lowering.kernel.index_expr import floordiv
from mlirstitch.lowering.kernel.tensor_program import Argument, Choice, Computed, Indices, Node, View

Key = tuple[int, Indices]
"""``uid`` of a value, and the indices at which it is needed."""


@dataclass(frozen=True, eq=False)
class Point:
    """One element of a value, as a function of the symbols in ``indices``."""

    node: Node
    indices: Indices

    @property
    def key(self) -> Key:
        """What identifies the element."""
        return self.node.uid, self.indices


def operands_of(point: Point) -> list[Point]:
    """The elements that an element is computed from, without gathered ones and operands of reductions."""
    node, indices = point.node, point.indices
    if isinstance(node, View):
        return [Point(node.source, node.source_indices(indices))]
    if isinstance(node, Choice):
        relative = [index - low for index, low in zip(indices, node.low, strict=True)]
        at = [rel if stride == 1 else floordiv(rel, stride) for rel, stride in zip(relative, node.stride, strict=True)]
        found = [Point(node.inside, tuple(at[dim] for dim in node.kept))]
        if node.outside is not None:
            shifted = tuple(index - shift for index, shift in zip(indices, node.shift, strict=True))
            found.append(Point(node.outside, shifted))
        return found
    if not isinstance(node, Computed) or node.is_reduction:
        return []
    linalg = node.linalg
    loop = linalg.loop_indices(linalg.parallel_point(node.result, indices), ())
    _, slots = linalg.body.needed([linalg.body.yields[node.result]], frozenset())
    read = sorted(slot for slot in slots if slot < linalg.body.arguments)
    return [Point(node.operands[slot], linalg.operand_indices(slot, loop)) for slot in read]


class Reach:
    """Everything that some elements are computed from; each element is visited once."""

    def __init__(self, roots: Sequence[Point]) -> None:
        self.points: dict[Key, Point] = {}
        self._operands: dict[Key, list[Point]] = {}
        for root in roots:
            self._visit(root)

    def _visit(self, root: Point) -> None:
        stack = [root]
        while stack:
            point = stack.pop()
            if point.key not in self.points:
                self.points[point.key] = point
                self._operands[point.key] = operands_of(point)
                stack.extend(reversed(self._operands[point.key]))

    def operands(self, point: Point) -> list[Point]:
        """:func:`operands_of`, for an element that was visited."""
        return self._operands[point.key]

    def loads(self) -> list[tuple[Argument, Indices]]:
        """Every element of an argument that is read, each once."""
        return [(point.node, point.indices) for point in self.points.values() if isinstance(point.node, Argument)]

    def of(self, node: Node) -> list[Point]:
        """The elements of ``node`` that are needed."""
        return [point for point in self.points.values() if point.node is node]
