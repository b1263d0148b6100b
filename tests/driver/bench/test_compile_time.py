"""The benchmark of compile times: what it measures, and that its bars bite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlirstitch.driver.bench import compile_time
from mlirstitch.driver.bench.compile_time import BARS, judge


def row(without: float, warm: float, kernels: int, cached: bool = True, workload: str = "bert_base") -> dict:
    seconds = {"without": without, "warm": warm}
    return {"workload": workload, "size": "real", "seconds": seconds, "distinct_kernels": kernels, "cached": cached}


def test_every_bar_bites_by_itself() -> None:
    bar = BARS["bert_base", "real"]
    assert all(judge(row(bar.without, bar.warm, bar.kernels)).values())
    for measured, missed in (
        (row(bar.without + 0.1, bar.warm, bar.kernels), "without"),
        (row(bar.without, bar.warm + 0.1, bar.kernels), "warm"),
        (row(bar.without, bar.warm, bar.kernels + 1), "kernels"),
        (row(bar.without, bar.warm, bar.kernels, cached=False), "cached"),
    ):
        assert [name for name, kept in judge(measured).items() if not kept] == [missed]


def test_a_workload_without_a_bar_must_only_be_found_in_the_cache() -> None:
    assert judge(row(99.0, 99.0, 99, workload="softmax")) == {"cached": True}


def test_a_workload_is_measured_without_with_and_after_an_edit(call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(compile_time, "RUNS", 1)
    path = tmp_path / "rows.json"
    code, out, err = call("bench", "--compile-time", "--workloads", "softmax", "--json", path)
    assert code == 0, err
    (found,) = json.loads(path.read_text())
    assert found["cached"]
    assert set(found["seconds"]) == {"without", "filled", "warm", "edited"}
    assert "assemble" in found["stages"]["without"]
    assert set(found["stages"]["warm"]) == {"import", "cache"}
    assert "assemble" in found["stages"]["edited"]
    assert found["seconds"]["warm"] < found["seconds"]["without"]
    assert "softmax" in out


@pytest.mark.slow
def test_bert_base_keeps_its_bars_by_the_time_of_the_processor() -> None:
    """The clock of a machine that also runs other tests says little; the processor's time is what compiling takes."""
    from tempfile import TemporaryDirectory

    from mlirstitch.driver.bench.rows import BenchRequest

    with TemporaryDirectory() as folder:
        request = BenchRequest(("bert_base",), size="real")
        found = compile_time.measure_compile_time("bert_base", request, Path(folder) / "x", lambda text: None)
    assert all(judge({**found, "seconds": found["cpu_seconds"]}).values()), found
