"""Structured linalg ops, named or generic: indexing maps and body, evaluated over the whole iteration space at once.

A body is evaluated with one array an SSA value, broadcast over the loops. A reduction whose body is
``combiner(acc, f(inputs))`` becomes a numpy reduction of ``f``, or a matrix product when ``f`` is a product; any other
recurrence (index reductions, narrow sums) is stepped serially over the reduction loops, vectorised over the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mlir import ir
from mlir.dialects import linalg

from mlirstitch.driver.reference.elements import Elements
from mlirstitch.driver.reference.indexing import Space, linear, loop_extents, view
from mlirstitch.driver.reference.scalars import REDUCTIONS, SCALAR_OPS, reorderable
from mlirstitch.errors import PassError

BLOCK_POINTS = 1 << 24
"""Points of an iteration space evaluated at once; larger ones are cut along a parallel loop."""

Environment = dict[ir.Value, np.ndarray]
EvaluateOp = Callable[[ir.Operation, Environment, Space], None]


@dataclass(frozen=True)
class Structured:
    """One structured op, its body and its maps."""

    op: ir.Operation
    maps: list[ir.AffineMap]
    inputs: int

    @staticmethod
    def of(op: ir.Operation) -> Structured:
        maps = indexing_maps(op)
        inputs = len(maps) - len(op.results)
        for map_ in maps[inputs:]:
            if any(linear(e, map_.n_dims) is None for e in map_.results):
                raise PassError(f"the reference cannot write through the map {map_}")
        return Structured(op, maps, inputs)

    @property
    def block(self) -> ir.Block:
        return self.op.regions[0].blocks[0]

    @property
    def accumulators(self) -> Sequence[ir.Value]:
        """The body's arguments that hold the outputs' current contents."""
        return list(self.block.arguments)[self.inputs :]

    @property
    def yields(self) -> list[ir.Value]:
        return list(self.block.operations[len(self.block.operations) - 1].operands)

    def reduced_loops(self, output: int) -> list[int]:
        """Loops that the map of an output does not mention."""
        map_ = self.maps[self.inputs + output]
        return [d for d in range(map_.n_dims) if not any(_mentions(e, d) for e in map_.results)]


def indexing_maps(op: ir.Operation) -> list[ir.AffineMap]:
    """The maps of a structured op, explicit or implied by its name; empty for any other op."""
    maps = linalg.get_indexing_maps(op)  # pyright: ignore[reportAttributeAccessIssue]
    return [ir.AffineMapAttr(m).value for m in maps] if maps else []


def _mentions(expr: ir.AffineExpr, loop: int) -> bool:
    if isinstance(expr, ir.AffineDimExpr):
        return expr.position == loop
    return isinstance(expr, ir.AffineBinaryExpr) and (_mentions(expr.lhs, loop) or _mentions(expr.rhs, loop))


class StructuredEvaluator:
    """Evaluates one structured op. ``outer`` holds the values defined outside its body."""

    def __init__(self, op: ir.Operation, elements: Elements, outer: Environment, evaluate_op: EvaluateOp) -> None:
        self.item = Structured.of(op)
        self.elements = elements
        self.evaluate_op = evaluate_op
        self.operands = [np.asarray(outer[v]) for v in op.operands]
        self.outputs = [a.copy() for a in self.operands[self.item.inputs :]]
        body = [o.operation for o in self.item.block.operations]
        self.definition = {result: o for o in body for result in o.results}
        self.checks = [o for o in body if o.name == "cf.assert"]
        inside = {*self.definition, *self.item.block.arguments}
        self.captured = {v: outer[v] for o in body for v in o.operands if v not in inside}
        self.carried = {
            acc for i, acc in enumerate(self.item.accumulators) if self.item.reduced_loops(i)
        }  # membership only, never iterated

    def run(self, part: Space | None = None) -> list[np.ndarray]:
        """The op's results. With a part of the iteration space, inits stay where no point of it writes."""
        extents = loop_extents(self.item.maps, [a.shape for a in self.operands])
        self._split(Space((0,) * len(extents), extents) if part is None else part)
        return self.outputs

    def _split(self, space: Space) -> None:
        if 0 in space.shape:
            return
        reduced = {d for i in range(len(self.outputs)) for d in self.item.reduced_loops(i)}
        parallel = [d for d in range(len(space.shape)) if d not in reduced and space.shape[d] > 1]
        if math.prod(space.shape) <= BLOCK_POINTS or not parallel or self._is_contraction():
            self._block(space)
            return
        loop = max(parallel, key=lambda d: space.shape[d])
        middle = (space.lower[loop] + space.upper[loop]) // 2
        self._split(space.restrict(loop, space.lower[loop], middle))
        self._split(space.restrict(loop, middle, space.upper[loop]))

    def _is_contraction(self) -> bool:
        terms = self._terms(0) if len(self.outputs) == 1 and self.carried else None
        if terms is None or terms[0] not in ("arith.addf", "arith.addi") or len(terms[1]) != 1:
            return False
        product = self.definition.get(terms[1][0])
        return product is not None and product.name in ("arith.mulf", "arith.muli")

    def _block(self, space: Space) -> None:
        plans = [self._terms(i) for i in range(len(self.outputs))]
        if any(p is None for p in plans):
            self._serial(space)
            return
        env = self._bind(space)
        for i, plan in enumerate(plans):
            assert plan is not None
            combiner, terms = plan
            if not combiner:
                self._store(i, space, self._value(terms[0], env, space))
                continue
            current = view(self.outputs[i], self.item.maps[self.item.inputs + i], space)
            for term in terms:
                reduced = self._reduce(combiner, term, i, env, space)
                current = REDUCTIONS[combiner](current, reduced).astype(current.dtype, copy=False)
            self._store(i, space, current)

    def _terms(self, output: int) -> tuple[str, list[ir.Value]] | None:
        """How an output is computed: ("", [value]) stored as is, (combiner, terms) reduced, None serial."""
        value = self.item.yields[output]
        if not self._reads_carried(value):
            return ("", [value]) if not self.item.reduced_loops(output) else None
        combiner = self.definition[value].name if value in self.definition else ""
        if not reorderable(combiner, self.outputs[output].dtype):
            return None
        terms: list[ir.Value] = []
        return (combiner, terms) if self._peel(value, combiner, output, terms) else None

    def _peel(self, value: ir.Value, combiner: str, output: int, terms: list[ir.Value]) -> bool:
        """Collect the operands of a chain ``acc op t1 op t2``; False unless the accumulator ends exactly one side."""
        if value == self.item.accumulators[output]:
            return True
        op = self.definition.get(value)
        if op is None or op.name != combiner:
            return False
        left, right = op.operands
        left_carried, right_carried = self._reads_carried(left), self._reads_carried(right)
        if left_carried == right_carried:
            return False
        terms.append(right if left_carried else left)
        return self._peel(left if left_carried else right, combiner, output, terms)

    def _reads_carried(self, value: ir.Value) -> bool:
        stack = [value]
        while stack:
            v = stack.pop()
            if v in self.carried:
                return True
            if v in self.definition:
                stack.extend(self.definition[v].operands)
        return False

    def _bind(self, space: Space) -> Environment:
        env = dict(self.captured)
        arrays = [*self.operands[: self.item.inputs], *self.outputs]
        for argument, array, map_ in zip(self.item.block.arguments, arrays, self.item.maps, strict=True):
            env[argument] = view(array, map_, space)
        for check in self.checks:
            self._value(check.operands[0], env, space)
            self.evaluate_op(check, env, space)
        return env

    def _value(self, value: ir.Value, env: Environment, space: Space) -> np.ndarray:
        """A body value, computed on demand; every op of the body is evaluated at most once a block."""
        stack = [value]
        while stack:
            v = stack[-1]
            missing = [o for o in self.definition[v].operands if o not in env] if v not in env else []
            if missing:
                stack.extend(missing)
                continue
            if v not in env:
                self.evaluate_op(self.definition[v], env, space)
            stack.pop()
        return env[value]

    def _reduce(self, combiner: str, term: ir.Value, output: int, env: Environment, space: Space) -> np.ndarray:
        """The term reduced over the output's missing loops, those kept as axes of one element."""
        axes = self.item.reduced_loops(output)
        product = self.definition.get(term)
        if combiner in ("arith.addf", "arith.addi") and product is not None and product.name in _PRODUCTS:
            a, b = (self._value(v, env, space) for v in product.operands)
            contracted = _contract(_ranked(a, space), _ranked(b, space), axes, space.shape)
            if contracted is not None:
                return contracted
        x = np.broadcast_to(_ranked(self._value(term, env, space), space), space.shape)
        kept = [d for d in range(x.ndim) if d not in axes]
        # The reduced axes go last and contiguous: there numpy sums pairwise.
        flat = np.ascontiguousarray(np.transpose(x, kept + axes)).reshape([space.shape[d] for d in kept] + [-1])
        result = REDUCTIONS[combiner].reduce(flat, axis=-1, dtype=x.dtype)
        return result.reshape([1 if d in axes else space.shape[d] for d in range(x.ndim)])

    def _serial(self, space: Space) -> None:
        """Step over the reduction loops in the IR's order, outermost first."""
        loops = sorted({d for i in range(len(self.outputs)) for d in self.item.reduced_loops(i)})
        for point in np.ndindex(*(space.shape[d] for d in loops)):
            here = space
            for d, i in zip(loops, point, strict=True):
                here = here.restrict(d, space.lower[d] + i, space.lower[d] + i + 1)
            env = self._bind(here)
            results = [np.array(self._value(v, env, here)) for v in self.item.yields]
            for i, result in enumerate(results):
                self._store(i, here, result)

    def _store(self, output: int, space: Space, value: np.ndarray) -> None:
        target = view(self.outputs[output], self.item.maps[self.item.inputs + output], space)
        target[...] = _ranked(value, space)


