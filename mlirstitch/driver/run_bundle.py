"""``mlirstitch run``: one run of a bundle from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlirstitch.driver.console import note, progress
from mlirstitch.driver.report.quantities import byte_size, count, seconds
from mlirstitch.errors import LaunchError
from mlirstitch.runtime import Executor, RunReport, open_device, read_bundle
from mlirstitch.runtime.arrays import random_inputs, read_npz, write_npz
from mlirstitch.runtime.dtypes import Array, describe_array
from mlirstitch.runtime.program import Step, title


def run_bundle(
    bundle_path: str,
    *,
    inputs_path: str | None,
    output_path: str | None,
    device: str,
    profile: bool,
    trace_path: str | None,
    report: str | None = None,
    sanitize: bool = False,
    seed: int = 0,
    engine: str | None = None,
) -> list[str]:
    """Run and return the lines for stdout: none if the outputs went to a file, else one per output.

    Raises BundleError or LaunchError. The profile is printed on stderr; ``report`` is the file for the run report.
    """
    bundle = read_bundle(bundle_path)
    executor = Executor(bundle, open_device(device, sanitize=sanitize, seed=seed, engine=engine))
    signature = executor.signature
    if inputs_path is None:
        note("no --inputs: random inputs from a fixed seed, integers are 0 or 1")
        inputs = random_inputs(signature)
    else:
        inputs = read_npz(inputs_path, signature)

    with progress(f"running {bundle_path}") as show:

        def on_step(position: int, steps: int, step: Step) -> None:
            show(f"step {position + 1} of {steps}, {title(step)}")

        outputs, done = executor.run_with_report(inputs, on_step=on_step)

    for reason in _fallbacks(done):
        note(f"not run by the JIT engine: {reason}")
    # Inputs that the program updates in place are results too.
    mutated = {mutation.buffer for mutation in signature.mutated}
    updated = [
        (value.name, array) for value, array in zip(signature.inputs, inputs, strict=True) if value.buffer in mutated
    ]
    named = [*((value.name, array) for value, array in zip(signature.outputs, outputs, strict=True)), *updated]
    if profile:
        print("\n".join(profile_lines(done)), file=sys.stderr)
    if trace_path is not None:
        _write_text(Path(trace_path), done.chrome_trace())
    if report is not None:
        _write_text(Path(report), json.dumps(done.to_json(), indent=1, sort_keys=True) + "\n")
    if output_path is not None:
        write_npz(output_path, [array for _, array in named], [name for name, _ in named])
        note(f"wrote {count(len(named), 'array')} to {output_path} ({seconds(done.seconds)})")
        return []
    return [_describe(name, array) for name, array in named]


def _fallbacks(report: RunReport) -> list[str]:
    """Why the emulator's reference engine ran kernels instead of the JIT engine, each reason once."""
    reasons = (str((step.counters or {}).get("engine_reason", "")) for step in report.steps)
    return [reason for reason in dict.fromkeys(reasons) if reason]


def profile_lines(report: RunReport) -> Iterator[str]:
    """Time, bytes and counters of every step, slowest first, then of every kernel and the total."""
    for step in sorted(report.steps, key=lambda step: -step.seconds):
        yield from _profile_line(report, step.seconds, step.argument_bytes, step.name, step.counters)
    kernels = report.by_kernel()
    if len(kernels) < report.launches:
        yield f"{report.launches} launches of {count(len(kernels), 'kernel')}:"
        for kernel in sorted(kernels, key=lambda kernel: -kernel.seconds):
            name = f"{kernel.name} x {kernel.launches}"
            yield from _profile_line(report, kernel.seconds, kernel.argument_bytes, name, kernel.counters)
    yield f"{seconds(report.seconds):>9}  total, {count(len(report.steps), 'step')} on {report.device}"
    totals = report.totals()
    if totals:
        yield f"{'':>26} {_counters(totals)}"


def _profile_line(
    report: RunReport, spent: float, size: int, name: str, counters: Mapping[str, Any] | None
) -> Iterator[str]:
    share = spent / report.seconds if report.seconds else 0.0
    yield f"{seconds(spent):>9} {share:6.1%}  {byte_size(size):>8}  {name}"
    if counters:
        yield f"{'':>26} {_counters(counters)}"


def _counters(counters: Mapping[str, Any]) -> str:
    """The counters that tell most, on one line; docs/counters.md defines them."""
    parts = [
        f"loads {byte_size(counters.get('bytes_loaded', 0))}",
        f"stores {byte_size(counters.get('bytes_stored', 0))}",
    ]
    for label, name in _COUNTED:
        value = counters.get(name, 0)
        if value:
            parts.append(f"{label} {value:,}")
    return ", ".join(parts)


_COUNTED = (
    ("sectors", "sectors_loaded"),
    ("instructions", "warp_instructions"),
    ("shared conflicts", "shared_conflicts"),
    ("barriers", "barriers"),
    ("divergent branches", "divergent_branches"),
)


def _describe(name: str, array: Array) -> str:
    text = f"{name}: {describe_array(array)}"
    if array.size == 0 or array.dtype == np.bool_:
        return text
    wide = array.astype(np.float64)
    return f"{text}, min {wide.min():.6g}, mean {wide.mean():.6g}, max {wide.max():.6g}"


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error
