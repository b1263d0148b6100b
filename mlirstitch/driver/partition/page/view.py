"""What the page draws, as numbers: every task of every group of like devices, and live bytes over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirstitch.driver.partition.partitioned import Partitioned
from mlirstitch.driver.partition.trace import phase_of, tasks_of_cells
from mlirstitch.passes.partitioning.phases import BACKWARD, FORWARD, OPTIMIZER
from mlirstitch.passes.partitioning.plan_record import written
from mlirstitch.passes.partitioning.program import COLLECTIVE, LOCAL, TRANSFER

KINDS = (FORWARD, BACKWARD, OPTIMIZER, LOCAL, COLLECTIVE, TRANSFER)
"""Kinds of tasks as the page colors them; the last two are on the row of communication."""

MOST_POINTS = 4000
"""Points of a memory curve that are drawn, at most; of more, the largest of each interval."""

_PICOSECONDS = 12


def page_data(made: Partitioned) -> dict[str, Any]:
    """JSON values: ``seconds``, ``kinds``, ``names`` of tasks, and ``rows``, one a group of like devices, each with
    ``tasks`` as [start, seconds, kind, place in time or -1, name] and ``memory`` as [start, live bytes]."""
    timeline = made.timeline
    names: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    cells = zip(timeline.cells, tasks_of_cells(made), timeline.memory, timeline.peak_bytes, strict=True)
    for cell, tasks, memory, peak in cells:
        drawn = [
            [
                round(timeline.start[task.number], _PICOSECONDS),
                round(task.seconds, _PICOSECONDS),
                KINDS.index(phase_of(made, task)),
                task.at[0][1] if task.at else -1,
                names.setdefault(made.program.name(task), len(names)),
            ]
            for task in tasks
            if task.seconds > 0
        ]
        rows.append(
            {
                "devices": written(cell.devices),
                "peak": peak,
                "tasks": drawn,
                "memory": _thinned(memory, timeline.seconds),
            }
        )
    return {"seconds": timeline.seconds, "kinds": KINDS, "names": list(names), "rows": rows}


def _thinned(memory: Sequence[tuple[float, int]], total: float) -> list[list[float]]:
    """The curve with one point an instant, and, where there are too many, the largest of each short interval."""
    last: dict[float, int] = {}
    for seconds, live in memory:
        last[seconds] = max(live, last.get(seconds, 0))
    points = [[round(seconds, _PICOSECONDS), live] for seconds, live in last.items()]
    if len(points) <= MOST_POINTS or total <= 0:
        return points
    largest: dict[int, list[float]] = {}
    for point in points:
        place = int(point[0] / total * MOST_POINTS)
        if place not in largest or point[1] > largest[place][1]:
            largest[place] = point
    return list(largest.values())
