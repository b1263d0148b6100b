"""A footprint is never smaller than what is touched, and exact for slices."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mlirstitch.lowering.kernel.footprint import Footprint, distinct_offsets
from mlirstitch.lowering.kernel.index_expr import Expr, add, constant, floordiv, mod, symbol, unbounded


def values(expr: Expr, extents: dict[str, int]) -> set[int]:
    """Every value of a sum of coefficient x symbol."""
    ranges = [[coefficient * n for n in range(extents[atom.text.split(":")[0]])] for atom, coefficient in expr.terms]
    return {expr.const + sum(parts) for parts in itertools.product(*ranges)}


def test_one_time_step_of_a_sequence_is_a_slice_of_the_buffer() -> None:
    batch, feature = symbol("batch", 4), symbol("feature", 10)
    footprint = Footprint()
    footprint.add(batch.expr * 70 + feature.expr + 30)
    assert footprint.elements(280) == 40


def test_the_same_elements_read_under_two_names_count_once() -> None:
    footprint = Footprint()
    footprint.add(symbol("a", 8).expr + 8)
    footprint.add(symbol("b", 8).expr + 8)
    assert footprint.elements(100) == 8


def test_chunks_of_one_row_add_up_to_the_row() -> None:
    footprint = Footprint()
    thread, lane = symbol("thread", 32), symbol("lane", 4)
    for chunk in range(3):
        footprint.add((thread.expr + chunk * 32) * 4 + lane.expr)
    assert footprint.elements(10_000) == 384


def test_overlapping_windows_never_exceed_what_lies_between_first_and_last() -> None:
    footprint = Footprint()
    footprint.add(add([symbol("out", 100).expr * 2, symbol("tap", 7).expr]))
    assert footprint.elements(10_000) == 205


def test_an_index_that_is_loaded_may_name_the_whole_buffer_and_no_more() -> None:
    footprint = Footprint()
    footprint.add(unbounded("row").expr * 16 + symbol("column", 16).expr)
    assert footprint.elements(4096) == 4096


def test_a_buffer_that_nothing_reads_has_no_footprint() -> None:
    assert Footprint().elements(64) == 0


def test_divided_and_wrapped_indices_are_bounded_by_their_range() -> None:
    step = symbol("step", 96)
    assert distinct_offsets(floordiv(step.expr, 8) * 8) == 12
    assert distinct_offsets(mod(step.expr, 7)) == 7
    assert distinct_offsets(constant(5)) == 1


@given(
    st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 6)), min_size=0, max_size=4),
    st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 6)), min_size=0, max_size=3),
    st.integers(0, 50),
)
def test_a_footprint_is_never_smaller_than_what_is_touched(
    first: list[tuple[int, int]], second: list[tuple[int, int]], const: int
) -> None:
    touched: set[int] = set()
    footprint = Footprint()
    for prefix, parts in (("a", first), ("b", second)):
        extents = {f"{prefix}{k}": extent for k, (_, extent) in enumerate(parts)}
        terms = [symbol(f"{prefix}{k}", extent).expr * c for k, (c, extent) in enumerate(parts)]
        expr = add([constant(const), *terms])
        touched |= values(expr, extents)
        footprint.add(expr)
    size = max(touched) + 1
    assert len({offset for offset in touched if offset >= 0}) <= footprint.elements(max(size, 1))
