"""Hypothesis strategies of whole programs for the code generator.

A program grows step by step, and is computed while it grows, so that shapes fit, values stay moderate and nothing
depends on a rounding. A step that would break this is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import random_steps as steps
from hypothesis import strategies as st
from random_ops import OPS, RESULTS
from random_program import DTYPES, FLOATS, INTEGERS, Dtype, Input, Known, Program, Step, TensorType, known_input

Draw = Callable[[st.SearchStrategy[Any]], Any]
MOST_ELEMENTS = 1 << 18
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 8, 10, 12, 16, 20)
"""Steps of a program, about."""

_DIMS = (
    *(1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 96, 100, 127, 128, 129, 255, 256, 257, 500, 511, 512, 513),
    *(769, 1000, 1009, 1023, 1024, 1025, 1500, 1536, 1999, 2000),
)
_SIZES = (100, 600, 600, 600, 2000, 4000, 4000, 20_000, 1 << 16, MOST_ELEMENTS)
"""Bounds of the elements of a program's tensors; most programs are small."""
_DTYPES = (*(DTYPES["float32"],) * 4, *FLOATS, *INTEGERS, DTYPES["bool"])


class Grower:
    """A program that grows.

    Attributes:
        most: elements a tensor may have.
        values: what is known of each value.
    """

    def __init__(self, draw: Draw, most: int) -> None:
        self.draw = draw
        self.most = most
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: list[Known] = []

    def add_input(self, kind: TensorType) -> int:
        """Append an input; only before the first step."""
        fill = "special" if self.draw(st.integers(0, 9)) == 9 else "quarters"
        layout = self.draw(st.sampled_from(("contiguous", "contiguous", "contiguous", "transposed", "sliced")))
        self.inputs.append(Input(kind, fill, layout, len(self.inputs)))
        self.values.append(known_input(self.inputs[-1]))
        return len(self.values) - 1

    def add(self, op: str, operands: Sequence[int], *details: object) -> int | None:
        """Append a step; None, and nothing appended, if it does not fit. Returns the number of its first result."""
        step = Step(op, tuple(operands), details)
        results = OPS[op].compute(step, [self.values[k] for k in operands])
        if results is None:
            return None
        for known in results:
            shape = known.type.shape
            if known.type.elements > self.most or len(shape) > 5 or max(shape, default=0) > 2000 or not known.is_tame:
                return None
        self.steps.append(step)
        self.values.extend(results)
        return len(self.values) - len(results)

    def shape(self, most: int | None = None) -> tuple[int, ...]:
        """A shape of rank 0 to 5 of at most ``most`` elements."""
        room = most or self.most
        shape: list[int] = []
        for _ in range(self.draw(st.sampled_from((2, 2, 2, 3, 3, 1, 1, 4, 5, 0)))):
            if self.draw(st.integers(0, 40)) == 40:
                dim = 0
            else:
                dim = self.draw(st.sampled_from([n for n in _DIMS if n <= max(room, 1)]))
            shape.append(dim)
            room //= max(dim, 1)
        return tuple(self.draw(st.permutations(shape))) if len(shape) > 1 else tuple(shape)

    def pick(self, accept: Callable[[Known], bool] = lambda _: True) -> int | None:
        """One of the values that ``accept`` likes, a late one more often than an early one."""
        fitting = [k for k, known in enumerate(self.values) if accept(known)]
        if not fitting:
            return None
        late = max(self.draw(st.integers(0, len(fitting) - 1)), self.draw(st.integers(0, len(fitting) - 1)))
        return fitting[late]

    def outputs(self) -> tuple[int, ...]:
        """What no step reads, and sometimes a value more: one that is read, an input, or one twice."""
        read = {k for step in self.steps for k in step.operands}
        first = len(self.inputs) if self.steps else 0
        found = [k for k in range(first, len(self.values)) if k not in read][-6:] or [len(self.values) - 1]
        while self.draw(st.integers(0, 3)) == 3 and len(found) < 8:
            inputs = self.draw(st.integers(0, 3)) == 3 or not self.steps
            found.append(self.draw(st.integers(0 if inputs else len(self.inputs), len(self.values) - 1)))
        return tuple(found)


@st.composite
def programs(draw: Draw, most: int = MOST_ELEMENTS) -> Program:
    """A program whose tensors have at most ``most`` elements."""
    grower = Grower(draw, min(most, draw(st.sampled_from(_SIZES))))
    first = TensorType(grower.shape(), draw(st.sampled_from(_DTYPES)))
    grower.add_input(first)
    for _ in range(draw(st.integers(0, 3))):
        grower.add_input(TensorType(_related(grower, first.shape), _another(draw, first.dtype)))
    length = draw(st.sampled_from(_LENGTHS))
    for _ in range(2 * length):
        if len(grower.steps) >= length:
            break
        draw(st.sampled_from(steps.STEPS))(grower)
    return pruned(Program(tuple(grower.inputs), tuple(grower.steps), grower.outputs()), grower.values)


def _related(grower: Grower, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The same shape, one that broadcasts against it, or another."""
    kind = grower.draw(st.integers(0, 3))
    if kind == 0 or not shape:
        return shape
    if kind == 1:
        return tuple(n for n in shape if grower.draw(st.booleans()))
    if kind == 2:
        return tuple(n if grower.draw(st.booleans()) else 1 for n in shape)
    return grower.shape()


def _another(draw: Draw, dtype: Dtype) -> Dtype:
    return dtype if draw(st.integers(0, 2)) < 2 else draw(st.sampled_from(_DTYPES))


def pruned(program: Program, values: Sequence[Known]) -> Program:
    """The program without the steps that no output depends on."""
    first = len(program.inputs)
    starts: list[int] = []
    for step in program.steps:
        starts.append(first)
        first += RESULTS.get(step.op, 1)
    needed = set(program.outputs)
    kept: list[int] = []
    for number in reversed(range(len(program.steps))):
        end = starts[number + 1] if number + 1 < len(starts) else len(values)
        if any(k in needed for k in range(starts[number], end)):
            kept.append(number)
            needed.update(program.steps[number].operands)
    renumbered = {k: k for k in range(len(program.inputs))}
    count = len(program.inputs)
    chosen: list[Step] = []
    for number in reversed(kept):
        end = starts[number + 1] if number + 1 < len(starts) else len(values)
        for k in range(starts[number], end):
            renumbered[k] = count
            count += 1
        step = program.steps[number]
        chosen.append(Step(step.op, tuple(renumbered[k] for k in step.operands), step.details))
    return Program(program.inputs, tuple(chosen), tuple(renumbered[k] for k in program.outputs))
