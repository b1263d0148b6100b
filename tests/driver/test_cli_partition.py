"""Commands for several devices: figures, plan files, traces, drawings and pages, and what is refused how."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import html5lib
import pytest
import torch

import mlirstitch
from mlirstitch.driver.bench import training_models as models

GRID = ("--mesh", "dp=2,tp=2", "--plan", "dp+tp")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step of a perceptron in a file."""
    case = models.mlp()
    step = mlirstitch.import_step(
        case.model, case.loss, torch.optim.SGD(case.model.parameters()), case.inputs, targets=case.targets
    )
    path = tmp_path_factory.mktemp("step") / "step.mlir"
    path.write_text(step.mlir)
    return path


def test_plan_prints_times_memory_and_communication(call: Any, module: Path) -> None:
    code, out, _ = call("plan", module, *GRID)
    assert code == 0
    for fact in ("plan dp+tp on dp=2,tp=2 (4 devices)", "bubble", "peak memory", "0-3 over tp", "inside"):
        assert fact in out
    assert re.search(r"0-3 over tp +inside +1 +384 B", out)  # half of the batch of 8, 24 columns, f32
    assert re.search(r"0-3 over dp +inside +5 +4.8 kB", out)  # gradients of both halves of the layers, and the loss


def test_plan_as_json_holds_the_same_figures(call: Any, module: Path) -> None:
    code, out, _ = call("plan", module, *GRID, "--json")
    assert code == 0
    found = json.loads(out)
    gradients = 2 * (24 * 24 * 4) + 2 * (24 * 4) + 4  # of a device's half of the weights, of both biases, the loss
    (row,) = found["communication"]
    assert (row["kind"], row["count"], row["bytes"]) == ("AllReduce", 6, gradients + 384)
    assert found["devices"][0]["sent_bytes"] == gradients + 384


def test_a_written_plan_is_read_with_its_own_mesh_and_costs_the_same(call: Any, module: Path, tmp_path: Path) -> None:
    code, first, err = call("plan", module, *GRID, "-o", tmp_path / "p.json")
    assert code == 0
    assert "mlirstitch simulate" in err
    code, again, _ = call("simulate", module, "--plan", tmp_path / "p.json")
    assert (code, again) == (0, first)


def test_a_difference_names_rules_mesh_and_costs(call: Any, module: Path, tmp_path: Path) -> None:
    call("plan", module, *GRID, "-o", tmp_path / "a.json")
    call("plan", module, "--mesh", "tp=2", "--plan", "tp", "-o", tmp_path / "b.json")
    code, out, _ = call("plan", "diff", tmp_path / "a.json", tmp_path / "b.json")
    assert code == 0
    for line in ("mesh: dp=2,tp=2 -> tp=2", "name: dp+tp -> tp", '- trans(dims="batch", space=["dp"])'):
        assert line in out.splitlines()
    assert "hidden" not in out  # both have that rule
    assert re.search(r"^seconds: .* us -> .* us$", out, re.MULTILINE)
    code, out, _ = call("plan", "diff", tmp_path / "a.json", tmp_path / "a.json")
    assert "the same plan" in out
    code, out, _ = call("plan", "diff", tmp_path / "a.json", tmp_path / "b.json", "--json")
    removed = json.loads(out)["rules"]["removed"]
    assert removed == [{"rule": "trans", "dims": "batch", "space": ["dp"]}]


def test_explain_tells_layouts_communication_and_legal_splits(call: Any, module: Path) -> None:
    code, out, _ = call("explain", module, *GRID)
    assert code == 0
    assert "linalg.matmul" in out
    assert "then AllReduce over tp" in out
    (number,) = re.findall(r"\(op (\d+)\)[^\n]*\n  devices 0-3: d0 \(8\) by dp, d2 \(48\) by tp\n", out)
    code, out, _ = call("explain", module, *GRID, "--op", number)
    assert "partial(tp: add)" in out
    assert "d2 (48, reduction)" in out
    code, out, _ = call("explain", module, *GRID, "--op", number, "--json")
    (entry,) = json.loads(out)
    assert entry["makes"][0]["steps"][0]["kind"] == "AllReduce"


