"""``python -m mlirstitch.driver.bench.emulator``: how fast the emulated device is, JIT engine against reference engine.

Compiles LayerNorm and softmax of [4096, 1024] f32, runs their kernels on both engines in one process, prints medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirstitch.driver.bench import functions
from mlirstitch.driver.bench.workloads import FunctionModule
from mlirstitch.driver.compile import compile
from mlirstitch.runtime import emulator
from mlirstitch.runtime.arrays import random_inputs
from mlirstitch.runtime.program import Launch

ROWS, COLUMNS = 4096, 1024
REPEATS = 15


@dataclass(frozen=True)
class Measurement:
    """Seconds: compiling with the library at hand, and the median launch of each engine and setting."""

    name: str
    compile_seconds: float
    plain: float
    counting: float
    reference: float

    def line(self) -> str:
        """One line of the table."""
        return (
            f"{self.name:<10} {self.compile_seconds * 1e3:>8.0f} ms {self.plain * 1e3:>9.1f} ms "
            f"{self.counting * 1e3:>9.1f} ms {self.counting / self.plain:>6.2f} {self.reference * 1e3:>10.0f} ms "
            f"{self.reference / self.plain:>6.1f}"
        )


def measure(name: str, function: Callable[..., Any], *inputs: Any) -> Measurement:
    """Measure the one kernel of a function."""
    compiled = compile(FunctionModule(function), inputs, target="sm_90", library="none")
    program = compiled.launch_plan
    (step,) = (step for step in program.steps if isinstance(step, Launch))
    given = dict(zip((v.buffer for v in program.signature.inputs), random_inputs(program.signature), strict=True))
    arguments = [
        given[a.buffer] if a.buffer in given else np.zeros(program.buffers[a.buffer].bytes, np.uint8)
        for a in step.arguments
    ]
    module = emulator.load(compiled.modules[step.module])

    def launch(engine: str, counters: bool) -> float:
        start = time.perf_counter()
        module.launch(
            step.kernel, step.grid, step.block, arguments, step.shared_bytes, False, counters=counters, engine=engine
        )
        return time.perf_counter() - start

    first = launch("jit", False)
    launch("jit", True)
    plain, counting = ([launch("jit", c) for _ in range(REPEATS)] for c in (False, True))
    reference = [launch("reference", True) for _ in range(3)]
    usual = statistics.median(plain)
    return Measurement(name, first - usual, usual, statistics.median(counting), statistics.median(reference))


def main() -> None:
    """Print the table."""
    import torch

    torch.manual_seed(0)
    warm_up()
    rows = torch.randn(ROWS, COLUMNS)
    scale, shift = torch.randn(COLUMNS), torch.randn(COLUMNS)
    print(f"[{ROWS}, {COLUMNS}] f32, bounds checks on, medians of {REPEATS} launches")
    print("kernel       compile        JIT   counters   ratio  reference  ratio")
    print(measure("layernorm", functions.layer_norm, rows, scale, shift).line())
    print(measure("softmax", functions.softmax, rows).line())


def warm_up() -> None:
    """Compile what all kernels share, once a process; prints how long that took."""
    from mlirstitch.runtime.emulator.jit.compiler import COMPILER

    start = time.perf_counter()
    COMPILER.functions()
    print(f"support library: {(time.perf_counter() - start) * 1e3:.0f} ms, once a process")


if __name__ == "__main__":
    main()