_PRODUCTS = ("arith.mulf", "arith.muli")


def _ranked(value: np.ndarray, space: Space) -> np.ndarray:
    """A scalar gets one axis a loop; other values have them already."""
    value = np.asarray(value)
    return value.reshape((1,) * len(space.shape)) if value.ndim == 0 else value


def _contract(a: np.ndarray, b: np.ndarray, axes: Sequence[int], shape: tuple[int, ...]) -> np.ndarray | None:
    """Sum of ``a * b`` over ``axes`` as one (batched) matrix product; None if it has not that form.

    ``a`` and ``b`` have one axis a loop, one wide where they do not depend on it.
    """
    loops = range(len(shape))

    def spans(x: np.ndarray, d: int) -> bool:
        return x.shape[d] == shape[d]

    summed = [d for d in axes if shape[d] > 1]
    if not all(spans(a, d) and spans(b, d) for d in summed) or not all(spans(a, d) or spans(b, d) for d in loops):
        return None
    kept = [d for d in loops if d not in axes]
    batch = [d for d in kept if spans(a, d) and spans(b, d)]
    rows = [d for d in kept if spans(a, d) and not spans(b, d)]
    columns = [d for d in kept if spans(b, d) and not spans(a, d)]
    if not summed or not rows or not columns:
        return None

    def extent(dims: Sequence[int]) -> int:
        return math.prod(shape[d] for d in dims)

    def arranged(x: np.ndarray, *groups: list[int]) -> np.ndarray:
        order = [d for g in groups for d in g]
        rest = [d for d in loops if d not in order]
        return np.transpose(x, order + rest).reshape([extent(g) for g in groups])

    product = np.matmul(arranged(a, batch, rows, summed), arranged(b, batch, summed, columns))
    order = batch + rows + columns
    result = product.reshape([shape[d] for d in order])
    result = np.transpose(result, np.argsort(order)) if order else result
    return result.reshape([1 if d in axes else shape[d] for d in loops])


def scalar_op(op: ir.Operation, elements: Elements, env: Environment) -> bool:
    """Evaluate one arith or math op into ``env``; False if it is none."""
    rule = SCALAR_OPS.get(op.name)
    if rule is None:
        return False
    operands = [np.asarray(env[v]) for v in op.operands]
    with np.errstate(all="ignore"):
        env[op.results[0]] = np.asarray(rule(op, elements, operands))
    return True
