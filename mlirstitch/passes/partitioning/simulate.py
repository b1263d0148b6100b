"""Running a distributed program on a model of the machine: when every task runs, and what memory it takes.

Every device has two streams, one that computes and one that communicates. A task starts when what it waits for has
ended and its stream is free on all its devices; among tasks that could start at the same time the one of the smallest
priority goes first. Devices that stand in the same meshes behave alike and are simulated once, as one *cell*.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.program import COLLECTIVE, ORDER, TRANSFER, DistributedProgram, Task

COMPUTING, COMMUNICATING, NONE = 0, 1, 2
_SHOWN = 4
"""Tasks that a message names at each end of a chain."""


@dataclass(frozen=True)
class Cell:
    """Devices that take part in the same tasks. ``representative`` stands for all of them."""

    devices: tuple[int, ...]

    @property
    def representative(self) -> int:
        """Lowest number."""
        return self.devices[0]


@dataclass(frozen=True)
class Timeline:
    """How a program runs.

    Attributes:
        start, end: seconds, by task.
        sequence: numbers of the tasks in the order in which they start: a total order that every device follows.
        seconds: when the last task ends.
        cells: groups of like devices.
        busy: seconds each cell computes.
        peak_bytes: largest sum of live buffers of a device of each cell.
        memory: per cell the (seconds, live bytes) after every change.
        link_bytes: bytes that a device of each cell sends.
    """

    start: tuple[float, ...]
    end: tuple[float, ...]
    sequence: tuple[int, ...]
    seconds: float
    cells: tuple[Cell, ...]
    busy: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    memory: tuple[tuple[tuple[float, int], ...], ...]
    link_bytes: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """Share of the time that devices do not compute, on average over the devices."""
        devices = sum(len(cell.devices) for cell in self.cells)
        busy = sum(len(cell.devices) * seconds for cell, seconds in zip(self.cells, self.busy, strict=True))
        return 1.0 - busy / (devices * self.seconds) if self.seconds > 0 else 0.0


def check_order(program: DistributedProgram) -> None:
    """Refuse a program whose dependences and op-orders contradict each other.

    Raises:
        PlanError: there is a cycle; it names its tasks.
    """
    before = program.predecessors()
    if all(first < task for task, firsts in enumerate(before) for first in firsts):
        return
    import networkx as nx  # here alone, and it takes longer to load than all of partitioning

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(before)))
    graph.add_edges_from((first, task) for task, firsts in enumerate(before) for first in firsts)
    if nx.is_directed_acyclic_graph(graph):
        return
    component = min((c for c in nx.strongly_connected_components(graph) if len(c) > 1), key=min)
    cycle = nx.find_cycle(graph.subgraph(sorted(component)))
    named = [program.tasks[first] for first, *_ in cycle if program.tasks[first].kind != ORDER]
    raise PlanError(
        "the orders of the plan contradict each other or the data: "
        + " before ".join(_shortened([program.name(task) for task in (*named, *named[:1])])),
        hint="leave out one of these orders",
        source=next((program.placed.graph.ops[t.op].source for t in named if t.op >= 0), ""),
    )


def _shortened(names: list[str]) -> list[str]:
    """The ends of a long chain, and how many are left out between them."""
    if len(names) <= 2 * _SHOWN:
        return names
    return [*names[:_SHOWN], f"{len(names) - 2 * _SHOWN} others", *names[-_SHOWN:]]


def simulate(program: DistributedProgram) -> Timeline:
    """Run a program on the model. Raises :class:`PlanError` as :func:`check_order` does."""
    check_order(program)
    run = _Run(program)
    run.schedule()
    memory = run.memory()
    return Timeline(
        tuple(run.start),
        tuple(run.end),
        tuple(run.sequence),
        max(run.end, default=0.0),
        run.cells,
        tuple(run.busy),
        tuple(max((live for _, live in changes), default=0) for changes in memory),
        tuple(tuple(changes) for changes in memory),
        tuple(run.sent),
    )


def cells_of(program: DistributedProgram) -> tuple[tuple[Cell, ...], dict[Mesh, tuple[int, ...]]]:
    """The cells of a program, and for every mesh the numbers of the cells it is made of."""
    meshes: dict[Mesh, None] = {program.placed.mesh: None}
    for task in program.tasks:
        meshes.setdefault(task.mesh)
        if task.sender is not None:
            meshes.setdefault(task.sender)
    for buffer in program.buffers:
        meshes.setdefault(buffer.mesh)
    member: dict[int, list[int]] = {device: [] for device in program.placed.mesh.devices}
    for number, mesh in enumerate(meshes):
        for device in mesh.devices:
            member[device].append(number)
    grouped: dict[tuple[int, ...], list[int]] = {}
    for device in sorted(member):
        grouped.setdefault(tuple(member[device]), []).append(device)
    cells = tuple(Cell(tuple(devices)) for devices in grouped.values())
    by_mesh = {mesh: tuple(c for c, key in enumerate(grouped) if number in key) for number, mesh in enumerate(meshes)}
    return cells, by_mesh


class _Run:
    """One simulation."""

    def __init__(self, program: DistributedProgram) -> None:
        self.program = program
        self.cells, self._of_mesh = cells_of(program)
        count = len(program.tasks)
        self.start = [0.0] * count
        self.end = [0.0] * count
        self.sequence: list[int] = []
        self.busy = [0.0] * len(self.cells)
        self.sent = [0] * len(self.cells)
        self._free = [[0.0, 0.0] for _ in self.cells]
        self._before = program.predecessors()
        self._ready = [0.0] * count

    def schedule(self) -> None:
        """Start and end of every task: always the one that can start first, of several the one of lowest priority."""
        waiting = [len(before) for before in self._before]
        after: list[list[int]] = [[] for _ in self._before]
        for number, before in enumerate(self._before):
            for first in before:
                after[first].append(number)
        queues = self._queues()
        heads: list[tuple[tuple[float, tuple[int, ...], int], int, int]] = []

        def refresh(queue: _Queue) -> None:
            head = queue.head(self._free)
            if head is not None:
                heapq.heappush(heads, (head, queue.version, queue.number))

        for number, count in enumerate(waiting):
            if not count:
                queues[number].add(0.0, self.program.tasks[number])
        for queue in dict.fromkeys(queues):
            refresh(queue)
        by_number = {queue.number: queue for queue in queues}
        while heads:
            (start, _, number), version, place = heapq.heappop(heads)
            queue = by_number[place]
            if version != queue.version:
                continue
            queue.take()
            self._run(number, start, queue)
            changed = dict.fromkeys(queue.rivals)
            for follower in after[number]:
                self._ready[follower] = max(self._ready[follower], self.end[number])
                waiting[follower] -= 1
                if not waiting[follower]:
                    queues[follower].add(self._ready[follower], self.program.tasks[follower])
                    changed.setdefault(queues[follower])
            for other in changed:
                refresh(other)

    def _queues(self) -> list[_Queue]:
        """The queue of every task: one for all tasks that need the same streams of the same cells."""
        found: dict[tuple[Mesh, Mesh | None, int], _Queue] = {}
        of_task: list[_Queue] = []
        for task in self.program.tasks:
            key = (task.mesh, task.sender, _stream(task))
            if key not in found:
                cells = {*self._of_mesh[task.mesh], *(self._of_mesh[task.sender] if task.sender is not None else ())}
                found[key] = _Queue(len(found), tuple(sorted(cells)) if key[2] != NONE else (), key[2])
            of_task.append(found[key])
        for queue in found.values():
            queue.rivals = tuple(
                other
                for other in found.values()
                if other is queue or (other.stream == queue.stream and not set(other.cells).isdisjoint(queue.cells))
            )
        return of_task

    def _run(self, number: int, start: float, queue: _Queue) -> None:
        task = self.program.tasks[number]
        self.start[number], self.end[number] = start, start + task.seconds
        self.sequence.append(number)
        for cell in queue.cells:
            self._free[cell][queue.stream] = self.end[number]
            if queue.stream == COMPUTING:
                self.busy[cell] += task.seconds
        if task.link_bytes:
            for cell in self._of_mesh[task.sender or task.mesh]:
                self.sent[cell] += task.link_bytes

    def memory(self) -> list[list[tuple[float, int]]]:
        """Per cell the live bytes after every change of them, in the order of the tasks.

        A buffer lives from the start of the task that writes it to the end of the last that reads it; arguments and
        results of the function live all the time and from then on. Views take no memory but keep what they look at.
        """
        position = {number: place for place, number in enumerate(self.sequence)}
        born, owner = self._owners()
        last = dict.fromkeys(range(len(self.program.buffers)), -1)
        for task in self.program.tasks:
            for buffer in (*task.reads, *task.writes):
                root = owner[buffer]
                last[root] = max(last[root], position[task.number])
        kept = {owner[b] for b in (*self.program.arguments, *self.program.returned)}
        changes: list[list[tuple[int, int, int]]] = [[] for _ in self.cells]
        for buffer in self.program.buffers:
            if owner[buffer.number] != buffer.number or not buffer.bytes:
                continue
            first = position[born[buffer.number]] if buffer.number in born else -1
            for cell in self._of_mesh[buffer.mesh]:
                changes[cell].append((first, 0, buffer.bytes))
                if buffer.number not in kept:
                    changes[cell].append((max(last[buffer.number], first), 1, -buffer.bytes))
        return [self._running_sum(sorted(found)) for found in changes]

    def _owners(self) -> tuple[dict[int, int], list[int]]:
        """The task that writes each buffer, and the buffer whose memory each one has."""
        born: dict[int, int] = {}
        owner = list(range(len(self.program.buffers)))
        for task in self.program.tasks:
            for buffer in task.writes:
                born[buffer] = task.number
                if self.program.buffers[buffer].view and task.reads:
                    owner[buffer] = owner[task.reads[0]]
        return born, owner

    def _running_sum(self, changes: list[tuple[int, int, int]]) -> list[tuple[float, int]]:
        total, found = 0, []
        for place, ends, amount in changes:
            total += amount
            number = self.sequence[place] if place >= 0 else -1
            seconds = 0.0 if number < 0 else self.end[number] if ends else self.start[number]
            found.append((seconds, total))
        return found


def _stream(task: Task) -> int:
    return NONE if task.kind == ORDER else COMMUNICATING if task.kind in (COLLECTIVE, TRANSFER) else COMPUTING


class _Queue:
    """Tasks that are ready and need the same streams. Those that wait for the streams alone are ordered by priority,
    the others by when they are ready; so a stream that gets busy changes one number, not the place of every task."""

    def __init__(self, number: int, cells: tuple[int, ...], stream: int) -> None:
        self.number, self.cells, self.stream = number, cells, stream
        self.rivals: tuple[_Queue, ...] = ()
        self.version = 0
        self._due: list[tuple[tuple[int, ...], int]] = []
        self._later: list[tuple[float, tuple[int, ...], int]] = []

    def add(self, ready: float, task: Task) -> None:
        """A task that may start at some second."""
        heapq.heappush(self._later, (ready, task.priority, task.number))

    def head(self, free: list[list[float]]) -> tuple[float, tuple[int, ...], int] | None:
        """The task that starts next: its start, priority and number."""
        self.version += 1
        now = max((free[cell][self.stream] for cell in self.cells), default=0.0)
        while self._later and self._later[0][0] <= now:
            _, priority, number = heapq.heappop(self._later)
            heapq.heappush(self._due, (priority, number))
        if self._due:
            return (now, *self._due[0])
        return self._later[0] if self._later else None

    def take(self) -> None:
        """The head starts."""
        if self._due:
            heapq.heappop(self._due)
        else:
            heapq.heappop(self._later)
