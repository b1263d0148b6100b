"""A split means what the layouts say: parts computed from their parts of the operands make up the whole.

Every part is computed by the reference interpreter over its range of the loops. Outside of what the layout of an
operand gives the part, the operand holds other numbers, so that a part that needs more than its own shows. Numbers are
small integers, so that sums and products do not depend on their order.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from graph_harness import main_of
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir
from ops_to_split import KINDS

from mlirstitch.driver.reference.elements import Elements
from mlirstitch.driver.reference.indexing import Space
from mlirstitch.driver.reference.interpreter import Interpreter
from mlirstitch.driver.reference.structured import StructuredEvaluator
from mlirstitch.passes.partitioning.graph import GraphOp
from mlirstitch.passes.partitioning.layout import DimSplit, Layout, coordinates
from mlirstitch.passes.partitioning.linalg_graph import graph_of, loops_of
from mlirstitch.passes.partitioning.op_loops import OpLoops
from mlirstitch.passes.partitioning.splits import layout_of, legal_splits, refusal_of_split
from mlirstitch.passes.structured import block_ops, element_type, shape_of, structured

COMBINE = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
NEUTRAL = {"add": 0, "mul": 1}
ROWS = 8
"""Rows of the table that a gather reads."""


class Whole:
    """One op of a function, with the values it reads."""

    def __init__(self, text: str, seed: int) -> None:
        main = main_of(text)
        self.random = np.random.default_rng(seed)
        self.interpreter = Interpreter(main.parent, Elements())  # pyright: ignore[reportArgumentType]
        *before, self.op = block_ops(main)[:-1]
        self.graph = graph_of(main)
        self.found: GraphOp = self.graph.ops[-1]
        loops = loops_of(self.op)
        assert loops is not None
        self.loops: OpLoops = loops
        self.values: dict[ir.Value, np.ndarray] = {}
        for argument in main.regions[0].blocks[0].arguments:
            self.values[argument] = self.numbers(argument)
        for op in before:
            self.interpreter.evaluate(op, self.values)
        self.results = self.run({}, None)

    def numbers(self, value: ir.Value) -> np.ndarray:
        """Small integers in the type of a tensor."""
        shape, dtype = shape_of(value), Elements().dtype(element_type(value))
        low, high = (0, ROWS) if dtype.kind == "i" else (-4, 5)
        return np.asarray(self.random.integers(low, high, shape)).astype(dtype)

    def run(self, changed: Mapping[ir.Value, np.ndarray], part: Space | None) -> list[np.ndarray]:
        """The results where some operands hold other values, over a part of the loops."""
        values = {**self.values, **changed}
        if structured(self.op) is not None:
            return StructuredEvaluator(self.op, Elements(), values, self.interpreter.evaluate).run(part)
        self.interpreter.evaluate(self.op, values)
        return [values[result] for result in self.op.results]


def _whole(kind: str, data: st.DataObject) -> Whole:
    text = data.draw(KINDS[kind]())
    return Whole(text, zlib.crc32(text.encode()))


def _space(op: GraphOp, data: st.DataObject) -> tuple[dict[int, tuple[str, ...]], dict[str, int]]:
    """Axes for some loops, one or two each, and their sizes."""
    space: dict[int, tuple[str, ...]] = {}
    names = iter("abcdefgh")
    for loop in data.draw(st.permutations(sorted(legal_splits(op)))):
        if len(space) < 3 and not data.draw(st.booleans()) and refusal_of_split(op, loop, space) is None:
            space[loop] = tuple(next(names) for _ in range(data.draw(st.integers(1, 2))))
    return space, {axis: data.draw(st.integers(2, 4)) for axes in space.values() for axis in axes}


def _part(op: GraphOp, space: Mapping[int, tuple[str, ...]], at: Mapping[str, int], sizes: Mapping[str, int]) -> Space:
    ranges = [DimSplit(space.get(loop, ()), extent).range(extent, at, sizes) for loop, extent in enumerate(op.loops)]
    return Space(tuple(low for low, _ in ranges), tuple(high for _, high in ranges))


def _operands(whole: Whole, layouts: Sequence[Layout], at: Mapping[str, int], sizes: Mapping[str, int]) -> dict:
    """The operands of one part: their own numbers inside their boxes, others outside."""
    inside: dict[ir.Value, np.ndarray] = {}
    for read, layout in zip(whole.loops.reads, layouts, strict=True):
        box = layout.box(shape_of(read.value), at, sizes)
        mask = inside.setdefault(read.value, np.zeros(shape_of(read.value), bool))
        mask[tuple(slice(low, high) for low, high in box)] = True
    return {value: np.where(mask, whole.values[value], whole.numbers(value)) for value, mask in inside.items()}


def _combined(combiner: str, parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    found = parts[0]
    for part in parts[1:]:
        if combiner in COMBINE:
            found = [COMBINE[combiner](a, b) for a, b in zip(found, part, strict=True)]
        else:
            better = part[0] > found[0] if combiner == "argmax" else part[0] < found[0]
            found = [np.where(better, b, a) for a, b in zip(found, part, strict=True)]
    return found


KIND = pytest.mark.parametrize("kind", sorted(KINDS))
FEW = settings(max_examples=6, deadline=None, derandomize=True)
MANY = settings(max_examples=100, deadline=None, derandomize=True)


@KIND
@FEW
@given(data=st.data())
def test_parts_computed_from_their_operands_make_up_the_whole(kind: str, data: st.DataObject) -> None:
    _check_split(_whole(kind, data), data)


@pytest.mark.slow
@KIND
@MANY
@given(data=st.data())
def test_many_parts_computed_from_their_operands_make_up_the_whole(kind: str, data: st.DataObject) -> None:
    _check_split(_whole(kind, data), data)


@KIND
@FEW
@given(data=st.data())
def test_partial_sums_pass_through_the_linear_sets(kind: str, data: st.DataObject) -> None:
    _check_linear(_whole(kind, data))


@pytest.mark.slow
@KIND
@MANY
@given(data=st.data())
def test_many_partial_sums_pass_through_the_linear_sets(kind: str, data: st.DataObject) -> None:
    _check_linear(_whole(kind, data))


def _check_split(whole: Whole, data: st.DataObject) -> None:
    """Parts of a drawn split, each from its own operands, give the results, every element once."""
    op = whole.found
    space, sizes = _space(op, data)
    operands = [layout_of(op, use, space) for use in op.inputs]
    results = [layout_of(op, use, space) for use in op.results]
    partial = [axis for axis, _ in results[0].partial]
    cut = [axis for axes in space.values() for axis in axes if axis not in partial]
    covered = [np.zeros(result.shape, int) for result in whole.results]
    for place in coordinates(tuple(cut), sizes):
        parts: list[list[np.ndarray]] = []
        for number, step in enumerate(coordinates(tuple(partial), sizes)):
            at = {**place, **step}
            changed = _operands(whole, operands, at, sizes)
            for position in op.inits if number else ():
                value = whole.loops.reads[position].value
                changed[value] = np.full_like(changed[value], NEUTRAL[op.combiner])
            parts.append(whole.run(changed, _part(op, space, at, sizes)))
        boxes = [layout.box(full.shape, place, sizes) for layout, full in zip(results, whole.results, strict=True)]
        slices = [tuple(slice(low, high) for low, high in box) for box in boxes]
        inside = [[array[s] for array, s in zip(part, slices, strict=True)] for part in parts]
        for got, full, s, count in zip(_combined(op.combiner, inside), whole.results, slices, covered, strict=True):
            np.testing.assert_array_equal(got, full[s])
            count[s] += 1
    assert all((count == 1).all() for count in covered), "the parts of a result are disjoint and leave nothing out"
    assert all(layout.covers_once(full.shape) for layout, full in zip(results, whole.results, strict=True))


def _check_linear(whole: Whole) -> None:
    """The parts of sums in the operands of a linear set give the parts of the results."""
    op, reads = whole.found, whole.loops.reads
    for chosen in op.linear:
        values = [reads[p].value for p in chosen]
        if len({read.value for read in reads}) < len(reads) or not all(
            np.isfinite(whole.values[v]).all() for v in values
        ):
            continue  # parts of a tensor that is read twice depend on each other; infinity has no parts
        total = [np.zeros_like(result) for result in whole.results]
        first = {value: whole.numbers(value) * 3 for value in values}
        second = {value: whole.values[value] - first[value] for value in values}
        for number, changed in enumerate((first, second)):
            for p in op.inits if number else ():
                if p not in chosen:
                    changed[reads[p].value] = np.full_like(whole.values[reads[p].value], NEUTRAL[op.combiner])
            total = [t + r for t, r in zip(total, whole.run(changed, None), strict=True)]
        for got, full in zip(total, whole.results, strict=True):
            np.testing.assert_array_equal(got, full)
