"""Which dims of a function stand for several (rows that are batch times sequence), found from its reshapes.

Dims and loops that structured ops tie together are one class. A class is cut into factors where a reshape next to it
does so; factors are kept as *strides*: 192 = 8 x 24 has the stride 24, and 4 x 2 x 24 the strides 48 and 24. Classes
learn strides from each other through reshapes until nothing changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from mlir import ir

from mlirstitch.passes.op_kind import VIEW_OPS, is_convolution, is_pooling
from mlirstitch.passes.partitioning.op_loops import is_unset
from mlirstitch.passes.partitioning.tensor_loops import reassociation
from mlirstitch.passes.scan import scan_form
from mlirstitch.passes.scatter import scatter_form
from mlirstitch.passes.structured import (
    REDUCTION,
    Structured,
    block_ops,
    constant_of,
    is_tensor,
    shape_of,
    structured,
)

Node = int


class DimFactors:
    """The factors of every dim and loop of a function.

    A class is not cut if it has a dim of an argument or a result of the function, of a window, a slice, a gathered
    table or a constant with data, or a loop that its op must keep in one piece: what a scan, a scatter or the
    reduction of a pair walks along. Nor where the strides of its reshapes do not divide each other.
    """

    def __init__(self, function: ir.Operation) -> None:
        self._ids: dict[tuple[ir.Value, int], Node] = {}
        self._parent: list[Node] = []
        self._size: list[int] = []
        self._kept: set[Node] = set()
        self._reshapes: list[ir.Operation] = []
        for argument in function.regions[0].blocks[0].arguments:
            self._keep(self._dims(argument))
        for op in block_ops(function):
            self._visit(op)
        self._kept = {self._find(node) for node in self._kept}
        self._strides: dict[Node, tuple[int, ...]] = {}
        learned = True
        while learned:
            # with the order of the function and against it, so that a chain of reshapes takes one round
            learned = sum(self._learn(op) for op in (*self._reshapes, *reversed(self._reshapes))) > 0

    def of_dim(self, value: ir.Value, dim: int) -> tuple[int, ...]:
        """The factors of a dim of a tensor, outermost first; one if it is not cut."""
        return self._factors(self._dims(value)[dim])

    def of_loop(self, op: ir.Operation, loop: int) -> tuple[int, ...]:
        """The factors of a loop of a structured op."""
        return self._factors(self._ids[_loop_key(op, loop)])

    def cuts_loops(self, op: ir.Operation) -> bool:
        """Whether a loop of an op is cut. Ops that keep all their loops (convolutions) have none here."""
        loops = itertools.takewhile(lambda key: key in self._ids, (_loop_key(op, loop) for loop in itertools.count()))
        return any(self._find(self._ids[key]) in self._strides for key in loops)

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The shape of a tensor, every dim replaced by its factors."""
        return tuple(factor for dim in range(len(shape_of(value))) for factor in self.of_dim(value, dim))

    def _factors(self, node: Node) -> tuple[int, ...]:
        size = self._size[node]
        bounds = (size, *self._strides.get(self._find(node), ()), 1)
        return tuple(outer // inner for outer, inner in itertools.pairwise(bounds))

    # classes

    def _visit(self, op: ir.Operation) -> None:
        if op.name in VIEW_OPS:
            self._reshapes.append(op)
            return
        view = structured(op)
        if view is not None and not is_convolution(op) and not is_pooling(op):
            self._structured(view)
        elif op.name == "arith.constant":
            value = constant_of(op.results[0])
            if is_tensor(op.results[0]) and not (isinstance(value, ir.DenseElementsAttr) and value.is_splat):
                self._keep(self._dims(op.results[0]))
        elif op.name != "tensor.empty":
            for value in (*op.operands, *op.results):
                if is_tensor(value):
                    self._keep(self._dims(value))

    def _structured(self, view: Structured) -> None:
        sizes = view.loop_sizes()
        loops = [self._node(_loop_key(view.op, loop), size) for loop, size in enumerate(sizes)]
        for loop in _kept_loops(view):
            self._kept.add(loops[loop])
        results = [*view.inits, *view.op.results]
        maps = [*view.maps, *view.init_maps]
        for value, affine_map in zip([*view.inputs, *results], maps, strict=True):
            if not is_tensor(value) or is_unset(value):
                continue
            dims = self._dims(value)
            for dim, expr in zip(dims, affine_map.results, strict=True):
                if isinstance(expr, ir.AffineDimExpr):
                    self._join(dim, loops[expr.position])
                else:
                    self._kept.add(dim)
                    self._kept.update(loops[loop] for loop in _loops_in(expr))
        for op in view.body_ops:
            if op.name == "tensor.extract":
                self._keep(self._dims(op.operands[0]))

    def _dims(self, value: ir.Value) -> list[Node]:
        return [self._node((value, dim), size) for dim, size in enumerate(shape_of(value))]

    def _node(self, key: tuple[ir.Value, int], size: int) -> Node:
        node = self._ids.get(key)
        if node is None:
            node = self._ids[key] = len(self._parent)
            self._parent.append(node)
            self._size.append(size)
        return node

    def _keep(self, nodes: Iterable[Node]) -> None:
        self._kept.update(nodes)

    def _find(self, node: Node) -> Node:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def _join(self, one: Node, other: Node) -> None:
        one, other = self._find(one), self._find(other)
        self._parent[max(one, other)] = min(one, other)

    # strides

    def _learn(self, op: ir.Operation) -> bool:
        """Pass strides through one reshape, both ways; whether anything was new."""
        collapsed, expanded = op.results[0], op.operands[0]
        if op.name == "tensor.expand_shape":
            collapsed, expanded = expanded, collapsed
        changed = False
        parts = self._dims(expanded)
        for whole, group in zip(self._dims(collapsed), reassociation(op), strict=True):
            inner = 1
            strides: list[int] = []
            for dim in reversed(group):
                part, size = parts[dim], self._size[parts[dim]]
                strides += [inner * stride for stride in self._strides.get(self._find(part), ())]
                below = [s // inner for s in self._strides.get(self._find(whole), ()) if inner < s < inner * size]
                changed |= self._refine(part, below)
                inner *= size
                strides.append(inner)
            changed |= self._refine(whole, strides)
        return changed

    def _refine(self, node: Node, strides: Sequence[int]) -> bool:
        """Cut the class of a node at more strides, unless it is kept or they do not fit; whether it is cut finer."""
        root, size = self._find(node), self._size[node]
        known = self._strides.get(root, ())
        wanted = sorted({*known, *(stride for stride in strides if 1 < stride < size)}, reverse=True)
        bounds = [size, *wanted, 1]
        fits = all(outer % inner == 0 for outer, inner in itertools.pairwise(bounds))
        if root in self._kept or not fits or len(wanted) == len(known):
            return False
        self._strides[root] = tuple(wanted)
        return True


def _loop_key(op: ir.Operation, loop: int) -> tuple[ir.Value, int]:
    """Loops count downwards from the first result. The op itself is no key: its hash changes with its operands."""
    return op.results[0], -1 - loop


def _kept_loops(view: Structured) -> list[int]:
    """Loops that an op must keep in one piece."""
    reduced = [loop for loop, kind in enumerate(view.iterators) if kind == REDUCTION]
    if not reduced:
        return []
    scatter = scatter_form(view)
    if scatter is not None:
        return [scatter.dim, *reduced]
    if scan_form(view) is not None or len(view.inits) > 1:
        return reduced
    return []


def _loops_in(expr: ir.AffineExpr) -> list[int]:
    if isinstance(expr, ir.AffineDimExpr):
        return [expr.position]
    return [*_loops_in(expr.lhs), *_loops_in(expr.rhs)] if isinstance(expr, ir.AffineBinaryExpr) else []
