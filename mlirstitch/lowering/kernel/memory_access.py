"""Reads and writes memory at index expressions: one element, or a vector whose lanes are neighbours.

An access whose offset depends on the vector lane is wide where lanes are neighbours in memory, else it is taken apart.
Guards keep threads without work away from memory. What is moved is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

from mlir import ir

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.index_expr import Expr, Symbol, constant, divisor_of, stride_of, substitute
from mlirstitch.lowering.kernel.tensor_program import Indices

MAX_ACCESS_BYTES = 16
"""Widest access of one thread, and the alignment every buffer is promised."""


@dataclass(frozen=True)
class Guard:
    """Memory at indices that depend on ``symbol`` may be touched only where ``condition`` (an i1) holds.

    ``share``: how many of the threads in ``total`` pass the condition, for accounting.
    """

    symbol: Symbol
    condition: Value
    share: int
    total: int


@dataclass(frozen=True)
class Context:
    """Where a value is computed, beyond its indices.

    Attributes:
        lane: the symbol of the vector lane, or None if every value is a scalar.
        width: lanes of a vector.
        guards: conditions on memory accesses.
    """

    lane: Symbol | None = None
    width: int = 1
    guards: tuple[Guard, ...] = ()


@dataclass
class Accesses:
    """What was loaded and stored.

    Attributes:
        bytes: per tensor argument of the kernel (inputs, then destinations), summed over all threads of the launch.
        offsets: per argument, every offset that was accessed, as an expression (the values stand for nothing).
        broken: accesses that are neither uniform over the lanes nor at a fixed distance from lane to lane.
        strided: accesses at a fixed distance other than 1.
        vector: accesses of whole vectors.
        sizes: element sizes of lane-dependent accesses, bytes.
    """

    bytes: list[Fraction]
    offsets: list[dict[Expr, None]]
    broken: int = 0
    strided: int = 0
    vector: int = 0
    sizes: set[int] = field(default_factory=set)

    @staticmethod
    def of(arguments: int) -> Accesses:
        """Nothing accessed yet of so many arguments."""
        return Accesses([Fraction()] * arguments, [{} for _ in range(arguments)])

    def add(self, numbers: Sequence[int], part: Accesses) -> None:
        """What a part of the kernel accessed; ``numbers``: its arguments among those of the kernel."""
        for number, moved, offsets in zip(numbers, part.bytes, part.offsets, strict=True):
            self.bytes[number] += moved
            self.offsets[number].update(offsets)


class MemoryAccess:
    """Loads and stores in the current scope of ``builder``.

    ``memory`` holds the flat memrefs of the kernel's inputs, destinations and scratch (None when dry). ``context`` says
    which symbol is the vector lane, and under which conditions memory may be touched.
    """

    def __init__(self, builder: Builder, memory: Sequence[Value], context: Context) -> None:
        self.builder = builder
        self.memory = memory
        self.context = context
        self.accesses = Accesses.of(len(memory))

    @contextmanager
    def within(self, context: Context) -> Iterator[None]:
        """Evaluate in another context."""
        saved, self.context = self.context, context
        try:
            yield
        finally:
            self.context = saved

    # Lanes ------------------------------------------------------------------------------------------------------

    def index_value(self, expr: Expr) -> Value:
        """An index expression as a value: a scalar, or a vector if it depends on the lane."""
        lane, width = self.context.lane, self.context.width
        if lane is None or lane not in expr.symbols:
            return self.builder.index(expr)
        stride = stride_of(expr, lane)
        if stride is None:
            lanes = [self.builder.index(self.at_lane(expr, k)) for k in range(width)]
            return scalar_ops.assemble(self.builder, lanes)
        kind = ir.VectorType.get([width], self.builder.index_type)
        steps = [ir.IntegerAttr.get(self.builder.index_type, stride * k) for k in range(width)]
        offsets = self.builder.constant(ir.DenseElementsAttr.get(steps, kind), kind)
        base = self.at_lane(expr, 0)
        if base.is_constant and not base.const:
            return offsets
        return self.builder.arith("addi", self.builder.broadcast(self.builder.index(base), width), offsets)

    def at_lane(self, expr: Expr, number: int) -> Expr:
        lane = self.context.lane
        return expr if lane is None else substitute(expr, {lane: constant(number)})

    def at_lane_all(self, indices: Indices, number: int) -> Indices:
        return tuple(self.at_lane(index, number) for index in indices)

    def depends_on_lane(self, indices: Sequence[Expr]) -> bool:
        """Whether a value at these indices differs from lane to lane."""
        lane = self.context.lane
        return lane is not None and any(lane in index.symbols for index in indices)

    # Arguments of the kernel ------------------------------------------------------------------------------------

    def load_from(self, number: int, element: ir.Type, offset: Expr) -> Value:
        """Element ``offset`` of kernel argument ``number``, whose IR element type is ``element``."""
        return self.load(self.memory[number], element, offset, number)

    def store_to(self, number: int, offset: Expr, value: Value) -> None:
        """Store element ``offset`` of kernel argument ``number``, under the context's guard."""
        condition, executions = self._condition(offset)
        self.accesses.offsets[number][offset] = None
        if condition is None:
            self._store(number, offset, value)
        else:
            self.builder.branch(condition, [], lambda: self._store(number, offset, value), None, executions)

    # Any memory -------------------------------------------------------------------------------------------------

    def load(self, memref: Value, element: ir.Type, offset: Expr, argument: int | None) -> Value:
        """Element ``offset`` of a flat memref, counted as access to kernel argument ``argument`` (None: to none)."""
        stored = scalar_ops.memory_type(element)
        lane, width = self.context.lane, self.context.width
        if argument is not None:
            self.accesses.offsets[argument][offset] = None
        if lane is None or lane not in offset.symbols:
            loaded = self._guarded_load(memref, offset, stored, 1, argument)
        else:
            self.accesses.sizes.add(scalar_ops.byte_size(stored))
            stride = stride_of(offset, lane)
            if stride == 1:
                self.accesses.vector += 1
                loaded = self._guarded_load(memref, self.at_lane(offset, 0), stored, width, argument)
            else:
                if stride is None:
                    self.accesses.broken += 1
                else:
                    self.accesses.strided += 1
                lanes = [self._guarded_load(memref, self.at_lane(offset, k), stored, 1, argument) for k in range(width)]
                loaded = scalar_ops.assemble(self.builder, lanes)
        return scalar_ops.from_memory(self.builder, loaded, element)

    def _guarded_load(self, memref: Value, offset: Expr, stored: ir.Type, width: int, argument: int | None) -> Value:
        builder = self.builder
        kind = ir.VectorType.get([width], stored) if width > 1 else stored
        index = builder.index(offset)
        condition, executions = self._condition(offset)
        if condition is None:
            value = self._plain_load(memref, index, kind, offset, stored)
        else:
            zero = builder.number(0, stored)
            idle = builder.broadcast(zero, width) if width > 1 else zero
            value = builder.branch(
                condition,
                [kind],
                lambda: [self._plain_load(memref, index, kind, offset, stored)],
                lambda: [idle],
                executions,
            )[0]
        if argument is not None:
            self.accesses.bytes[argument] += executions * width * scalar_ops.byte_size(stored)
        return value

    def _condition(self, offset: Expr) -> tuple[Value | None, Fraction]:
        """Under which condition memory at ``offset`` may be touched (None: always), and how often it is."""
        executions = self.builder.scope.executions
        found: Value | None = None
        for guard in self.context.guards:
            if guard.symbol in offset.symbols:
                executions = executions * Fraction(guard.share, guard.total)
                both = found is not None
                found = self.builder.arith("andi", found, guard.condition) if both else guard.condition
        return found, executions

    def _plain_load(self, memref: Value, index: Value, kind: ir.Type, offset: Expr, stored: ir.Type) -> Value:
        if isinstance(kind, ir.VectorType):
            attributes = self._alignment(offset, stored, kind.shape[0])
            return self.builder.emit("vector.load", kind, [memref, index], attributes)
        return self.builder.emit("memref.load", kind, [memref, index])

    def _alignment(self, offset: Expr, stored: ir.Type, width: int) -> dict[str, ir.Attribute]:
        size = scalar_ops.byte_size(stored)
        limit = min(MAX_ACCESS_BYTES, size * width) // size
        aligned = divisor_of(offset, limit) * size
        return {"alignment": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), aligned)}

    def _store(self, number: int, offset: Expr, value: Value) -> list[Value]:
        builder = self.builder
        lane, width = self.context.lane, self.context.width
        memref = self.memory[number]
        if lane is not None and lane in offset.symbols:
            value = scalar_ops.to_memory(builder, builder.broadcast(value, width))
            stored = scalar_ops.element_of(value.type)
            self.accesses.sizes.add(scalar_ops.byte_size(stored))
            if stride_of(offset, lane) == 1:
                base = self.at_lane(offset, 0)
                attributes = self._alignment(base, stored, width)
                builder.create("vector.store", [], [value, memref, builder.index(base)], attributes)
            else:
                self.accesses.broken += 1
                for k in range(width):
                    element = scalar_ops.extract(builder, value, k)
                    builder.create("memref.store", [], [element, memref, builder.index(self.at_lane(offset, k))])
        else:
            width = 1
            value = scalar_ops.to_memory(builder, value)
            stored = value.type
            builder.create("memref.store", [], [value, memref, builder.index(offset)])
        self.accesses.bytes[number] += builder.scope.executions * width * scalar_ops.byte_size(stored)
        return []
