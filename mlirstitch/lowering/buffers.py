"""Buffers of a host function, and how the IR records them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.errors import PassError
from mlirstitch.passes.structured import symbol_name

DTYPE_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""Bytes of one element in memory, by dtype name."""

MEMORY_TYPES = {
    "bool": "i8",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "float16": "f16",
    "bfloat16": "bf16",
    "int32": "i32",
    "float32": "f32",
    "int64": "i64",
    "float64": "f64",
}
"""IR type of one element in memory, by dtype name."""


@dataclass(frozen=True)
class Buffer:
    """Contiguous row-major memory of one tensor.

    Attributes:
        role: "input", "weight", "constant", "output", "persistent" (tickets: 0 whenever no kernel runs) or "temporary".
        name: unique among arguments, among outputs, among temporaries.
        shape: sizes; () for a 0-d tensor.
        dtype: a key of :data:`DTYPE_BYTES`.
        offset: byte offset in the arena, for a temporary.
        mutated: whether a run leaves new contents in an argument's buffer.
    """

    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int | None = None
    mutated: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]

    def as_attributes(self) -> dict[str, ir.Attribute]:
        """The buffer as named attributes, without prefix."""
        fields: dict[str, ir.Attribute] = {
            "role": stitch.STRING.write(self.role),
            "name": stitch.STRING.write(self.name),
            "shape": stitch.INTEGERS.write(self.shape),
            "dtype": stitch.STRING.write(self.dtype),
        }
        if self.offset is not None:
            fields["offset"] = stitch.INTEGER.write(self.offset)
        if self.mutated:
            fields["mutated"] = ir.UnitAttr.get()
        return fields

    @staticmethod
    def of_attributes(fields: dict[str, ir.Attribute]) -> Buffer:
        """Read :meth:`as_attributes`. Raises :class:`PassError` for a missing or ill-typed field, an unknown dtype."""
        missing = [name for name in ("role", "name", "shape", "dtype") if name not in fields]
        if missing:
            raise PassError(f"a buffer lacks its {missing[0]}", hint="run plan-buffers first")
        try:
            buffer = Buffer(
                stitch.STRING.read(fields["role"]),
                stitch.STRING.read(fields["name"]),
                stitch.INTEGERS.read(fields["shape"]),
                stitch.STRING.read(fields["dtype"]),
                stitch.INTEGER.read(fields["offset"]) if "offset" in fields else None,
                "mutated" in fields,
            )
        except ValueError as error:
            raise PassError(f"a field of a buffer has another type: {error}", hint="run plan-buffers again") from None
        if buffer.dtype not in DTYPE_BYTES:
            raise PassError(f"a buffer has the unknown dtype {buffer.dtype!r}", hint=f"known: {', '.join(DTYPE_BYTES)}")
        return buffer


@dataclass(frozen=True)
class BufferPlan:
    """Buffers of a host function, by number: its arguments, its outputs, tickets if any, then its temporaries.

    Attributes:
        buffers: all of them.
        results: buffer that holds each result of the function at the end (an argument's for a mutation).
        reads, writes: buffer of every operand and every result, for each call in order.
        workspaces: buffers each call's kernel works in, for each call in order: scratch, then tickets.
        copies: (from, to) pairs to run in order after the last call.
        arena_bytes: size of the temporaries' common allocation.
    """

    buffers: tuple[Buffer, ...]
    results: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    workspaces: tuple[tuple[int, ...], ...]
    copies: tuple[tuple[int, int], ...]
    arena_bytes: int

    @property
    def temporary_bytes(self) -> int:
        """What the temporaries would take without sharing, bytes."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.role == "temporary")


def host_function(module: ir.Operation) -> ir.Operation:
    """The ``func.func @main`` of a module. Raises :class:`PassError` when there is none."""
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "func.func" and symbol_name(op.operation) == "main":
            return op.operation
    raise PassError("the module has no func.func @main", hint="name the function to compile @main")


def host_calls(main: ir.Operation) -> list[ir.Operation]:
    """The ``func.call`` ops of the host function, in order."""
    return [op.operation for op in main.regions[0].blocks[0].operations if op.operation.name == "func.call"]


def annotate(main: ir.Operation, plan: BufferPlan) -> None:
    """Write the plan onto the host function and its calls as ``stitch.*`` attributes."""
    stitch.BUFFERS.set(main, tuple(buffer.as_attributes() for buffer in plan.buffers))
    stitch.RESULTS.set(main, plan.results)
    stitch.COPIES.set(main, plan.copies)
    stitch.ARENA_BYTES.set(main, plan.arena_bytes)
    stitch.TEMPORARY_BYTES.set(main, plan.temporary_bytes)
    calls = zip(host_calls(main), plan.reads, plan.writes, plan.workspaces, strict=True)
    for call, reads, writes, workspace in calls:
        stitch.READS.set(call, reads)
        stitch.WRITES.set(call, writes)
        if workspace:
            stitch.WORKSPACE.set(call, workspace)


def read_plan(main: ir.Operation) -> BufferPlan:
    """The plan that :func:`annotate` wrote. Raises :class:`PassError` when there is none."""
    if stitch.BUFFERS.get(main) is None:
        raise PassError("@main carries no buffer plan", hint="run plan-buffers first")
    calls = host_calls(main)
    return BufferPlan(
        tuple(Buffer.of_attributes(fields) for fields in stitch.BUFFERS.require(main)),
        stitch.RESULTS.require(main),
        tuple(stitch.READS.require(call) for call in calls),
        tuple(stitch.WRITES.require(call) for call in calls),
        tuple(stitch.WORKSPACE.get(call) or () for call in calls),
        tuple((pair[0], pair[1]) for pair in stitch.COPIES.require(main)),
        stitch.ARENA_BYTES.require(main),
    )
