"""Template ``row``: clusters with reductions over trailing dims, as one kernel (see ``row_kernel``).

The schedule follows from arithmetic on shapes and a dry run: how wide accesses may be, how many values live from one
pass to the next, and from that how many threads share a row. Short rows take a warp or a part of one, longer ones a
block; a row that does not fit into registers is read again in each pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.builder import Builder, DryBuilder, Value
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES, Context, Evaluator
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.index_expr import Expr, stride_of
from mlirstitch.lowering.kernel.kernel_function import KernelFunction
from mlirstitch.lowering.kernel.row_kernel import RowKernel, RowLayout, RowSpace
from mlirstitch.lowering.kernel.tensor_program import Argument, Computed, Indices, TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

MAX_VECTOR = 8
WARP_ROW = 1024
"""Columns up to which a warp takes a row."""

FEW_CHUNKS = 4
"""Chunks per thread aimed at when a block takes a row."""

RESIDENT_VALUES = {32: 64, 64: 64, 128: 64, 256: 64, 512: 64, 1024: 40}
"""Values a thread may keep from pass to pass, by threads of the block: registers per thread less what bodies need."""

MANY_OF_FEW_REGISTERS = 24
"""Resident values from which on the largest blocks (64 registers a thread) take chunks of two columns: wider ones leave
too few registers for what a chunk needs at once."""

MAX_STRIDED_ROWS = 4096
"""Rows up to which a reduction over a dim that is not contiguous runs here; beyond, one thread per row is better."""


@dataclass(frozen=True)
class RowFacts:
    """What a dry run with one column per access tells.

    Attributes:
        space: rows, columns and reductions.
        live: values per column that live from one pass to a later one.
        passes: passes over a row.
    """

    space: RowSpace
    live: int
    passes: int


@dataclass(frozen=True)
class RowTemplate:
    """Reductions over trailing dims."""

    name: str = "row"

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if every reduction and output of the cluster fits one (row, column) space, else why not."""
        try:
            program = build_program(cluster)
            check_program(program)
            self._facts(program)
        except PassError as error:
            return error.message
        return None

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """The best schedule, then the one that reads rows again in each pass. Raises PassError if none applies."""
        program = build_program(cluster)
        facts = self._facts(program)
        vector = self._vector(program, facts.space)
        layouts = _layouts(facts, vector, target)
        return [self._schedule(cluster, program, facts.space, layout, target) for layout in layouts]

    def emit(self, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
        """Create the kernel. Raises :class:`PassError` for what :meth:`applies` refuses."""
        program = build_program(cluster)
        space = RowSpace.of(program)
        layout = _layout_of(schedule)
        function = KernelFunction(cluster, program, schedule, name)
        builder = Builder(function.entry, function.location, schedule.grid[0] * schedule.block[0])
        evaluator = Evaluator(builder, program, function.memory, Context(), _unreachable)
        evaluator.tables = lambda node: function.table(builder, node)
        RowKernel(program, space, layout, evaluator, function.shared).emit()
        return function.finish(evaluator.accesses.bytes)

    def _facts(self, program: TensorProgram) -> RowFacts:
        """Run the kernel dry with one column per access."""
        space = RowSpace.of(program)
        layout = RowLayout(WARP, 1, 1, True, space.rows)
        kernel = _dry_kernel(program, space, layout, one_chunk=True)
        reads: list[tuple[Argument, Expr]] = []
        kernel.evaluator.watch = lambda node, offset: reads.append((node, offset))
        uses = _Uses(kernel)
        kernel.emit()
        wide = [(node, offset) for node, offset in reads if kernel.tail_symbol in offset.symbols]
        _check_access_order(program, space, wide, kernel)
        return RowFacts(space, uses.live(), uses.passes())

    def _vector(self, program: TensorProgram, space: RowSpace) -> int:
        """The widest chunk that divides the row, keeps most lanes busy and breaks no contiguous access."""
        vector = MAX_VECTOR
        while vector > 1:
            if space.cols % vector == 0 and (space.cols >= WARP * vector or space.cols // vector >= WARP):
                kernel = _dry_kernel(program, space, RowLayout(WARP, 1, vector, True, space.rows), one_chunk=True)
                kernel.emit()
                accesses = kernel.evaluator.accesses
                widest = MAX_ACCESS_BYTES // min(accesses.sizes, default=4)
                if vector <= widest and not accesses.broken:
                    return vector
            vector //= 2
        return 1

    def _schedule(
        self, cluster: Cluster, program: TensorProgram, space: RowSpace, layout: RowLayout, target: Target
    ) -> Schedule:
        scheme = "thread" if layout.lanes == 1 else "warp" if layout.lanes <= WARP else "block"
        positions = {op: i for i, op in enumerate(cluster.ops)}
        roots = [node.op for level in space.levels for node in level]
        schemes = sorted({positions[op] for op in roots if op is not None and op in positions})
        return Schedule(
            template=self.name,
            grid=(layout.blocks, 1, 1),
            block=(layout.threads, 1, 1),
            vector=layout.vector,
            parameters=(
                ("lanes", layout.lanes),
                ("mode", "resident" if layout.resident else "loop"),
                ("rows_per_block", layout.rows_per_block),
                ("unroll", layout.unroll),
            ),
            schemes=tuple((position, scheme) for position in schemes),
        )


class _Uses:
    """In which passes each value that differs from column to column is used."""

    def __init__(self, kernel: RowKernel) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._kept: list[Value] = []  # so that identities stay unique
        self._pass = 0
        self._column = kernel.tail_symbol
        kernel.on_pass = self._begin
        kernel.evaluator.on_use = self._use

    def _begin(self, number: int) -> None:
        self._pass = number

    def _use(self, value: Value, indices: Indices) -> None:
        if any(self._column in index.symbols for index in indices):
            self._first.setdefault(id(value), self._pass)
            self._last[id(value)] = self._pass
            self._kept.append(value)

    def live(self) -> int:
        """The most values that live from one pass to a later one."""
        passes = range(1, self._pass + 1)
        return max((sum(first < p <= self._last[v] for v, first in self._first.items()) for p in passes), default=0)

    def passes(self) -> int:
        """Passes in which columns are visited."""
        return max(1, len({*self._first.values(), *self._last.values()}))


def _unreachable(node: Computed, indices: Indices) -> None:
    raise TypeError("the row kernel sets the reducer")


def _dry_kernel(program: TensorProgram, space: RowSpace, layout: RowLayout, one_chunk: bool) -> RowKernel:
    builder = DryBuilder(None, ir.Location.unknown(), 1)
    memory = [None] * (len(program.arguments) + len(program.outputs))
    evaluator = Evaluator(builder, program, memory, Context(), _unreachable)
    return RowKernel(program, space, layout, evaluator, lambda count, kind: None, one_chunk=one_chunk)


def _check_access_order(
    program: TensorProgram, space: RowSpace, reads: Sequence[tuple[Argument, Expr]], kernel: RowKernel
) -> None:
    """Refuse a space whose columns are strided in every input: such rows are columns of memory."""
    strides = [stride_of(offset, kernel.tail_symbol) for _, offset in reads]
    contiguous = [s for s in strides if s is None or s == 1]
    full = any(node.elements > space.rows for node in program.outputs)
    if strides and not contiguous and space.rows > 1 and (full or space.rows > MAX_STRIDED_ROWS):
        raise PassError(f"the {space.cols} elements reduced for a result are not contiguous in any input")


def _power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value``."""
    return 1 << max(0, (value - 1).bit_length())


def _layouts(facts: RowFacts, vector: int, target: Target) -> list[RowLayout]:
    space = facts.space
    chunks = space.cols // vector
    lanes = _lanes(space, chunks, vector, target)
    live = max(1, facts.live)
    resident = facts.passes > 1 or chunks <= 8 * lanes
    while resident and -(-space.cols // lanes) * live > RESIDENT_VALUES[max(WARP, lanes)]:
        if lanes >= target.max_threads_per_block:
            resident = False
        lanes = min(target.max_threads_per_block, max(2 * lanes, 2 * WARP))
    if not resident and lanes > WARP:
        most = target.max_threads_per_block // (1 if space.rows < target.sms else 2)
        lanes = min(most, _power_of_two(chunks))
    if resident and lanes == target.max_threads_per_block and -(-space.cols // lanes) * live > MANY_OF_FEW_REGISTERS:
        vector = min(vector, 2)
    chunks = space.cols // vector
    best = _place(space, vector, lanes, resident, chunks, target)
    again = _place(space, vector, lanes, False, chunks, target)
    return [best, again] if best.resident and chunks > lanes else [best]


def _lanes(space: RowSpace, chunks: int, vector: int, target: Target) -> int:
    """Threads per row, before registers are looked at."""
    if chunks <= WARP and space.rows > 1:
        return _power_of_two(chunks)
    if space.cols <= WARP_ROW and space.rows >= target.sms:
        return WARP
    if chunks <= WARP:
        return WARP
    few_rows = space.rows < 2 * target.sms
    wanted = chunks if few_rows else -(-chunks // FEW_CHUNKS)
    largest = target.max_threads_per_block if few_rows else target.max_threads_per_block // 2
    return min(largest, max(WARP, _power_of_two(wanted)))


def _place(space: RowSpace, vector: int, lanes: int, resident: bool, chunks: int, target: Target) -> RowLayout:
    unroll = 1
    if not resident:
        per_thread = chunks // lanes
        unroll = next(u for u in (4, 2, 1) if per_thread % u == 0 or per_thread >= 4 * u)
    if lanes > WARP:
        return RowLayout(lanes, 1, vector, resident, space.rows, unroll)
    rows = max(1, 128 // lanes)
    while rows * lanes > WARP and space.rows < rows * target.sms:
        rows //= 2
    return RowLayout(lanes, rows, vector, resident, -(-space.rows // rows), unroll)


def _layout_of(schedule: Schedule) -> RowLayout:
    if schedule.grid[0] > GRID_X_LIMIT:
        raise PassError(f"{schedule.grid[0]} blocks exceed the grid limit", hint="split the batch")
    return RowLayout(
        int(schedule.parameter("lanes")),
        int(schedule.parameter("rows_per_block")),
        schedule.vector,
        schedule.parameter("mode") == "resident",
        schedule.grid[0],
        int(schedule.parameter("unroll", 1)),
    )
