"""Regions and how they are cut where reductions run over different rows."""

from __future__ import annotations

from linalg_text import Text
from text_graphs import graph_of

from mlirstitch.passes.stitching.regions import level_regions, split_by_rows


def test_anchors_cut_levels_and_levels_fall_into_connected_parts() -> None:
    text = Text(x="8x8", y="8x8")
    a = text.map("math.exp", "%x")  # 0
    b = text.matmul(a, a)  # 1, the anchor
    c = text.map("arith.addf", a, b)  # 2
    d = text.map("math.absf", "%y")  # 3
    graph = graph_of(text.module(text.map("math.sqrt", c), d))
    assert level_regions(graph, {1}) == [[0], [2, 4], [3]]


def test_reductions_over_the_same_rows_are_not_cut() -> None:
    text = Text(x="4x8")
    centred = text.map("arith.subf", "%x", text.reduce("arith.addf", "%x", 1))
    graph = graph_of(text.module(text.reduce("arith.addf", centred, 1)))
    assert list(split_by_rows(graph, range(3))) == []


def test_a_small_reduction_that_rows_wait_for_is_cut_off_first() -> None:
    # cross-entropy: the rows' gradient waits for the count of labels, the loss waits for the rows
    text = Text(x="64x512", labels="64x1")
    kept = text.map("math.absf", "%labels")  # 0
    count = text.reduce("arith.addf", kept, 0)  # 1: 1 row of 64
    total = text.reduce("arith.addf", "%x", 1)  # 2: 64 rows of 512
    loss = text.reduce("arith.addf", text.map("arith.mulf", total, kept), 0)  # 3, 4
    share = text.map("arith.divf", total, count)  # 5
    gradient = text.map("arith.mulf", "%x", share)  # 6
    graph = graph_of(text.module(loss, gradient))
    assert graph.predecessors == ((), (0,), (), (0, 2), (3,), (1, 2), (5,))
    assert list(split_by_rows(graph, range(7))) == [[0, 1], [2, 3, 5, 6], [4]]


def test_column_sums_are_cut_off_the_rows_they_read() -> None:
    text = Text(x="64x512", g="64x512")
    total = text.reduce("arith.addf", "%x", 1)  # 0
    normed = text.map("arith.divf", "%x", total)  # 1
    scaled = text.map("arith.mulf", normed, "%g")  # 2
    tail = text.map("arith.subf", scaled, text.reduce("arith.addf", scaled, 1))  # 3, 4
    columns = text.reduce("arith.addf", scaled, 0)  # 5
    graph = graph_of(text.module(tail, columns))
    assert list(split_by_rows(graph, range(6))) == [[0, 1, 2, 3, 4], [5]]
