"""Canonical index expressions: simplification keeps the value and reaches the short form."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirstitch.lowering.kernel import index_expr as ix
from mlirstitch.lowering.kernel.index_expr import Expr

I = ix.symbol("i", 4096)  # noqa: E741
ROW = ix.symbol("row", 96)
LANE = ix.symbol("lane", 4)
CHUNK = ix.symbol("chunk", 300)


def tree(depth: int) -> st.SearchStrategy[tuple]:
    """Expression trees as plain data, so that they can be evaluated without the code under test."""
    leaf = st.one_of(
        st.tuples(st.just("const"), st.integers(-40, 40)),
        st.tuples(st.just("var"), st.sampled_from(("i", "row", "lane", "chunk"))),
    )
    if depth == 0:
        return leaf
    sub = tree(depth - 1)
    return st.one_of(
        leaf,
        st.tuples(st.just("add"), sub, sub),
        st.tuples(st.just("mul"), sub, st.integers(-12, 12)),
        st.tuples(st.just("div"), sub, st.sampled_from((1, 2, 3, 4, 6, 8, 12, 49, 64))),
        st.tuples(st.just("mod"), sub, st.sampled_from((1, 2, 3, 4, 6, 8, 12, 49, 64))),
        st.tuples(st.just("clamp"), sub, st.integers(-8, 5), st.integers(6, 50)),
    )


VARIABLES = {"i": I, "row": ROW, "lane": LANE, "chunk": CHUNK}


def build(node: tuple) -> Expr:
    match node:
        case ("const", value):
            return ix.constant(value)
        case ("var", name):
            return VARIABLES[name].expr
        case ("add", a, b):
            return build(a) + build(b)
        case ("mul", a, k):
            return build(a) * k
        case ("div", a, k):
            return ix.floordiv(build(a), k)
        case ("mod", a, k):
            return ix.mod(build(a), k)
        case ("clamp", a, low, high):
            return ix.clamp(build(a), low, high)
    raise AssertionError(node)


def value(node: tuple, env: dict[str, int]) -> int:
    match node:
        case ("const", v):
            return v
        case ("var", name):
            return env[name]
        case ("add", a, b):
            return value(a, env) + value(b, env)
        case ("mul", a, k):
            return value(a, env) * k
        case ("div", a, k):
            return value(a, env) // k
        case ("mod", a, k):
            return value(a, env) % k
        case ("clamp", a, low, high):
            return min(max(value(a, env), low), high)
    raise AssertionError(node)


@settings(max_examples=400, deadline=None)
@given(tree(5), st.integers(0, 4095), st.integers(0, 95), st.integers(0, 3), st.integers(0, 299))
def test_simplified_expression_has_the_value_of_the_naive_one(node, i, row, lane, chunk):
    env = {"i": i, "row": row, "lane": lane, "chunk": chunk}
    expr = build(node)
    expected = value(node, env)
    assert ix.evaluate(expr, {VARIABLES[k]: v for k, v in env.items()}) == expected
    assert expr.low <= expected <= expr.high


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.data())
def test_linearize_undoes_delinearize(shape, data):
    position = ix.symbol("p", math.prod(shape)).expr
    assert ix.linearize(ix.delinearize(position, shape), shape) == position
    regrouped = list(data.draw(st.permutations(shape)))
    there = ix.linearize(ix.delinearize(position, regrouped), regrouped)
    assert ix.linearize(ix.delinearize(there, shape), shape) == position


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 4), st.integers(0, 500))
def test_row_and_column_recombine_through_any_shape(shape, split, seed):
    split = min(split, len(shape) - 1)
    rows, cols = math.prod(shape[:split]), math.prod(shape[split:])
    row, col = ix.symbol("r", rows).expr, ix.symbol("c", cols).expr
    indices = ix.delinearize(row * cols + col, shape)
    assert ix.linearize(indices[:split], shape[:split]) == row
    assert ix.linearize(indices[split:], shape[split:]) == col


def test_chained_quotients_and_remainders_become_the_variable():
    i = I.expr
    chained = ix.floordiv(i, 256) * 256 + ix.mod(ix.floordiv(i, 16), 16) * 16 + ix.mod(i, 16)
    assert chained == i


def test_partial_chain_becomes_one_modulo():
    i = I.expr
    assert ix.mod(ix.floordiv(i, 16), 16) * 16 + ix.mod(i, 16) == ix.mod(i, 256)


def test_vector_chunk_divides_to_the_chunk_and_keeps_the_lane():
    position = CHUNK.expr * 4 + LANE.expr
    assert ix.floordiv(position, 4) == CHUNK.expr
    assert ix.mod(position, 4) == LANE.expr
    assert ix.mod(position, 12) == ix.mod(CHUNK.expr, 3) * 4 + LANE.expr
    assert ix.stride_of(ix.mod(position, 12), LANE) == 1
    assert ix.stride_of(ix.mod(position, 6), LANE) is None


def test_range_removes_division_and_modulo():
    assert ix.floordiv(LANE.expr, 4) == ix.ZERO
    assert ix.mod(LANE.expr, 4) == LANE.expr
    assert ix.mod(LANE.expr + 4, 4) == LANE.expr
    assert ix.clamp(LANE.expr, 0, 3) == LANE.expr
    assert ix.symbol("one", 1).expr == ix.ZERO


def test_substitution_simplifies_anew():
    i = ix.symbol("flat", 1200)
    expr = ix.floordiv(i.expr, 4)
    assert ix.substitute(expr, {i: CHUNK.expr * 4 + LANE.expr}) == CHUNK.expr


@pytest.mark.parametrize(("expr", "divisor"), [(CHUNK.expr * 8 + 4, 4), (CHUNK.expr * 6, 2), (ix.constant(0), 16)])
def test_alignment_follows_coefficients(expr, divisor):
    assert ix.divisor_of(expr, 16) == divisor
