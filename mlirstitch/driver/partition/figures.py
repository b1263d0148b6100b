"""What a partitioned function costs on the model of the machine, as figures: for tables, JSON, plan files and pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlirstitch.driver.partition.partitioned import Partitioned
from mlirstitch.passes.partitioning.plan_record import written
from mlirstitch.passes.partitioning.program import COLLECTIVE, COMPUTE, TRANSFER, Task


@dataclass(frozen=True)
class DeviceFigures:
    """Like devices, in numbers of one of them.

    Attributes:
        devices: their numbers, as ``0-3``.
        busy: seconds it computes.
        peak_bytes: most bytes alive at once.
        sent_bytes: bytes it sends over links.
    """

    devices: str
    busy: float
    peak_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class CommunicationFigures:
    """One sort of communication.

    Attributes:
        kind: name of the step (``AllReduce``), or of the transfer (``broadcast``).
        count: how many.
        bytes: that the busiest device moves over links, in all.
        seconds: in all.
    """

    kind: str
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class LinkFigures:
    """What goes between some devices.

    Attributes:
        between: the devices and the axes of a collective, or senders and receivers.
        hosts: whether it leaves a host.
        count, bytes, seconds: as in :class:`CommunicationFigures`.
    """

    between: str
    hosts: bool
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class NoteFigures:
    """Ops that did not follow a rule, for one reason; they are replicated over the axes."""

    axes: str
    ops: str
    reason: str
    example: str


@dataclass(frozen=True)
class Figures:
    """All of it.

    Attributes:
        plan, mesh: as given.
        seconds: of one step of the function.
        bubble: share of the time that devices do not compute, on average.
        peak_bytes: of the device with most.
        tasks: how many things devices do together.
    """

    plan: str
    mesh: str
    seconds: float
    bubble: float
    peak_bytes: int
    tasks: int
    devices: tuple[DeviceFigures, ...]
    communication: tuple[CommunicationFigures, ...]
    links: tuple[LinkFigures, ...]
    notes: tuple[NoteFigures, ...]

    def json(self) -> dict[str, Any]:
        """As JSON values, under the names of the attributes."""
        return asdict(self)


def figures(made: Partitioned, plan: str) -> Figures:
    """The figures of a partitioned function; ``plan`` is what its plan is called."""
    timeline, program = made.timeline, made.program
    devices = tuple(
        DeviceFigures(written(cell.devices), busy, peak, sent)
        for cell, busy, peak, sent in zip(
            timeline.cells, timeline.busy, timeline.peak_bytes, timeline.link_bytes, strict=True
        )
    )
    return Figures(
        plan,
        str(program.placed.mesh),
        timeline.seconds,
        timeline.bubble,
        max(timeline.peak_bytes, default=0),
        sum(task.kind in (COMPUTE, COLLECTIVE, TRANSFER) for task in program.tasks),
        devices,
        _communication(made),
        _links(made),
        _notes(made),
    )


def kind_of(task: Task) -> str:
    """What a communication is called: ``AllReduce``, or the sort of a transfer, ``broadcast``."""
    if task.kind == TRANSFER:
        return str(getattr(task.step, "kind", "transfer"))
    return type(task.step).__name__


def _communication(made: Partitioned) -> tuple[CommunicationFigures, ...]:
    found: dict[str, list[Task]] = {}
    for task in made.program.collectives():
        found.setdefault(kind_of(task), []).append(task)
    return tuple(
        CommunicationFigures(kind, len(tasks), sum(t.link_bytes for t in tasks), sum(t.seconds for t in tasks))
        for kind, tasks in sorted(found.items())
    )


def _links(made: Partitioned) -> tuple[LinkFigures, ...]:
    found: dict[tuple[str, bool], list[Task]] = {}
    for task in made.program.collectives():
        found.setdefault((_between(task), _leaves_host(made, task)), []).append(task)
    return tuple(
        LinkFigures(between, hosts, len(tasks), sum(t.link_bytes for t in tasks), sum(t.seconds for t in tasks))
        for (between, hosts), tasks in sorted(found.items())
    )


def _between(task: Task) -> str:
    if task.sender is not None:
        return f"{written(task.sender.devices)} -> {written(task.mesh.devices)}"
    axes = ", ".join(axis for axis in getattr(task.step, "axes", ()) if axis in task.mesh.sizes)
    return f"{written(task.mesh.devices)} over {axes}"


def _leaves_host(made: Partitioned, task: Task) -> bool:
    size = made.links.devices_per_host
    if task.sender is not None:
        return len({device // size for device in (*task.sender.devices, *task.mesh.devices)}) > 1
    axes = [axis for axis in getattr(task.step, "axes", ()) if axis in task.mesh.sizes]
    return any(len({device // size for device in group}) > 1 for group in task.mesh.groups(axes))


def _notes(made: Partitioned) -> tuple[NoteFigures, ...]:
    graph = made.program.placed.graph
    found: dict[tuple[str, str], list[int]] = {}
    for note in made.program.placed.notes:
        found.setdefault((", ".join(note.axes), note.reason), []).append(note.op)
    return tuple(
        NoteFigures(axes, written(ops), reason, _named(graph.ops[ops[0]])) for (axes, reason), ops in found.items()
    )


def _named(op: Any) -> str:
    return f"{op.name}{' at ' + op.source if op.source else ''}"
