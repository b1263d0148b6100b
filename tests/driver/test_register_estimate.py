"""The estimate of registers held against what ptxas takes, kernel by kernel."""

from __future__ import annotations

import mlir.ir as ir
import pytest
import torch

from mlirstitch.dialects import new_context
from mlirstitch.dialects.walk import walk
from mlirstitch.driver import ptxas
from mlirstitch.driver.bench.workloads import get, names
from mlirstitch.driver.compile import compile
from mlirstitch.lowering.kernel.registers import estimate_registers

LEAST, MOST = 0.5, 2.0
"""Every estimate lies between so many times what ptxas takes."""

CLOSE = 1.5
"""Most estimates are off by no more than this factor, either way."""

QUICK = ("softmax", "adam")


def ratios(workload: str) -> dict[str, float]:
    """Estimated over assembled registers of every kernel of a small workload."""
    compiled = compile(get(workload).export("small", torch.float32), library="auto")
    report = ptxas.check(compiled.ptx, "sm_90")
    assert report.accepted, report.errors
    assert not report.spilling
    found: dict[str, float] = {}
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(compiled.text("gpu"))
        for op in walk(module.operation):
            if op.name == "gpu.func":
                name = ir.StringAttr(op.attributes["sym_name"]).value
                found[f"{workload}: {name}"] = estimate_registers(op) / report.kernels[name].registers
    return found


def check(found: dict[str, float], close: float) -> None:
    """All within the bounds, a share of ``close`` within the narrow ones."""
    wrong = {name: round(ratio, 2) for name, ratio in found.items() if not LEAST <= ratio <= MOST}
    assert not wrong
    near = sum(1 / CLOSE <= ratio <= CLOSE for ratio in found.values())
    assert near >= close * len(found), sorted((round(ratio, 2), name) for name, ratio in found.items())


def test_estimates_are_close_to_what_ptxas_takes() -> None:
    check({name: ratio for workload in QUICK for name, ratio in ratios(workload).items()}, close=0.8)


@pytest.mark.slow
def test_estimates_of_all_workloads_are_close_to_what_ptxas_takes() -> None:
    check({name: ratio for workload in names() for name, ratio in ratios(workload).items()}, close=0.9)
