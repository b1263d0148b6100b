"""The benchmark survives whatever a workload does, and its rows hold what docs/bench.md says."""

import io
import json
import re
import subprocess
from pathlib import Path

import pytest

from mlirstitch.driver.bench import runner
from mlirstitch.driver.bench.rows import BenchRequest, print_table
from mlirstitch.driver.bench.runner import measure_all, run_benchmark
from mlirstitch.errors import MlirstitchError

DOCUMENT = Path(__file__).parents[3] / "docs" / "bench.md"


@pytest.fixture
def children(monkeypatch):
    """The child processes that the runner started, newest last."""
    started = []

    def popen(*arguments, **keywords):
        started.append(subprocess.Popen(*arguments, **keywords))
        return started[-1]

    monkeypatch.setattr(runner, "subprocess", type("Recorder", (), {**vars(subprocess), "Popen": staticmethod(popen)}))
    return started


def test_an_error_becomes_a_row_and_the_others_go_on():
    rows = measure_all(BenchRequest(("softmax", "adam"), target="sm_1"))
    assert [(row["workload"], row["status"]) for row in rows] == [("softmax", "error"), ("adam", "error")]
    assert all("sm_1" in row["message"] for row in rows)


def test_a_death_becomes_a_row_and_a_new_process_goes_on(children):
    request = BenchRequest(("softmax", "adam", "layernorm"), compile_only=True)
    rows = measure_all(request, lambda workload: children[-1].kill() if workload == "adam" else None)
    assert [row["status"] for row in rows] == ["ok", "crash", "ok"]
    assert "SIGKILL" in rows[1]["message"]
    assert len(children) == 2


def test_a_workload_that_takes_too_long_becomes_a_row():
    rows = measure_all(BenchRequest(("softmax", "adam"), timeout=0.01))
    assert [row["status"] for row in rows] == ["timeout", "timeout"]


def test_rows_hold_the_documented_fields(tmp_path, capsys):
    run_benchmark(BenchRequest(("softmax",), ptxas=True), str(tmp_path / "rows.json"))
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    section = DOCUMENT.read_text().split("## A row\n")[1].split("\n## ")[0]
    documented = re.findall(r"`([\w.]+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    fields = {f"{name}.{inner}" for name in ("launches", "bytes") for inner in row[name]}
    fields |= set(row) - {"launches", "bytes"}
    compared = {"bounds", "shortfalls"}  # only at real size
    assert fields | compared == set(documented)
    assert not compared & fields
    assert row["status"] == "ok", row["message"]
    assert set(row["ptxas"]) == {"sm_80", "sm_90"}
    assert capsys.readouterr().out.splitlines()[0].startswith("small, f32, sm_90")


def test_a_file_that_cannot_be_written_is_refused_before_measuring(tmp_path, children):
    with pytest.raises(MlirstitchError, match="cannot write"):
        run_benchmark(BenchRequest(("softmax",)), str(tmp_path / "no folder" / "rows.json"))
    assert children == []


def test_predicted_bytes_are_the_counted_ones():
    (row,) = measure_all(BenchRequest(("layernorm",)))
    assert row["bytes"]["traffic"] + row["bytes"]["cached_rereads"] == row["bytes"]["counted"]
    # x and the result once, weight and bias once a row or once in all
    assert row["bytes"]["traffic"] == 2 * 256 * 256 * 4 + 2 * 256 * 4


def test_the_plain_table_has_no_colours_and_one_line_per_workload():
    request = BenchRequest(("softmax", "adam"))
    rows = [{**request.blank_row(name), "message": "it broke"} for name in request.workloads]
    out = io.StringIO()
    print_table(rows, request, out)
    assert "\x1b" not in out.getvalue()
    assert [line.split()[0] for line in out.getvalue().splitlines()[2:]] == ["softmax", "adam", "softmax:", "adam:"]
