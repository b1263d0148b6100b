"""The kernels of a calibration, counted once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import mlirstitch.lowering  # noqa: F401  registers the kernel templates
from mlirstitch.driver.calibration.measure import Measurement, ModelMeter, measure
from mlirstitch.driver.calibration.probes import probes
from mlirstitch.passes.stitching.cost import latency_seconds
from mlirstitch.target import Target

Measure = Callable[[Target], list[Measurement]]


@pytest.fixture(scope="session")
def counted() -> list[Measurement]:
    """All kernels for sm_90, with the seconds of the machine that the table describes."""
    table = Target.parse("sm_90")
    return [measure(probe, table, ModelMeter(table)) for probe in probes(table.chip)]


@pytest.fixture
def measured_on(counted: list[Measurement]) -> Measure:
    """The same kernels on a machine of other constants."""
    return lambda machine: [replace(found, seconds=latency_seconds(found.figures, machine)) for found in counted]
