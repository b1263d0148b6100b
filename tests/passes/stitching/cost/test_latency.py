"""The latency evaluator: a pure function of what a kernel asks of a chip and of the chip's constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirstitch.passes.stitching.cost import (
    SECTOR,
    ArgumentFigures,
    KernelFigures,
    issue_seconds,
    latency_seconds,
    latency_terms,
    plan_seconds,
)
from mlirstitch.passes.stitching.cost.latency import DEPENDENT_CYCLES, OVERLAPPED
from mlirstitch.target import TARGETS, IssueCycles, Target

H100 = TARGETS["sm_90"]
FULL = 132 * 8
"""Blocks of 256 threads that run at once on :data:`H100`."""


def tensor(size: int, moved: int | None = None, sectors: float | None = None) -> ArgumentFigures:
    """A tensor of which every byte is touched; read once unless ``moved`` says otherwise."""
    moved = size if moved is None else moved
    return ArgumentFigures(size, size, moved, moved / SECTOR if sectors is None else sectors)


def kernel(
    blocks: int = FULL,
    threads: int = 256,
    instructions: Mapping[str, float] | None = None,
    arguments: tuple[ArgumentFigures, ...] = (),
    registers: int = 32,
    resident: int = 8,
    waits: float = 0.0,
) -> KernelFigures:
    """``waits``: of every warp; ``instructions``: of the launch."""
    warps = blocks * -(-threads // 32)
    return KernelFigures(blocks, threads, instructions or {}, arguments, registers, 0, 0, resident, waits * warps)


def test_a_launch_without_blocks_takes_no_time() -> None:
    assert latency_seconds(kernel(blocks=0, instructions={"float": 1e9}, arguments=(tensor(1 << 20),)), H100) == 0


def test_a_kernel_that_does_nothing_costs_its_launch() -> None:
    assert latency_seconds(kernel(), H100) == H100.launch_seconds


def test_kernels_run_one_after_another_and_each_is_launched() -> None:
    first, second = kernel(arguments=(tensor(1 << 28),)), kernel(instructions={"float": 1e9})
    assert plan_seconds([first, second], H100) == latency_seconds(first, H100) + latency_seconds(second, H100)
    assert plan_seconds([kernel()] * 5, H100) == pytest.approx(5 * H100.launch_seconds)
    assert plan_seconds([], H100) == 0


def test_the_longest_term_hides_the_others() -> None:
    terms = latency_terms(kernel(instructions={"float": 1e8}, arguments=(tensor(1 << 24),), waits=2), H100)
    assert terms.seconds == terms.launch + max(terms.latency, terms.issue, terms.memory)
    assert min(terms.latency, terms.issue, terms.memory) > 0


# Memory -------------------------------------------------------------------------------------------------------------


def test_a_large_tensor_that_many_threads_read_takes_its_bytes_over_the_bandwidth() -> None:
    size = 1 << 30
    terms = latency_terms(kernel(blocks=8 * FULL, arguments=(tensor(size),)), H100)
    assert terms.memory == pytest.approx(size / H100.bandwidth)


def test_sectors_count_not_bytes_where_threads_use_a_part_of_each() -> None:
    size = 1 << 28
    strided = tensor(size, sectors=8 * size / SECTOR)
    whole = latency_terms(kernel(blocks=8 * FULL, arguments=(tensor(size),)), H100).memory
    assert latency_terms(kernel(blocks=8 * FULL, arguments=(strided,)), H100).memory == pytest.approx(8 * whole)


def test_small_tensors_are_read_again_from_the_cache_and_large_ones_from_memory() -> None:
    def again(size: int) -> float:
        twice = kernel(blocks=8 * FULL, arguments=(tensor(size, 2 * size),))
        once = kernel(blocks=8 * FULL, arguments=(tensor(size),))
        return (latency_terms(twice, H100).memory - latency_terms(once, H100).memory) / size

    assert again(H100.l2_bytes // 16) == pytest.approx(1 / H100.l2_bandwidth)
    assert again(H100.l2_bytes) == pytest.approx(1 / H100.bandwidth)


def test_few_threads_cannot_fill_the_bandwidth() -> None:
    """Little's law: what is under way at once is bandwidth x latency, and a thread waits in its registers."""
    size = 1 << 28
    one = latency_terms(kernel(blocks=1, arguments=(tensor(size),)), H100).memory
    room = 0.5 * 4 * 32 * 256
    assert one == pytest.approx(size * H100.memory_seconds / room)
    assert latency_terms(kernel(blocks=1, registers=64, arguments=(tensor(size),)), H100).memory == pytest.approx(
        one / 2
    )


def test_resident_blocks_fill_the_bandwidth_not_those_that_wait() -> None:
    """Half the occupancy, half the bytes under way, where that is too little."""
    arguments = (tensor(1 << 28),)
    one, two = (latency_terms(kernel(8 * FULL, 32, arguments=arguments, resident=n), H100).memory for n in (1, 2))
    assert one == pytest.approx(2 * two)


# Issue --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [field.name for field in fields(IssueCycles)])
def test_every_class_costs_its_cycles_on_all_multiprocessors(name: str) -> None:
    seconds = issue_seconds({name: 132e6}, FULL, H100)
    assert seconds == pytest.approx(1e6 * getattr(H100.cycles, name) / H100.clock)


