"""Delta evaluator: what merging saves, and that it is consistent."""

from __future__ import annotations

import random
import time

import pytest
from linalg_text import Text
from text_graphs import graph_of

from mlirstitch.passes.stitching.cost import PatternCosts, delta_seconds, pattern_costs, pattern_seconds
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.target import Target

TARGET = Target.parse("sm_90").override(l2_bytes=0)
"""Without a cache, so that every byte costs the same."""


def softmax(rows: int, columns: int) -> Graph:
    """Nodes: 0 maximum, 1 difference, 2 exponential, 3 sum, 4 quotient."""
    text = Text(x=f"{rows}x{columns}")
    largest = text.reduce("arith.maximumf", "%x", 1)
    shifted = text.map("arith.subf", "%x", largest)
    power = text.map("math.exp", shifted)
    total = text.reduce("arith.addf", power, 1)
    return graph_of(text.module(text.map("arith.divf", power, total)))


def random_graph(seed: int, nodes: int) -> Graph:
    rng = random.Random(seed)
    text = Text(x="64x32", y="64x32")
    values = ["%x", "%y"]
    for _ in range(nodes):
        a, b = rng.choice(values[-6:]), rng.choice(values[-6:])
        if rng.random() < 0.2:
            values.append(text.map("arith.addf", a, text.reduce("arith.addf", b, 1)))
        else:
            values.append(text.map("arith.mulf", a, b) if rng.random() < 0.6 else text.map("math.exp", a))
    return graph_of(text.module(*dict.fromkeys([values[-1], *rng.sample(values[2:], 3)])))


def test_a_chain_saves_the_store_the_load_and_the_launch() -> None:
    text = Text(x="1024x1024")
    graph = graph_of(text.module(text.map("math.exp", text.map("math.absf", "%x"))))
    size = 4 << 20
    expected = 2 * size / TARGET.bandwidth + TARGET.launch_seconds
    assert delta_seconds(graph, [0], [1], TARGET) == pytest.approx(expected)
    assert pattern_costs(graph, TARGET).delta_bytes([0], [1]) == 2 * size
    assert pattern_costs(graph, TARGET).moved_bytes([0, 1]) == 2 * size


def test_a_returned_tensor_is_stored_whoever_reads_it() -> None:
    text = Text(x="1024x1024")
    first = text.map("math.absf", "%x")
    graph = graph_of(text.module(first, text.map("math.exp", first)))
    assert pattern_costs(graph, TARGET).delta_bytes([0], [1]) == 4 << 20


def test_readers_of_one_tensor_save_a_read() -> None:
    text = Text(x="1024x1024")
    graph = graph_of(text.module(text.map("math.absf", "%x"), text.map("math.exp", "%x")))
    assert pattern_costs(graph, TARGET).delta_bytes([0], [1]) == 4 << 20


def test_ops_that_share_nothing_save_a_launch() -> None:
    text = Text(x="64x64", y="64x64")
    graph = graph_of(text.module(text.map("math.absf", "%x"), text.map("math.exp", "%y")))
    assert delta_seconds(graph, [0], [1], TARGET) == TARGET.launch_seconds


def test_what_fits_into_the_cache_saves_less() -> None:
    text = Text(x="64x64")
    graph = graph_of(text.module(text.map("math.exp", text.map("math.absf", "%x"))))
    cached = TARGET.override(l2_bytes=50 << 20)
    assert delta_seconds(graph, [0], [1], cached) < delta_seconds(graph, [0], [1], TARGET)


def test_a_reduced_value_costs_shared_memory() -> None:
    graph = softmax(4096, 1024)
    saved = delta_seconds(graph, [2], [3], TARGET) - TARGET.launch_seconds
    assert saved == pytest.approx((4 << 22) / TARGET.bandwidth)  # the load; node 4 reads the tensor as well
    through_shared = delta_seconds(graph, [3], [4], TARGET) - TARGET.launch_seconds
    traffic = ((4 << 22) + 2 * 4 * 4096) / TARGET.bandwidth
    assert 0 < traffic - through_shared < 1e-3 * traffic


def test_a_row_that_nothing_can_keep_is_read_again() -> None:
    long = softmax(2, 1 << 22)
    assert delta_seconds(long, [0], [1], TARGET) == pytest.approx(TARGET.launch_seconds, rel=1e-3)
    kept = TARGET.override(grid_composition=True)
    assert delta_seconds(long, [0], [1], kept) > TARGET.launch_seconds + 0.9 * (2 << 24) / TARGET.bandwidth


def test_shared_memory_that_leaves_room_for_few_threads_costs_time() -> None:
    graph = softmax(64, 50_000)  # rows of 200,000 bytes
    narrow = TARGET.override(max_threads_per_sm=8192, registers_per_sm=65_536 // 2)
    roomy = narrow.override(shared_bytes_sm=8 * narrow.shared_bytes_sm)
    assert pattern_seconds(graph, range(5), narrow) < pattern_seconds(graph, range(5), roomy)


@pytest.mark.parametrize("seed", range(20))
def test_merging_saves_what_the_union_saves_more_than_its_parts(seed: int) -> None:
    graph = random_graph(seed, 30)
    costs = PatternCosts(graph, Target.parse("sm_86").override(shared_bytes_block=64, registers_per_sm=16))
    rng = random.Random(seed)
    for _ in range(40):
        label = [rng.randrange(3) for _ in graph.ops]
        first, second = ({node for node, part in enumerate(label) if part == which} for which in (0, 1))
        apart = costs.pattern_seconds(first) + costs.pattern_seconds(second)
        saved = costs.delta_seconds(first, second)
        assert saved == pytest.approx(costs.pattern_seconds(first | second) - apart, abs=1e-15)
        assert saved == costs.delta_seconds(list(second)[::-1], list(first)[::-1])
        moved = costs.moved_bytes(first) + costs.moved_bytes(second) - costs.moved_bytes(first | second)
        assert costs.delta_bytes(first, second) == moved


def test_a_question_costs_the_smaller_pattern_not_the_larger() -> None:
    text = Text(x="64x64")
    value = "%x"
    for _ in range(2000):
        value = text.map("math.absf", value)
    graph = graph_of(text.module(value))
    costs = pattern_costs(graph, TARGET)
    assert pattern_costs(graph, TARGET) is costs
    large, last = frozenset(range(1999)), frozenset((1999,))
    start = time.perf_counter()
    for _ in range(1000):
        costs.delta_seconds(large, last)
    assert time.perf_counter() - start < 0.5
