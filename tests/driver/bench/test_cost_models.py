"""The latency evaluator ranks schedules as the emulated device does, and moves the bytes it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlirstitch.dialects.schedule import Schedule
from mlirstitch.driver.bench import cost_models
from mlirstitch.driver.bench.cost_model_cases import CLUSTER_CASES, ClusterCase
from mlirstitch.driver.bench.cost_models import (
    LEAST_CORRELATION,
    LEAST_SCHEDULES,
    ComparedCluster,
    ComparedSchedule,
    compare_clusters,
    counted_cost,
    spearman,
)
from mlirstitch.driver.cli import cli
from mlirstitch.target import Target

CLUSTERS = 12
"""Different clusters that the evaluator has to rank, at least."""


def case(name: str) -> ClusterCase:
    return next(each for each in CLUSTER_CASES if each.name == name)


def check(rows: list[ComparedCluster]) -> None:
    for row in rows:
        assert len(row.schedules) >= LEAST_SCHEDULES, row.name
        assert len({each.schedule for each in row.schedules}) == len(row.schedules)
        assert row.correlation is not None, row.name
        assert row.correlation >= LEAST_CORRELATION, (row.name, row.correlation)
        for each in row.schedules:
            assert abs(each.instructions - 1) <= 0.25, (row.name, each)


def test_schedules_of_two_clusters_are_ranked_as_counted() -> None:
    check(compare_clusters([case("attention scores"), case("SwiGLU, f16")], limit=LEAST_SCHEDULES))


@pytest.mark.slow
def test_schedules_of_every_cluster_are_ranked_as_counted() -> None:
    rows = compare_clusters()
    assert len(rows) >= CLUSTERS
    check(rows)


def test_clusters_are_different_ones() -> None:
    assert len({each.name for each in CLUSTER_CASES}) == len(CLUSTER_CASES) >= CLUSTERS


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 0.5),
        ([1, 1, 2], [1, 2, 3], 0.8660254),  # ranks 1.5, 1.5, 3
        ([106, 100, 86, 101, 99, 103, 97, 113, 112, 110], [7, 27, 2, 50, 28, 29, 20, 12, 6, 17], -29 / 165),
        ([1, 1, 1], [1, 2, 3], None),
        ([1, 2, 3], [5, 5, 5], None),
    ],
)
def test_rank_correlation(first: list[float], second: list[float], expected: float | None) -> None:
    found = spearman(first, second)
    assert found == (None if expected is None else pytest.approx(expected))


def test_counted_cost_is_the_longer_of_instructions_and_sectors() -> None:
    target = Target.parse("sm_90")
    counters = {"instructions": {"float": 132_000_000}, "sectors_loaded": 600, "sectors_stored": 400}
    issue = 1_000_000 * target.cycles.float / target.clock
    assert counted_cost([counters], target) == pytest.approx(issue)
    counters = {**counters, "sectors_loaded": 10**9 - 400}
    assert counted_cost([counters], target) == pytest.approx(32e9 / target.bandwidth)


def row(*costs: tuple[float, float]) -> ComparedCluster:
    schedules = tuple(
        ComparedSchedule(Schedule("row", (number, 1, 1), (32, 1, 1)), predicted, counted, 1.0, 1.0)
        for number, (predicted, counted) in enumerate(costs)
    )
    return ComparedCluster("softmax", "row", schedules)


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (row(*((n, n) for n in range(1, 9))), True),
        (row(*((n, n) for n in range(1, 8))), False),  # too few
        (row(*((n, -n + 20) for n in range(1, 9))), False),  # the wrong way round
        (row(*((n, 1) for n in range(1, 9))), False),  # nothing to rank
    ],
)
def test_command_fails_unless_every_row_holds(
    found: ComparedCluster, holds: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert found.holds is holds
    monkeypatch.setattr(cost_models, "compare_clusters", lambda chip, on_start: [found])
    done = CliRunner().invoke(cli, ["bench", "--cost-models", "--json", str(tmp_path / "rows.json")])
    assert done.exit_code == (0 if holds else 1), done.output
    data = json.loads((tmp_path / "rows.json").read_text())
    assert data["target"] == "sm_90"
    assert data["rows"][0]["ok"] is holds
    assert len(data["rows"][0]["schedules"]) == len(found.schedules)


@pytest.mark.parametrize("flag", [["--workloads", "softmax"], ["--kernels"], ["--dtype", "f16"], ["--compile-time"]])
def test_command_refuses_flags_that_do_not_go_with_it(flag: list[str]) -> None:
    done = CliRunner().invoke(cli, ["bench", "--cost-models", *flag])
    assert done.exit_code == 2
    assert f"leave out {flag[0]}" in done.output
