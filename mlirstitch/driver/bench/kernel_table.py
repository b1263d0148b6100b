"""How the table of kernels is printed; ``python -m mlirstitch.driver.bench.kernel_table ROWS.json`` prints Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

Row = dict[str, Any]

_COMPARED = ("registers", "shared_bytes", "shuffles", "barriers", "statements")
"""Figures printed as ``measured / bar``."""

COLUMNS = (
    *("kernel", "schedule", "registers", "shared", "shuffles", "barriers", "statements"),
    *("spills", "local", "wide", ".nc", "default", "peers"),
)


def print_kernels(rows: Sequence[Row], file: TextIO) -> None:
    """Print the rows: colours and lines on a terminal, aligned text elsewhere."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = file.isatty()
    console = Console(file=file, width=None if terminal else 240, highlight=False)
    title = "measured / bar + allowance, sm_90; ! is over that"
    table = Table(title=title, title_justify="left", box=box.SIMPLE if terminal else None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("kernel", "schedule", "default", "peers") else "right")
    for row in rows:
        table.add_row(*cells(row), style=None if row["ok"] else "red")
    console.print(table)
    if any(row["measured"]["registers"] is None for row in rows):
        print("No ptxas: registers and spills are not known. pip install nvidia-cuda-nvcc has it.", file=file)


def markdown(rows: Sequence[Row]) -> str:
    """The same table in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cells(row: Row) -> list[str]:
    """What the table says about one row, a text per column."""
    measured, default = row["measured"], row["default"]
    return [
        row["kernel"],
        row["schedule"],
        *(_compared(row, name) for name in _COMPARED),
        _flagged(row, "spill_bytes"),
        _flagged(row, "local_bytes"),
        _yes(row, "full_width"),
        _yes(row, "read_only_loads"),
        "same" if default == measured else _default(default),
        ", ".join(row["peers"]),
    ]


def _compared(row: Row, name: str) -> str:
    value, limit = row["measured"][name], row["bar"].get(name)
    text = "no ptxas" if value is None else str(value)
    text += f" / {limit}" if limit is not None else " / -"
    more = (row["allowance"] or {}).get(name)
    text += f" + {more}" if more else ""
    return text + _mark(row, name)


def _flagged(row: Row, name: str) -> str:
    value = row["measured"][name]
    return "no ptxas" if value is None else f"{value}{_mark(row, name)}"


def _yes(row: Row, name: str) -> str:
    return "yes" if row["verdicts"][name] else "no !"


def _mark(row: Row, name: str) -> str:
    return "" if row["verdicts"].get(name, True) else " !"


def _default(figures: dict[str, Any]) -> str:
    registers = "" if figures["registers"] is None else f", {figures['registers']} registers"
    return f"{figures['schedule'].partition(', vector')[0]}{registers}, {figures['statements']} statements"


def main(arguments: Sequence[str]) -> int:
    """Print the Markdown table of the rows in a JSON file that ``mlirstitch bench --kernels --json`` wrote."""
    if len(arguments) != 1:
        print("usage: python -m mlirstitch.driver.bench.kernel_table ROWS.json", file=sys.stderr)
        return 2
    sys.stdout.write(markdown(json.loads(Path(arguments[0]).read_text())["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
