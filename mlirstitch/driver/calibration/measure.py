"""What a kernel asks of the chip, counted on the emulated device, and how long it takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mlirstitch.dialects import parse_module, stitch
from mlirstitch.driver.calibration.probes import Probe
from mlirstitch.driver.compile import compile_spec
from mlirstitch.errors import LaunchError
from mlirstitch.options import CompileOptions
from mlirstitch.passes.stitching.cost import KernelFigures, latency_seconds
from mlirstitch.passes.stitching.template import Cluster, templates
from mlirstitch.passes.structured import functions
from mlirstitch.runtime import Bundle, Executor, open_device
from mlirstitch.runtime.arrays import random_inputs
from mlirstitch.runtime.device import Device
from mlirstitch.target import Target

REPEATS = 20
"""Runs of a kernel on a device that measures; the median counts."""


@dataclass(frozen=True)
class Measurement:
    """One kernel: what it is, what it asks of the chip, and the seconds from launch to end."""

    name: str
    figures: KernelFigures
    seconds: float


class Meter(Protocol):
    """Says how long a kernel takes."""

    @property
    def name(self) -> str:
        """Of the device, as reports show it."""
        ...

    def seconds(self, bundle: Bundle, figures: KernelFigures) -> float:
        """From launch to end. ``bundle`` launches the kernel once, ``figures`` are what was counted."""
        ...


@dataclass(frozen=True)
class ModelMeter:
    """The emulated device: the latency evaluator applied to what was counted, for a machine of given constants."""

    machine: Target

    @property
    def name(self) -> str:
        """Of the device."""
        return "emulator"

    def seconds(self, bundle: Bundle, figures: KernelFigures) -> float:
        """By the documented model of the machine (docs/cost-models.md)."""
        return latency_seconds(figures, self.machine)


@dataclass(frozen=True)
class DeviceMeter:
    """A device that takes time. What counts is the time of the launch in its run report, without copies."""

    device: Device[Any]

    @property
    def name(self) -> str:
        """Of the device."""
        return self.device.name

    def seconds(self, bundle: Bundle, figures: KernelFigures) -> float:
        """Median of :data:`REPEATS` runs behind a first one."""
        executor = Executor(bundle, self.device)
        inputs = random_inputs(executor.signature)
        spent: list[float] = []
        for _ in range(REPEATS + 1):
            _, report = executor.run_with_report(inputs)
            spent.append(math.fsum(step.seconds for step in report.steps if step.op == "launch"))
        return statistics.median(spent[1:])


def open_meter(name: str, machine: Target) -> Meter:
    """The meter of a device by name; the emulated device is a machine of the given constants.

    Raises LaunchError for a device that does not exist here, or does not run code for the chip.
    """
    device = open_device(name)
    if name == "emulator":
        return ModelMeter(machine)
    reason = device.refuses({"chip": machine.chip, "ptx": machine.ptx_version})
    if reason is not None:
        raise LaunchError(f"{device.name} does not run code for {machine.chip}: {reason}", hint="give its --target")
    return DeviceMeter(device)


def measure(probe: Probe, target: Target, meter: Meter) -> Measurement:
    """Compile a kernel, count it, and let the meter say how long it takes.

    Raises MlirstitchError if it does not compile or run.
    """
    options = CompileOptions(target=target.chip, from_level="stitched", cache="off")
    bundle = compile_spec("-", probe.text, options).bundle
    executor = Executor(bundle, open_device("emulator"))
    _, report = executor.run_with_report(random_inputs(executor.signature))
    (counters,) = (step.counters for step in report.steps if step.op == "launch")
    figures = _counted(_figures(probe, target), counters or {}, probe.doubles)
    return Measurement(probe.name, figures, meter.seconds(bundle, figures))


def _figures(probe: Probe, target: Target) -> KernelFigures:
    """As the code generator knows them."""
    module = parse_module(probe.text, probe.name)
    (function,) = (found for found in functions(module.operation) if stitch.SCHEDULE.get(found) is not None)
    schedule = stitch.SCHEDULE.require(function)
    (template,) = (found for found in templates() if found.name == schedule.template)
    with module.context:
        return template.figures(Cluster.of_function(function), schedule, target)


def _counted(figures: KernelFigures, counters: Mapping[str, Any], doubles: bool) -> KernelFigures:
    """The figures with instructions and sectors as they were counted; estimates of sectors only share them out."""
    instructions = {name: float(count) for name, count in counters["instructions"].items() if count}
    if doubles:
        instructions["double"] = instructions.pop("float", 0.0)
    sectors = float(counters["sectors_loaded"] + counters["sectors_stored"])
    factor = sectors / figures.sectors if figures.sectors else 1.0
    arguments = tuple(replace(argument, sectors=argument.sectors * factor) for argument in figures.arguments)
    return replace(figures, instructions=instructions, arguments=arguments)
