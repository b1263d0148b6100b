"""What a device executes: buffers and an ordered list of steps. The meaning of every field is in docs/manifest.md.

Sizes are bytes, shapes are elements. All objects are immutable; :mod:`mlirstitch.runtime.manifest` turns them into JSON
and back, :mod:`mlirstitch.runtime.program_checks` checks that they make sense together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mlirstitch.runtime.dtypes import DtypeName

Role = Literal["input", "weight", "constant", "output", "temporary", "persistent"]
Access = Literal["read", "write", "readwrite"]
Kind = Literal["memory_bound", "compute_bound"]
Activation = Literal["none", "relu", "gelu_tanh"]
Dimensions = tuple[int, int, int]


@dataclass(frozen=True)
class Value:
    """One input or output of a program, as the caller sees it."""

    name: str
    shape: tuple[int, ...]
    dtype: DtypeName
    buffer: int


@dataclass(frozen=True)
class Mutation:
    """An input or weight whose buffer holds new contents after a run."""

    name: str
    buffer: int


@dataclass(frozen=True)
class Signature:
    """What the caller passes and gets, in order, and what a run changes in place."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    mutated: tuple[Mutation, ...] = ()


@dataclass(frozen=True)
class Buffer:
    """A contiguous tensor in device memory; ``id`` is its position in ``Program.buffers``."""

    id: int
    role: Role
    name: str
    shape: tuple[int, ...]
    dtype: DtypeName
    bytes: int
    arena_offset: int | None = None


@dataclass(frozen=True)
class Argument:
    """A kernel argument: the address of a buffer.

    Attributes:
        bytes: size of the buffer.
        traffic: what the kernel loads and stores of it, bytes, re-reads counted.
        touched: bytes of the buffer that it can touch at most; None if that is not known.
    """

    buffer: int
    access: Access
    bytes: int
    traffic: int
    touched: int | None = None

    @property
    def reach(self) -> int:
        """Bytes of the buffer that the kernel may touch."""
        return self.bytes if self.touched is None else min(self.bytes, self.touched)


@dataclass(frozen=True)
class Launch:
    """Run one kernel."""

    module: str
    kernel: str
    grid: Dimensions
    block: Dimensions
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    cooperative: bool = False
    thread_block_cluster: Dimensions = (1, 1, 1)
    stitch_cluster: str = ""
    template: str = ""
    kind: Kind = "memory_bound"
    source: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operand:
    """An operand of a library call: a buffer seen with a shape.

    Attributes:
        strides: elements between neighbours along each dim; None: the operand is its whole buffer, row-major.
        offset: first element; None: 0.
    """

    buffer: int
    access: Access
    shape: tuple[int, ...]
    dtype: DtypeName
    strides: tuple[int, ...] | None = None
    offset: int | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements between neighbours along each dim."""
        if self.strides is not None:
            return self.strides
        return tuple(math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))

    @property
    def region(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """First element, shape and strides: what tells the parts of a buffer apart."""
        return (self.offset or 0, self.shape, self.steps)


@dataclass(frozen=True)
class Epilogue:
    """What a library call stores instead of the product: ``activation(alpha * product + beta * addend + bias)``.

    ``addend`` and ``bias`` are positions in the call's operands.
    """

    alpha: float
    beta: float
    activation: Activation
    addend: int | None = None
    bias: int | None = None


@dataclass(frozen=True)
class LibraryCall:
    """Let the device's library compute one contraction or convolution; ``routine`` is the linalg op's name."""

    routine: str
    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stitch_cluster: str = ""
    kind: Kind = "compute_bound"
    source: tuple[str, ...] = ()
    epilogue: Epilogue | None = None


@dataclass(frozen=True)
class Copy:
    """Copy one whole buffer into another."""

    origin: int = field(metadata={"json": "from"})
    destination: int = field(metadata={"json": "to"})
    bytes: int
    source: tuple[str, ...] = ()


Step = Launch | LibraryCall | Copy


@dataclass(frozen=True)
class Program:
    """The work of one device."""

    name: str
    devices: tuple[int, ...]
    signature: Signature
    arena_bytes: int
    temporary_bytes: int
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]


def reads(step: Step) -> tuple[int, ...]:
    """Buffers whose contents the step needs."""
    if isinstance(step, Copy):
        return (step.origin,)
    operands = step.arguments if isinstance(step, Launch) else step.operands
    return tuple(operand.buffer for operand in operands if operand.access != "write")


def writes(step: Step) -> tuple[int, ...]:
    """Buffers that the step changes."""
    if isinstance(step, Copy):
        return (step.destination,)
    operands = step.arguments if isinstance(step, Launch) else step.operands
    return tuple(operand.buffer for operand in operands if operand.access != "read")


def title(step: Step) -> str:
    """What the step does, in a word or two, for messages and profiles."""
    if isinstance(step, Launch):
        return f"kernel {step.kernel}"
    return f"library {step.routine}" if isinstance(step, LibraryCall) else "copy"
