"""What a dry run of a reducing kernel tells: how many values live across passes, how many passes read, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.lowering.kernel.body import memory_type
from mlirstitch.lowering.kernel.builder import DryBuilder, Value
from mlirstitch.lowering.kernel.combiner import combiner_of
from mlirstitch.lowering.kernel.evaluate import Context, Evaluator
from mlirstitch.lowering.kernel.index_expr import Expr
from mlirstitch.lowering.kernel.reduction_kernel import ReductionKernel
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.staging import Read
from mlirstitch.lowering.kernel.tensor_program import Argument, Computed, Indices, TensorProgram


@dataclass(frozen=True)
class Facts:
    """What a dry run with one column per access tells.

    Attributes:
        live: values per column that live from one pass to a later one.
        passes: passes over a row.
        reads: (argument, offset) of every load that differs from column to column.
    """

    live: int
    passes: int
    reads: tuple[tuple[Argument, Expr], ...]


def measure(kernel: ReductionKernel) -> Facts:
    """Run a dry kernel that visits one chunk. Raises :class:`PassError` if the kernel cannot be emitted."""
    reads: list[tuple[Argument, Expr]] = []
    kernel.evaluator.watch = lambda node, offset: reads.append((node, offset))
    uses = _Uses(kernel)
    kernel.emit()
    wide = tuple((node, offset) for node, offset in reads if kernel.tail_symbol in offset.symbols)
    return Facts(uses.live(), uses.passes(), wide)


def reads_by_pass(kernel: ReductionKernel) -> list[Read]:
    """The loads of a dry kernel that loops in every pass, with offsets in terms of its ``any_chunk``."""
    reads: list[Read] = []
    now = [0]

    def begin(number: int) -> None:
        now[0] = number

    def watch(node: Argument, offset: Expr) -> None:
        if kernel.any_chunk in offset.symbols:
            scope = kernel.builder.scope
            always = not scope.barrier
            while scope.parent is not None:
                scope = scope.parent
                always = always and not scope.barrier
            reads.append(Read(now[0], node, offset, always))

    kernel.on_pass = begin
    kernel.evaluator.watch = watch
    kernel.emit()
    return reads


def dry_evaluator(program: TensorProgram) -> Evaluator:
    """An evaluator that emits nothing."""
    builder = DryBuilder(None, ir.Location.unknown(), 1)
    memory = [None] * (len(program.arguments) + len(program.outputs))
    return Evaluator(builder, program, memory, Context(), unreachable)


def no_shared(count: int, kind: ir.Type) -> Value:
    """Shared memory of a dry run."""
    return None


def unreachable(node: Computed, indices: Indices) -> Value:
    """The reducer of an evaluator until its kernel sets one."""
    raise TypeError("the kernel sets the reducer")


def can_split(program: TensorProgram, space: RowSpace) -> bool:
    """Whether several blocks may share a row: nothing that every column needs depends on the reductions."""
    if len(space.levels) != 1:
        return False
    full = space.rows * space.cols
    return all(node.elements != full or node.level == 0 for node in program.outputs) and space.cols > 1


def running_types(node: Computed) -> list[ir.Type]:
    """Element types of the running values of the folding that computes ``node``."""
    first = len(node.linalg.inputs)
    return [node.operands[first + result].element for result in combiner_of(node.linalg, node.result).results]


def scratch_of(space: RowSpace, splits: int) -> tuple[tuple[str, int], ...]:
    """The buffers that blocks leave partial results in: one for every running value of every level."""
    kinds = [kind for level in space.levels for node in level for kind in running_types(node)]
    return tuple((str(memory_type(kind)), splits * space.rows) for kind in kinds)


def partial_counts(nodes: Sequence[Computed]) -> tuple[int, ...]:
    """Running values of every folding."""
    return tuple(len(running_types(node)) for node in nodes)


def unroll_of(per_thread: int) -> int:
    """Chunks per iteration of a loop over ``per_thread`` chunks, of at least two iterations if possible."""
    return next((u for u in (4, 2) if per_thread >= 4 * u or (per_thread >= 2 * u and per_thread % u == 0)), 1)


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value``."""
    return 1 << max(0, (value - 1).bit_length())


class _Uses:
    """In which passes each value that differs from column to column is used."""

    def __init__(self, kernel: ReductionKernel) -> None:
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


SHORT = 8
"""Chunks a thread has at least where passes are loops: LLVM unrolls shorter ones and loads once for all passes."""

RESIDENT_VALUES = {32: 64, 64: 64, 128: 64, 256: 64, 512: 64, 1024: 32}
"""Values a thread may keep from pass to pass, by threads of the block: registers per thread less what bodies need."""
