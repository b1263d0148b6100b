"""Evaluates any tensor value of a cluster at a point, on demand: the core that all templates share.

``get(value, indices)`` follows the graph of the cluster from a value to the loads it needs. Views, slices, transposes
and broadcasts are index arithmetic and cost nothing. A value asked for twice at the same indices is computed once: a
memo hit is thread composition. Whether a value is a scalar or a vector over the lanes follows from whether its
indices depend on the lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.index_expr import (
    Expr,
    Symbol,
    clamp,
    constant,
    divisor_of,
    floordiv,
    linearize,
    share_within,
    stride_of,
)
from mlirstitch.lowering.kernel.linalg_body import BodyOp
from mlirstitch.lowering.kernel.memory_access import MAX_ACCESS_BYTES, Context, Guard, MemoryAccess
from mlirstitch.lowering.kernel.tensor_program import (
    Argument,
    Choice,
    Computed,
    Indices,
    Node,
    Refused,
    Table,
    TensorProgram,
    Uniform,
    View,
)
from mlirstitch.passes.structured import defining_op

__all__ = ["MAX_ACCESS_BYTES", "BodyValue", "Context", "Evaluator", "Guard", "IndexValue", "Reducer"]


@dataclass(frozen=True)
class IndexValue:
    """A body value that is still an index expression (type index or i64)."""

    expr: Expr
    type: ir.Type


BodyValue = Value | IndexValue
Reducer = Callable[[Computed, Indices], Value]


class Evaluator(MemoryAccess):
    """Evaluates values of ``program`` in the current scope of ``builder``.

    ``reduce`` supplies the value of a reduction that is not in the memo, ``tables`` the memref of a constant table.
    ``watch`` is told of every load of an argument and its offset, ``on_use`` of every value that is asked for and its
    indices. ``staged`` may supply an element of an argument from shared memory.
    """

    def __init__(
        self, builder: Builder, program: TensorProgram, memory: Sequence[Value], context: Context, reduce: Reducer
    ) -> None:
        super().__init__(builder, memory, context)
        self.program = program
        self.reduce = reduce
        self.tables: Callable[[Table], Value] | None = None
        self.watch: Callable[[Argument, Expr], None] | None = None
        self.staged: Callable[[Argument, Expr], Value | None] | None = None
        self.on_use: Callable[[Value, Indices], None] | None = None
        self._gathers = 0
        self._choices = 0
        self._needed: dict[tuple[int, tuple[int, ...], frozenset[int]], tuple[tuple[BodyOp, ...], list[int]]] = {}

    # Values -----------------------------------------------------------------------------------------------------

    def get(self, node: Node, indices: Indices) -> Value:
        """Element ``indices`` of ``node``: a scalar, or a vector if an index depends on the lane (or it is cheaper).

        Raises :class:`PassError` if the value cannot be computed here.
        """
        builder = self.builder
        key = (node.uid, indices)
        known = builder.scope.find(key)
        if known is not None:
            if self.on_use is not None:
                self.on_use(known, indices)
            return known
        home = builder.home(indices, pinned=True)
        location = builder.location
        if node.op is not None:
            builder.location = node.op.location
        try:
            with builder.at(home):
                value = self._compute(node, indices)
        finally:
            builder.location = location
        home.memo[key] = value
        if self.on_use is not None:
            self.on_use(value, indices)
        return value

    def _compute(self, node: Node, indices: Indices) -> Value:
        if isinstance(node, Computed):
            if node.is_reduction:
                return self.reduce(node, indices)
            return self._pointwise(node, indices)
        if isinstance(node, View):
            return self.get(node.source, node.source_indices(indices))
        if isinstance(node, Argument):
            return self._load_argument(node, indices)
        if isinstance(node, Uniform):
            return self._uniform(node)
        if isinstance(node, Choice):
            return self._choose(node, indices)
        if isinstance(node, Table):
            return self._load_table(node, indices)
        if isinstance(node, Refused):
            raise node.error
        raise TypeError(f"no evaluation for {type(node).__name__}")

    def _uniform(self, node: Uniform) -> Value:
        if node.scalar is None:
            return self.builder.number(0, node.element)
        if isinstance(node.scalar, ir.Attribute):
            return self.builder.constant(node.scalar, node.element)
        return self.realize(self.scalar(node.scalar))

    def scalar(self, value: ir.Value) -> BodyValue:
        """A scalar defined among the cluster's ops: a constant, or arithmetic on such scalars."""
        op = defining_op(value)
        if op is None:
            raise PassError(f"a scalar argument of type {value.type} cannot be read by a kernel")
        if op.name == "arith.constant":
            return self._constant(op.attributes["value"], value.type)
        problem = scalar_ops.op_problem(op.name, [v.type for v in (*op.operands, value)])
        if problem:
            raise refusal(op, problem, "compute this scalar inside a linalg op")
        root = self.builder.root
        if value not in root.memo:
            with self.builder.at(root):
                operands = [self.realize(self.scalar(v)) for v in op.operands]
                kept = {name: op.attributes[name] for name in op.attributes}
                root.memo[value] = scalar_ops.emit_op(self.builder, op.name, operands, value.type, kept)
        return root.memo[value]

    def _constant(self, attribute: ir.Attribute, kind: ir.Type) -> BodyValue:
        if isinstance(attribute, ir.IntegerAttr) and _is_wide_integer(kind):
            return IndexValue(constant(attribute.value), kind)
        return self.builder.constant(attribute, kind)

    # Bodies -----------------------------------------------------------------------------------------------------

    def _pointwise(self, node: Computed, indices: Indices) -> Value:
        linalg = node.linalg
        loop = linalg.loop_indices(linalg.parallel_point(node.result, indices), ())
        return self.run_body(node, [linalg.body.yields[node.result]], loop, {})[0]

    def run_body(self, node: Computed, roots: Sequence[int], loop: Indices, known: dict[int, BodyValue]) -> list[Value]:
        """The values of the body's slots ``roots`` at loop indices ``loop``; ``known`` has slots computed already."""
        linalg = node.linalg
        ops, slots = self._needed_of(node, tuple(roots), frozenset(known))
        env = dict(known)
        for slot in slots:
            if slot not in env:
                env[slot] = self.get(node.operands[slot], linalg.operand_indices(slot, loop))
        for slot, value in linalg.body.captures:
            env[slot] = self.scalar(value)
        location = self.builder.location
        for op in ops:
            self.builder.location = op.location
            env[op.result] = self._body_op(node, op, env, loop)
        self.builder.location = location
        return [self.realize(env[slot]) for slot in roots]

    def _needed_of(
        self, node: Computed, roots: tuple[int, ...], known: frozenset[int]
    ) -> tuple[tuple[BodyOp, ...], list[int]]:
        """The body ops and, in order, the block arguments that slots ``roots`` depend on."""
        body = node.linalg.body
        key = (id(body), roots, known)
        if key not in self._needed:
            ops, slots = body.needed(roots, known)
            self._needed[key] = (ops, sorted(slot for slot in slots if slot < body.arguments))
        return self._needed[key]

    def _body_op(self, node: Computed, op: BodyOp, env: dict[int, BodyValue], loop: Indices) -> BodyValue:
        if op.name == "arith.constant":
            return self._constant(op.attributes["value"], op.type)
        if op.name == "linalg.index":
            return IndexValue(loop[op.dim], op.type)
        if op.tensor is not None:
            return self._gather(node.tensors[op.tensor], [env[slot] for slot in op.operands])
        operands = [env[slot] for slot in op.operands]
        symbolic = _symbolic(op, operands)
        if symbolic is not None:
            return symbolic
        values = [self.realize(v) for v in operands]
        problem = scalar_ops.op_problem(op.name, [*(scalar_ops.element_of(v.type) for v in values), op.type])
        if problem:
            raise refusal(node.linalg.op, problem, "write the model without this function")
        return scalar_ops.emit_op(self.builder, op.name, values, op.type, op.attributes)

    def realize(self, value: BodyValue) -> Value:
        """The SSA value of a body value."""
        if not isinstance(value, IndexValue):
            return value
        if value.expr.is_constant:
            return self.builder.integer(value.expr.const, value.type)
        index = self.index_value(value.expr)
        if isinstance(value.type, ir.IndexType):
            return index
        return self.builder.emit("arith.index_cast", scalar_ops.with_element(index, value.type), [index])

    # Gathers ----------------------------------------------------------------------------------------------------

    def _gather(self, node: Node, indices: Sequence[BodyValue]) -> Value:
        """An element at loaded indices; each is clamped into the tensor, so that no input reads foreign memory."""
        values = [self._resolve(v) for v in indices]
        widths = [scalar_ops.width_of(v) for v in values if not isinstance(v, Expr)]
        if not any(widths):
            at = [self._in_bounds(v, extent) for v, extent in zip(values, node.shape, strict=True)]
            return self.get(node, tuple(at))
        lanes: list[Value] = []
        for number in range(self.context.width):
            at = []
            for value, extent in zip(values, node.shape, strict=True):
                if isinstance(value, Expr):
                    at.append(self._in_bounds(self.at_lane(value, number), extent))
                    continue
                if scalar_ops.width_of(value):
                    value = scalar_ops.extract(self.builder, value, number)
                at.append(self._in_bounds(value, extent))
            lanes.append(self.get(node, tuple(at)))
        self.accesses.strided += 1
        return scalar_ops.assemble(self.builder, lanes)

    def _resolve(self, value: BodyValue) -> Expr | Value:
        return value.expr if isinstance(value, IndexValue) else value

    def _in_bounds(self, value: Expr | Value, extent: int) -> Expr:
        if isinstance(value, Expr):
            return clamp(value, 0, extent - 1)
        builder = self.builder
        key = ("gather", value, extent)
        known = builder.scope.find(key)
        if known is not None:
            return known
        if not isinstance(value.type, ir.IndexType):
            value = builder.emit("arith.index_cast", builder.index_type, [value])
        inside = builder.arith("maxsi", value, builder.index_constant(0))
        inside = builder.arith("minsi", inside, builder.index_constant(extent - 1))
        self._gathers += 1
        name = Symbol(f"gather{self._gathers}", 0, extent - 1)
        builder.declare(name, inside)
        builder.scope.memo[key] = name.expr
        return name.expr

    # Choices ----------------------------------------------------------------------------------------------------

    def _choose(self, node: Choice, indices: Indices) -> Value:
        conditions: list[tuple[Expr, int, int]] = []
        relative = [index - low for index, low in zip(indices, node.low, strict=True)]
        for rel, size, stride in zip(relative, node.size, node.stride, strict=True):
            inside = rel.within(0, size * stride - 1)
            if inside is False or size == 0:
                return self._outside(node, indices)
            if inside is None or stride != 1:
                conditions.append((rel, size * stride, stride))
        if not conditions:
            return self._inside(node, relative)
        uniform = [self._without_lane(rel, bound, stride) for rel, bound, stride in conditions]
        if all(rel is not None for rel in uniform):
            return self._branch(node, indices, relative, conditions, uniform)
        condition = self._all_hold([(rel, bound, stride) for rel, bound, stride in conditions])
        self.accesses.broken += 1
        held = [
            clamp(rel, 0, size * stride - 1) for rel, size, stride in zip(relative, node.size, node.stride, strict=True)
        ]
        return self.builder.select(
            condition,
            self.builder.broadcast(self._inside(node, held), self.context.width),
            self.builder.broadcast(self._outside(node, indices, clamped=True), self.context.width),
        )

    def _inside(self, node: Choice, relative: Sequence[Expr]) -> Value:
        at = [rel if stride == 1 else floordiv(rel, stride) for rel, stride in zip(relative, node.stride, strict=True)]
        return self.get(node.inside, tuple(at[dim] for dim in node.kept))

    def _outside(self, node: Choice, indices: Indices, clamped: bool = False) -> Value:
        if node.outside is None:
            if node.padding is None:
                raise TypeError("a choice needs a second source or a padding")
            return self.realize(self.scalar(node.padding))
        at = [index - shift for index, shift in zip(indices, node.shift, strict=True)]
        if clamped:
            at = [clamp(index, 0, extent - 1) for index, extent in zip(at, node.outside.shape, strict=True)]
        return self.get(node.outside, tuple(at))

    def _without_lane(self, rel: Expr, bound: int, stride: int) -> Expr | None:
        """``rel`` at lane 0 if ``0 <= rel < bound`` has the same answer in all lanes, else None."""
        lane, width = self.context.lane, self.context.width
        if lane is None or lane not in rel.symbols:
            return rel
        base = self.at_lane(rel, 0)
        if stride != 1 or stride_of(rel, lane) != 1 or bound % width or divisor_of(base, width) != width:
            return None
        return base

    def _all_hold(self, conditions: Sequence[tuple[Expr, int, int]]) -> Value:
        builder = self.builder
        held: list[Value] = []
        for rel, bound, stride in conditions:
            value = self.index_value(rel)
            width = scalar_ops.width_of(value)
            if rel.low < 0 or rel.high >= bound:
                limit = builder.index_constant(bound)
                held.append(builder.compare("ult", value, builder.broadcast(limit, width) if width else limit))
            if stride != 1:
                rest = self.index_value(rel - floordiv(rel, stride) * stride)
                zero = builder.index_constant(0)
                held.append(builder.compare("eq", rest, builder.broadcast(zero, width) if width else zero))
        if any(scalar_ops.width_of(v) for v in held):
            held = [builder.broadcast(v, self.context.width) for v in held]
        result = held[0]
        for other in held[1:]:
            result = builder.arith("andi", result, other)
        return result

    def _branch(
        self,
        node: Choice,
        indices: Indices,
        relative: Sequence[Expr],
        conditions: Sequence[tuple[Expr, int, int]],
        uniform: Sequence[Expr | None],
    ) -> Value:
        builder = self.builder
        tests = [(u, bound, stride) for u, (_, bound, stride) in zip(uniform, conditions, strict=True) if u is not None]
        vector = self.depends_on_lane(indices)
        kind = ir.VectorType.get([self.context.width], node.element) if vector else node.element

        def as_kind(value: Value) -> list[Value]:
            return [builder.broadcast(value, self.context.width) if vector else value]

        # Inside another choice the indices are not spread evenly any more; each element counts once there.
        share = None if self._choices else share_within(tests)
        if share is None:
            share = Fraction(node.inside.elements, max(1, node.elements))
        self._choices += 1
        value = builder.branch(
            self._all_hold(tests),
            [kind],
            lambda: as_kind(self._inside(node, relative)),
            lambda: as_kind(self._outside(node, indices)),
            executions=builder.scope.executions * share,
        )[0]
        self._choices -= 1
        return value

    # Memory -----------------------------------------------------------------------------------------------------

    def _load_argument(self, node: Argument, indices: Indices) -> Value:
        offset = linearize(indices, node.shape)
        if self.watch is not None:
            self.watch(node, offset)
        if self.staged is not None:
            value = self.staged(node, offset)
            if value is not None:
                return value
        return self.load_from(node.position, node.element, offset)

    def _load_table(self, node: Table, indices: Indices) -> Value:
        memref = None if self.tables is None else self.tables(node)
        return self.load(memref, node.element, linearize(indices, node.shape), None)

    def store(self, output: int, offset: Expr, value: Value) -> None:
        """Store element ``offset`` (row-major) of cluster output ``output``, under the context's guard."""
        self.store_to(len(self.program.arguments) + output, offset, value)


def _is_wide_integer(kind: ir.Type) -> bool:
    return isinstance(kind, ir.IndexType) or (isinstance(kind, ir.IntegerType) and kind.width == 64)


def _symbolic(op: BodyOp, operands: Sequence[BodyValue]) -> IndexValue | None:
    """Integer arithmetic on index expressions stays an index expression."""
    if not _is_wide_integer(op.type):
        return None
    exprs = [v.expr for v in operands if isinstance(v, IndexValue)]
    if not exprs or len(exprs) != len(operands):
        return None
    if op.name in ("arith.index_cast", "arith.index_castui"):
        return IndexValue(exprs[0], op.type)
    if op.name == "arith.addi":
        return IndexValue(exprs[0] + exprs[1], op.type)
    if op.name == "arith.subi":
        return IndexValue(exprs[0] - exprs[1], op.type)
    if op.name == "arith.muli" and exprs[1].is_constant:
        return IndexValue(exprs[0] * exprs[1].const, op.type)
    return None
