"""The body of a ``scatter`` kernel: rows of updates combined into the rows of a destination that indices name.

A warp owns a row of the destination, or a stretch of its columns. It looks through the indices, 32 at a time: each lane
compares one, a vote tells which of them name the row, and for each of these, in order, all lanes add their columns of
the update. So every row has one writer, which combines in the order of the indices: no atomics, the same bits in
every run. Nothing is read of an update that another row takes. Floating-point sums are blocked: ``BLOCK`` indices at a
time are summed from zero, and these sums are added (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).

Where rows are few and indices many, the warps of a block share a row: each looks through a part of the indices, and the
first one combines what they found, in order.

Gradients of embeddings, ``index_add``, ``index_put`` and ``scatter_reduce`` are such kernels, with the element-wise ops
that make updates and indices, and those that read the result, inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.combiner import Combiner, NotParallel, combiner_of
from mlirstitch.lowering.kernel.evaluate import Context, Evaluator, Guard
from mlirstitch.lowering.kernel.fold import WARP, Fold, load_chunk, store_chunk
from mlirstitch.lowering.kernel.index_expr import ZERO, Expr, Symbol, delinearize, linearize, symbol
from mlirstitch.lowering.kernel.linalg_body import LinalgOp
from mlirstitch.lowering.kernel.tensor_program import Computed, Indices, TensorProgram, name_of

BLOCK = 32 * WARP
"""Indices whose updates are summed from zero."""


@dataclass(frozen=True)
class ScatterSpace:
    """``rows`` x ``cols`` elements of the destination, and the updates.

    Attributes:
        node: the scatter.
        combiner: how it combines.
        hit, update: slots of its body: whether an update counts, and the update.
        rows, cols: rows of the destination that an index can name (times the dims before), and their elements.
        count: indices for each row.
    """

    node: Computed
    combiner: Combiner
    hit: int
    update: int
    rows: int
    cols: int
    count: int

    @staticmethod
    def of(program: TensorProgram) -> ScatterSpace:
        """Derive the space from the only scatter. Raises :class:`PassError` if the cluster is no scatter kernel."""
        reducing = [node for node in program.nodes.values() if isinstance(node, Computed) and node.is_reduction]
        scatters = [node for node in reducing if node.linalg.scatter is not None]
        if not scatters:
            raise PassError("nothing is scattered")
        node = scatters[0]
        for other in reducing:
            if other is not node:
                raise refusal(other.linalg.op, "is another reduction", "it becomes a kernel of its own")
        linalg = node.linalg
        dim = linalg.scatter
        if dim is None or 0 in linalg.extents:
            raise refusal(linalg.op, "has no elements")
        parallel = [position for position, reduced in enumerate(linalg.reduced) if not reduced]
        if [mapped.dim for mapped in linalg.maps[len(linalg.inputs)]] != parallel:
            raise refusal(linalg.op, "its result is transposed")
        try:
            combiner = combiner_of(linalg, 0)
        except NotParallel as reason:
            raise refusal(linalg.op, f"cannot be combined row by row: {reason}") from None
        select = next((op for op in linalg.body.ops if op.result == combiner.elements[0]), None)
        if combiner.is_multiply_add or select is None or select.name != "arith.select":
            raise refusal(linalg.op, "its body is not a selection of updates")
        hit, update, _ = select.operands
        inner = [position for position in parallel if position > dim]
        if _depends(linalg, hit, inner):
            raise refusal(linalg.op, "has an index for every element of a row")
        cols = math.prod(linalg.extents[position] for position in inner)
        rows = math.prod(linalg.parallel_extents) // cols
        for output in program.outputs:
            if output.elements != rows * cols:
                raise PassError(f"output {name_of(output)} has {output.elements} elements, not {rows * cols}")
        return ScatterSpace(node, combiner, hit, update, rows, cols, math.prod(linalg.reduction_extents))

    def loop(self, row: Expr, col: Expr, place: Expr) -> Indices:
        """The loop indices at which update number ``place`` meets an element of the destination."""
        linalg = self.node.linalg
        parallel = delinearize(row * self.cols + col, linalg.parallel_extents)
        return linalg.loop_indices(parallel, delinearize(place, linalg.reduction_extents))


def _depends(linalg: LinalgOp, slot: int, dims: Sequence[int]) -> bool:
    """Whether a slot of the body depends on one of some loop dims."""
    ops, slots = linalg.body.needed([slot], frozenset())
    if any(op.dim in dims for op in ops if op.name == "linalg.index"):
        return True
    loops = [symbol(f"d{dim}", max(2, extent)) for dim, extent in enumerate(linalg.extents)]
    names = {loops[dim] for dim in dims}  # for look-ups only
    read = (slot for slot in sorted(slots) if slot < linalg.body.arguments)
    indices = (index for slot in read for index in linalg.operand_indices(slot, [name.expr for name in loops]))
    return any(name in names for index in indices for name in index.symbols)


@dataclass(frozen=True)
class ScatterLayout:
    """How warps are laid over the destination.

    Attributes:
        warps: warps of a block.
        blocks: blocks of the launch.
        vector: columns of a chunk; divides the columns of a row.
        chunks: chunks a lane keeps.
        tiles: stretches of a row that different warps own.
        parts: warps that share a stretch; 1, or all warps of a block.
    """

    warps: int
    blocks: int
    vector: int
    chunks: int
    tiles: int
    parts: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP


@dataclass(eq=False)
class ScatterKernel:
    """Emits the body of one kernel into ``evaluator``'s builder; run dry it only checks and counts.

    ``shared`` makes a buffer in shared memory.
    """

    program: TensorProgram
    space: ScatterSpace
    layout: ScatterLayout
    evaluator: Evaluator
    shared: Callable[[int, ir.Type], Value]
    _chunks: list[tuple[Expr, Context]] = field(default_factory=list)
    _value: Value = None
    _offset: Expr | None = None

    def __post_init__(self) -> None:
        layout, space = self.layout, self.space
        self._lane = symbol("lane", layout.vector) if layout.vector > 1 else None
        self._row = symbol("row", space.rows)
        self.steps = -(-space.count // WARP)
        self.evaluator.reduce = self._reduced
        self._fold = Fold(self.evaluator, space.node, space.combiner)

    @property
    def builder(self) -> Builder:
        """Where ops go."""
        return self.evaluator.builder

    def emit(self) -> None:
        """Emit the whole kernel body."""
        builder, layout, space = self.builder, self.layout, self.space
        thread, warp_size = builder.thread_id(), builder.index_constant(WARP)
        lane, unit = builder.arith("remui", thread, warp_size), builder.arith("divui", thread, warp_size)
        if layout.parts > 1:
            self._emit_unit(builder.block_id(), lane, unit)
            return
        if layout.blocks > 1:
            first = builder.arith("muli", builder.block_id(), builder.index_constant(layout.warps))
            unit = builder.arith("addi", first, unit)
        units = space.rows * layout.tiles
        if layout.blocks * layout.warps == units:
            self._emit_unit(unit, lane)
            return
        # A warp has a row or has none: no lane waits for another one in here.
        inside = builder.compare("ult", unit, builder.index_constant(units))
        share = builder.scope.executions * Fraction(units, layout.blocks * layout.warps)
        builder.branch(inside, [], lambda: self._emit_unit(unit, lane), None, share)

    def _emit_unit(self, unit: Value, lane: Value, part: Value | None = None) -> list[Value]:
        builder, layout = self.builder, self.layout
        tile = builder.index_constant(0)
        row = unit
        if layout.tiles > 1:
            tiles = builder.index_constant(layout.tiles)
            row, tile = builder.arith("divui", unit, tiles), builder.arith("remui", unit, tiles)
        builder.declare(self._row, row)
        self._place_chunks(tile, lane)
        totals = self._look_through(lane, part)
        builder.location = self.space.node.linalg.op.location
        if part is None:
            return self._finish_all(totals)
        slots = [self._leave(total, lane, part) for total in totals]
        builder.barrier()
        first = builder.compare("eq", part, builder.index_constant(0))
        share = builder.scope.executions / layout.parts
        builder.branch(first, [], lambda: self._finish_all([self._collect(s, lane) for s in slots]), None, share)
        return []

    def _finish_all(self, totals: Sequence[Value]) -> list[Value]:
        for (col, context), total in zip(self._chunks, totals, strict=True):
            with self.evaluator.within(context):
                self._finish(col, total)
        return []

    def _leave(self, total: Value, lane: Value, part: Value) -> Value:
        """Store what a part found for a chunk in shared memory, and return the buffer."""
        builder, width = self.builder, self.layout.vector
        buffer = self.shared(self.layout.parts * WARP * width, self._fold.types()[0])
        at = builder.arith("addi", builder.arith("muli", part, builder.index_constant(WARP)), lane)
        at = builder.arith("muli", at, builder.index_constant(width))
        store_chunk(builder, scalar_ops.to_memory(builder, total), buffer, at)
        return buffer

    def _collect(self, buffer: Value, lane: Value) -> Value:
        """What all parts found for a chunk, combined in their order."""
        builder, width = self.builder, self.layout.vector
        (kind,) = self._fold.types()
        total: Value = None
        for number in range(self.layout.parts):
            at = builder.arith("addi", builder.index_constant(number * WARP), lane)
            at = builder.arith("muli", at, builder.index_constant(width))
            found = scalar_ops.from_memory(builder, load_chunk(builder, buffer, at, width, kind), kind)
            total = found if number == 0 else self._join([total], [found])[0]
        return total

    def _place_chunks(self, tile: Value, lane: Value) -> None:
        """The columns of every chunk of this lane, and the guard of those that not every lane has."""
        builder, layout = self.builder, self.layout
        count = self.space.cols // layout.vector
        capacity = layout.tiles * layout.chunks * WARP
        start = builder.arith("muli", tile, builder.index_constant(layout.chunks * WARP))
        for number in range(layout.chunks):
            shift = builder.arith("addi", start, builder.index_constant(number * WARP))
            chunk = builder.arith("addi", shift, lane)
            # At least two values, so that memory accesses keep the symbol and with it their guard.
            name = symbol(f"chunk{number}", max(2, count))
            builder.declare(name, chunk)
            col = name.expr * layout.vector
            guards: tuple[Guard, ...] = ()
            if capacity > count:
                inside = builder.compare("ult", chunk, builder.index_constant(count))
                guards = (Guard(name, inside, count, capacity),)
            lane_expr = ZERO if self._lane is None else self._lane.expr
            self._chunks.append((col + lane_expr, Context(self._lane, layout.vector, guards)))

    # Updates ----------------------------------------------------------------------------------------------------

    def _start(self) -> list[Value]:
        value = self._fold.neutral()
        if self.space.combiner.merge == "arith.addf":
            value = self.builder.number(-0.0, self._fold.types()[0])
        if self.layout.vector > 1:
            value = self.builder.broadcast(value, self.layout.vector)
        return [value] * self.layout.chunks

    def _look_through(self, lane: Value, part: Value | None) -> list[Value]:
        """The updates of the row, or of a part of the indices, combined for every chunk of this lane."""
        builder, steps = self.builder, -(-self.steps // self.layout.parts)
        rounds = self.space.combiner.merge in ("arith.addf", "arith.mulf")
        zero, one, end = (builder.index_constant(value) for value in (0, 1, self.steps))
        if part is not None:
            zero = builder.arith("muli", part, builder.index_constant(steps))
            end = builder.arith("minui", builder.arith("addi", zero, builder.index_constant(steps)), end)
        if not rounds or steps * WARP <= BLOCK:
            return builder.loop(None, (zero, end, one), steps, self._start(), lambda s, c: self._step(s, lane, c))
        run = builder.index_constant(BLOCK // WARP)
        runs = -(-steps * WARP // BLOCK)

        def block(first: Value, carried: list[Value]) -> Sequence[Value]:
            last = builder.arith("minui", builder.arith("addi", first, run), end)
            trips = Fraction(steps, runs)
            partial = builder.loop(None, (first, last, one), trips, self._start(), lambda s, c: self._step(s, lane, c))
            return self._join(carried, partial)

        return builder.loop(None, (zero, end, run), runs, self._start(), block)

    def _step(self, step: Value, lane: Value, carried: list[Value]) -> Sequence[Value]:
        """Compare the next 32 indices, one a lane, and take the updates of those that name the row."""
        builder, space = self.builder, self.space
        first = builder.arith("muli", step, builder.index_constant(WARP))
        place = symbol("place", max(2, space.count))
        number = builder.arith("addi", first, lane)
        builder.declare(place, number)
        guards: tuple[Guard, ...] = ()
        inside: Value | None = None
        if space.count % WARP:
            inside = builder.compare("ult", number, builder.index_constant(space.count))
            guards = (Guard(place, inside, space.count, self.steps * WARP),)
        with self.evaluator.within(Context(None, 1, guards)):
            loop = space.loop(self._row.expr, ZERO, place.expr)
            (hit,) = self.evaluator.run_body(space.node, [space.hit], loop, {})
        builder.location = space.node.linalg.op.location
        if inside is not None:
            hit = builder.arith("andi", hit, inside)
        mask = _ballot(builder, hit)
        hits = builder.emit("arith.index_cast", builder.index_type, [builder.emit("math.ctpop", builder.i32, [mask])])
        bounds = (builder.index_constant(0), hits, builder.index_constant(1))
        rows_named = max(1, space.node.linalg.extents[space.node.linalg.scatter or 0])
        found = symbol("found", max(2, space.count))

        def take(_: Value, state: list[Value]) -> Sequence[Value]:
            left, *totals = state
            nearest = builder.emit("math.cttz", builder.i32, [left])
            ahead = builder.emit("arith.index_cast", builder.index_type, [nearest])
            builder.declare(found, builder.arith("addi", first, ahead))
            rest = builder.arith("andi", left, builder.arith("subi", left, builder.integer(1, builder.i32)))
            return [rest, *self._join(totals, self._updates(found))]

        return builder.loop(None, bounds, Fraction(WARP, rows_named), [mask, *carried], take)[1:]

    def _updates(self, found: Symbol) -> list[Value]:
        """The update at index number ``found``, chunk by chunk."""
        space, width = self.space, self.layout.vector
        values: list[Value] = []
        for col, context in self._chunks:
            with self.evaluator.within(context):
                loop = space.loop(self._row.expr, col, found.expr)
                (value,) = self.evaluator.run_body(space.node, [space.update], loop, {})
            values.append(self.builder.broadcast(value, width) if width > 1 else value)
        return values

    def _join(self, first: Sequence[Value], second: Sequence[Value]) -> list[Value]:
        self.builder.location = self.space.node.linalg.op.location
        return [self._fold.combine((a,), (b,))[0] for a, b in zip(first, second, strict=True)]

    # Results ----------------------------------------------------------------------------------------------------

    def _finish(self, col: Expr, total: Value) -> None:
        """Combine with what the destination holds, and store what depends on it."""
        space, evaluator = self.space, self.evaluator
        linalg = space.node.linalg
        operand = len(linalg.inputs)
        indices = linalg.operand_indices(operand, space.loop(self._row.expr, col, ZERO))
        before = evaluator.get(space.node.operands[operand], indices)
        if self.layout.vector > 1:
            before = self.builder.broadcast(before, self.layout.vector)
        (self._value,) = self._join([before], [total])
        offset = self._offset = self._row.expr * space.cols + col
        for number, node in enumerate(self.program.outputs):
            value = evaluator.get(node, delinearize(offset, node.shape))
            location = self.builder.location
            if node.op is not None:
                self.builder.location = node.op.location
            evaluator.store(number, offset, value)
            self.builder.location = location
        self._offset = None

    def _reduced(self, node: Computed, indices: Indices) -> Value:
        linalg = node.linalg
        if self._offset is None or linalg is not self.space.node.linalg:
            raise refusal(linalg.op, "its result is needed before it is complete", "it becomes a kernel of its own")
        if linearize(indices, node.shape) != self._offset:
            raise refusal(linalg.op, "its result is read at another place than it is computed", "it is stored first")
        return self._value


def _ballot(builder: Builder, condition: Value) -> Value:
    """Which lanes of the warp the condition holds in, as an i32."""
    everyone = builder.integer(-1, builder.i32)
    kind = {"kind": ir.Attribute.parse("#nvvm<vote_sync_kind ballot>")}
    return builder.emit("nvvm.vote.sync", builder.i32, [everyone, condition], kind)
