"""Does a program make sense? Checked before anything is allocated, so that a bad bundle never half-runs.

Types and enumerations are the decoder's business (:mod:`mlirstitch.runtime.manifest`). Here: sizes, references between
buffers, steps and kernels, launch limits, and the flow of data. Every failure is a :class:`BundleError`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import NoReturn

from mlirstitch.errors import BundleError
from mlirstitch.runtime.dtypes import describe, tensor_bytes
from mlirstitch.runtime.library_checks import why_not_in_table
from mlirstitch.runtime.program import (
    Buffer,
    Copy,
    Launch,
    LibraryCall,
    Operand,
    Program,
    Step,
    Value,
    reads,
    title,
    writes,
)

ARENA_ALIGNMENT = 256
MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK_Z = 64
MAX_GRID = (2**31 - 1, 65_535, 65_535)

Entries = Mapping[str, Mapping[str, int]]
"""Module name -> kernel name -> number of parameters."""


def check_program(program: Program, entries: Entries) -> None:
    """Raise :class:`BundleError` unless the program can be run with the kernels in ``entries``."""
    where = f"program {program.name!r}"
    for position, buffer in enumerate(program.buffers):
        _check_buffer(buffer, position, program.arena_bytes, where)
    _check_signature(program, where)
    for position, step in enumerate(program.steps):
        _check_step(step, program, entries, f"{where}, step {position} ({title(step)})")
    _check_written(program, where)
    _DataFlow(program, where).check()


def _fail(where: str, message: str) -> NoReturn:
    raise BundleError(f"{where}: {message}")


def _check_buffer(buffer: Buffer, position: int, arena_bytes: int, where: str) -> None:
    where = f"{where}, buffer {position} {buffer.name!r}"
    if buffer.id != position:
        _fail(where, f"its id is {buffer.id}, but ids are positions in the list")
    expected = tensor_bytes(buffer.shape, buffer.dtype)
    if buffer.bytes != expected:
        _fail(where, f"{describe(buffer.dtype, buffer.shape)} takes {expected} bytes, the manifest says {buffer.bytes}")
    if (buffer.role == "temporary") != (buffer.arena_offset is not None):
        _fail(where, f"role {buffer.role} and arena_offset {buffer.arena_offset} contradict each other")
    if buffer.arena_offset is None:
        return
    if buffer.arena_offset % ARENA_ALIGNMENT:
        _fail(where, f"arena offset {buffer.arena_offset} is not a multiple of {ARENA_ALIGNMENT}")
    if buffer.arena_offset + buffer.bytes > arena_bytes:
        _fail(where, f"ends at byte {buffer.arena_offset + buffer.bytes} of an arena of {arena_bytes} bytes")


def _buffer(program: Program, index: int, where: str) -> Buffer:
    if index >= len(program.buffers):
        _fail(where, f"buffer {index} does not exist, there are {len(program.buffers)}")
    return program.buffers[index]


def _check_signature(program: Program, where: str) -> None:
    signature = program.signature
    for value in signature.inputs:
        buffer = _check_value(program, value, f"{where}, input {value.name!r}")
        if buffer.role != "input":
            _fail(f"{where}, input {value.name!r}", f"buffer {buffer.id} has role {buffer.role}, not input")
    for value in signature.outputs:
        _check_value(program, value, f"{where}, output {value.name!r}")
    given = [value.buffer for value in signature.inputs]
    wanted = [buffer.id for buffer in program.buffers if buffer.role == "input"]
    if sorted(given) != wanted:
        _fail(
            where,
            f"the inputs of the signature fill buffers {sorted(given)}, but the buffers of role input are {wanted}",
        )
    changed = [mutation.buffer for mutation in signature.mutated]
    if len(set(changed)) != len(changed):
        _fail(where, "a buffer is listed twice among the mutated")
    for mutation in signature.mutated:
        at = f"{where}, mutated {mutation.name!r}"
        if (role := _buffer(program, mutation.buffer, at).role) not in ("input", "weight"):
            _fail(at, f"buffer {mutation.buffer} has role {role}; only inputs and weights can be updated in place")
    named = [buffer.name for buffer in program.buffers if buffer.role in ("weight", "constant")]
    if len(set(named)) != len(named):
        _fail(where, "two buffers of role weight or constant have the same name")


def _check_value(program: Program, value: Value, where: str) -> Buffer:
    buffer = _buffer(program, value.buffer, where)
    if value.dtype != buffer.dtype or tensor_bytes(value.shape, value.dtype) != buffer.bytes:
        held = describe(buffer.dtype, buffer.shape)
        _fail(where, f"{describe(value.dtype, value.shape)} does not fit buffer {buffer.id}, which is {held}")
    return buffer


def _check_step(step: Step, program: Program, entries: Entries, where: str) -> None:
    for index in (*reads(step), *writes(step)):
        _buffer(program, index, where)
    if isinstance(step, Launch):
        _check_launch(step, program, entries, where)
    elif isinstance(step, LibraryCall):
        _check_library_call(step, program, where)
    else:
        _check_copy(step, program, where)


def _check_launch(step: Launch, program: Program, entries: Entries, where: str) -> None:
    if step.module not in entries:
        _fail(where, f"there is no module {step.module!r}")
    kernels = entries[step.module]
    if step.kernel not in kernels:
        _fail(where, f"module {step.module!r} has no such kernel (.entry); it has {len(kernels)}")
    if kernels[step.kernel] != len(step.arguments):
        _fail(
            where, f"the kernel takes {kernels[step.kernel]} parameters, the step gives {len(step.arguments)} arguments"
        )
    for name, sizes in (
        ("grid", step.grid),
        ("block", step.block),
        ("thread-block cluster", step.thread_block_cluster),
    ):
        if min(sizes) < 1:
            _fail(where, f"{name} {sizes} has an extent below 1")
    if any(size > limit for size, limit in zip(step.grid, MAX_GRID, strict=True)):
        _fail(where, f"grid {step.grid} exceeds the limit {MAX_GRID}")
    if step.block[2] > MAX_BLOCK_Z:
        _fail(where, f"block {step.block} has more than {MAX_BLOCK_Z} threads along z")
    if math.prod(step.block) > MAX_THREADS_PER_BLOCK:
        _fail(where, f"block {step.block} has {math.prod(step.block)} threads, the limit is {MAX_THREADS_PER_BLOCK}")
    if any(size % part for size, part in zip(step.grid, step.thread_block_cluster, strict=True)):
        _fail(where, f"grid {step.grid} is not a multiple of the thread-block cluster {step.thread_block_cluster}")
    for position, argument in enumerate(step.arguments):
        held = _buffer(program, argument.buffer, where).bytes
        if argument.bytes != held:
            _fail(f"{where}, argument {position}", f"{argument.bytes} bytes, but buffer {argument.buffer} has {held}")


def _check_library_call(step: LibraryCall, program: Program, where: str) -> None:
    accesses = sorted(operand.access for operand in step.operands)
    if accesses[:-1] != ["read"] * (len(accesses) - 1) or accesses[-1:] != ["write"]:
        _fail(where, "a library call reads its operands and writes exactly one")
    for position, operand in enumerate(step.operands):
        _check_operand(operand, _buffer(program, operand.buffer, where), f"{where}, operand {position}")
    reason = why_not_in_table(step)
    if reason is not None:
        _fail(where, reason)
    _check_aliases(step, where)


def _check_operand(operand: Operand, buffer: Buffer, where: str) -> None:
    """An operand lies in its buffer; one that is written covers it."""
    seen, held = describe(operand.dtype, operand.shape), describe(buffer.dtype, buffer.shape)
    bytes_seen = tensor_bytes(operand.shape, operand.dtype)
    part = operand.strides is not None or bool(operand.offset)
    if operand.dtype != buffer.dtype or (bytes_seen != buffer.bytes and (not part or operand.access != "read")):
        _fail(where, f"{seen} does not fit buffer {buffer.id}, which is {held}")
    if not part or not bytes_seen:
        return
    if len(operand.steps) != len(operand.shape):
        _fail(where, f"{len(operand.steps)} strides for {len(operand.shape)} dims")
    last = (operand.offset or 0) + sum((e - 1) * s for e, s in zip(operand.shape, operand.steps, strict=True))
    elements = math.prod(buffer.shape)
    if last >= elements:
        _fail(where, f"its strides reach element {last} of buffer {buffer.id}, which has {elements}")


def _check_aliases(step: LibraryCall, where: str) -> None:
    """What a call writes may be its addend, element for element; no other operand may share its buffer."""
    addend = step.epilogue.addend if step.epilogue is not None else None
    written = next(operand for operand in step.operands if operand.access == "write")
    for position, operand in enumerate(step.operands):
        if operand is written or operand.buffer != written.buffer:
            continue
        if position != addend or operand.region != written.region:
            _fail(where, f"operand {position} lies in buffer {written.buffer}, which the call writes")


def _check_copy(step: Copy, program: Program, where: str) -> None:
    origin, destination = program.buffers[step.origin], program.buffers[step.destination]
    if not origin.bytes == destination.bytes == step.bytes:
        sizes = f"buffer {origin.id} has {origin.bytes}, buffer {destination.id} {destination.bytes}"
        _fail(where, f"copies {step.bytes} bytes, but {sizes}")


def _check_written(program: Program, where: str) -> None:
    """Inputs, weights and constants belong to the caller: only what the signature declares may be written."""
    mutated = {mutation.buffer for mutation in program.signature.mutated}
    for position, step in enumerate(program.steps):
        for index in writes(step):
            buffer = program.buffers[index]
            if buffer.role in ("input", "weight", "constant") and index not in mutated:
                _fail(
                    f"{where}, step {position} ({title(step)})",
                    f"writes {buffer.role} {buffer.name!r}, which is not mutated",
                )


class _DataFlow:
    """Follows who owns which bytes of the arena; a read needs contents that some earlier step wrote and none destroyed.

    Ranges of live temporaries never overlap, so they are kept sorted by start and found by bisection.
    """

    def __init__(self, program: Program, where: str) -> None:
        self._program = program
        self._where = where
        self._defined = {buffer.id for buffer in program.buffers if buffer.role not in ("output", "temporary")}
        self._destroyed_by: dict[int, int] = {}
        self._starts: list[int] = []
        self._owners: list[int] = []

    def check(self) -> None:
        for position, step in enumerate(self._program.steps):
            where = f"{self._where}, step {position} ({title(step)})"
            self._require(reads(step), where)
            for index in writes(step):
                self._write(index, position)
            # A launch whose arguments share bytes has already lost one of them here.
            self._require((*reads(step), *writes(step)), where)
        self._require((value.buffer for value in self._program.signature.outputs), f"{self._where}, outputs")

    def _require(self, indices: Iterable[int], where: str) -> None:
        for index in indices:
            buffer = self._program.buffers[index]
            if index in self._defined or buffer.bytes == 0:
                continue
            if index in self._destroyed_by:
                _fail(
                    where,
                    f"needs buffer {index} {buffer.name!r}, but step {self._destroyed_by[index]} writes other data to "
                    "the same bytes of the arena",
                )
            _fail(where, f"needs buffer {index} {buffer.name!r}, which nothing has written yet")

    def _write(self, index: int, position: int) -> None:
        buffer = self._program.buffers[index]
        self._defined.add(index)
        if buffer.arena_offset is None or buffer.bytes == 0:
            return
        start, end = buffer.arena_offset, buffer.arena_offset + buffer.bytes
        first = bisect.bisect_right(self._starts, start)
        if first and self._end(first - 1) > start:
            first -= 1
        last = bisect.bisect_left(self._starts, end)
        for owner in self._owners[first:last]:
            if owner != index:
                self._defined.discard(owner)
                self._destroyed_by[owner] = position
        self._starts[first:last] = [start]
        self._owners[first:last] = [index]

    def _end(self, slot: int) -> int:
        return self._starts[slot] + self._program.buffers[self._owners[slot]].bytes
