"""``mlirstitch bench --kernels``: the PTX of well-known kernels, measured and held against bars.

Every program compiles to one kernel. Where the default schedule is not the one that the bar was measured with, the
kernel is compiled with that schedule too, so that like is compared with like.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlir import ir

from mlirstitch.dialects import parse_module, stitch
from mlirstitch.dialects.schedule import Schedule
from mlirstitch.driver import ptxas
from mlirstitch.driver.bench.kernel_bars import REGISTER_SLACK, Allowance, Bar
from mlirstitch.driver.bench.kernel_cases import KERNEL_CASES, KernelCase
from mlirstitch.driver.bench.kernel_table import print_kernels
from mlirstitch.driver.bench.ptx_figures import GlobalAccess, figures_of, kernel_texts
from mlirstitch.driver.bench.rows import check_json_path, write_rows
from mlirstitch.driver.bench.workloads import FunctionModule
from mlirstitch.driver.console import progress
from mlirstitch.driver.sources import read_source
from mlirstitch.driver.stages import StageResult, run_stages
from mlirstitch.errors import MlirstitchError
from mlirstitch.options import CompileOptions
from mlirstitch.passes.structured import functions
from mlirstitch.runtime import decode_program
from mlirstitch.runtime.program import Launch, Program

TARGET = "sm_90"
"""Chip that the bars are for."""

FULL_WIDTH = 128
"""Bits of an access of a whole vector."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Figures:
    """What was measured of one kernel; registers, spills and stack are None without ptxas.

    ``accesses``: per kernel argument that the code touches: its elements, widths of its loads and of its stores in
    bits, and whether all its loads are read-only ones.
    """

    schedule: Schedule
    registers: int | None
    spill_bytes: int | None
    stack_bytes: int | None
    shared_bytes: int
    shuffles: int
    barriers: int
    statements: int
    local_bytes: int
    accesses: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "schedule": schedule_text(self.schedule),
            "registers": self.registers,
            "spill_bytes": self.spill_bytes,
            "stack_bytes": self.stack_bytes,
            "shared_bytes": self.shared_bytes,
            "shuffles": self.shuffles,
            "barriers": self.barriers,
            "statements": self.statements,
            "local_bytes": self.local_bytes,
            "accesses": list(self.accesses),
        }


def schedule_text(schedule: Schedule) -> str:
    """A schedule in a line: ``row: grid 4096, block 256, vector 4, lanes=256 mode=resident``."""
    parameters = " ".join(f"{name}={value}" for name, value in schedule.parameters)
    cluster = f", cluster {schedule.cluster_blocks}" if schedule.cluster_blocks > 1 else ""
    return (
        f"{schedule.template}: grid {schedule.grid[0]}{cluster}, block {schedule.block[0]}, vector {schedule.vector}, "
        f"{parameters}"
    )


def measure_kernels(
    cases: Sequence[KernelCase] = KERNEL_CASES, on_start: Callable[[str], None] = lambda name: None
) -> list[Row]:
    """One row per case, in order. ``on_start`` is called with each name when its turn comes.

    Raises MlirstitchError if a case does not compile to one kernel, or ptxas refuses it.
    """
    rows: list[Row] = []
    for case in cases:
        on_start(f"{case.name}, {case.schedule}")
        rows.append(_measure(case))
    return rows


def versions() -> dict[str, str | None]:
    """What the figures depend on: LLVM, ptxas (None if there is none) and the chip."""
    from importlib.metadata import version

    llvm = ".".join(version("xtc-mlir-python-bindings").split(".")[:3])
    return {"llvm": llvm, "ptxas": ptxas.version(), "target": TARGET}


def _measure(case: KernelCase) -> Row:
    options = CompileOptions(target=TARGET, to_level="stitched")
    source = read_source(FunctionModule(case.function), case.inputs())
    stitched = run_stages(source.text, options, source_name=source.name).texts["stitched"]
    default = _figures(case, stitched, None)
    measured = default if case.force is None else _figures(case, stitched, case.force(default.schedule))
    verdicts = judge(measured, case.bar, case.allowance)
    return {
        "kernel": case.name,
        "schedule": case.schedule,
        "measured": measured.to_json(),
        "default": default.to_json(),
        "bar": {name: limit for name, limit in vars(case.bar).items() if limit is not None},
        "allowance": asdict(case.allowance) if case.allowance is not None else None,
        "peers": [peer.text for peer in case.peers],
        "verdicts": verdicts,
        "ok": all(verdicts.values()),
    }


