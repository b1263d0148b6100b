"""Every kernel of the small workloads leaves the same bits and counts the same in both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mlirstitch.driver.bench import workloads
from mlirstitch.driver.compile import compile
from mlirstitch.runtime import Executor
from mlirstitch.runtime.arrays import random_inputs
from mlirstitch.runtime.device import Counters
from mlirstitch.runtime.dtypes import aligned_copy
from mlirstitch.runtime.emulated_device import EmulatedDevice
from mlirstitch.runtime.program import Launch

_NAMES = workloads.names()


class BothEngines(EmulatedDevice):
    """Runs every launch on copies with the reference engine, then with the JIT engine, and compares."""

    def __init__(self) -> None:
        super().__init__(checks=False)
        self.launches = 0

    def launch(self, module: Any, step: Launch, arguments: Sequence[Any], *, count: bool) -> Counters | None:
        options = {"shared_bytes": step.shared_bytes, "checks": False}
        copies = [_copy(array) for array in arguments]
        wanted = module.launch(step.kernel, step.grid, step.block, copies, **options, engine="reference")
        got = module.launch(step.kernel, step.grid, step.block, arguments, **options, engine="jit")
        assert module.engine_of(step.kernel) == "jit", module.fallback(step.kernel)
        for array, copy in zip(arguments, copies, strict=True):
            np.testing.assert_array_equal(array, copy)
        assert got.to_dict() == wanted.to_dict()
        self.launches += 1
        return got.to_dict() if count else None


def _copy(array: Any) -> Any:
    """A copy that starts at a multiple of 256, as device memory does, and is an allocation of its own."""
    return np.frombuffer(aligned_copy(array).data, np.uint8)


def test_there_are_23_workloads() -> None:
    assert len(_NAMES) >= 23


@pytest.mark.parametrize("name", _NAMES)
def test_kernels_of_a_workload_agree_between_the_engines(name: str) -> None:
    torch.manual_seed(0)
    workload = workloads.get(name)
    program = workload.traced("small") if workload.training else workload.build("small")
    compiled = compile(program.module, program.inputs, target="sm_90", library="none")
    device = BothEngines()
    executor = Executor(compiled.bundle, device)
    executor.run(random_inputs(executor.signature))
    assert device.launches == sum(isinstance(step, Launch) for step in compiled.launch_plan.steps) > 0
