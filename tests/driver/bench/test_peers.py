"""The comparison with figures recorded of other compilers says where a row is worse, and only there."""

from __future__ import annotations

import io
from typing import Any

import pytest

from mlirstitch.driver.bench.peers import PEERS, comparable, print_comparison, shortfalls
from mlirstitch.driver.bench.rows import BenchRequest
from mlirstitch.driver.bench.runner import measure_all
from mlirstitch.driver.bench.workloads import WORKLOADS


def row(memory: int, compute: int, arguments: int, traffic: int = 10, **other: Any) -> dict[str, Any]:
    return {
        "workload": "bert_layer",
        "size": "real",
        "dtype": "f32",
        "target": "sm_90",
        "launches": {"memory_bound": memory, "compute_bound": compute, "copies": 0},
        "bytes": {"arguments": arguments, "memory_bound": 10, "memory_bound_traffic": traffic},
        "between": "9 MB go from here to there",
        **other,
    }


def test_every_workload_has_recorded_figures() -> None:
    assert set(PEERS) == set(WORKLOADS)


def test_a_row_as_good_as_the_plan_by_stages_falls_short_in_nothing() -> None:
    assert shortfalls(row(4, 8, 167_400_000)) == []


def test_every_sort_of_shortfall_is_named() -> None:
    found = shortfalls(row(9, 8, 200_000_000, traffic=12))
    assert found == [
        "17 launches, reference 12",
        "9 memory-bound launches, reference 4",
        "200 MB, reference 167",
        "17 launches, Inductor 16",
        "200 MB, Inductor 192",
        "memory-bound kernels move 1.20 times their arguments",
    ]


def test_rows_of_other_sizes_types_and_targets_are_not_compared() -> None:
    assert comparable(row(4, 8, 1))
    for other in ({"size": "small"}, {"dtype": "bf16"}, {"target": "sm_80"}):
        assert not comparable(row(4, 8, 1, **other))


def test_the_table_names_what_would_have_to_enter_the_contraction_where_iree_moves_less() -> None:
    text = io.StringIO()
    print_comparison([row(4, 8, 160_000_000)], text)
    assert "4+8 / 160" in text.getvalue()
    assert "bert_layer: IREE moves fewer bytes; 9 MB go from here to there" in text.getvalue()


@pytest.mark.slow
def test_no_workload_at_real_size_falls_short_of_the_plan_by_stages_xla_or_inductor() -> None:
    rows = measure_all(BenchRequest(tuple(WORKLOADS), size="real", compile_only=True))
    assert {row["workload"]: shortfalls(row) for row in rows} == {name: [] for name in WORKLOADS}