def judge(figures: Figures, bar: Bar, allowance: Allowance | None = None) -> dict[str, bool]:
    """Whether each figure holds its bar and allowance; figures without a bar, or not measured, are left out."""
    more = {"shuffles": allowance.shuffles, "statements": allowance.statements} if allowance is not None else {}
    limits = {
        "registers": bar.registers + REGISTER_SLACK,
        "shared_bytes": bar.shared_bytes,
        "shuffles": bar.shuffles,
        "barriers": bar.barriers,
        "statements": bar.statements,
        "spill_bytes": 0,
        "stack_bytes": 0,
        "local_bytes": 0,
    }
    found = {name: getattr(figures, name) for name in limits}
    held = {
        name: found[name] <= limit + more.get(name, 0)
        for name, limit in limits.items()
        if limit is not None and found[name] is not None
    }
    largest = max((access["elements"] for access in figures.accesses), default=0)
    full = [access for access in figures.accesses if access["elements"] == largest]
    held["full_width"] = all({*a["load_bits"], *a["store_bits"]} <= {FULL_WIDTH} for a in full)
    held["read_only_loads"] = all(a["read_only"] for a in figures.accesses if a["access"] == "read")
    return held


def _figures(case: KernelCase, stitched: str, schedule: Schedule | None) -> Figures:
    """Compile the one kernel of a stitched module, with ``schedule`` if given, and measure it."""
    module = parse_module(stitched)
    with module.context:
        used = _set_schedule(case, module.operation, schedule)
    result = run_stages(module, CompileOptions(target=TARGET, from_level="stitched"))
    program, launch = _only_launch(case, result)
    ptx = result.ptx[launch.module]
    figures = figures_of(kernel_texts(ptx)[launch.kernel])
    use = _assembled(case, ptx, launch.kernel)
    return Figures(
        schedule=used,
        registers=use.registers if use else None,
        spill_bytes=use.spill_stores + use.spill_loads if use else None,
        stack_bytes=use.stack if use else None,
        shared_bytes=figures.shared_bytes + launch.shared_bytes,
        shuffles=figures.shuffles,
        barriers=figures.barriers,
        statements=figures.statements,
        local_bytes=figures.local_bytes,
        accesses=_by_argument(case, program, launch, figures.accesses),
    )


def _set_schedule(case: KernelCase, module: ir.Operation, schedule: Schedule | None) -> Schedule:
    """Give the one cluster function the schedule, and return the one it has then."""
    clusters = [function for function in functions(module) if stitch.SCHEDULE.get(function) is not None]
    if len(clusters) != 1:
        raise MlirstitchError(f"{case.name} is stitched to {len(clusters)} kernels, not one")
    if schedule is not None:
        stitch.SCHEDULE.set(clusters[0], schedule)
    used = stitch.SCHEDULE.get(clusters[0])
    if used is None:
        raise MlirstitchError(f"{case.name} has no schedule")
    return used


def _only_launch(case: KernelCase, result: StageResult) -> tuple[Program, Launch]:
    if result.program is None:
        raise MlirstitchError(f"{case.name} has no launch plan")
    program = decode_program(result.program)
    launches = [step for step in program.steps if isinstance(step, Launch)]
    if len(launches) != 1 or len(program.steps) != 1:
        raise MlirstitchError(f"{case.name} takes {len(program.steps)} steps, not one launch")
    return program, launches[0]


def _assembled(case: KernelCase, ptx: str, kernel: str) -> ptxas.KernelUse | None:
    if ptxas.find_ptxas() is None:
        return None
    report = ptxas.check(ptx, TARGET)
    if not report.accepted:
        raise MlirstitchError(f"ptxas refuses the kernel of {case.name}: {report.errors[0]}")
    return report.kernels[kernel]


def _by_argument(
    case: KernelCase, program: Program, launch: Launch, accesses: Sequence[GlobalAccess]
) -> tuple[dict[str, Any], ...]:
    found: list[dict[str, Any]] = []
    if any(access.argument < 0 for access in accesses):
        raise MlirstitchError(f"{case.name}: a global access does not follow from a kernel argument")
    for number, argument in enumerate(launch.arguments):
        own = [access for access in accesses if access.argument == number]
        buffer = program.buffers[argument.buffer]
        loads = [access for access in own if not access.store]
        found.append(
            {
                "argument": buffer.name or buffer.role,
                "access": argument.access,
                "elements": math.prod(buffer.shape),
                "load_bits": sorted({access.bits for access in loads}),
                "store_bits": sorted({access.bits for access in own if access.store}),
                "read_only": all(access.read_only for access in loads),
            }
        )
    return tuple(found)


def run_kernel_benchmark(json_path: str | None = None) -> list[Row]:
    """Measure all kernels and print the table on stdout; write the rows as JSON if asked to.

    ``json_path`` "-" is stdout; the table goes to stderr then. Raises MlirstitchError before anything is measured if
    the file cannot be written.
    """
    check_json_path(json_path)
    with progress("bench --kernels") as show:
        rows = measure_kernels(on_start=show)
    print_kernels(rows, sys.stderr if json_path == "-" else sys.stdout)
    write_rows(json_path, {"versions": versions(), "rows": rows})
    return rows
