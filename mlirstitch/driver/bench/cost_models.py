"""``mlirstitch bench --cost-models``: does the latency evaluator rank schedules as the emulated device does?

For every cluster, the schedules that its template offers are predicted and then run on the emulated device. What was
counted of a schedule costs the longer of two times (:func:`counted_cost`); the table shows the rank correlation of the
two, and by how much predicted instructions and sectors are off. docs/cost-models.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
from mlir import ir

from mlirstitch.dialects import parse_module, stitch
from mlirstitch.dialects.schedule import Schedule
from mlirstitch.driver.bench.cost_model_cases import CLUSTER_CASES, ClusterCase
from mlirstitch.driver.bench.rows import Row, check_json_path, write_rows
from mlirstitch.driver.bench.workloads import FunctionModule
from mlirstitch.driver.console import progress
from mlirstitch.driver.sources import read_source
from mlirstitch.driver.stages import run_stages
from mlirstitch.driver.torch_import.exporting import expand_gradients
from mlirstitch.driver.tuning.costs import run_counted, weighed
from mlirstitch.errors import MlirstitchError
from mlirstitch.options import CompileOptions
from mlirstitch.passes.stitching.cost import KernelFigures, latency_seconds
from mlirstitch.passes.stitching.template import Cluster, Template, templates
from mlirstitch.passes.structured import functions
from mlirstitch.target import Target

SCHEDULES = 10
"""Schedules of a cluster that are compared."""

LEAST_SCHEDULES = 8
LEAST_CORRELATION = 0.8


@dataclass(frozen=True)
class ComparedSchedule:
    """One schedule, predicted and counted.

    Attributes:
        schedule: which one.
        predicted, counted: seconds.
        instructions, sectors: predicted over counted.
    """

    schedule: Schedule
    predicted: float
    counted: float
    instructions: float
    sectors: float


@dataclass(frozen=True)
class ComparedCluster:
    """A row of the table."""

    name: str
    template: str
    schedules: tuple[ComparedSchedule, ...]

    @property
    def correlation(self) -> float | None:
        """Spearman's coefficient of predicted and counted seconds; None where all schedules cost the same."""
        return spearman([each.predicted for each in self.schedules], [each.counted for each in self.schedules])

    @property
    def holds(self) -> bool:
        """Enough schedules, and ranked well enough."""
        found = self.correlation
        return len(self.schedules) >= LEAST_SCHEDULES and found is not None and found >= LEAST_CORRELATION

    def to_row(self) -> Row:
        """As plain data."""
        return {
            "cluster": self.name,
            "template": self.template,
            "correlation": self.correlation,
            "ok": self.holds,
            "schedules": [
                {
                    "schedule": str(each.schedule),
                    "predicted_seconds": each.predicted,
                    "counted_seconds": each.counted,
                    "instructions_ratio": each.instructions,
                    "sectors_ratio": each.sectors,
                }
                for each in self.schedules
            ],
        }


def counted_cost(counters: Sequence[Mapping[str, Any]], target: Target) -> float:
    """Seconds: the longer of counted warp instructions x their cycles, and counted sectors x 32 bytes / bandwidth.

    All multiprocessors share in the instructions, whatever the number of blocks.
    """
    return sum(weighed(each, target.sms, target) for each in counters)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation, equal values sharing the mean of their ranks; None if either is the same throughout."""
    ranks = [_ranks(np.asarray(values, np.float64)) for values in (first, second)]
    if any(np.ptp(each) == 0 for each in ranks):
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]


def compare_clusters(
    cases: Sequence[ClusterCase] = CLUSTER_CASES,
    chip: str = "sm_90",
    limit: int = SCHEDULES,
    on_start: Callable[[str], None] = lambda name: None,
) -> list[ComparedCluster]:
    """One row a case, in order. ``on_start`` is called with each name when its turn comes.

    Raises MlirstitchError if a case is not stitched to one kernel, or the chip is unknown.
    """
    target = Target.parse(chip)
    rows: list[ComparedCluster] = []
    for case in cases:
        on_start(case.name)
        rows.append(_compare(case, target, limit))
    return rows


def _compare(case: ClusterCase, target: Target, limit: int) -> ComparedCluster:
    module: Any = FunctionModule(case.function)
    if case.gradients:
        module = expand_gradients(module, case.inputs())
    source = read_source(module, case.inputs())
    options = CompileOptions(target=target.chip, to_level="stitched", cache="off")
    stitched = parse_module(run_stages(source.text, options, source_name=source.name).texts["stitched"])
    with stitched.context, ir.Location.unknown(stitched.context):
        found = [each for each in functions(stitched.operation) if stitch.SCHEDULE.get(each) is not None]
        if len(found) != 1:
            raise MlirstitchError(f"{case.name} is stitched to {len(found)} kernels, not one")
        template = _template_of(found[0])
        # All predictions come before the first run.
        predicted = [
            (schedule, template.figures(Cluster.of_function(found[0]), schedule, target))
            for schedule in template.candidates(Cluster.of_function(found[0]), target, limit)
        ]
        compared = tuple(_run(found[0], schedule, figures, target) for schedule, figures in predicted)
    return ComparedCluster(case.name, template.name, compared)


def _template_of(function: ir.Operation) -> Template:
    name = stitch.SCHEDULE.require(function).template
    return next(template for template in templates() if template.name == name)


def _run(function: ir.Operation, schedule: Schedule, figures: KernelFigures, target: Target) -> ComparedSchedule:
    counters = run_counted(function, schedule, target)
    instructions = sum(sum(each["instructions"].values()) for each in counters)
    sectors = sum(each["sectors_loaded"] + each["sectors_stored"] for each in counters)
    return ComparedSchedule(
        schedule,
        latency_seconds(figures, target),
        counted_cost(counters, target),
        figures.warp_instructions / instructions,
        figures.sectors / sectors,
    )


_COLUMNS = ("cluster", "template", "schedules", "slowest / fastest", "rank correlation", "instructions", "sectors")


def print_clusters(rows: Sequence[ComparedCluster], file: TextIO) -> None:
    """Print the rows: colours and lines on a terminal, aligned text elsewhere."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = file.isatty()
    console = Console(file=file, width=None if terminal else 160, highlight=False)
    table = Table(box=box.SIMPLE if terminal else None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("cluster", "template") else "right")
    for row in rows:
        table.add_row(*_cells(row), style=None if row.holds else "red")
    console.print(table)


def _cells(row: ComparedCluster) -> list[str]:
    costs = [each.counted for each in row.schedules]
    correlation = "-" if row.correlation is None else f"{row.correlation:.2f}"
    return [
        row.name,
        row.template,
        str(len(row.schedules)),
        f"{max(costs) / min(costs):.2f}",
        correlation if row.holds else f"{correlation} !",
        _range([each.instructions for each in row.schedules]),
        _range([each.sectors for each in row.schedules]),
    ]


def _range(ratios: Sequence[float]) -> str:
    """Deviations from 1, the least and the largest."""
    return f"{min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}"


def run_cost_model_benchmark(chip: str, json_path: str | None = None) -> list[ComparedCluster]:
    """Compare all clusters and print the table on stdout; write the rows as JSON if asked to.

    ``json_path`` "-" is stdout; the table goes to stderr then. Raises MlirstitchError before anything is measured if
    the file cannot be written.
    """
    check_json_path(json_path)
    with progress("bench --cost-models") as show:
        rows = compare_clusters(chip=chip, on_start=show)
    print_clusters(rows, sys.stderr if json_path == "-" else sys.stdout)
    write_rows(json_path, {"target": chip, "rows": [row.to_row() for row in rows]})
    return rows
