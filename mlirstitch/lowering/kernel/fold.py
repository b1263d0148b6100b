"""Folding across vector lanes and threads: the part of a reduction that runs after each thread has its partial result.

Vector lanes are combined by a tree in registers, threads by butterfly shuffles (see also ``thread_fold``), warps that
hold parts of the same columns through shared memory. Every step combines in a fixed order, so results do not depend on
timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.combiner import Combiner, neutral_element
from mlirstitch.lowering.kernel.evaluate import Evaluator
from mlirstitch.lowering.kernel.tensor_program import Computed

Partial = tuple[Value, ...]
"""The running values of one combiner: one per result, scalars or vectors."""

WARP = 32


@dataclass(frozen=True, eq=False)
class Fold:
    """One combiner at work in a kernel.

    ``node`` is any of the values it computes (operands and captured tensors are the same for all of them).
    """

    evaluator: Evaluator
    node: Computed
    combiner: Combiner

    @property
    def builder(self) -> Builder:
        """Where ops go."""
        return self.evaluator.builder

    def types(self) -> tuple[ir.Type, ...]:
        """Types of the running values."""
        linalg = self.combiner.linalg
        first = len(linalg.inputs)
        return tuple(self.node.operands[first + result].element for result in self.combiner.results)

    def neutral(self) -> Value:
        """The neutral element of a combiner with a merging op."""
        (kind,) = self.types()
        return self.builder.number(neutral_element(self.combiner.merge, kind), kind)

    def start(self, width: int) -> Value:
        """The neutral element in ``width`` vector lanes that are folded into one value in the end.

        Additions start at -0.0, which changes nothing and costs nothing, but for one lane: zeros sum up to +0.0.
        """
        (kind,) = self.types()
        if self.combiner.merge != "arith.addf":
            return self.builder.broadcast(self.neutral(), width)
        lanes = [ir.FloatAttr.get(kind, 0.0)] + [ir.FloatAttr.get(kind, -0.0)] * (width - 1)
        vector = ir.VectorType.get([width], kind)
        return self.builder.constant(ir.DenseElementsAttr.get(lanes, vector), vector)

    def step(self, running: Partial, elements: Sequence[Value]) -> Partial:
        """Take one more element into the running values."""
        combiner = self.combiner
        if combiner.is_multiply_add:
            (kind,) = self.types()
            return (scalar_ops.emit_op(self.builder, "math.fma", [*elements, *running], kind, {}),)
        return self.combine(running, tuple(elements))

    def combine(self, first: Partial, second: Partial) -> Partial:
        """Fold ``second`` into ``first``, which comes earlier in the order of iteration."""
        combiner = self.combiner
        if combiner.merge:
            (kind,) = self.types()
            return (scalar_ops.emit_op(self.builder, combiner.merge, [first[0], second[0]], kind, {}),)
        known = dict(zip(combiner.accumulators(), first, strict=True))
        known.update(zip(combiner.elements, second, strict=True))
        return tuple(self.evaluator.run_body(self.node, combiner.yields(), (), known))

    def merge(self, a: Partial, b: Partial) -> Partial:
        """Fold two partial results whose order in the iteration is not known."""
        order = self.combiner.order
        if order is None:
            return self.combine(a, b)
        earlier = self.builder.compare("sle", a[order], b[order])
        first = tuple(self.builder.select(earlier, x, y) for x, y in zip(a, b, strict=True))
        second = tuple(self.builder.select(earlier, y, x) for x, y in zip(a, b, strict=True))
        return self.combine(first, second)

    def across_lanes(self, partial: Partial) -> Partial:
        """Combine the lanes of vectors to scalars."""
        width = scalar_ops.width_of(partial[0])
        if not width:
            return partial
        return self.tree([tuple(scalar_ops.extract(self.builder, v, lane) for v in partial) for lane in range(width)])

    def tree(self, parts: Sequence[Partial]) -> Partial:
        """Combine partial results pair by pair."""
        while len(parts) > 1:
            merged = [self.merge(parts[i], parts[i + 1]) for i in range(0, len(parts) - 1, 2)]
            parts = merged + ([parts[-1]] if len(parts) % 2 else [])
        return parts[0]

    def across_threads(self, partial: Partial, threads: int, stride: int = 1) -> Partial:
        """Combine ``threads`` (a power of two) lanes of a warp, ``stride`` (too) apart; all get the result."""
        distance = threads // 2
        while distance:
            other = tuple(shuffle(self.builder, value, distance * stride) for value in partial)
            partial = self.merge(partial, other)
            distance //= 2
        return partial


def shuffle(builder: Builder, value: Value, distance: int | Value, mode: str = "xor") -> Value:
    """The value of another lane of the warp. Shuffles move 32 bits and span the whole warp.

    ``mode``: "xor", the lane whose number differs by ``xor distance``; "up", the lane ``distance`` below (its own value
    where there is none); "idx", lane number ``distance``, an i32 value.
    """
    kind = value.type
    if isinstance(kind, ir.VectorType):
        return scalar_ops.per_lane(builder, value, lambda element: shuffle(builder, element, distance, mode))
    i32 = builder.i32
    if isinstance(kind, ir.F32Type):
        return _shuffle32(builder, value, distance, mode)
    if isinstance(kind, ir.F16Type | ir.BF16Type | ir.F64Type):
        bits = ir.IntegerType.get_signless(8 * scalar_ops.byte_size(kind))
        moved = shuffle(builder, builder.emit("arith.bitcast", bits, [value]), distance, mode)
        return builder.emit("arith.bitcast", kind, [moved])
    width = ir.IntegerType(kind).width
    if width == 32:
        return _shuffle32(builder, value, distance, mode)
    if width < 32:
        moved = _shuffle32(builder, builder.emit("arith.extui", i32, [value]), distance, mode)
        return builder.emit("arith.trunci", kind, [moved])
    half = builder.integer(32, kind)
    low = builder.emit("arith.trunci", i32, [value])
    high = builder.emit("arith.trunci", i32, [builder.arith("shrui", value, half)])
    low = builder.emit("arith.extui", kind, [_shuffle32(builder, low, distance, mode)])
    high = builder.emit("arith.extui", kind, [_shuffle32(builder, high, distance, mode)])
    return builder.arith("ori", builder.arith("shli", high, half), low)


def _shuffle32(builder: Builder, value: Value, distance: int | Value, mode: str) -> Value:
    offset = builder.integer(distance, builder.i32) if isinstance(distance, int) else distance
    operands = [value, offset, builder.integer(WARP, builder.i32)]
    attributes = {"mode": ir.Attribute.parse(f"#gpu<shuffle_mode {mode}>")}
    return builder.create("gpu.shuffle", [value.type, builder.i1], operands, attributes).results[0]


def across_warps_of_columns(
    folds: Sequence[tuple[Fold, Partial]],
    warps: int,
    across: int,
    place: Value,
    warp: Value,
    shared: Callable[[int, ir.Type], Value],
) -> list[Partial]:
    """Combine what ``warps`` warps hold for the same ``across`` chunks; every thread gets the result of its chunk.

    ``place`` and ``warp`` (index type) say which chunk and warp are this thread's. Every thread reads the parts of its
    chunk and folds them pair by pair, so that one barrier is enough. Each reduction has buffers of its own.
    """
    builder = folds[0][0].builder
    width = max(1, scalar_ops.width_of(folds[0][1][0]))
    chunk = builder.arith("muli", place, builder.index_constant(width))
    row = builder.index_constant(across * width)
    own = builder.arith("addi", builder.arith("muli", warp, row), chunk)
    slots = [[shared(warps * across * width, kind) for kind in fold.types()] for fold, _ in folds]
    for (_, partial), buffers in zip(folds, slots, strict=True):
        for value, buffer in zip(partial, buffers, strict=True):
            # Threads of a warp that share a chunk hold, and store, the same value.
            store_chunk(builder, scalar_ops.to_memory(builder, value), buffer, own)
    builder.barrier()
    results: list[Partial] = []
    for (fold, _), buffers in zip(folds, slots, strict=True):
        parts: list[Partial] = []
        for number in range(warps):
            at = builder.arith("addi", chunk, builder.index_constant(number * across * width))
            loaded = [
                scalar_ops.from_memory(builder, load_chunk(builder, buffer, at, width, kind), kind)
                for buffer, kind in zip(buffers, fold.types(), strict=True)
            ]
            parts.append(tuple(loaded))
        results.append(fold.tree(parts))
    return results


def store_chunk(builder: Builder, value: Value, buffer: Value, at: Value) -> None:
    width = scalar_ops.width_of(value)
    if not width:
        builder.create("memref.store", [], [value, buffer, at])
        return
    builder.create("vector.store", [], [value, buffer, at], _alignment(scalar_ops.element_of(value.type), width))


def load_chunk(builder: Builder, buffer: Value, at: Value, width: int, kind: ir.Type) -> Value:
    stored = scalar_ops.memory_type(kind)
    if width == 1:
        return builder.emit("memref.load", stored, [buffer, at])
    return builder.emit("vector.load", ir.VectorType.get([width], stored), [buffer, at], _alignment(stored, width))


def _alignment(stored: ir.Type, width: int) -> dict[str, ir.Attribute]:
    aligned = min(16, width * scalar_ops.byte_size(stored))
    return {"alignment": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), aligned)}
