"""Dim classes: the dims of tensors and the loops of ops that belong together, so that one name splits them all.

Two are in one class if an op walks along the dim with the loop. Where several loops walk along a dim, it is the one
that walks farthest: the rows of a window, the outermost part of a collapsed dim. Where a loop reaches only a part of a
dim (a slice, a padding, one input of a concat), they belong together if that is more than half of both. Dims and loops
of extent 1 are in no class. A fill or constant with several readers ties them to nothing: they share it because it has
one shape, not one meaning (``dist-separate-fills`` gives each its own).
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import Counter
from dataclasses import dataclass

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.access import Access, Affine
from mlirstitch.passes.partitioning.dim_names import Members, derived_names
from mlirstitch.passes.partitioning.graph import Graph, GraphOp
from mlirstitch.passes.partitioning.splits import VIEW, main_loop

NEAR = 5
"""How many names a refusal suggests."""


@dataclass(frozen=True)
class DimClass:
    """Dims and loops that are split together.

    Attributes:
        number: position in ``DimClasses.classes``.
        names: first those derived from the structure (:mod:`mlirstitch.passes.partitioning.dim_names`), then
            ``<argument or result>/<dim>``.
        loops: (op, loop), ascending. An op may occur with several loops: queries and keys of self-attention.
        dims: (value, dim), ascending.
        size: how many units there are: places of the outermost part where dims are collapsed (heads), else the extent
            of most of the loops (of the dims if there are none), the larger of equals.
    """

    number: int
    names: tuple[str, ...]
    loops: tuple[tuple[int, int], ...]
    dims: tuple[tuple[int, int], ...]
    size: int

    def __str__(self) -> str:
        return f"{self.names[0] if self.names else f'class {self.number}'} ({self.size})"


class DimClasses:
    """All dim classes of a graph, in the order of their first dim."""

    def __init__(self, graph: Graph, classes: tuple[DimClass, ...]) -> None:
        self.graph = graph
        self.classes = classes
        self._of_dim = {dim: found for found in classes for dim in found.dims}
        self._of_loop = {loop: found for found in classes for loop in found.loops}
        self._by_name: dict[str, list[DimClass]] = {}
        for found in classes:
            for name in found.names:
                self._by_name.setdefault(name, []).append(found)

    @classmethod
    def of(cls, graph: Graph) -> DimClasses:
        """The dim classes of a graph; nearly linear in its size."""
        groups = _groups(graph)
        names = derived_names(graph, groups)
        classes = tuple(
            DimClass(number, (*names[number], *_own_names(graph, group)), group.loops, group.dims, _size(graph, group))
            for number, group in enumerate(groups)
        )
        return cls(graph, classes)

    def select(self, pattern: str) -> list[DimClass]:
        """The classes with a name that matches, in order: a name, or a pattern such as ``*.fc1.weight/0``.

        Raises :class:`PlanError` that names near matches if there is none.
        """
        if pattern in self._by_name:
            return list(self._by_name[pattern])
        matches = re.compile(fnmatch.translate(pattern)).match
        found = {c.number: c for name, classes in self._by_name.items() if matches(name) for c in classes}
        if not found:
            near = difflib.get_close_matches(pattern, self._by_name, NEAR, 0.4)
            hint = f"near: {', '.join(near)}" if near else f"names: {', '.join(list(self._by_name)[:NEAR])} ..."
            raise PlanError(f"no dim is named {pattern!r}", hint=hint)
        return [found[number] for number in sorted(found)]

    def has(self, name: str) -> bool:
        """Whether a class has exactly this name."""
        return name in self._by_name

    def of_dim(self, value: int, dim: int) -> DimClass | None:
        """The class of a dim of a tensor; None if its extent is 1."""
        return self._of_dim.get((value, dim))

    def of_loop(self, op: int, loop: int) -> DimClass | None:
        """The class of a loop of an op; None if its extent is 1."""
        return self._of_loop.get((op, loop))


def _own_names(graph: Graph, group: Members) -> list[str]:
    named = {*graph.arguments, *graph.returned}
    return list(dict.fromkeys(f"{graph.values[value].name}/{dim}" for value, dim in group.dims if value in named))


def _size(graph: Graph, group: Members) -> int:
    parts = [graph.ops[op].loops[loop] for op, loop in group.loops if _is_outer_part(graph.ops[op], loop)]
    if parts:
        return min(parts)
    extents = Counter(graph.ops[op].loops[loop] for op, loop in group.loops) or Counter(
        graph.values[value].shape[dim] for value, dim in group.dims
    )
    return max(extents, key=lambda extent: (extents[extent], extent))


def _is_outer_part(op: GraphOp, loop: int) -> bool:
    """A loop of a reshape that walks along a collapsed dim in steps of more than one."""
    accesses = (access for use in (*op.inputs, *op.results) for access in use.access) if op.kind == VIEW else ()
    return any(isinstance(access, Affine) and access.step(loop) > 1 for access in accesses)


def _groups(graph: Graph) -> list[Members]:
    """Union-find over numbers: first the dims of all values, then the loops of all ops."""
    dims = [(value.number, dim) for value in graph.values for dim in range(len(value.shape))]
    loops = [(op.number, loop) for op in graph.ops for loop in range(len(op.loops))]
    first_dim = _starts([len(value.shape) for value in graph.values], 0)
    first_loop = _starts([len(op.loops) for op in graph.ops], len(dims))
    parent = list(range(len(dims) + len(loops)))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    shared = {use.value for op in graph.ops if not op.inputs for use in op.results if _is_shared(graph, use.value)}
    for op in graph.ops:
        for use in (*op.inputs, *op.results):
            if use.value in shared:
                continue
            shape = graph.values[use.value].shape
            for dim, access in enumerate(use.access):
                loop = _followed(op, access, shape[dim])
                if loop is not None:
                    one, other = find(first_dim[use.value] + dim), find(first_loop[op.number] + loop)
                    parent[max(one, other)] = min(one, other)
    found: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for node, (value, dim) in enumerate(dims):
        if graph.values[value].shape[dim] > 1:
            found.setdefault(find(node), ([], []))[0].append((value, dim))
    for node, (op, loop) in enumerate(loops, len(dims)):
        if graph.ops[op].loops[loop] > 1:
            found.setdefault(find(node), ([], []))[1].append((op, loop))
    return [Members(tuple(loops), tuple(dims)) for dims, loops in found.values()]


def _is_shared(graph: Graph, value: int) -> bool:
    return len(graph.values[value].users) > 1


def _starts(lengths: list[int], start: int) -> list[int]:
    starts = []
    for length in lengths:
        starts.append(start)
        start += length
    return starts


def _followed(op: GraphOp, access: Access, size: int) -> int | None:
    """The loop that walks along a dim of ``size``, if the two belong together."""
    if size < 2 or not isinstance(access, Affine):
        return None
    loop = main_loop(op, access)
    if loop is None or op.loops[loop] < 2:
        return None
    if access.loop == loop:  # most accesses
        return loop
    low, high = access.image([(0, extent) for extent in op.loops])
    covered = min(high, size) - max(low, 0)
    return loop if access.step(loop) > 0 and 2 * covered > max(size, access.step(loop) * op.loops[loop]) else None
