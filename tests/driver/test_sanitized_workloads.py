"""Kernels that the compiler makes have no finding under the sanitizer, and its orders of execution change no bit."""

from __future__ import annotations

import numpy as np
import pytest

from mlirstitch.driver.bench.workloads import WORKLOADS
from mlirstitch.driver.compile import compile
from mlirstitch.runtime import Executor, open_device
from mlirstitch.runtime.arrays import random_inputs


# A row kernel, a strided reduction that the last of several blocks finishes, updates in place, gathers.
@pytest.mark.parametrize("name", ["softmax", "ln_fwd_bwd", "adam", "xent_fwd_bwd"])
def test_workload_is_sound_under_the_sanitizer(name: str) -> None:
    program = WORKLOADS[name].traced("small")
    bundle = compile(program.module, program.inputs).bundle
    plain = Executor(bundle, open_device())
    inputs = random_inputs(plain.signature)
    expected = plain.run([array.copy() for array in inputs])
    found = Executor(bundle, open_device(sanitize=True, seed=1)).run([array.copy() for array in inputs])
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(expected, found, strict=True))
