"""Requests about which ops share a kernel: options, flags and markers in a PyTorch model, honoured or refused."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mlirstitch
from mlirstitch.driver.cli import cli
from mlirstitch.driver.report.why import all_ops, all_pairs
from mlirstitch.driver.report.why_text import why_text
from mlirstitch.errors import MlirstitchError

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

X = torch.linspace(-1, 1, 16 * 32).reshape(16, 32)


class Layer(nn.Module):
    """A softmax, then two more element-wise ops: one kernel if nobody asks for anything."""

    def __init__(self, marker: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.marker = marker

    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        if self.marker is None:
            z = torch.sin(y)
        else:
            with self.marker():
                z = torch.sin(y)
        return z * 2


class Decorated(nn.Module):
    @mlirstitch.keep_apart()
    def part(self, y: Tensor) -> Tensor:
        return torch.sin(y)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(torch.softmax(x, -1)) * 2


class Twice(nn.Module):
    """Two layers of one source, a contraction between them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(32))

    def layer(self, x: Tensor) -> Tensor:
        with mlirstitch.keep_together():
            y = torch.exp(x)
            y = torch.sin(y)
        return y @ self.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


class Epilogue(nn.Module):
    """A contraction, and two ops that read its result."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(32))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y + torch.sin(y)


def line_of(text: str, cls: type) -> int:
    lines, first = inspect.getsourcelines(cls)
    return first + next(number for number, line in enumerate(lines) if text in line)


def clusters(compiled: mlirstitch.Compiled) -> list[list[str]]:
    return [[op["label"] for op in cluster["ops"]] for cluster in compiled.report["clusters"]]


def check_numbers(compiled: mlirstitch.Compiled, model: nn.Module) -> None:
    found = compiled(X).double()
    torch.testing.assert_close(found, copy.deepcopy(model).double()(X.double()), rtol=1e-5, atol=1e-6)


def asked(compiled: mlirstitch.Compiled) -> list[str]:
    return [pair.detail for pair in all_pairs(compiled.report) if pair.rule == "asked"]


def test_without_a_request_there_is_one_kernel() -> None:
    assert len(clusters(mlirstitch.compile(Layer(), X))) == 1


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"keep_apart": "sin"}, "keep apart sin"),
        ({"keep_apart": ["sum|sin"]}, "keep apart sum|sin"),
        ({"never_fuse": f"test_control.py:{line_of('z = torch.sin(y)', Layer)}"}, "never fuse test_control.py:"),
    ],
)
def test_ops_asked_apart_are_apart_and_why_says_who_asked(options: dict[str, Any], detail: str) -> None:
    model = Layer()
    compiled = mlirstitch.compile(model, X, **options)
    assert len(clusters(compiled)) > 1
    assert any(text.startswith(detail) for text in asked(compiled))
    pair = next(pair for pair in all_pairs(compiled.report) if pair.rule == "asked")
    text = why_text(compiled.report, pair.producer.id, pair.consumer.id)
    assert "asked: a request keeps them apart" in text
    assert detail in text
    check_numbers(compiled, model)


@pytest.mark.parametrize("marker", [mlirstitch.keep_apart, mlirstitch.never_fuse])
def test_a_marker_in_the_model_sets_its_lines_apart(marker: Callable[[], Any]) -> None:
    model = Layer(marker)
    compiled = mlirstitch.compile(model, X)
    assert ["sin"] in clusters(compiled)
    assert asked(compiled)
    check_numbers(compiled, model)


def test_a_decorated_method_is_a_region() -> None:
    model = Decorated()
    compiled = mlirstitch.compile(model, X)
    assert ["sin"] in clusters(compiled)
    check_numbers(compiled, model)


def test_a_marker_means_the_same_lines_in_every_layer() -> None:
    model = Twice()
    compiled = mlirstitch.compile(model, X, library="auto", never_fuse="matmul")
    assert clusters(compiled) == [["exp", "sin"], ["matmul"], ["exp", "sin"], ["matmul"]]
    assert len({cluster["function"] for cluster in compiled.report["clusters"]}) == 2
    check_numbers(compiled, model)


def test_a_marker_is_forgotten_with_the_model_that_holds_it() -> None:
    mlirstitch.compile(Layer(mlirstitch.keep_apart), X)
    assert len(clusters(mlirstitch.compile(Layer(), X))) == 1
    Layer(mlirstitch.keep_apart)(X)
    assert len(clusters(mlirstitch.compile(Layer(), X))) == 1


def test_ops_asked_together_are_in_one_kernel_with_what_lies_between() -> None:
    model = Epilogue()
    assert len(clusters(mlirstitch.compile(model, X, library="auto"))) == 2
    compiled = mlirstitch.compile(model, X, library="auto", keep_together="matmul,add")
    assert clusters(compiled) == [["matmul", "sin", "add"]]
    check_numbers(compiled, model)


def test_ops_that_no_kernel_computes_together_are_refused_with_lines_and_what_the_templates_say() -> None:
    first, last = line_of("y = torch.exp(x)", Twice), line_of("return y @", Twice)
    with pytest.raises(MlirstitchError) as refused:
        mlirstitch.compile(Twice(), X, keep_together=f"test_control.py:{first}-{last}")
    text = str(refused.value)
    assert f"keep together test_control.py:{first}-{last} (exp at {__file__}:{first}, " in text
    assert "no kernel template can compute them together: " in text
    assert "loop_nest: linalg.matmul" in text


def test_requests_that_contradict_each_other_are_refused_with_both() -> None:
    with pytest.raises(MlirstitchError, match=r"keep together .*: never fuse sum is asked for too"):
        mlirstitch.compile(Layer(), X, keep_together="sum,div", never_fuse="sum")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"never_fuse": "sinn"}, r"no op of the program matches 'sinn'\n.*did you mean sin\?"),
        (
            {"keep_apart": "test_control.py:1"},
            r"(?s)'test_control.py:1'.*the nearest lines with ops are ",
        ),
        ({"keep_together": "sin"}, "no two of the ops that match read each other"),
    ],
)
def test_patterns_that_mean_nothing_are_refused_with_what_there_is(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MlirstitchError, match=message):
        mlirstitch.compile(Layer(), X, **options)


def test_requests_come_too_late_for_stitched_ir() -> None:
    stitched = mlirstitch.compile(Layer(), X).text("stitched")
    with pytest.raises(MlirstitchError, match="at level stitched the ops are in their kernels already"):
        mlirstitch.compile(stitched, from_level="stitched", never_fuse="sin")


def test_all_other_ops_stay_as_they_are() -> None:
    labels = sorted(op.label for op in all_ops(mlirstitch.compile(Layer(), X).report))
    apart = sorted(op.label for op in all_ops(mlirstitch.compile(Layer(), X, keep_apart="sin").report))
    assert labels == apart


def test_flags_may_be_given_more_than_once(tmp_path: Path) -> None:
    source = tmp_path / "x.mlir"
    source.write_text(mlirstitch.compile(Layer(), X).text("linalg"))
    arguments = ["compile", str(source), "--emit", "stitched", "--never-fuse", "sin", "--never-fuse", "max"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.stderr
    assert 'detail = "never fuse sin"' in done.stdout
    assert 'detail = "never fuse max"' in done.stdout
    refused = CliRunner().invoke(cli, [*arguments[:4], "--keep-apart", "sinn"], catch_exceptions=True)
    assert refused.exit_code == 1


def test_a_marker_without_source_is_refused() -> None:
    scope: dict[str, Any] = {"torch": torch, "mlirstitch": mlirstitch}
    exec("def f(x):\n    with mlirstitch.keep_apart():\n        return torch.sin(x)\n", scope)
    with pytest.raises(MlirstitchError, match="finds no source of the lines it encloses"):
        mlirstitch.compile(scope["f"], (X,))
