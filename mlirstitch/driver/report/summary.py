"""Launches and bytes of a program, counted from its launch plan alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlirstitch.runtime.dtypes import tensor_bytes
from mlirstitch.runtime.program import Copy, Launch, LibraryCall, Program, Step
from mlirstitch.target import Target

CACHED_FRACTION = 8
"""A tensor of up to 1/8 of the level-2 cache is taken to stay in it while one kernel runs."""


@dataclass(frozen=True)
class Launches:
    """Steps of one run: kernels of memory-bound ops, contractions and convolutions (generated or library), copies."""

    memory_bound: int
    compute_bound: int
    copies: int


@dataclass(frozen=True)
class Bytes:
    """What one run moves.

    Attributes:
        arguments: what steps touch of their tensors, once a step: one time step of a sequence is not the sequence.
        traffic: what steps load and store; of tensors above 1/8 of the level-2 cache with every re-read, of smaller
            ones once.
        cached_rereads: re-reads of those smaller tensors. ``traffic + cached_rereads`` is all that kernels load and
            store, which is what the emulated device counts.
        memory_bound, memory_bound_traffic: the parts of ``arguments`` and ``traffic`` that belong to memory-bound
            kernels and copies.
    """

    arguments: int
    traffic: int
    cached_rereads: int
    memory_bound: int
    memory_bound_traffic: int


@dataclass(frozen=True)
class Summary:
    """Figures of one program; ``peak_temporary_bytes`` is the arena, ``temporary_bytes`` the same without sharing."""

    launches: Launches
    distinct_kernels: int
    bytes: Bytes
    peak_temporary_bytes: int
    temporary_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Nested dictionaries of integers."""
        return asdict(self)


@dataclass(frozen=True)
class Touch:
    """One tensor that a step touches: how much of it, and what the step loads and stores of it, bytes."""

    bytes: int
    moved: int


def summarise(program: Program, target: Target) -> Summary:
    """Count a program's launches and bytes for a target (its level-2 cache decides what counts as cached)."""
    limit = target.l2_bytes // CACHED_FRACTION
    arguments = traffic = rereads = memory_bound = memory_bound_traffic = 0
    for step in program.steps:
        for touch in touches(step):
            again = max(0, touch.moved - touch.bytes) if touch.bytes <= limit else 0
            arguments += touch.bytes
            traffic += touch.moved - again
            rereads += again
            if is_memory_bound(step):
                memory_bound += touch.bytes
                memory_bound_traffic += touch.moved - again
    copies = sum(isinstance(step, Copy) for step in program.steps)
    kernels = [step for step in program.steps if isinstance(step, Launch) and is_memory_bound(step)]
    return Summary(
        Launches(len(kernels), len(program.steps) - len(kernels) - copies, copies),
        len({(kernel.module, kernel.kernel) for kernel in kernels}),
        Bytes(arguments, traffic, rereads, memory_bound, memory_bound_traffic),
        program.arena_bytes,
        program.temporary_bytes,
    )


def is_memory_bound(step: Step) -> bool:
    """Whether the step's time is that of moving bytes: every copy, every kernel without a contraction."""
    return isinstance(step, Copy) or step.kind == "memory_bound"


def touches(step: Step) -> list[Touch]:
    """The distinct tensors of a step."""
    if isinstance(step, Copy):
        return [Touch(step.bytes, step.bytes), Touch(step.bytes, step.bytes)]
    sizes: dict[int, int] = {}
    moved: dict[int, int] = {}
    if isinstance(step, LibraryCall):
        seen: set[tuple[int, object]] = set()
        for operand in step.operands:
            # A library is taken to read and write each element of an operand once; what it updates moves twice.
            size = tensor_bytes(operand.shape, operand.dtype)
            known = (operand.buffer, operand.region) in seen
            seen.add((operand.buffer, operand.region))
            sizes[operand.buffer] = sizes.get(operand.buffer, 0) + (0 if known else size)
            again = size if operand.access == "readwrite" else 0
            moved[operand.buffer] = moved.get(operand.buffer, 0) + (0 if known else size) + again
    else:
        for argument in step.arguments:
            known = sizes.get(argument.buffer, 0)
            sizes[argument.buffer] = min(argument.bytes, known + argument.reach)
            moved[argument.buffer] = moved.get(argument.buffer, 0) + argument.traffic
    return [Touch(sizes[buffer], moved[buffer]) for buffer in sizes]
