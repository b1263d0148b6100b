"""The comparison with figures recorded of other compilers says where a row is worse, and only there."""

from __future__ import annotations

import io
from typing import Any

import pytest

from mlirstitch.driver.bench.bounds import bounds, shortfalls
from mlirstitch.driver.bench.comparison import all_kept, print_comparison, verdict
from mlirstitch.driver.bench.measure import largest_between
from mlirstitch.driver.bench.peers import PEERS, comparable
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


def test_a_model_moves_fewer_bytes_than_others_and_a_function_no_more() -> None:
    tie = row(8, 8, 675_000_000, workload="t5_block")
    assert [str(bound) for bound in bounds(tie) if not bound.holds and bound.against == "Inductor"] == [
        "675 MB, Inductor 675"
    ]
    assert shortfalls(row(1, 0, 1_000_100_000, workload="log_softmax")) == []  # Inductor moves 1000 MB as well


def test_the_verdict_counts_the_rows_that_keep_each_bound() -> None:
    kept, exceeded, failed = (
        row(4, 8, 160_000_000),
        row(4, 8, 180_000_000, traffic=12),
        {**row(1, 1, 1), "size": "small"},
    )
    lines = verdict([kept, exceeded, failed]).splitlines()
    assert "  no more MB than the plan by stages: 1 of 2 rows" in lines
    assert "  fewer MB than XLA: 2 of 2 rows" in lines
    assert "  memory-bound traffic at most 1.1 times the arguments: 1 of 2 rows" in lines
    assert "  not compared: bert_layer" in lines
    assert all_kept([kept])
    assert not all_kept([kept, exceeded])
    assert not all_kept([kept, failed])


def test_rows_of_other_sizes_types_and_targets_are_not_compared() -> None:
    assert comparable(row(4, 8, 1))
    for other in ({"size": "small"}, {"dtype": "bf16"}, {"target": "sm_80"}):
        assert not comparable(row(4, 8, 1, **other))


def test_the_table_names_what_would_have_to_enter_the_contraction_where_iree_moves_less() -> None:
    text = io.StringIO()
    print_comparison([row(4, 8, 160_000_000)], text)
    assert "4+8 / 160" in text.getvalue()
    assert "bert_layer: IREE moves 18 MB fewer; 9 MB go from here to there" in text.getvalue()


def _report(*clusters: list[str]) -> dict[str, Any]:
    """Clusters of ops of some kinds; each reads 1 MB of the one before, and one with a reduction reads 9 MB."""
    ops = [[{"label": kind, "name": kind, "kind": kind, "line": ""} for kind in kinds] for kinds in clusters]
    apart = [
        {
            "producer": number - 1,
            "producer_position": 0,
            "consumer": number,
            "consumer_position": 0,
            "tensor": "",
            "bytes": 9_000_000 if "reduction" in clusters[number] else 1_000_000,
            "rule": "library",
            "reason": "a library computes one of them",
            "detail": "",
        }
        for number in range(1, len(clusters))
    ]
    made = [{"number": number, "library": "", "ops": found, "pairs": []} for number, found in enumerate(ops)]
    return {"clusters": made, "apart": apart}


def test_what_a_contraction_can_take_in_is_element_wise() -> None:
    """The scores of attention are larger, but a softmax reads them after its reductions anyway."""
    report = _report(["compute"], ["light", "reduction"], ["compute"], ["expensive", "light"], ["compute"])
    assert largest_between(report) == (
        "3.0 expensive would have to enter 2.0 compute: 1 MB go from one to the other, "
        "kept apart: a library computes one of them"
    )
    assert largest_between(_report(["light"], ["reduction"])) == ""


@pytest.mark.slow
def test_no_workload_at_real_size_falls_short_of_the_plan_by_stages_xla_or_inductor() -> None:
    rows = measure_all(BenchRequest(tuple(WORKLOADS), size="real", compile_only=True))
    assert {row["workload"]: shortfalls(row) for row in rows} == {name: [] for name in WORKLOADS}
