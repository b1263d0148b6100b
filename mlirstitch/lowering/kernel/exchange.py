"""How the blocks that share a row tell each other their partial results, so that every one of them has the total.

Blocks of a *thread-block cluster* (chips from sm_90 on) run at the same time and read each other's shared memory:
"distributed shared memory" of NVIDIA's CUDA programming guide. Blocks of the whole *grid* meet in global memory: each
stores its part, counts itself on a ticket and waits until all have come, as in the barrier of S. Xiao and W. Feng,
"Inter-block GPU communication via fast barrier synchronization" (IPDPS 2010); all of them must be resident, which a
cooperative launch guarantees.

Parts are folded in the order of the blocks, so results do not depend on timing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlir import ir

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.evaluate import Evaluator
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial
from mlirstitch.lowering.kernel.index_expr import Expr, symbol
from mlirstitch.lowering.kernel.partials import Partials, fence

_UINC_WRAP = 15
_MONOTONIC, _ACQUIRE = 2, 4
_TICKET_BYTES = 4


@dataclass(frozen=True)
class Place:
    """Where a thread stands among the blocks that share its row.

    Attributes:
        thread: its number in its block, which it shares a row with as a whole.
        lane: its place in its warp.
        part: which of the blocks this is.
        row: the row.
        threads: threads of a block.
        start: what a thread without a part contributes to a reduction.
        fold_block: folds what the threads of the block hold; every one of them gets the results.
    """

    thread: Value
    lane: Value
    part: Value
    row: Expr
    threads: int
    start: Callable[[Fold], Partial]
    fold_block: Callable[[list[tuple[Fold, Partial]]], list[Partial]]


class Exchange(ABC):
    """Partial results of the blocks that share a row. ``evaluator`` tells where ops go."""

    @abstractmethod
    def totals(
        self, evaluator: Evaluator, folds: Sequence[Fold], partials: Sequence[Partial], place: Place
    ) -> list[Partial]:
        """Fold what the blocks hold for one level of reductions; every thread of a block gives, and gets, the same."""

    @abstractmethod
    def last_read(self, evaluator: Evaluator, place: Place) -> None:
        """Called when this thread will read nothing more of other blocks."""

    @abstractmethod
    def leave(self, evaluator: Evaluator) -> None:
        """Called at the end of the kernel."""


@dataclass(eq=False)
class ClusterExchange(Exchange):
    """Through the shared memory of the ``blocks`` (a power of two, at most 32) of a thread-block cluster.

    ``size``: bytes of the running values of all levels (:func:`slot_bytes`). A block's part stays in its shared memory
    until all blocks have read it: nobody leaves before the last barrier, at which threads arrive when they have read
    the last part and for which they wait at the end only.
    """

    blocks: int
    shared: Callable[[int, ir.Type], Value]
    size: int
    _used: int = 0
    _buffer: Value = None

    def totals(
        self, evaluator: Evaluator, folds: Sequence[Fold], partials: Sequence[Partial], place: Place
    ) -> list[Partial]:
        builder = evaluator.builder
        own, of_peer = self._addresses(builder, place)
        offsets = [[self._take(kind) for kind in fold.types()] for fold in folds]

        def write() -> list[Value]:
            for partial, places in zip(partials, offsets, strict=True):
                for value, offset in zip(partial, places, strict=True):
                    stored = scalar_ops.to_memory(builder, value)
                    builder.create("llvm.store", [], [stored, _at(builder, own, offset)], {"ordering": _integer(0)})
            return []

        _by_first_thread(builder, place, write)
        _cluster_barrier(builder, "arrive")
        _cluster_barrier(builder, "wait")
        found: list[Partial] = []
        for fold, places in zip(folds, offsets, strict=True):
            read: list[Value] = []
            for kind, offset in zip(fold.types(), places, strict=True):
                stored = scalar_ops.memory_type(kind)
                there = _at(builder, of_peer, offset)
                loaded = builder.emit("llvm.load", stored, [there], {"ordering": _integer(0)})
                read.append(scalar_ops.from_memory(builder, loaded, kind))
            found.append(fold.across_threads(tuple(read), self.blocks))
        return found

    def last_read(self, evaluator: Evaluator, place: Place) -> None:
        """Arrive: peers may leave as far as this thread is concerned."""
        _cluster_barrier(evaluator.builder, "arrive")

    def leave(self, evaluator: Evaluator) -> None:
        """Wait until all peers have read what this block holds."""
        _cluster_barrier(evaluator.builder, "wait")

    def _addresses(self, builder: Builder, place: Place) -> tuple[Value, Value]:
        """Pointers to this block's slots, and to those of the peer that this lane reads.

        Made for every level anew: kept from one to the next, they lead ptxas to take half as many registers again.
        """
        if self._buffer is None:
            self._buffer = self.shared(self.size, ir.IntegerType.get_signless(8))
        address = builder.emit("memref.extract_aligned_pointer_as_index", builder.index_type, [self._buffer])
        address = builder.emit("arith.index_cast", ir.IntegerType.get_signless(64), [address])
        own = builder.emit("llvm.inttoptr", ir.Type.parse("!llvm.ptr<3>"), [address])
        peer = builder.arith("remui", place.lane, builder.index_constant(self.blocks))
        peer = builder.emit("arith.index_cast", builder.i32, [peer])
        return own, builder.emit("nvvm.mapa", ir.Type.parse("!llvm.ptr<7>"), [own, peer])

    def _take(self, kind: ir.Type) -> int:
        """Offset of the next free slot."""
        size = scalar_ops.byte_size(scalar_ops.memory_type(kind))
        offset = -(-self._used // size) * size
        self._used = offset + size
        return offset


def slot_bytes(kinds: Iterable[ir.Type]) -> int:
    """Bytes that values of these types take one behind the other, each aligned to its size."""
    used = 0
    for kind in kinds:
        size = scalar_ops.byte_size(scalar_ops.memory_type(kind))
        used = -(-used // size) * size + size
    return used


def _at(builder: Builder, pointer: Value, offset: int) -> Value:
    """``pointer`` plus a constant number of bytes."""
    if not offset:
        return pointer
    attributes: dict[str, ir.Attribute] = {
        "elem_type": ir.TypeAttr.get(ir.IntegerType.get_signless(8)),
        "rawConstantIndices": ir.DenseI32ArrayAttr.get([offset]),
        "noWrapFlags": ir.IntegerAttr.get(builder.i32, 0),
    }
    return builder.emit("llvm.getelementptr", pointer.type, [pointer], attributes)


def _cluster_barrier(builder: Builder, half: str) -> None:
    """One half of a barrier of all threads of the cluster: ``arrive`` releases, ``wait`` acquires."""
    builder.create(f"nvvm.cluster.{half}", [], [], {"aligned": ir.UnitAttr.get()})


@dataclass(eq=False)
class GridExchange(Exchange):
    """Through global memory: parts and a barrier among the ``blocks`` that share a row of ``rows``, all resident.

    One ticket a row counts arrivals: ``blocks`` for each of ``levels`` levels, and once more when a block has seen the
    last level complete. That count wraps to 0, so that the next launch finds the ticket as this one did.

    ``partials`` has buffers for the reductions of all levels, in order.
    """

    partials: Partials
    blocks: int
    rows: int
    levels: int
    _level: int = 0
    _folds: int = 0

    def totals(
        self, evaluator: Evaluator, folds: Sequence[Fold], partials: Sequence[Partial], place: Place
    ) -> list[Partial]:
        builder, first = evaluator.builder, self._folds
        part = symbol(f"part{self._level}", self.blocks)
        builder.declare(part, place.part)
        ticket = self._ticket(builder, evaluator, place)
        self._level += 1
        self._folds += len(folds)

        def meet() -> list[Value]:
            for number, (fold, partial) in enumerate(zip(folds, partials, strict=True), first):
                self.partials.store(evaluator, number, fold, partial, part.expr * self.rows + place.row)
            fence(builder)
            self._arrive(evaluator, ticket)
            goal = builder.integer(self._level * self.blocks, builder.i32)
            builder.spin(lambda: builder.compare("ult", self._load(evaluator, ticket), goal))
            return []

        _by_first_thread(builder, place, meet)
        builder.barrier()
        in_warp = self.blocks <= WARP
        reader, readers = (place.lane, WARP) if in_warp else (place.thread, place.threads)
        read: list[tuple[Fold, Partial]] = []
        for number, fold in enumerate(folds, first):
            read.append((fold, self._read(evaluator, number, fold, place, reader, readers)))
        if in_warp:
            return [fold.across_threads(partial, WARP) for fold, partial in read]
        return place.fold_block(read)

    def leave(self, evaluator: Evaluator) -> None:
        """Nothing: no block reads the parts of a later launch."""

    def last_read(self, evaluator: Evaluator, place: Place) -> None:
        """Count this block once more."""
        builder = evaluator.builder
        ticket = self._ticket(builder, evaluator, place)

        def count() -> list[Value]:
            self._arrive(evaluator, ticket)
            return []

        _by_first_thread(builder, place, count)

    def _read(
        self, evaluator: Evaluator, number: int, fold: Fold, place: Place, reader: Value, readers: int
    ) -> Partial:
        """The parts of a row that thread ``reader`` of ``readers`` reads, folded."""
        builder = evaluator.builder
        part = symbol(f"read{number}", self.blocks)
        bounds = (reader, builder.index_constant(self.blocks), builder.index_constant(readers))

        def body(_: Value, carried: list[Value]) -> Sequence[Value]:
            loaded = self.partials.load(evaluator, number, fold, part.expr * self.rows + place.row)
            return fold.merge(tuple(carried), loaded)

        return tuple(builder.loop(part, bounds, Fraction(self.blocks, readers), place.start(fold), body))

    @property
    def _tickets(self) -> int:
        """Number of the tickets among the kernel's arguments."""
        return self.partials.first + sum(self.partials.counts)

    def _ticket(self, builder: Builder, evaluator: Evaluator, place: Place) -> Value:
        """The address of the row's ticket."""
        i64 = ir.IntegerType.get_signless(64)
        base = builder.emit(
            "memref.extract_aligned_pointer_as_index", builder.index_type, [evaluator.memory[self._tickets]]
        )
        offset = builder.index(place.row * _TICKET_BYTES)
        address = builder.emit("arith.index_cast", i64, [builder.arith("addi", base, offset)])
        return builder.emit("llvm.inttoptr", ir.Type.parse("!llvm.ptr<1>"), [address])

    def _arrive(self, evaluator: Evaluator, ticket: Value) -> None:
        """Add 1; the last arrival of the launch makes it 0."""
        builder = evaluator.builder
        last = builder.integer((self.levels + 1) * self.blocks - 1, builder.i32)
        attributes = {"bin_op": _integer(_UINC_WRAP), "ordering": _integer(_MONOTONIC), **_device_scope()}
        builder.emit("llvm.atomicrmw", builder.i32, [ticket, last], attributes)
        evaluator.accesses.bytes[self._tickets] += builder.scope.executions * 2 * _TICKET_BYTES

    def _load(self, evaluator: Evaluator, ticket: Value) -> Value:
        builder = evaluator.builder
        attributes = {"alignment": _integer(_TICKET_BYTES), "ordering": _integer(_ACQUIRE), **_device_scope()}
        evaluator.accesses.bytes[self._tickets] += builder.scope.executions * _TICKET_BYTES
        return builder.emit("llvm.load", builder.i32, [ticket], attributes)


def _device_scope() -> dict[str, ir.Attribute]:
    return {"syncscope": ir.StringAttr.get("device")}


def _by_first_thread(builder: Builder, place: Place, action: Callable[[], list[Value]]) -> None:
    """Run ``action`` in the first thread of the block."""
    first = builder.compare("eq", place.thread, builder.index_constant(0))
    builder.branch(first, [], action, None, builder.scope.executions / place.threads)


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