def test_generic_accesses_cost_what_global_ones_do() -> None:
    assert issue_seconds({"load_generic": 10}, 1, H100) == issue_seconds({"load_global": 10}, 1, H100)


def test_an_unknown_class_of_instructions_is_refused() -> None:
    with pytest.raises(AttributeError, match="teleport"):
        issue_seconds({"teleport": 1}, 1, H100)


def test_the_multiprocessor_with_most_blocks_is_waited_for() -> None:
    work = {"float": 1e6}
    even, uneven = issue_seconds(work, 132, H100), issue_seconds(work, 133, H100)
    assert uneven == pytest.approx(even * 2 * 132 / 133)
    assert issue_seconds(work, 1, H100) == pytest.approx(132 * even)


def test_doubles_are_slow_where_the_chip_has_few_units_for_them() -> None:
    work = kernel(8 * FULL, instructions={"double": 1e8})
    slow, fast = (
        latency_terms(work, TARGETS[chip]).issue * TARGETS[chip].sms * TARGETS[chip].clock
        for chip in ("sm_86", "sm_90")
    )
    assert slow > 30 * fast


# Latency ------------------------------------------------------------------------------------------------------------


def test_waves_follow_from_resident_blocks() -> None:
    def latency(blocks: int, resident: int) -> float:
        return latency_terms(kernel(blocks, resident=resident, waits=1), H100).latency

    assert latency(FULL, 8) == latency(1, 8) == pytest.approx(H100.memory_seconds)
    assert latency(FULL + 1, 8) == pytest.approx(2 * latency(FULL, 8))
    assert latency(FULL, 4) == pytest.approx(2 * latency(FULL, 8))


def test_a_warp_waits_at_every_barrier() -> None:
    warps = FULL * 8
    silent = kernel(waits=1)
    with_barriers = replace(silent, instructions={"barrier": 10.0 * warps})
    more = latency_terms(with_barriers, H100).latency - latency_terms(silent, H100).latency
    issued = 10 * DEPENDENT_CYCLES * OVERLAPPED / H100.clock
    assert more == pytest.approx(10 * H100.barrier_seconds + issued)


def test_a_warp_waits_again_where_its_registers_do_not_hold_what_it_loads() -> None:
    size = FULL * 256 * 4 * 32 * 10  # ten times the registers of each thread
    terms = latency_terms(kernel(arguments=(tensor(size),), waits=1), H100)
    assert terms.latency == pytest.approx(20 * H100.memory_seconds)


def test_instructions_of_a_warp_come_one_after_another() -> None:
    one = latency_terms(kernel(1, 32, instructions={"float": 1000}), H100).latency
    assert one == pytest.approx(1000 * DEPENDENT_CYCLES * OVERLAPPED / H100.clock)
    many = latency_terms(kernel(FULL, 256, instructions={"float": 1000.0 * FULL * 8}), H100).latency
    assert many == pytest.approx(one)


# All of it ----------------------------------------------------------------------------------------------------------

figures = st.builds(
    kernel,
    blocks=st.integers(1, 10**5),
    threads=st.integers(1, 1024),
    instructions=st.fixed_dictionaries({"float": st.floats(0, 1e9), "barrier": st.floats(0, 1e6)}),
    arguments=st.lists(st.builds(tensor, st.integers(0, 1 << 30)), max_size=3).map(tuple),
    registers=st.integers(1, 255),
    resident=st.integers(1, 32),
    waits=st.floats(0, 100),
)
chips = st.sampled_from(sorted(TARGETS))


@settings(max_examples=200, deadline=None)
@given(figures, chips)
def test_times_are_finite_and_more_work_never_takes_less(found: KernelFigures, chip: str) -> None:
    target = TARGETS[chip]
    seconds = latency_seconds(found, target)
    assert target.launch_seconds <= seconds < math.inf
    more = {name: 2 * count for name, count in found.instructions.items()}
    assert latency_seconds(replace(found, instructions=more), target) >= seconds
    assert latency_seconds(replace(found, memory_waits=2 * found.memory_waits + 1), target) >= seconds
    doubled = tuple(replace(each, sectors=2 * each.sectors) for each in found.arguments)
    assert latency_seconds(replace(found, arguments=doubled), target) >= seconds
    assert latency_seconds(replace(found, resident_blocks=found.resident_blocks + 1), target) <= seconds


@settings(max_examples=100, deadline=None)
@given(figures, chips)
def test_a_faster_chip_is_never_predicted_slower(found: KernelFigures, chip: str) -> None:
    target = TARGETS[chip]
    seconds = latency_seconds(found, target)
    for name, factor in (
        ("l2_bandwidth", 2),
        ("barrier_seconds", 0.5),
        ("launch_seconds", 0.5),
        ("memory_seconds", 0.5),
    ):
        assert latency_seconds(found, target.override(**{name: factor * getattr(target, name)})) <= seconds


def test_constants_of_a_chip_can_be_replaced_one_by_one() -> None:
    found = kernel(instructions={"float": 1e9}, arguments=(tensor(1 << 20),))
    faster: Target = H100.override(cycles=replace(H100.cycles, float=H100.cycles.float / 2))
    assert latency_terms(found, faster).issue == pytest.approx(latency_terms(found, H100).issue / 2)
    assert latency_terms(found, H100.override(clock=2 * H100.clock)).issue == pytest.approx(
        latency_terms(found, H100).issue / 2
    )
