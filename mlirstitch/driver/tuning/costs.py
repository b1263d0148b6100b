"""What a schedule of a cluster costs: counted by running it on the emulated device, or estimated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from mlir import ir

from mlirstitch.dialects.schedule import Schedule
from mlirstitch.driver.tuning.isolated import program_text, work
from mlirstitch.options import CompileOptions
from mlirstitch.passes.stitching.cost import SECTOR, issue_seconds, latency_seconds
from mlirstitch.passes.stitching.template import Cluster, templates
from mlirstitch.runtime.dtypes import numpy_dtype
from mlirstitch.target import Target

COUNTED, ESTIMATED = "counted", "estimated"

MOST_WORK = 1 << 21
"""Iterations from which on a cluster is not run on the emulated device: that takes seconds a schedule."""


def cost_for(function: ir.Operation) -> str:
    """How schedules of this cluster are compared: :data:`COUNTED` where the emulator can run them, else estimated."""
    return COUNTED if work(function) <= MOST_WORK else ESTIMATED


def estimated_seconds(function: ir.Operation, schedule: Schedule, target: Target) -> float:
    """The latency evaluator's answer. Raises PassError if the schedule does not fit the cluster or the chip."""
    (template,) = (template for template in templates() if template.name == schedule.template)
    return latency_seconds(template.figures(Cluster.of_function(function), schedule, target), target)


def counted_seconds(function: ir.Operation, schedule: Schedule, target: Target) -> float:
    """Run the cluster under ``schedule`` on the emulated device and weigh what was counted.

    Raises MlirstitchError if it cannot be compiled or is found faulty.
    """
    blocks = math.prod(schedule.grid)
    return math.fsum(weighed(counters, blocks, target) for counters in run_counted(function, schedule, target))


def run_counted(function: ir.Operation, schedule: Schedule, target: Target) -> list[Mapping[str, Any]]:
    """The counters (docs/counters.md) of every launch of the cluster under ``schedule``, on the emulated device.

    Floats are random from a fixed seed; integers, which may be indices, are 0. Raises MlirstitchError if it cannot be
    compiled or is found faulty.
    """
    from mlirstitch.driver.compile import compile_spec

    options = CompileOptions(target=target.chip, from_level="stitched", cache="off")
    program = compile_spec(f"@{schedule.template}", program_text(function, schedule), options)
    random = np.random.default_rng(0)
    inputs = [_value(value.dtype, value.shape, random) for value in program.launch_plan.signature.inputs]
    _, report = program.run_with_report(*inputs)
    return [step.counters for step in report.steps if step.counters]


def weighed(counters: Mapping[str, Any], blocks: int, target: Target) -> float:
    """The longer of issuing and memory, seconds.

    Issuing: cycles of all warp instructions by class, on the multiprocessor that has most blocks. Memory: 32-byte
    sectors over the bandwidth of global memory.
    """
    sectors = counters["sectors_loaded"] + counters["sectors_stored"]
    return max(issue_seconds(counters["instructions"], blocks, target), sectors * SECTOR / target.bandwidth)


def _value(dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    kind = numpy_dtype(dtype)
    if dtype.startswith(("float", "bfloat")):
        return random.standard_normal(shape, np.float32).astype(kind)
    return np.zeros(shape, kind)
