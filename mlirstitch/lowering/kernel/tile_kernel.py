"""The body of a ``tile`` kernel: tensors that lie in memory in two directions meet in shared memory.

A block owns a tile of both axes. In a first phase its threads walk along the axis in which the staged values are
contiguous, load and compute them, and write them to shared memory transposed; behind one barrier they walk along the
axis of the outputs, read the staged values there, and store. Loads and stores of global memory are contiguous on both
sides.

A thread takes *tasks*: small blocks of ``vector[0]`` x ``vector[1]`` elements, so that it loads vectors along one axis,
transposes them in registers, and exchanges vectors along the other. Rows of shared memory are multiples of 128 bytes;
the vectors of a row are permuted by an exclusive or with the number of the task that wrote it, so that neither the
threads that write a column nor those that read a row meet in a bank ("XOR swizzle").

Tiles that stick out are run by a second copy of the code, which tests every task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlir import ir

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.evaluate import Context, Evaluator
from mlirstitch.lowering.kernel.fold import load_chunk, store_chunk
from mlirstitch.lowering.kernel.index_expr import (
    Expr,
    Symbol,
    constant,
    delinearize,
    floordiv,
    linearize,
    mod,
    substitute,
    symbol,
)
from mlirstitch.lowering.kernel.reach import Key, Point, operands_of
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.lowering.kernel.tile_space import AXES, Staged, TileSpace

LINE = 128
"""Bytes of shared memory that 32 banks serve at once."""

BANK = 4
MOST_AT_ONCE = 16
"""Elements of a value that a thread loads before it uses the first."""

MOST_TO_STORE = 32
"""Elements of an output that a thread computes before it stores the first."""


@dataclass(frozen=True)
class TileLayout:
    """How threads are laid over tiles.

    Attributes:
        tile: elements of a tile along both axes.
        vector: elements of a task along both axes; divide those of the tile.
        threads: threads of a block.
    """

    tile: tuple[int, int]
    vector: tuple[int, int]
    threads: int

    def tiles(self, space: TileSpace) -> tuple[int, int]:
        """Tiles along both axes, those that stick out included."""
        return -(-space.extent(0) // self.tile[0]), -(-space.extent(1) // self.tile[1])

    def blocks(self, space: TileSpace) -> int:
        """Blocks of the launch."""
        across, down = self.tiles(space)
        return space.batches * across * down

    @property
    def tasks(self) -> int:
        """Tasks of a tile."""
        return self.chunks(0) * self.chunks(1)

    def chunks(self, axis: int) -> int:
        """Tasks of a tile side by side along an axis."""
        return self.tile[axis] // self.vector[axis]

    def row_elements(self, item: Staged) -> int:
        """Elements of a row of shared memory that holds a staged value: whole lines."""
        line = LINE // item.element_bytes
        return -(-self.tile[1 - item.source] // line) * line

    def shared_bytes(self, space: TileSpace) -> int:
        """Static shared memory of a block."""
        return sum(self.tile[item.source] * self.row_elements(item) * item.element_bytes for item in space.staged)


@dataclass(frozen=True)
class Task:
    """One task of this thread, seen along an axis.

    Attributes:
        chunk, across: its place in the tile along the axis, and along the other, counted in tasks.
        fast, slow: the first element along the axis, and along the other.
        condition: whether there is such a task (None: always).
    """

    chunk: Expr
    across: Expr
    fast: Expr
    slow: Expr
    condition: Value | None


@dataclass(frozen=True)
class Part:
    """The tiles that one copy of the code runs: their numbers along both axes, and how many tasks they have in all."""

    tiles: tuple[Expr, Expr]
    whole: bool
    tasks: int


Finish = Callable[[], None]


@dataclass(eq=False)
class TileKernel:
    """Emits the body of one kernel into ``evaluator``'s builder; run dry it only checks. ``shared`` makes a buffer."""

    program: TensorProgram
    space: TileSpace
    layout: TileLayout
    evaluator: Evaluator
    shared: Callable[[int, ir.Type], Value]

    def __post_init__(self) -> None:
        self.thread = symbol("tile_thread", self.layout.threads)
        self._lanes = tuple(symbol("lane", width) if width > 1 else None for width in self.layout.vector)
        self._batch = constant(0)
        self._staged: dict[Key, int] = {item.point.key: i for i, item in enumerate(self.space.staged)}
        self._buffers: list[Value] = []

    @property
    def builder(self) -> Builder:
        """Where ops go."""
        return self.evaluator.builder

    def emit(self) -> None:
        """Emit the whole kernel body."""
        builder, layout, space = self.builder, self.layout, self.space
        self.open()
        block = symbol("block", layout.blocks(space))
        builder.declare(block, builder.block_id())
        across, down = layout.tiles(space)
        tiles = (mod(block.expr, across), mod(floordiv(block.expr, across), down))
        self._batch = floordiv(block.expr, across * down)
        self._phase(tiles, self.fill)
        builder.barrier()
        self._phase(tiles, self._drain)

    def open(self) -> None:
        """Say which thread this is, and make the buffers."""
        self.builder.declare(self.thread, self.builder.thread_id())
        for item in self.space.staged:
            size = self.layout.tile[item.source] * self.layout.row_elements(item)
            self._buffers.append(self.shared(size, item.point.node.element))

    # Tiles ------------------------------------------------------------------------------------------------------

    def _phase(self, tiles: tuple[Expr, Expr], action: Callable[[int, Part], None]) -> None:
        """Run ``action`` for both axes: once where all tiles are whole, else for whole tiles and for the others."""
        layout, space, builder = self.layout, self.space, self.builder
        whole = (space.extent(0) // layout.tile[0], space.extent(1) // layout.tile[1])
        inside = space.batches * whole[0] * whole[1] * layout.tasks
        everything = space.batches
        for axis in AXES:
            everything *= space.extent(axis) // layout.vector[axis]
        if whole == layout.tiles(space):
            self._both_axes(action, Part(tiles, True, everything))
            return
        if not inside:
            self._both_axes(action, Part(tiles, False, everything))
            return
        condition: Value | None = None
        numbers: list[Expr] = []
        for axis in AXES:
            name = symbol(f"whole{axis}", whole[axis])
            numbers.append(name.expr)
            value = builder.index(tiles[axis])
            builder.declare(name, value)
            if whole[axis] < layout.tiles(space)[axis]:
                holds = builder.compare("ult", value, builder.index_constant(whole[axis]))
                condition = holds if condition is None else builder.arith("andi", condition, holds)

        def run(part: Part) -> list[Value]:
            self._both_axes(action, part)
            return []

        builder.branch(
            condition,
            [],
            lambda: run(Part((numbers[0], numbers[1]), True, inside)),
            lambda: run(Part(tiles, False, everything - inside)),
            executions=Fraction(inside * layout.threads, layout.tasks),
        )

    def _both_axes(self, action: Callable[[int, Part], None], part: Part) -> None:
        for axis in AXES:
            action(axis, part)

    def _for_each_task(self, axis: int, part: Part, begin: Callable[[Task], Finish]) -> None:
        """Begin and finish every task of this thread; several are begun before the first is finished."""
        layout = self.layout
        at_once = max(1, MOST_AT_ONCE // (layout.vector[0] * layout.vector[1]))
        begun: list[Finish] = []

        def finish() -> list[Value]:
            for last in begun:
                last()
            begun.clear()
            return []

        def run(task: Task) -> list[Value]:
            begin(task)()
            return []

        tasks = [self._task(axis, part, number) for number in range(-(-layout.tasks // layout.threads))]
        conditional = sum(task.condition is not None for task in tasks)
        # Which of the conditional ones are run how often does not matter, as long as the sum is right.
        left = part.tasks - (len(tasks) - conditional) * self.builder.scope.executions
        for task in tasks:
            if task.condition is None:
                begun.append(begin(task))
            else:
                finish()
                self.builder.branch(task.condition, [], lambda t=task: run(t), None, left / conditional)
            if len(begun) == at_once:
                finish()
        finish()

    def _task(self, axis: int, part: Part, number: int) -> Task:
        """Task number ``number`` of this thread."""
        layout, builder, space = self.layout, self.builder, self.space
        place = self.thread.expr + number * layout.threads
        chunk, across = mod(place, layout.chunks(axis)), floordiv(place, layout.chunks(axis))
        conditions: list[Value] = []
        if place.high >= layout.tasks:
            conditions.append(builder.compare("ult", builder.index(place), builder.index_constant(layout.tasks)))
        positions: list[Expr] = []
        for which, inside in ((axis, chunk), (1 - axis, across)):
            width, count = layout.vector[which], space.extent(which) // layout.vector[which]
            position = part.tiles[which] * layout.chunks(which) + inside
            if position.high >= count:
                # A symbol of its own, so that indices know their range.
                name = symbol(f"task{axis}{which}{number}", count)
                value = builder.index(position)
                builder.declare(name, value)
                if not part.whole:
                    conditions.append(builder.compare("ult", value, builder.index_constant(count)))
                position = name.expr
            positions.append(position * width)
        condition = None
        for holds in conditions:
            condition = holds if condition is None else builder.arith("andi", condition, holds)
        return Task(chunk, across, positions[0], positions[1], condition)

    # Values -----------------------------------------------------------------------------------------------------

    def _binding(self, axis: int, task: Task, row: int) -> dict[Symbol, Expr]:
        """The digits at row ``row`` of a task seen along ``axis``."""
        lane = self._lanes[axis]
        fast = task.fast if lane is None else task.fast + lane.expr
        space = self.space
        found: dict[Symbol, Expr] = {}
        for digits, position in (
            (space.axes[axis], fast),
            (space.axes[1 - axis], task.slow + row),
            (space.batch, self._batch),
        ):
            found.update(zip(digits, delinearize(position, [name.high + 1 for name in digits]), strict=True))
        return found

    def _at(self, point: Point, binding: dict[Symbol, Expr]) -> Point:
        return Point(point.node, tuple(substitute(index, binding) for index in point.indices))

    def _context(self, axis: int) -> Context:
        return Context(self._lanes[axis], self.layout.vector[axis])

    def fill(self, axis: int, part: Part) -> None:
        """Write what is computed along ``axis`` and needed along the other to shared memory."""
        items = [item for item in self.space.staged if item.source == axis]
        if items:
            self._for_each_task(axis, part, lambda task: self._fill_task(axis, task, items))

    def _fill_task(self, axis: int, task: Task, items: Sequence[Staged]) -> Finish:
        layout, builder = self.layout, self.builder
        loaded: list[list[Value]] = []
        for item in items:
            rows: list[Value] = []
            for row in range(layout.vector[1 - axis]):
                point = self._at(item.point, self._binding(axis, task, row))
                with self.evaluator.within(self._context(axis)):
                    value = self.evaluator.get(point.node, point.indices)
                value = scalar_ops.to_memory(builder, value)
                rows.append(builder.broadcast(value, layout.vector[axis]) if layout.vector[axis] > 1 else value)
            loaded.append(rows)

        def write() -> None:
            for item, rows in zip(items, loaded, strict=True):
                for number in range(layout.vector[axis]):
                    at = self._address(item, task.chunk * layout.vector[axis] + number, task.across)
                    store_chunk(builder, self._column(rows, number), self._buffer(item), at)

        return write

    def _column(self, rows: Sequence[Value], number: int) -> Value:
        lanes = [scalar_ops.extract(self.builder, row, number) if scalar_ops.width_of(row) else row for row in rows]
        return scalar_ops.assemble(self.builder, lanes) if len(lanes) > 1 else lanes[0]

    def _buffer(self, item: Staged) -> Value:
        return self._buffers[self._staged[item.point.key]]

    def _address(self, item: Staged, row: Expr, unit: Expr) -> Value:
        """Where in its buffer vector ``unit`` of the row at position ``row`` along the source axis is.

        The line of 128 bytes holds ``columns`` vectors, or groups of vectors of 4 bytes. Writers that stand side by
        side permute them differently; where fewer writers than columns do, several vectors side by side stay so.
        """
        layout, builder = self.layout, self.builder
        width = layout.vector[1 - item.source]
        size = width * item.element_bytes
        columns, group = LINE // max(size, BANK), max(1, BANK // size)
        writers = layout.chunks(item.source)
        step = columns // writers if writers < columns and columns % writers == 0 else 1
        writer = floordiv(row, layout.vector[item.source])
        key = mod(writer * step, columns) * group
        place = builder.index(unit)
        if not key.is_constant or key.const:
            place = builder.arith("xori", place, builder.index(key))
        if width > 1:
            place = builder.arith("muli", place, builder.index_constant(width))
        return builder.arith("addi", builder.index(row * layout.row_elements(item)), place)

    def _drain(self, axis: int, part: Part) -> None:
        """Compute and store the outputs that lie along ``axis``."""
        outputs = [number for number, side in enumerate(self.space.sides) if side == axis]
        if outputs:
            self._for_each_task(axis, part, lambda task: self._drain_task(axis, task, outputs))

    def _drain_task(self, axis: int, task: Task, outputs: Sequence[int]) -> Finish:
        rows, width = self.layout.vector[1 - axis], self.layout.vector[axis]
        at_once = max(1, MOST_TO_STORE // width)
        computed: list[tuple[int, Point, Value]] = []

        def store() -> None:
            with self.evaluator.within(self._context(axis)):
                for number, point, value in computed:
                    self._store(number, point, value)
            computed.clear()

        for row in range(rows):
            if row and row % at_once == 0:
                store()
            across = task.across * rows + row
            binding = self._binding(axis, task, row)
            with self.evaluator.within(self._context(axis)):
                for number in outputs:
                    place = Point(self.program.outputs[number], self.space.placement.places[number])
                    point = self._at(place, binding)
                    self.read_staged(place, point, axis, task.chunk, across)
                    computed.append((number, point, self.evaluator.get(point.node, point.indices)))
        return store

    def _store(self, number: int, point: Point, value: Value) -> None:
        location = self.builder.location
        if point.node.op is not None:
            self.builder.location = point.node.op.location
        self.evaluator.store(number, linearize(point.indices, point.node.shape), value)
        self.builder.location = location

    def read_staged(self, place: Point, point: Point, axis: int, chunk: Expr, across: Expr) -> None:
        """Make known to the evaluator what ``point`` needs of shared memory; ``place`` is it in terms of the digits.

        It stands at position ``across`` of the tile along the source axis, in vector ``chunk`` along ``axis``.
        """
        memo, builder = self.builder.scope.memo, self.builder
        stack, seen = [(place, point)], set[Key]()
        while stack:
            here, there = stack.pop()
            if here.key in seen:
                continue
            seen.add(here.key)
            number = self._staged.get(here.key)
            if number is None or self.space.staged[number].source == axis:
                stack.extend(zip(operands_of(here), operands_of(there), strict=True))
            elif there.key not in memo:
                item, width = self.space.staged[number], self.layout.vector[axis]
                at = self._address(item, across, chunk)
                loaded = load_chunk(builder, self._buffer(item), at, width, here.node.element)
                memo[there.key] = scalar_ops.from_memory(builder, loaded, here.node.element)
