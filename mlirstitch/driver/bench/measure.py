"""One row of the benchmark: compile a workload, count, run it on the emulated device, compare with eager."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mlirstitch.driver import ptxas
from mlirstitch.driver.bench.accuracy import EAGER_FACTOR, worst_output
from mlirstitch.driver.bench.rows import BenchRequest, Measured
from mlirstitch.driver.bench.workloads import DTYPES, Workload, get
from mlirstitch.driver.compile import Compiled, compile
from mlirstitch.driver.report.quantities import byte_size
from mlirstitch.driver.report.summary import summarise, touches
from mlirstitch.driver.report.why import all_pairs
from mlirstitch.passes.op_kind import Kind
from mlirstitch.runtime.program import Launch, Program
from mlirstitch.runtime.run_report import RunReport
from mlirstitch.target import Target

PTXAS_CHIPS = ("sm_80", "sm_90")
SPILL_FREE_TEMPLATES = ("elementwise", "row", "tile", "row_tile")
"""Templates whose kernels must fit into registers."""


def measure(name: str, request: BenchRequest) -> Measured:
    """Measure the workload. Raises whatever compiling or running raises."""
    workload = get(name)
    compiled, exporting = _compile(workload, request, request.target)
    measured = _counted(compiled, request.target)
    measured = replace(measured, compile_seconds={**exporting, **compiled.timings})
    if not request.compile_only:
        measured = _run(measured, compiled, workload, request)
    if request.ptxas:
        measured = _assembled(measured, compiled, workload, request)
    return measured


def _compile(workload: Workload, request: BenchRequest, target: str) -> tuple[Compiled, dict[str, float]]:
    """The compiled workload, and seconds spent before the compiler took over."""
    dtype = DTYPES[request.dtype]
    start = time.perf_counter()
    if request.compile_only:
        exported = workload.export(request.size, dtype)
        seconds = {"fake export": time.perf_counter() - start}
        return compile(exported, target=target, library=request.library, cache="off"), seconds
    program = workload.traced(request.size, dtype)
    seconds = {"trace": time.perf_counter() - start} if workload.training else {}
    return compile(program.module, program.inputs, target=target, library=request.library, cache="off"), seconds


def _counted(compiled: Compiled, target: str) -> Measured:
    summary = summarise(compiled.launch_plan, Target.parse(target)).to_json()
    return Measured(
        status="ok",
        message="",
        launches=summary["launches"],
        distinct_kernels=summary["distinct_kernels"],
        bytes={**summary["bytes"], "counted": None},
        peak_temporary_bytes=summary["peak_temporary_bytes"],
        between=largest_between(compiled.report),
    )


def largest_between(report: Mapping[str, Any]) -> str:
    """What would save most if a contraction took it in, in words: the largest tensor on the way to or from it, and why.

    Element-wise clusters come first: a contraction that computes such a one does away with the tensor. A cluster with
    reductions needs it again, whatever the contraction does to it.
    """
    contractions, element_wise = set[int](), set[int]()
    for cluster in report["clusters"]:
        kinds = {op["kind"] for op in cluster["ops"]}
        if Kind.COMPUTE in kinds:
            contractions.add(cluster["number"])
        elif kinds <= {Kind.LIGHT, Kind.EXPENSIVE, Kind.MOVEMENT}:
            element_wise.add(cluster["number"])
    pairs = [
        pair
        for pair in all_pairs(report)
        if (pair.producer.cluster in contractions) != (pair.consumer.cluster in contractions)
    ]
    if not pairs:
        return ""
    most = max(
        pairs, key=lambda pair: (bool({pair.producer.cluster, pair.consumer.cluster} & element_wise), pair.bytes)
    )
    contraction, other = most.producer, most.consumer
    if most.consumer.cluster in contractions:
        contraction, other = other, contraction
    size = byte_size(most.bytes)
    return f"{other} would have to enter {contraction}: {size} go from one to the other, kept apart: {most.reason}"


def _run(measured: Measured, compiled: Compiled, workload: Workload, request: BenchRequest) -> Measured:
    """Run on the emulated device; judge the results and the predicted bytes."""
    program = workload.build(request.size, DTYPES[request.dtype])
    results, report = compiled.run_with_report(*program.inputs)
    with torch.no_grad():
        wide = program.to(torch.float64)
        reference = wide.module(*wide.inputs)
        worst = worst_output(results, program.module(*program.inputs), reference)
    counted = counted_bytes(compiled.launch_plan, report)
    predicted = (measured.bytes["traffic"] or 0) + (measured.bytes["cached_rereads"] or 0)
    reasons = []
    if not worst.allowed:
        reasons.append(f"error {worst.compiled:.2e} is above {EAGER_FACTOR:g} times eager's {worst.eager:.2e}")
    wrong = mispredicted(compiled.launch_plan, report)
    if wrong or counted != predicted:
        first = next((f"{kernel}, {detail}" for kernel, detail in wrong.items()), "in sum")
        more = f", and {len(wrong) - 1} more kernels" if len(wrong) > 1 else ""
        reasons.append(f"predicted {predicted} bytes, counted {counted} ({first}{more})")
    return replace(
        measured,
        status="wrong" if reasons else "ok",
        message="; ".join(reasons),
        bytes={**measured.bytes, "counted": counted},
        run_seconds=report.seconds,
        max_error=worst.compiled,
        eager_max_error=worst.eager,
    )


def counted_bytes(program: Program, report: RunReport) -> int:
    """Bytes that the device counted for kernels, plus what library calls and copies move by definition."""
    total = 0
    for step, done in zip(program.steps, report.steps, strict=True):
        if isinstance(step, Launch):
            total += _global_bytes(done.counters or {})
        else:
            total += sum(touch.moved for touch in touches(step))
    return total


def _global_bytes(counters: Mapping[str, Any]) -> int:
    return counters["bytes_loaded"] + counters["bytes_stored"]


def mispredicted(program: Program, report: RunReport) -> dict[str, str]:
    """Kernels that moved other bytes than predicted: the first argument of which that is so, in words."""
    found: dict[str, str] = {}
    for step, done in zip(program.steps, report.steps, strict=True):
        counters = done.counters
        if not isinstance(step, Launch) or counters is None:
            continue
        moved = zip(counters["argument_bytes_loaded"], counters["argument_bytes_stored"], strict=True)
        for argument, (loaded, stored) in zip(step.arguments, moved, strict=True):
            if argument.traffic != loaded + stored:
                name = program.buffers[argument.buffer].name
                found.setdefault(step.kernel, f"{name}: {argument.traffic} against {loaded + stored}")
    return found


def _assembled(measured: Measured, compiled: Compiled, workload: Workload, request: BenchRequest) -> Measured:
    """Add what ptxas says. PTX runs on newer chips only, so every chip gets a compilation of its own."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    reasons = [measured.message] if measured.message else []
    for chip in PTXAS_CHIPS:
        built = compiled if chip == request.target else _compile(workload, request, chip)[0]
        templates = {s.kernel: s.template for s in built.launch_plan.steps if isinstance(s, Launch)}
        found[chip] = {}
        for text in built.modules.values():
            report = ptxas.check(text, chip)
            reasons += [f"ptxas for {chip}: {error}" for error in report.errors]
            for name, use in report.kernels.items():
                found[chip][name] = {"registers": use.registers, "spills": use.spill_stores + use.spill_loads}
            reasons += [
                f"{chip}: kernel {name} of template {templates[name]} spills"
                for name in report.spilling
                if templates.get(name) in SPILL_FREE_TEMPLATES
            ]
    return replace(measured, status="wrong" if reasons else "ok", message="; ".join(reasons), ptxas=found)
