"""Kernel packing from PyTorch to results: updates of many parameters take few launches, and say so."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlirstitch.driver.bench.functions import adam
from mlirstitch.driver.compile import compile
from mlirstitch.driver.report.explain_text import explain_text
from mlirstitch.driver.report.why_text import cluster_text, why_text
from mlirstitch.runtime.program import Launch

SHAPES = [(96, 24), (24,), (24, 24), (24,), (31,), (24, 96), (96,), (2,), (), (5, 3)]


class Updates(torch.nn.Module):
    """One Adam step of several parameters."""

    def forward(self, step: Tensor, *states: Tensor) -> list[Tensor]:
        results: list[Tensor] = []
        for first in range(0, len(states), 4):
            results.extend(adam(*states[first : first + 4], step))
        return results


def states(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.tensor(3.0), *(torch.rand(shape) for shape in shapes for _ in range(4))]


def test_twenty_updates_take_the_launches_that_the_argument_limit_allows() -> None:
    arguments = states(SHAPES * 2)
    compiled = compile(Updates(), tuple(arguments))
    launches = [step for step in compiled.launch_plan.steps if isinstance(step, Launch)]
    updates = [launch for launch in launches if len(launch.arguments) > 4]
    assert len(updates) == 2  # 20 updates of 7 tensors each, at most 128 tensors a kernel
    assert len(launches) <= 3
    expected = Updates()(*(value.double() for value in arguments))
    results, report = compiled.run_with_report(*arguments)
    for found, wanted in zip(results, expected, strict=True):
        assert found.shape == wanted.shape
        torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6)
    del report


def test_the_report_shows_the_parts() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x.sum(1), y * 2

    compiled = compile(Two(), (torch.rand(40, 64), torch.rand(100)))
    (cluster,) = compiled.report["clusters"]
    assert cluster["template"] == "packed"
    assert [(part["scheme"], part["template"]) for part in cluster["parts"]] == [
        ("pack", "row"),
        ("pack", "elementwise"),
    ]
    assert [part["ops"] for part in cluster["parts"]] == [[0], [1]]
    assert "pack 1      elementwise" in cluster_text(compiled.report, 0)
    assert "in blocks of their own (pack)" in why_text(compiled.report, "0.0", "0.1")


def test_explain_lists_equal_parts_once(tmp_path) -> None:
    class Three(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x + 1, y * 2, z.exp()

    compiled = compile(Three(), (torch.rand(8), torch.rand(9), torch.rand(10, 3)))
    compiled.save(tmp_path / "three.bundle")
    assert "parts  3 x elementwise: 1 blocks of 32 threads" in explain_text(tmp_path / "three.bundle")
