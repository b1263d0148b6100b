"""The table of the benchmark: no figure is shortened, however narrow the terminal."""

from __future__ import annotations

import io
import json

import pytest

from mlirstitch.driver.bench.rows import BenchRequest, print_table

ROW = {
    "workload": "gelu_bias_res_ln",
    "status": "ok",
    "message": "",
    "launches": {"memory_bound": 1, "compute_bound": 0, "copies": 0},
    "distinct_kernels": 1,
    "bytes": {"arguments": 790_000, "traffic": 791_000, "cached_rereads": 783_000, "memory_bound": 790_000},
    "peak_temporary_bytes": 0,
    "compile_seconds": {"import": 0.787},
    "run_seconds": 0.383,
    "max_error": 1.4e-7,
    "eager_max_error": 1.8e-7,
}
REFUSED = {"workload": "dien", "status": "error", "message": "no such op"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def table(width: int, monkeypatch: pytest.MonkeyPatch, file: io.StringIO) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    print_table([json.loads(json.dumps(ROW)), REFUSED], BenchRequest(("gelu_bias_res_ln", "dien")), file)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 150])
def test_a_narrow_terminal_shows_fewer_columns_and_says_so(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    shown = table(width, monkeypatch, Terminal())
    assert "…" not in shown
    for figure in ("gelu_bias_res_ln", "791 kB", "1.4e-07", "1.8e-07", "dien", "error"):
        assert figure in shown
    assert ("too narrow for: copies" in shown) == (width < 150)
    assert "dien: no such op" in shown


def test_a_file_gets_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = table(40, monkeypatch, io.StringIO())
    for figure in ("790 kB", "791 kB", "783 kB", "787 ms", "383 ms"):
        assert figure in shown
    assert "too narrow" not in shown
