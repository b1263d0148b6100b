"""What a plan made of every op: its devices, cuts, layouts, and the communication behind and in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirstitch.driver.partition.figures import kind_of
from mlirstitch.driver.partition.partitioned import Partitioned
from mlirstitch.driver.report.quantities import byte_size, seconds
from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.graph import GraphOp
from mlirstitch.passes.partitioning.plan_record import written
from mlirstitch.passes.partitioning.program import COMPUTE, LOCAL, ORDER, Task
from mlirstitch.passes.partitioning.splits import explain_splits


def explain_data(made: Partitioned, op: int | None = None) -> list[dict[str, Any]]:
    """One entry an op, or that of one: ``op``, ``name``, ``source``, ``devices``, ``cuts``, ``reads``, ``makes``,
    ``notes`` and, for one op, ``splits``, lines that say what cutting each of its loops does or why that is illegal.

    Raises :class:`PlanError` if there is no such op.
    """
    graph = made.program.placed.graph
    if op is not None and not 0 <= op < len(graph.ops):
        raise PlanError(f"there is no op {op}", hint=f"the function has ops 0 to {len(graph.ops) - 1}")
    first: dict[int, Task] = {}
    steps: dict[int, list[Task]] = {}
    for task in made.program.tasks:
        if task.kind == COMPUTE:
            first.setdefault(task.op, task)
        elif task.kind != ORDER:
            steps.setdefault(task.value, []).append(task)
    chosen = graph.ops if op is None else (graph.ops[op],)
    found = [_entry(made, item, first.get(item.number), steps) for item in chosen]
    if op is not None:
        found[0]["splits"] = explain_splits(graph.ops[op], graph).splitlines()[1:]
    return found


def explain_text(entries: Sequence[dict[str, Any]]) -> str:
    """The entries for a person."""
    lines: list[str] = []
    for entry in entries:
        at = f" at {entry['source']}" if entry["source"] else ""
        lines.append(f"{entry['name']} (op {entry['op']}){at}")
        cuts = ", ".join(f"d{cut['loop']} ({cut['extent']}) by {'/'.join(cut['axes'])}" for cut in entry["cuts"])
        lines.append(f"  devices {entry['devices']}: {cuts or 'not cut'}")
        for title in ("reads", "makes"):
            for tensor in entry[title]:
                lines.append(f"  {title} {tensor['tensor']} {tensor['shape']} as {tensor['layout']}")
                lines += [f"    {_step_text(step)}" for step in tensor["steps"]]
        lines += [f"  not cut over {', '.join(n['axes'])} along d{n['loop']}: {n['reason']}" for n in entry["notes"]]
        lines += [f"  {line.strip()}" for line in entry.get("splits", ())]
    return "\n".join(lines)


def _step_text(step: dict[str, Any]) -> str:
    times = f"{step['count']} x " if step["count"] > 1 else ""
    cost = f", {byte_size(step['bytes'])}, {seconds(step['seconds'])}" if step["bytes"] or step["seconds"] else ""
    return f"then {times}{step['kind']} over {step['over']}: {step['after']}{cost}"


def _entry(made: Partitioned, op: GraphOp, task: Task | None, steps: dict[int, list[Task]]) -> dict[str, Any]:
    placed = made.program.placed
    placement = placed.placements[op.number]
    graph = placed.graph
    reads = task.reads if task is not None else ()
    writes = task.writes if task is not None else ()
    return {
        "op": op.number,
        "name": op.name,
        "source": op.source,
        "devices": written(placement.mesh.devices),
        "cuts": [{"loop": loop, "extent": op.loops[loop], "axes": list(axes)} for loop, axes in placement.cuts],
        "reads": [
            _tensor(made, number, steps if graph.values[made.program.buffers[number].value].producer < 0 else {})
            for number in reads
        ],
        "makes": [_tensor(made, number, steps) for number in writes],
        "notes": [
            {"loop": note.loop, "axes": list(note.axes), "reason": note.reason}
            for note in placed.notes
            if note.op == op.number
        ],
    }


def _tensor(made: Partitioned, buffer: int, steps: dict[int, list[Task]]) -> dict[str, Any]:
    found = made.program.buffers[buffer]
    value = made.program.placed.graph.values[found.value]
    return {
        "tensor": value.name,
        "shape": list(value.shape),
        "layout": str(found.layout),
        "steps": _grouped(steps.get(found.value, [])),
    }


def _grouped(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Steps of a conversion, those that only differ in their place in time together."""
    found: dict[tuple[str, str, str], list[Task]] = {}
    for task in tasks:
        if task.step is None:
            continue
        kind = type(task.step).__name__ if task.kind == LOCAL else kind_of(task)
        axes = "/".join(getattr(task.step, "axes", ())) or "dims"
        over = axes if task.sender is None else f"{written(task.sender.devices)} -> {written(task.mesh.devices)}"
        found.setdefault((kind, over, str(task.step.after)), []).append(task)
    return [
        {
            "kind": kind,
            "over": over,
            "after": after,
            "count": len(same),
            "bytes": sum(task.link_bytes for task in same),
            "seconds": sum(task.seconds for task in same),
        }
        for (kind, over, after), same in found.items()
    ]
