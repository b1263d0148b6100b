"""Generated PTX is as good as it was, and holds its bars.

The recorded figures are rows of the command itself. After a change for the better, or a new ptxas or LLVM:

    mlirstitch bench --kernels --json tests/driver/bench/kernel_figures.json
    python -m mlirstitch.driver.bench.kernel_table tests/driver/bench/kernel_figures.json

and put the table that the second command prints into docs/kernels.md.
"""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlirstitch.dialects.schedule import Schedule
from mlirstitch.driver import ptxas
from mlirstitch.driver.bench import kernels
from mlirstitch.driver.bench.kernel_bars import Allowance, Bar
from mlirstitch.driver.bench.kernel_cases import KERNEL_CASES
from mlirstitch.driver.bench.kernel_table import markdown, print_kernels
from mlirstitch.driver.bench.kernels import Figures, judge, measure_kernels, versions
from mlirstitch.driver.cli import cli

RECORDED = json.loads((Path(__file__).parent / "kernel_figures.json").read_text())
DOCUMENT = Path(__file__).parents[3] / "docs" / "kernels.md"
COMPARED = ("registers", "shared_bytes", "shuffles", "barriers", "statements")
NAMES = [(case.name, case.schedule) for case in KERNEL_CASES]


@pytest.fixture(scope="module")
def rows():
    return {(row["kernel"], row["schedule"]): row for row in measure_kernels()}


def test_the_record_has_every_kernel_of_the_table():
    assert [(row["kernel"], row["schedule"]) for row in RECORDED["rows"]] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_is_worse_than_recorded(rows, name):
    """Registers are compared with those of the same ptxas: another one allocates as it likes."""
    measured = rows[name]["measured"]
    recorded = next(row for row in RECORDED["rows"] if (row["kernel"], row["schedule"]) == name)["measured"]
    same_ptxas = versions()["ptxas"] == RECORDED["versions"]["ptxas"]
    worse = {
        figure: (measured[figure], recorded[figure])
        for figure in COMPARED
        if (same_ptxas or figure != "registers") and measured[figure] > recorded[figure]
    }
    assert not worse


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_holds_its_bar(rows, name):
    row = rows[name]
    assert {column: held for column, held in row["verdicts"].items() if not held} == {}
    assert {"registers", "statements", "spill_bytes", "full_width", "read_only_loads"} - set(row["verdicts"]) <= (
        {"statements"} if name[0] == "column sum" else set()
    )
    assert row["measured"]["spill_bytes"] == row["measured"]["stack_bytes"] == row["measured"]["local_bytes"] == 0


def test_the_document_shows_the_record():
    assert markdown(RECORDED["rows"]) in DOCUMENT.read_text()
    assert f"LLVM {RECORDED['versions']['llvm']}, ptxas {RECORDED['versions']['ptxas']}" in DOCUMENT.read_text()


ACCESS = {"argument": "x", "access": "read", "elements": 64, "load_bits": [128], "store_bits": [], "read_only": True}
GOOD = Figures(Schedule("row", (1, 1, 1), (32, 1, 1)), 20, 0, 0, 64, 10, 2, 100, 0, (ACCESS,))
BAR = Bar(20, 64, 10, 2, 100)


@pytest.mark.parametrize(
    ("column", "figures"),
    [
        ("registers", replace(GOOD, registers=23)),
        ("spill_bytes", replace(GOOD, spill_bytes=4)),
        ("stack_bytes", replace(GOOD, stack_bytes=4)),
        ("shared_bytes", replace(GOOD, shared_bytes=65)),
        ("shuffles", replace(GOOD, shuffles=11)),
        ("barriers", replace(GOOD, barriers=3)),
        ("statements", replace(GOOD, statements=101)),
        ("local_bytes", replace(GOOD, local_bytes=1)),
        ("full_width", replace(GOOD, accesses=({**ACCESS, "load_bits": [32, 128]},))),
        ("full_width", replace(GOOD, accesses=({**ACCESS, "store_bits": [64]},))),
        ("read_only_loads", replace(GOOD, accesses=({**ACCESS, "read_only": False},))),
    ],
)
def test_a_figure_over_its_bar_is_found(column, figures):
    assert all(judge(GOOD, BAR).values())
    assert [name for name, held in judge(figures, BAR).items() if not held] == [column]


def test_an_allowance_is_added_to_the_bar():
    more = replace(GOOD, shuffles=11, statements=110)
    assert all(judge(more, BAR, Allowance(1, 10, "does more")).values())
    assert not judge(replace(more, statements=111), BAR, Allowance(1, 10, "does more"))["statements"]


def test_without_ptxas_the_other_columns_are_still_there(monkeypatch):
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    (row,) = measure_kernels(KERNEL_CASES[4:5])
    assert row["ok"]
    assert row["measured"]["registers"] is None
    assert row["measured"]["statements"] > 0
    assert "registers" not in row["verdicts"]
    out = io.StringIO()
    print_kernels([row], out)
    assert "no ptxas" in out.getvalue()


def test_the_command_prints_a_table_and_json_and_its_exit_code_tells(monkeypatch, tmp_path):
    rows = copy.deepcopy(RECORDED["rows"])
    monkeypatch.setattr(kernels, "measure_kernels", lambda on_start: rows)
    path = tmp_path / "rows.json"
    done = CliRunner().invoke(cli, ["bench", "--kernels", "--json", str(path)])
    assert done.exit_code == 0
    assert "softmax f32" in done.stdout
    assert json.loads(path.read_text())["rows"] == rows
    rows[0]["ok"] = rows[0]["verdicts"]["shuffles"] = False
    done = CliRunner().invoke(cli, ["bench", "--kernels", "--json", "-"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["rows"] == rows
    assert " !" in done.stderr


def test_kernels_and_workloads_do_not_mix():
    done = CliRunner().invoke(cli, ["bench", "--kernels", "--size", "real"])
    assert done.exit_code == 2
    assert "--size" in done.stderr
