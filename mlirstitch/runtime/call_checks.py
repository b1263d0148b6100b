"""Do the arrays of a call fit the signature? Asked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.dtypes import Array, describe, describe_array
from mlirstitch.runtime.program import Program, Signature

_OVERLAP_WORK = 10_000


def check_inputs(signature: Signature, inputs: Sequence[Any]) -> list[Array]:
    """The inputs as arrays. Raises :class:`LaunchError` naming the input, what was expected, and what came."""
    wanted = signature.inputs
    if len(inputs) != len(wanted):
        names = ", ".join(f"{value.name}: {describe(value.dtype, value.shape)}" for value in wanted)
        raise LaunchError(f"expected {len(wanted)} inputs, got {len(inputs)}", hint=f"inputs: {names or 'none'}")
    mutated = {mutation.buffer for mutation in signature.mutated}
    arrays: list[Array] = []
    for position, (value, given) in enumerate(zip(wanted, inputs, strict=True)):
        where = f"input {position} {value.name!r}"
        expected = describe(value.dtype, value.shape)
        if not isinstance(given, np.ndarray | np.generic):
            raise LaunchError(f"{where}: expected a numpy array {expected}, got {type(given).__name__}")
        if isinstance(given, np.generic) and value.buffer in mutated:
            raise LaunchError(f"{where}: is updated in place, but a numpy scalar cannot be", hint="pass a 0-d array")
        array = np.asarray(given)
        if array.dtype.name != value.dtype or not array.dtype.isnative:
            raise LaunchError(
                f"{where}: expected {expected}, got {describe_array(array)}", hint="element types are not converted"
            )
        if array.shape != value.shape:
            raise LaunchError(
                f"{where}: expected {expected}, got {describe_array(array)}",
                hint="a program is compiled for fixed shapes: compile again for other ones",
            )
        arrays.append(array)
    return arrays


def check_updates(program: Program, host: Mapping[int, Array]) -> None:
    """Raise :class:`LaunchError` unless every array that is updated in place can be, without another one noticing.

    The program was compiled for separate tensors; in eager PyTorch the update would show through an array that shares
    memory with the updated one. ``host`` holds the arrays of all inputs and weights by buffer.
    """
    mutated = {mutation.buffer for mutation in program.signature.mutated}
    for index in sorted(mutated):
        if not host[index].flags.writeable:
            buffer = program.buffers[index]
            raise LaunchError(f"{buffer.role} {buffer.name!r} is updated in place, but its array is read-only")
    if not mutated:
        return
    # Sweep over the byte ranges by start: only arrays whose ranges meet are compared in detail.
    ranges = sorted((*byte_bounds(array), index) for index, array in host.items() if array.nbytes)
    active: list[tuple[int, int]] = []
    for low, high, index in ranges:
        active = [(end, other) for end, other in active if end > low]
        for _, other in active:
            if mutated & {index, other} and _overlap(host[index], host[other]):
                one, two = (program.buffers[i] for i in sorted((index, other), key=lambda i: (i not in mutated, i)))
                raise LaunchError(
                    f"{one.role} {one.name!r} is updated in place and shares memory with {two.role} {two.name!r}",
                    hint="pass a copy of one of them",
                )
        active.append((high, index))


def _overlap(one: Array, two: Array) -> bool:
    try:
        # numpy's type stub knows only two of the values that max_work may take.
        return np.shares_memory(one, two, max_work=_OVERLAP_WORK)  # pyright: ignore[reportArgumentType]
    except np.exceptions.TooHardError:
        return True
