"""``mlirstitch bench --compile-time``: how long linalg to PTX takes without a cache, with a full one, and edited.

Every measurement is a process of its own that starts with the text of an imported model, since importing is PyTorch's
time. Its clock starts before the compiler is loaded and ends when PTX and launch plan are there. Each is the least of
several runs: whatever else the machine does only adds. The time of the processor stands beside it: far less than what
the clock says means that the machine was busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mlirstitch.driver.bench.rows import BenchRequest, check_json_path, write_rows
from mlirstitch.driver.console import progress
from mlirstitch.errors import MlirstitchError

RUNS = 3
"""Runs of each measurement."""

COLUMNS = ("workload", "without", "(CPU)", "warm", "edited", "distinct kernels", "bars")

Row = dict[str, Any]


@dataclass(frozen=True)
class TimeBar:
    """Most seconds that a workload may take without a cache and with a full one, and most memory-bound kernels."""

    without: float
    warm: float
    kernels: int


BARS = {("bert_base", "real"): TimeBar(without=5.0, warm=1.0, kernels=12)}
"""By workload and size; on two cores that do nothing else."""


def run_compile_time_benchmark(request: BenchRequest, json_path: str | None) -> list[Row]:
    """Measure the workloads of a request and print a table. Raises MlirstitchError if one does not compile."""
    check_json_path(json_path)
    rows: list[Row] = []
    with progress("compile time") as show, tempfile.TemporaryDirectory(prefix="mlirstitch-") as folder:
        for name in request.workloads:
            rows.append(measure_compile_time(name, request, Path(folder) / name, show))
    print_compile_times(rows, request, sys.stdout if json_path != "-" else sys.stderr)
    write_rows(json_path, rows)
    return rows


def measure_compile_time(name: str, request: BenchRequest, folder: Path, show: Callable[[str], None]) -> Row:
    """One row. ``folder`` is made and receives the texts and the caches."""
    from mlirstitch.driver.bench.workloads import DTYPES, get
    from mlirstitch.driver.sources import read_source

    show(f"{name}: import")
    folder.mkdir(parents=True)
    text = read_source(get(name).export(request.size, DTYPES[request.dtype])).text
    source = folder / "input.mlir"
    source.write_text(text)
    found: dict[str, list[Row]] = {"without": [], "filled": [], "warm": [], "edited": []}
    for run in range(RUNS):
        cache = str(folder / f"cache{run}")
        for kind in found:
            show(f"{name}: {kind}, run {run + 1} of {RUNS}")
            if kind == "edited":
                source.write_text(f"// edited {run}\n{text}")
            found[kind].append(_in_child(source, request, "off" if kind == "without" else cache))
        source.write_text(text)
    least = {kind: min(runs, key=lambda row: row["seconds"]) for kind, runs in found.items()}
    row = {
        "workload": name,
        "size": request.size,
        "target": request.target,
        "library": request.library,
        "seconds": {kind: row["seconds"] for kind, row in least.items()},
        "cpu_seconds": {kind: min(run["cpu_seconds"] for run in runs) for kind, runs in found.items()},
        "stages": {kind: row["stages"] for kind, row in least.items()},
        "distinct_kernels": least["without"]["distinct_kernels"],
        "cached": least["warm"]["cached"],
    }
    return {**row, "verdicts": judge(row)}


def judge(row: Row) -> dict[str, bool]:
    """Whether the row keeps each of its bars, and the warm run used the cache."""
    verdicts = {"cached": row["cached"]}
    bar = BARS.get((row["workload"], row["size"]))
    if bar is not None:
        verdicts["without"] = row["seconds"]["without"] <= bar.without
        verdicts["warm"] = row["seconds"]["warm"] <= bar.warm
        verdicts["kernels"] = row["distinct_kernels"] <= bar.kernels
    return verdicts


def print_compile_times(rows: Sequence[Row], request: BenchRequest, file: TextIO) -> None:
    """Print the rows, in seconds."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = file.isatty()
    console = Console(file=file, width=None if terminal else 160, highlight=False)
    title = f"seconds from linalg to PTX, least of {RUNS} processes: {request.size}, {request.target}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE if terminal else None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("workload", "bars") else "right", no_wrap=True)
    for row in rows:
        missed = [name for name, kept in row["verdicts"].items() if not kept]
        verdict = f"over: {', '.join(missed)}" if missed else "kept" if len(row["verdicts"]) > 1 else ""
        without, warm, edited = (f"{row['seconds'][kind]:.2f}" for kind in ("without", "warm", "edited"))
        cpu = f"{row['cpu_seconds']['without']:.2f}"
        cells = (row["workload"], without, cpu, warm, edited, str(row["distinct_kernels"]), verdict)
        table.add_row(*cells, style="red" if missed else None)
    console.print(table)


def _in_child(source: Path, request: BenchRequest, cache: str) -> Row:
    options = {"target": request.target, "library": request.library, "cache": cache}
    command = [sys.executable, "-m", "mlirstitch.driver.bench.compile_time", str(source), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=request.timeout)
    if done.returncode:
        raise MlirstitchError(f"{source.parent.name} does not compile:\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _child(source: str, options: str) -> Row:
    import time

    started = time.perf_counter()
    from mlirstitch.driver.compile import compile_spec
    from mlirstitch.options import CompileOptions

    compiled = compile_spec(source, None, CompileOptions(**json.loads(options)))
    plan = compiled.launch_plan
    took, cpu = time.perf_counter() - started, time.process_time()
    from mlirstitch.driver.report.summary import summarise
    from mlirstitch.target import Target

    return {
        "seconds": took,
        "cpu_seconds": cpu,
        "stages": compiled.timings,
        "cached": "cache" in compiled.timings,
        "distinct_kernels": summarise(plan, Target.parse(json.loads(options)["target"])).distinct_kernels,
    }


if __name__ == "__main__":
    print(json.dumps(_child(*sys.argv[1:])))
