"""Rows kept in dynamic shared memory: what a pass reads from global memory, later passes read there.

A thread stages the chunks that it visits in every pass itself, so no barrier is needed. Dynamic shared memory may be
larger than the 48 KB that a kernel can declare (a block opts in at launch, up to the chip's limit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.index_expr import Expr, Symbol, substitute
from mlirstitch.lowering.kernel.tensor_program import Argument

_DYNAMIC_INDEX = -(2**31)


@dataclass(frozen=True)
class Staged:
    """One tensor that is staged: argument ``node`` read at ``offset`` (an expression in the column), ``passes`` times.

    ``first`` is the pass that fills it.
    """

    node: Argument
    offset: Expr
    first: int
    passes: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return scalar_ops.byte_size(scalar_ops.memory_type(self.node.element))


@dataclass(frozen=True)
class Read:
    """A load seen in a dry run: in which pass, of what, and whether it runs for every column."""

    number: int
    node: Argument
    offset: Expr
    always: bool


def staged_tensors(reads: Sequence[Read]) -> list[Staged]:
    """What is worth staging: read in several passes, and by all threads in the first. Most passes first."""
    seen: dict[tuple[int, Expr], list[Read]] = {}
    for read in reads:
        seen.setdefault((read.node.position, read.offset), []).append(read)
    found: list[Staged] = []
    for (_, offset), uses in seen.items():
        first, passes = uses[0].number, len({use.number for use in uses})
        if passes > 1 and any(use.always for use in uses if use.number == first):
            found.append(Staged(uses[0].node, offset, first, passes))
    return sorted(found, key=lambda staged: -staged.passes)


def fitting(staged: Sequence[Staged], columns: int, limit: int) -> tuple[list[Staged], int]:
    """The tensors of which ``columns`` elements each fit into ``limit`` bytes together, and the bytes they take."""
    taken: list[Staged] = []
    total = 0
    for tensor in staged:
        size = _aligned(columns * tensor.element_bytes)
        if total + size <= limit:
            taken.append(tensor)
            total += size
    return taken, total


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


@dataclass(eq=False)
class Staging:
    """Shared memory of one kernel that stages tensors.

    Attributes:
        tensors: what is staged, in the order in which it lies in memory.
        columns: elements of a tensor that are staged.
        column: the symbol that stands for the column in their offsets.
        pointer: start of dynamic shared memory, a pointer of address space 3 (None when dry).
    """

    tensors: Sequence[Staged]
    columns: int
    column: Symbol
    pointer: Value

    def find(self, node: Argument, offset: Expr, column: Expr) -> Staged | None:
        """The staged tensor whose element at ``column`` is element ``offset`` of ``node``."""
        for tensor in self.tensors:
            if tensor.node is node and substitute(tensor.offset, {self.column: column}) == offset:
                return tensor
        return None

    def store(self, builder: Builder, tensor: Staged, at: Value, value: Value) -> None:
        """Stage ``value``, in its form in memory, whose first element stands in column ``at``."""
        attributes = self._attributes(tensor, value.type)
        builder.create("llvm.store", [], [value, self._address(builder, tensor, at)], attributes)

    def load(self, builder: Builder, tensor: Staged, at: Value, kind: ir.Type) -> Value:
        """What :meth:`store` staged, of type ``kind``."""
        return builder.emit("llvm.load", kind, [self._address(builder, tensor, at)], self._attributes(tensor, kind))

    def _attributes(self, tensor: Staged, kind: ir.Type) -> dict[str, ir.Attribute]:
        i64 = ir.IntegerType.get_signless(64)
        aligned = min(16, (kind.shape[0] if isinstance(kind, ir.VectorType) else 1) * tensor.element_bytes)
        return {"alignment": ir.IntegerAttr.get(i64, aligned), "ordering": ir.IntegerAttr.get(i64, 0)}

    def _address(self, builder: Builder, tensor: Staged, at: Value) -> Value:
        start = 0
        for other in self.tensors:
            if other is tensor:
                break
            start += _aligned(self.columns * other.element_bytes)
        place = builder.arith("addi", at, builder.index_constant(start // tensor.element_bytes)) if start else at
        place = builder.emit("arith.index_cast", ir.IntegerType.get_signless(64), [place])
        stored = scalar_ops.memory_type(tensor.node.element)
        attributes: dict[str, ir.Attribute] = {
            "elem_type": ir.TypeAttr.get(stored),
            "rawConstantIndices": ir.DenseI32ArrayAttr.get([_DYNAMIC_INDEX]),
            "noWrapFlags": ir.IntegerAttr.get(builder.i32, 0),
        }
        kind = ir.Type.parse("!llvm.ptr<3>")
        return builder.emit("llvm.getelementptr", kind, [self.pointer, place], attributes)
