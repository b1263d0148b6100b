"""Rows of the benchmark: their fields, and how they are printed. What every column means stands in docs/bench.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mlirstitch.driver.artifacts import write_json
from mlirstitch.driver.bench.peers import COMPARED
from mlirstitch.driver.report.quantities import byte_size, seconds
from mlirstitch.errors import MlirstitchError

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]


@dataclass(frozen=True)
class BenchRequest:
    """What to measure and how. Fields are the flags of ``mlirstitch bench``."""

    workloads: tuple[str, ...]
    size: str = "small"
    dtype: str = "f32"
    compile_only: bool = False
    target: str = "sm_90"
    library: str = "none"
    ptxas: bool = False
    timeout: float = 900.0

    @property
    def is_compared(self) -> bool:
        """Whether figures of others are recorded for what is measured."""
        return all(getattr(self, name) == value for name, value in COMPARED.items())

    def blank_row(self, workload: str) -> Row:
        """A row that holds what is known before anything was measured."""
        return {
            "workload": workload,
            "size": self.size,
            "dtype": self.dtype,
            "target": self.target,
            "library": self.library,
            "status": "error",
            "message": "",
        }


@dataclass(frozen=True)
class Measured:
    """What measuring one workload yields; None where it was not asked for.

    ``status`` is "ok", "wrong" (errors above the bound, or predicted bytes that were not moved). ``between`` names the
    largest tensor between a contraction and a memory-bound kernel ("" if there is none).
    """

    status: str
    message: str
    launches: dict[str, int]
    distinct_kernels: int
    bytes: dict[str, int | None]
    peak_temporary_bytes: int
    between: str = ""
    compile_seconds: dict[str, float] = field(default_factory=dict)
    run_seconds: float | None = None
    max_error: float | None = None
    eager_max_error: float | None = None
    ptxas: dict[str, dict[str, dict[str, int]]] | None = None

    def to_row(self, blank: Row) -> Row:
        """The row with these figures filled in. Infinite errors become None, which JSON can say."""
        row = {**blank, **asdict(self)}
        for name in ("max_error", "eager_max_error"):
            if row[name] is not None and row[name] == float("inf"):
                row[name] = None
        return row


_COLUMNS: tuple[str, ...] = (
    "workload",
    "status",
    "memory",
    "compute",
    "copies",
    "kernels",
    "arguments",
    "traffic",
    "re-reads",
    "temporary",
    "compile",
    "run",
    "error",
    "eager",
)


_LEFT_OUT_FIRST = ("copies", "kernels", "temporary", "re-reads", "arguments", "compile", "run")
"""Columns that go, in this order, where a terminal is too narrow."""


def print_table(rows: Sequence[Row], request: BenchRequest, file: TextIO) -> None:
    """Print the rows: colours and lines on a terminal, aligned text elsewhere.

    A terminal that is too narrow shows fewer columns and says so; a shortened figure would be of no use.
    """
    from rich.console import Console

    terminal = file.isatty()
    console = Console(file=file, width=None if terminal else 200, highlight=False)
    unlimited = Console(width=1000)
    shown: list[str] = [*_COLUMNS]
    out = list(_LEFT_OUT_FIRST)
    table = _table(rows, request, shown, terminal)
    while terminal and out and unlimited.measure(table).maximum > console.width:
        shown.remove(out.pop(0))
        table = _table(rows, request, shown, terminal)
    console.print(table)
    if len(shown) < len(_COLUMNS):
        missing = ", ".join(name for name in _COLUMNS if name not in shown)
        print(f"The terminal is too narrow for: {missing}. --json FILE has everything.", file=file)
    for row in rows:
        if row["message"]:
            print(f"{row['workload']}: {row['message']}", file=file)


def _table(rows: Sequence[Row], request: BenchRequest, shown: Sequence[str], terminal: bool) -> Table:
    from rich import box
    from rich.table import Table

    title = f"{request.size}, {request.dtype}, {request.target}, library {request.library}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE if terminal else None, pad_edge=False)
    for name in shown:
        table.add_column(name, justify="left" if name in ("workload", "status") else "right", no_wrap=True)
    for row in rows:
        cells = dict(zip(_COLUMNS, _cells(row), strict=True))
        table.add_row(*(cells[name] for name in shown), style=None if row["status"] == "ok" else "red")
    return table


def _cells(row: Row) -> list[str]:
    if "launches" not in row:
        return [row["workload"], row["status"], *[""] * (len(_COLUMNS) - 2)]
    launches, moved = row["launches"], row["bytes"]
    return [
        row["workload"],
        row["status"],
        str(launches["memory_bound"]),
        str(launches["compute_bound"]),
        str(launches["copies"]),
        str(row["distinct_kernels"]),
        byte_size(moved["arguments"]),
        byte_size(moved["traffic"]),
        byte_size(moved["cached_rereads"]),
        byte_size(row["peak_temporary_bytes"]),
        seconds(sum(row["compile_seconds"].values())),
        "" if row["run_seconds"] is None else seconds(row["run_seconds"]),
        "" if row["max_error"] is None else f"{row['max_error']:.1e}",
        "" if row["eager_max_error"] is None else f"{row['eager_max_error']:.1e}",
    ]


def check_json_path(path: str | None) -> None:
    """Raise MlirstitchError if rows cannot be written to ``path``; None and "-" (stdout) always can."""
    if path is None or path == "-":
        return
    try:
        Path(path).open("a").close()
    except OSError as error:
        raise MlirstitchError(f"cannot write {path}: {error.strerror or error}") from error


def write_rows(path: str | None, data: Any) -> None:
    """Write the rows and what belongs to them as JSON: to a file, to stdout ("-"), or not at all (None)."""
    if path == "-":
        sys.stdout.write(json.dumps(data, indent=1, sort_keys=True) + "\n")
    elif path is not None:
        write_json(Path(path), data)
