"""Folding across blocks without a second launch: partial results in global memory, and the last block folds them.

Every block stores its partial results, makes them visible to the device (a fence by every thread, then a barrier) and
counts itself on an integer ticket. The block that draws the last number folds all parts in a fixed order, so results
do not depend on which block that is, and puts the ticket back to 0 for the next launch (the "threadFenceReduction"
sample of NVIDIA's CUDA toolkit; no floating-point atomics).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.evaluate import Evaluator
from mlirstitch.lowering.kernel.fold import Fold, Partial
from mlirstitch.lowering.kernel.index_expr import Expr

_ACQUIRE_RELEASE = 6
_ATOMIC_ADD = 1


@dataclass(eq=False)
class Partials:
    """Where the blocks of a launch leave partial results.

    Attributes:
        first: number of the first scratch buffer among the kernel's arguments; one buffer a running value, in the order
            of the folds, then the tickets (int32).
        counts: running values of each fold.
        shared: makes a buffer in shared memory.
    """

    first: int
    counts: Sequence[int]
    shared: Callable[[int, ir.Type], Value]

    def store(self, evaluator: Evaluator, number: int, fold: Fold, total: Partial, offset: Expr) -> None:
        """Store a partial result of fold ``number`` at element ``offset`` of its buffers, under the context's guard."""
        for buffer, value in zip(self._buffers(number), total, strict=True):
            evaluator.store_to(buffer, offset, value)

    def load(self, evaluator: Evaluator, number: int, fold: Fold, offset: Expr) -> Partial:
        """Load what :meth:`store` stored."""
        kinds = fold.types()
        return tuple(
            evaluator.load_from(buffer, kind, offset) for buffer, kind in zip(self._buffers(number), kinds, strict=True)
        )

    def _buffers(self, number: int) -> range:
        start = self.first + sum(self.counts[:number])
        return range(start, start + self.counts[number])

    def in_last_block(
        self, evaluator: Evaluator, ticket: Expr, sharing: int, threads: int, action: Callable[[], None]
    ) -> None:
        """Run ``action`` in the last of the ``sharing`` blocks of ``threads`` that count with ticket number ``ticket``.

        Blocks that do not share a ticket have tickets of their own.
        """
        builder = evaluator.builder
        tickets = self.first + sum(self.counts)
        memory, index = evaluator.memory[tickets], builder.index(ticket)
        flag, zero = self.shared(1, builder.i32), builder.index_constant(0)
        executions = builder.scope.executions
        fence(builder)
        builder.barrier()
        first = builder.compare("eq", builder.thread_id(), zero)

        def draw() -> list[Value]:
            kind: dict[str, ir.Attribute] = {"kind": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ATOMIC_ADD)}
            operands = [builder.integer(1, builder.i32), memory, index]
            drawn = builder.emit("memref.atomic_rmw", builder.i32, operands, kind)
            builder.create("memref.store", [], [drawn, flag, zero])
            return []

        builder.branch(first, [], draw, None, executions / threads)
        builder.barrier()
        drawn = builder.emit("memref.load", builder.i32, [flag, zero])
        last = builder.compare("eq", drawn, builder.integer(sharing - 1, builder.i32))

        def reset() -> list[Value]:
            builder.create("memref.store", [], [builder.integer(0, builder.i32), memory, index])
            return []

        def finish() -> list[Value]:
            fence(builder)
            builder.branch(first, [], reset, None, executions / (threads * sharing))
            action()
            return []

        builder.branch(last, [], finish, None, executions / sharing)
        # An atomic counts as a load and a store; the reset is a store.
        size = scalar_ops.byte_size(builder.i32)
        evaluator.accesses.bytes[tickets] += executions / threads * 2 * size
        evaluator.accesses.bytes[tickets] += executions / (threads * sharing) * size


def fence(builder: Builder) -> None:
    """Make this thread's accesses to global memory visible to the device, and see those made visible before."""
    ordering = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ACQUIRE_RELEASE)
    builder.create("llvm.fence", [], [], {"ordering": ordering, "syncscope": ir.StringAttr.get("device")})
