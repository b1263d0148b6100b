"""The simulated run of a distributed program as a Chrome trace, and the program itself as a graph for Graphviz."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from mlirstitch.driver.partition.figures import kind_of
from mlirstitch.driver.partition.partitioned import Partitioned
from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.plan_record import written
from mlirstitch.passes.partitioning.program import COLLECTIVE, COMPUTE, LOCAL, ORDER, TRANSFER, Task
from mlirstitch.passes.partitioning.simulate import Cell

ALL_DEVICES = 64
"""Up to so many devices each has rows of its own in a trace; of more, one stands for those that do the same."""

LARGEST_DRAWING = 2000
"""Most tasks of a drawn program: Graphviz takes minutes for more, and nobody reads them."""

COMPUTING, COMMUNICATING = 0, 1
_MICROSECONDS = 1e6
_COLORS = {COMPUTE: "#cfe3fb", LOCAL: "#e7e9ec", COLLECTIVE: "#fbd9b5", TRANSFER: "#f6c3d4"}


def chrome_trace(made: Partitioned) -> str:
    """Chrome's trace event format, for chrome://tracing or ui.perfetto.dev: a process per device with a row that
    computes, one that communicates, and a counter of live bytes. Times are in microseconds of the simulated step."""
    tasks = tasks_of_cells(made)
    events = [event for device, cell in _rows(made) for event in _device_events(made, device, cell, tasks[cell])]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, sort_keys=True) + "\n"


def phase_of(made: Partitioned, task: Task) -> str:
    """What a task is for: ``forward``, ``backward``, ``optimizer`` for an op, else its kind."""
    return made.plan.phases.of[task.op] if task.kind == COMPUTE else task.kind


def tasks_of_cells(made: Partitioned) -> list[list[Task]]:
    """For every cell of the timeline its tasks in the order in which they start; without mere orders."""
    found: list[list[Task]] = [[] for _ in made.timeline.cells]
    cell_of = {device: number for number, cell in enumerate(made.timeline.cells) for device in cell.devices}
    cells: dict[tuple[Mesh, ...], list[int]] = {}
    for number in made.timeline.sequence:
        task = made.program.tasks[number]
        if task.kind == ORDER:
            continue
        meshes = (task.mesh,) if task.sender is None else (task.mesh, task.sender)
        if meshes not in cells:
            cells[meshes] = sorted({cell_of[device] for mesh in meshes for device in mesh.devices})
        for cell in cells[meshes]:
            found[cell].append(task)
    return found


def dot(made: Partitioned) -> str:
    """The distributed program in the language of Graphviz: a node a task, an arrow for every buffer between two.

    Raises :class:`PlanError` for a program of more than :data:`LARGEST_DRAWING` tasks.
    """
    tasks = [task for task in made.program.tasks if task.kind != ORDER]
    if len(tasks) > LARGEST_DRAWING:
        raise PlanError(
            f"the program has {len(tasks)} tasks, a drawing at most {LARGEST_DRAWING}",
            hint="fewer micro-batches or layers; the trace and the page show programs of any size",
        )
    lines = ["digraph program {", "  node [shape=box, style=filled, fontname=sans];"]
    writer: dict[int, int] = {}
    for task in tasks:
        label = f"{made.program.name(task)}\n{_where(task)}"
        lines.append(f"  t{task.number} [label={json.dumps(label)}, fillcolor={json.dumps(_COLORS[task.kind])}];")
        writer.update((buffer, task.number) for buffer in task.writes)
    for task in tasks:
        for buffer in dict.fromkeys(task.reads):
            if buffer in writer and writer[buffer] != task.number:
                value = made.program.placed.graph.values[made.program.buffers[buffer].value]
                label = f"{value.name} {made.program.buffers[buffer].layout}"
                lines.append(f"  t{writer[buffer]} -> t{task.number} [label={json.dumps(label)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _where(task: Task) -> str:
    devices = written(task.mesh.devices)
    return f"devices {devices}" if task.sender is None else f"{written(task.sender.devices)} -> {devices}"


def _rows(made: Partitioned) -> list[tuple[int, int]]:
    """Devices that have rows, each with its cell."""
    cells = made.timeline.cells
    if made.program.placed.mesh.size > ALL_DEVICES:
        return [(cell.representative, number) for number, cell in enumerate(cells)]
    return sorted((device, number) for number, cell in enumerate(cells) for device in cell.devices)


def _device_events(made: Partitioned, device: int, cell: int, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    name = _device_name(made, device, made.timeline.cells[cell])
    yield {"name": "process_name", "ph": "M", "pid": device, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": device, "args": {"sort_index": device}}
    for row, title in ((COMPUTING, "compute"), (COMMUNICATING, "communication")):
        yield {"name": "thread_name", "ph": "M", "pid": device, "tid": row, "args": {"name": title}}
    for task in tasks:
        yield {
            "name": made.program.name(task),
            "cat": phase_of(made, task),
            "ph": "X",
            "pid": device,
            "tid": COMMUNICATING if task.kind in (COLLECTIVE, TRANSFER) else COMPUTING,
            "ts": made.timeline.start[task.number] * _MICROSECONDS,
            "dur": task.seconds * _MICROSECONDS,
            "args": _details(made, task),
        }
    for seconds, live in made.timeline.memory[cell]:
        yield {
            "name": "live bytes",
            "ph": "C",
            "pid": device,
            "ts": seconds * _MICROSECONDS,
            "args": {"live bytes": live},
        }


def _device_name(made: Partitioned, device: int, cell: Cell) -> str:
    if made.program.placed.mesh.size > ALL_DEVICES and len(cell.devices) > 1:
        return f"device {device} (as all of {written(cell.devices)})"
    return f"device {device}"


def _details(made: Partitioned, task: Task) -> dict[str, Any]:
    graph = made.program.placed.graph
    if task.kind == COMPUTE:
        return {"op": task.op, **({"source": graph.ops[task.op].source} if graph.ops[task.op].source else {})}
    details: dict[str, Any] = {"tensor": graph.values[task.value].name}
    if task.step is not None:
        details |= {"from": str(task.step.before), "to": str(task.step.after)}
    if task.kind in (COLLECTIVE, TRANSFER):
        details |= {"kind": kind_of(task), "bytes": task.link_bytes}
    return details
