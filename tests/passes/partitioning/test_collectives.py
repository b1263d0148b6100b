"""How partial values are combined, and what steps compute, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from layout_harness import layout

from mlirstitch.passes.partitioning.collectives import apply_step, combine, cut, pair
from mlirstitch.passes.partitioning.layout import replicated
from mlirstitch.passes.partitioning.steps import AllReduce, Neutralize, ReduceScatter


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [("add", [5, 8]), ("mul", [6, 12]), ("max", [3, 6]), ("min", [2, 2]), ("and", [2, 2]), ("or", [3, 6])],
)
def test_combiners_on_integers(combiner: str, expected: list[int]):
    np.testing.assert_array_equal(combine(np.array([3, 2]), np.array([2, 6]), combiner), expected)


def test_of_equal_values_the_lower_index_wins_and_of_all_a_nan():
    nan = float("nan")
    left = pair(np.array([1.0, 5.0, 2.0, nan, 1.0, nan]), np.array([4, 1, 9, 7, 3, 8]))
    right = pair(np.array([1.0, 4.0, 3.0, 9.0, nan, nan]), np.array([2, 0, 5, 1, 6, 5]))
    found = combine(left, right, "argmax")
    np.testing.assert_array_equal(found["index"], [2, 1, 5, 7, 6, 5])
    np.testing.assert_array_equal(found["value"], [1.0, 5.0, 3.0, nan, nan, nan])
    np.testing.assert_array_equal(combine(left, right, "argmin")["index"], [2, 0, 9, 7, 6, 5])


def test_nan_wins_in_max_and_min():
    one, nan = np.array([1.0]), np.array([float("nan")])
    assert np.isnan(combine(one, nan, "max"))
    assert np.isnan(combine(nan, one, "min"))


def test_sums_are_taken_in_the_order_of_the_devices():
    parts = {(n,): np.array([x], np.float32) for n, x in enumerate([1e8, 1.0, -1e8, 1.0])}
    step = AllReduce(("a",), "add", before=layout((1,), [""], ["a"]), after=replicated(1))
    after = apply_step(step, parts, (1,), {"a": 4})
    expected = np.float32(np.float32(np.float32(1e8) + np.float32(1)) - np.float32(1e8)) + np.float32(1)
    assert {float(piece[0]) for piece in after.values()} == {float(expected)}


def test_a_scattered_reduction_gives_each_device_its_uneven_part():
    parts = {(n,): np.arange(5) * (n + 1) for n in range(2)}
    step = ReduceScatter(0, ("a",), "add", before=layout((5,), [""], ["a"]), after=layout((5,), ["a"]))
    after = apply_step(step, parts, (5,), {"a": 2})
    assert [after[0,].tolist(), after[1,].tolist()] == [[0, 3], [6, 9, 12]]


@pytest.mark.parametrize(("combiner", "others"), [("add", 0), ("mul", 1), ("max", 7), ("and", 7)])
def test_all_but_the_first_become_neutral(combiner: str, others: int):
    step = Neutralize(("a",), combiner, before=replicated(1), after=layout((2,), [""], ["a"], combiner))
    pieces = cut(np.array([7, 7]), replicated(1), {"a": 3})
    after = apply_step(step, pieces, (2,), {"a": 3})
    assert [after[n,].tolist() for n in range(3)] == [[7, 7], [others, others], [others, others]]
