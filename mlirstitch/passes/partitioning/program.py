"""The distributed program: what every group of devices computes, converts and moves, with the buffers between.

Devices of one mesh do the same in step, each on its own part, so a task stands for all of them: its size does not grow
with the number of devices. ``Buffer.layout`` says which part each one has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.layout import Layout
from mlirstitch.passes.partitioning.placement import At, PlacedGraph
from mlirstitch.passes.partitioning.steps import Step

COMPUTE, LOCAL, COLLECTIVE, TRANSFER, ORDER = "compute", "local", "collective", "transfer", "order"
KINDS = (COMPUTE, LOCAL, COLLECTIVE, TRANSFER, ORDER)
"""``local``: a step of a conversion without communication (slice, concat, accumulate). ``transfer``: between meshes."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One value, or the part of it at one place in time, on one mesh.

    Attributes:
        number: its position in ``DistributedProgram.buffers``.
        value: number of the graph's value.
        mesh: the devices that hold it.
        layout: which part each of them holds; its time axes are those of ``at``.
        at: place in time.
        bytes: on the device that holds most.
        view: shares the memory of the buffer it is made from.
    """

    number: int
    value: int
    mesh: Mesh
    layout: Layout
    at: At
    bytes: int
    view: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """Something that the devices of a mesh do together.

    Attributes:
        number: its position in ``DistributedProgram.tasks``.
        kind: one of :data:`KINDS`.
        mesh: the devices; for a transfer those that receive.
        sender: the devices that send, for a transfer.
        op: number of the graph's op, for compute.
        value: number of the graph's value, for steps of a conversion.
        step: the step, for ``local``, ``collective`` and ``transfer``.
        at: place in time.
        reads, writes: numbers of buffers; for compute as the op's inputs and results. The step that adds up parts over
            time reads the sum so far and the next part.
        after: numbers of tasks that end before it starts, beside those that write what it reads.
        seconds: on the slowest device.
        link_bytes: bytes that leave a device, at most.
        priority: where ready tasks compete, the smallest goes first.
    """

    number: int
    kind: str
    mesh: Mesh
    sender: Mesh | None
    op: int
    value: int
    step: Step | None
    at: At
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...]
    seconds: float
    link_bytes: int
    priority: tuple[int, ...]


@dataclass(frozen=True)
class DistributedProgram:
    """A placed graph with everything it takes to run it.

    Attributes:
        placed: the graph and its plan.
        buffers, tasks: see there. Tasks stand in an order in which every buffer is written before it is read.
        arguments: for every argument of the function the buffer that holds it.
        returned: for every result of the function the buffer that holds it.
    """

    placed: PlacedGraph
    buffers: tuple[Buffer, ...]
    tasks: tuple[Task, ...]
    arguments: tuple[int, ...]
    returned: tuple[int, ...]

    def predecessors(self) -> list[tuple[int, ...]]:
        """For every task the tasks that end before it starts, ascending."""
        writer: dict[int, int] = {}
        for task in self.tasks:
            for buffer in task.writes:
                writer[buffer] = task.number
        return [tuple(sorted({writer[b] for b in task.reads if b in writer} | set(task.after))) for task in self.tasks]

    def collectives(self) -> Iterator[Task]:
        """The tasks that communicate within a mesh or between meshes."""
        return (task for task in self.tasks if task.kind in (COLLECTIVE, TRANSFER))

    def name(self, task: Task) -> str:
        """What a task is called in messages and pictures: ``linalg.matmul (op 12) at micro=3``."""
        graph = self.placed.graph
        if task.kind == COMPUTE:
            what = f"{graph.ops[task.op].name} (op {task.op})"
        elif task.step is not None:
            what = f"{type(task.step).__name__} of {graph.values[task.value].name}"
        else:
            what = "order"
        return what + "".join(f" at {axis}={place}" for axis, place in task.at)
