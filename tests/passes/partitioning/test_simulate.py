"""Time, order and memory of small programs, as they are known by hand."""

from __future__ import annotations

import pytest

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.graph import Graph, GraphOp, GraphUse, GraphValue
from mlirstitch.passes.partitioning.layout import replicated
from mlirstitch.passes.partitioning.placement import PlacedGraph, Placement
from mlirstitch.passes.partitioning.program import (
    COLLECTIVE,
    COMPUTE,
    ORDER,
    TRANSFER,
    Buffer,
    DistributedProgram,
    Task,
)
from mlirstitch.passes.partitioning.simulate import simulate

BOTH = Mesh.of(pp=2)
FIRST, SECOND = BOTH.at(pp=0), BOTH.at(pp=1)


def task(
    number: int,
    kind: str = COMPUTE,
    mesh: Mesh = FIRST,
    *,
    reads: tuple[int, ...] = (),
    writes: tuple[int, ...] = (),
    after: tuple[int, ...] = (),
    seconds: float = 1.0,
    priority: int = 0,
    sender: Mesh | None = None,
    link_bytes: int = 0,
) -> Task:
    op = number if kind == COMPUTE else -1
    return Task(
        number, kind, mesh, sender, op, 0, None, (), reads, writes, after, seconds, link_bytes, (priority, number)
    )


def program(
    *tasks: Task, sizes: tuple[int, ...] = (), arguments: tuple[int, ...] = (), views: tuple[int, ...] = ()
) -> DistributedProgram:
    """A program of these tasks, with a buffer for each size; a buffer is where the task that writes it is."""
    where = {buffer: task.mesh for task in tasks for buffer in task.writes}
    buffers = tuple(
        Buffer(number, 0, where.get(number, FIRST), replicated(1), (), size, number in views)
        for number, size in enumerate(sizes)
    )
    ops = tuple(
        GraphOp(n, n, f"op{n}", (4,), ("parallel",), "", (), (GraphUse(0, ()),), (), (), (), 0, "light", f"m.py:{n}")
        for n in range(len(tasks))
    )
    graph = Graph("main", ops, (GraphValue(0, "x", (4,), "f32", 4, -1),), (), (), ())
    placed = PlacedGraph(graph, BOTH, (), tuple(Placement(BOTH) for _ in ops), (), (), ())
    return DistributedProgram(placed, buffers, tasks, arguments, ())


def test_a_task_starts_when_what_it_reads_is_written() -> None:
    timeline = simulate(program(task(0, writes=(0,), seconds=2.0), task(1, mesh=SECOND, reads=(0,)), sizes=(4,)))
    assert timeline.start == (0.0, 2.0)
    assert timeline.seconds == 3.0


def test_independent_tasks_of_two_devices_run_at_once_and_of_one_device_in_a_row() -> None:
    assert simulate(program(task(0), task(1, mesh=SECOND))).seconds == 1.0
    assert simulate(program(task(0), task(1))).seconds == 2.0


def test_a_device_computes_and_communicates_at_once() -> None:
    timeline = simulate(
        program(task(0, COLLECTIVE, BOTH, seconds=3.0), task(1, seconds=2.0), task(2, COLLECTIVE, BOTH))
    )
    assert timeline.start == (0.0, 0.0, 3.0)
    assert timeline.busy == (2.0, 0.0)


def test_a_collective_waits_for_all_of_its_devices() -> None:
    timeline = simulate(program(task(0, COLLECTIVE, FIRST, seconds=2.0), task(1, COLLECTIVE, BOTH, priority=1)))
    assert timeline.start == (0.0, 2.0)


def test_a_transfer_keeps_both_ends_busy_and_counts_for_the_sender() -> None:
    timeline = simulate(
        program(task(0, TRANSFER, SECOND, sender=FIRST, link_bytes=8), task(1, COLLECTIVE, FIRST, link_bytes=5))
    )
    assert timeline.start == (0.0, 1.0)
    assert timeline.link_bytes == (13, 0)


def test_the_smallest_priority_goes_first() -> None:
    assert simulate(program(task(0, priority=1), task(1, priority=0))).sequence == (1, 0)


def test_an_order_holds_back_what_could_start_and_takes_no_time() -> None:
    tasks = (task(0, seconds=2.0), task(1, ORDER, after=(0,), seconds=0.0), task(2, mesh=SECOND, after=(1,)))
    timeline = simulate(program(*tasks))
    assert timeline.start == (0.0, 2.0, 2.0)
    assert timeline.sequence == (0, 1, 2)


def test_a_buffer_lives_until_its_last_reader_ends() -> None:
    # 100 lives through task 1, where 20 and 3 are made: 123 at most; then 20 dies, and 3 with 50 are left.
    timeline = simulate(
        program(
            task(0, writes=(0,)),
            task(1, reads=(0,), writes=(1, 2)),
            task(2, reads=(2,), writes=(3,)),
            sizes=(100, 20, 3, 50),
        )
    )
    assert timeline.peak_bytes == (123, 0)
    assert timeline.memory[0][-1] == (3.0, 0)


def test_arguments_live_all_the_time() -> None:
    timeline = simulate(
        program(task(0, reads=(0,), writes=(1,)), task(1, writes=(2,)), sizes=(7, 1, 2), arguments=(0,))
    )
    assert timeline.memory[0][0] == (0.0, 7)
    assert timeline.memory[0][-1] == (2.0, 7)
    assert timeline.peak_bytes == (9, 0)


def test_a_view_takes_no_memory_and_keeps_what_it_looks_at() -> None:
    timeline = simulate(
        program(
            task(0, writes=(0,)),
            task(1, reads=(0,), writes=(1,)),
            task(2, writes=(2,)),
            task(3, reads=(1,)),
            sizes=(100, 100, 10),
            views=(1,),
        )
    )
    assert timeline.peak_bytes == (110, 0)


def test_the_bubble_is_the_share_of_time_without_computing() -> None:
    timeline = simulate(program(task(0, writes=(0,)), task(1, mesh=SECOND, reads=(0,)), sizes=(4,)))
    assert timeline.bubble == pytest.approx(0.5)


def test_a_cycle_is_refused_and_its_ops_named() -> None:
    tasks = (task(0), task(1, after=(3,)), task(2, after=(1,)), task(3, ORDER, after=(2,)))
    with pytest.raises(PlanError) as caught:
        simulate(program(*tasks))
    text = str(caught.value)
    assert "op1 (op 1) before op2 (op 2) before op1 (op 1)" in text
    assert "op0" not in text
    assert "m.py:1" in text


def test_tasks_out_of_order_without_a_cycle_are_run() -> None:
    assert simulate(program(task(0, after=(1,)), task(1))).sequence == (1, 0)
