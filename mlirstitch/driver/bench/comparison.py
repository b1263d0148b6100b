"""The rows of the benchmark beside what was recorded of others, and the verdict: which bounds every row keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from mlirstitch.driver.bench.bounds import ROUNDING, Bound, bounds, shortfalls
from mlirstitch.driver.bench.peers import PEERS, Figures, comparable

if TYPE_CHECKING:
    from mlirstitch.driver.bench.rows import Row

_COLUMNS = ("workload", "mlirstitch", "reference", "with epilogues", "XLA", "IREE O3", "Inductor", "traffic", "bounds")
_LEFT = ("workload", "bounds")


def print_comparison(rows: Sequence[Row], file: TextIO) -> None:
    """Print what was recorded of others beside the rows that can be compared, if there are any, and the verdict."""
    from rich.console import Console
    from rich.table import Table

    shown = [row for row in rows if comparable(row)]
    if not shown:
        return
    title = "memory-bound + compute-bound launches / MB of arguments; * did not compile to the end"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for row in shown:
        table.add_row(*_cells(row))
    Console(file=file, width=None if file.isatty() else 200, highlight=False).print(table)
    for row in shown:
        line = what_iree_takes_in(row)
        if line:
            print(line, file=file)
    print(verdict(rows), file=file)


def _cells(row: Row) -> list[str]:
    peers, launches = PEERS[row["workload"]], row["launches"]
    memory_bound = launches["memory_bound"] + launches["copies"]
    ours = Figures(memory_bound, launches["compute_bound"], round(row["bytes"]["arguments"] / 1e6))
    theirs = (peers.reference, peers.epilogues, peers.xla, peers.iree, peers.inductor)
    times = next(bound.ours for bound in bounds(row) if bound.against == "arguments")
    kept = "; ".join(shortfalls(row)) or "kept"
    return [row["workload"], *map(str, (ours, *theirs)), f"{times:.2f} x", kept]


def what_iree_takes_in(row: Row) -> str:
    """For a row in which IREE moves fewer bytes the op that would have to enter a contraction, else ""."""
    iree, megabytes = PEERS[row["workload"]].iree.megabytes, row["bytes"]["arguments"] / 1e6
    if iree is None or megabytes <= iree + ROUNDING:
        return ""
    return f"{row['workload']}: IREE moves {megabytes - iree:.0f} MB fewer; {row['between'] or 'nothing is kept apart'}"


def verdict(rows: Sequence[Row]) -> str:
    """For every bound how many of the rows it applies to keep it, and which rows could not be compared."""
    asked: dict[str, list[bool]] = {}
    for row in rows:
        for bound in bounds(row) if comparable(row) else ():
            asked.setdefault(_name(bound), []).append(bound.holds)
    lines = [f"  {name}: {sum(kept)} of {len(kept)} rows" for name, kept in asked.items()]
    missing = [row["workload"] for row in rows if not comparable(row)]
    if missing:
        lines.append(f"  not compared: {', '.join(missing)}")
    return "\n".join(["Bounds kept:", *lines])


def _name(bound: Bound) -> str:
    if bound.against == "arguments":
        return f"memory-bound traffic at most {bound.theirs:g} times the arguments"
    most = "fewer" if bound.strict else "no more"
    return (
        f"{most} {bound.what} than {bound.against}"
        if bound.against != "reference"
        else f"{most} {bound.what} than the plan by stages"
    )


def all_kept(rows: Sequence[Row]) -> bool:
    """Whether every row was compared and keeps all its bounds."""
    return all(comparable(row) and not shortfalls(row) for row in rows)