def test_a_trace_has_two_rows_and_a_memory_counter_for_every_device(call: Any, module: Path, tmp_path: Path) -> None:
    code, _, err = call("simulate", module, *GRID, "--trace", tmp_path / "t.json")
    assert code == 0
    assert "wrote" in err
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2, 3}
    for device in range(4):
        own = [event for event in events if event["pid"] == device]
        rows = {event["tid"] for event in own if event["ph"] == "X"}
        assert rows == {0, 1}
        assert max(event["args"]["live bytes"] for event in own if event["ph"] == "C") > 0
        sent = [event["args"]["bytes"] for event in own if event.get("tid") == 1 and event["ph"] == "X"]
        assert len(sent) == 6
        assert 384 in sent


def test_a_drawing_goes_to_stdout_alone(call: Any, module: Path) -> None:
    code, out, _ = call("simulate", module, *GRID, "--dot", "-")
    assert code == 0
    assert out.startswith("digraph program {")
    assert out.rstrip().endswith("}")
    nodes = re.findall(r"^  (t\d+) \[label", out, re.MULTILINE)
    arrows = re.findall(r"^  (t\d+) -> (t\d+)", out, re.MULTILINE)
    assert arrows
    assert {end for arrow in arrows for end in arrow} <= set(nodes)


def test_the_page_is_valid_and_fetches_nothing(call: Any, module: Path, tmp_path: Path) -> None:
    code, _, _ = call("simulate", module, *GRID, "--html", tmp_path / "s.html")
    assert code == 0
    text = (tmp_path / "s.html").read_text()
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    assert not re.search(r"url\((?!#)|@import|https?://|\bsrc=", text)
    (data,) = [element.text for element in tree.iter("script") if element.get("id") == "data"]
    (row,) = json.loads(data)["rows"]
    assert row["devices"] == "0-3"
    assert row["peak"] == max(live for _, live in row["memory"])
    call("simulate", module, *GRID, "--html", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "s.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "Missing argument"),
        (["plan", "a.mlir"], "name a plan"),
        (["plan", "a.mlir", "b.mlir", "--plan", "dp"], "give one SPEC"),
        (["plan", "diff", "a.json", "b.json", "--plan", "dp"], "two plan files"),
        (["plan", "a.mlir", "--plan", "dp", "-o", "plan.txt"], "named *.json"),
        (["plan", "a.mlir", "--plan", "dp", "--micro-batches", "0"], "0"),
        (["simulate", "a.mlir"], "--plan"),
        (["simulate", "a.mlir", "--plan", "dp", "--dot", "-", "--trace", "-"], "stdout holds one product"),
        (["explain", "a.mlir", "--op", "1"], "without --plan"),
        (["explain", "a.mlir", "--plan", "dp", "--cluster", "1"], "leave out"),
    ],
)
def test_misuse_exits_with_2(call: Any, arguments: list[str], message: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "dp"], "needs a mesh"),
        (["--plan", "zero9", "--mesh", "dp=2"], "unknown plan 'zero9'"),
        (["--plan", "dp", "--mesh", "tp=2"], "axis dp, which the mesh tp=2 lacks"),
        (["--plan", "dp", "--mesh", "dp"], "write a mesh as"),
        (["--plan", "dp", "--mesh", "dp=2", "--links", "string"], "unknown links"),
        (["--plan", "none.json"], "cannot read none.json"),
        (["--plan", "expert", "--mesh", "ep=2"], "no experts"),
    ],
)
def test_plans_that_do_not_fit_exit_with_1_and_a_hint(
    call: Any, module: Path, arguments: list[str], message: str
) -> None:
    code, out, err = call("plan", module, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err
