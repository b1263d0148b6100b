"""Every kernel of every workload moves the bytes that were predicted for each of its arguments, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlirstitch.driver.bench.measure import mispredicted
from mlirstitch.driver.bench.workloads import get, names
from mlirstitch.driver.compile import compile
from mlirstitch.runtime.program import Launch, Program
from mlirstitch.runtime.run_report import RunReport

import torch  # isort: skip

SAMPLE = ("softmax", "adam", "groupnorm", "ln_fwd_bwd")


def run(name: str, dtype: torch.dtype = torch.float32) -> tuple[Program, RunReport]:
    """The launch plan of a small workload, and what the emulated device counted."""
    program = get(name).traced("small", dtype)
    compiled = compile(program.module, program.inputs, cache="off")
    return compiled.launch_plan, compiled.run_with_report(*program.inputs)[1]


def check(name: str, dtype: torch.dtype = torch.float32) -> None:
    plan, report = run(name, dtype)
    launches = [
        (step, done.counters) for step, done in zip(plan.steps, report.steps, strict=True) if isinstance(step, Launch)
    ]
    assert launches
    for launch, counters in launches:
        assert counters is not None
        counted = zip(counters["argument_bytes_loaded"], counters["argument_bytes_stored"], strict=True)
        assert [argument.traffic for argument in launch.arguments] == [sum(both) for both in counted], launch.kernel
        everything = counters["bytes_loaded"] + counters["bytes_stored"]
        assert sum(argument.traffic or 0 for argument in launch.arguments) == everything, launch.kernel
    assert mispredicted(plan, report) == {}


@pytest.mark.parametrize("name", SAMPLE)
def test_kernels_move_the_predicted_bytes(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", names())
def test_kernels_of_every_workload_move_the_predicted_bytes(name: str, dtype: torch.dtype) -> None:
    check(name, dtype)


def test_a_wrong_prediction_is_named_even_if_the_sum_is_right() -> None:
    plan, report = run("softmax")
    (position,) = (number for number, step in enumerate(plan.steps) if isinstance(step, Launch))
    launch = plan.steps[position]
    assert isinstance(launch, Launch)
    first, *rest, last = launch.arguments
    moved = (replace(first, traffic=(first.traffic or 0) + 4), *rest, replace(last, traffic=(last.traffic or 0) - 4))
    steps = [*plan.steps]
    steps[position] = replace(launch, arguments=moved)
    wrong = mispredicted(replace(plan, steps=tuple(steps)), report)
    assert list(wrong) == [launch.kernel]
    assert f"{(first.traffic or 0) + 4} against {first.traffic}" in wrong[launch.kernel]
