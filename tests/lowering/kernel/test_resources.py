"""What a kernel takes, and that a schedule which the chip cannot run makes way for another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import mlir.ir as ir
import pytest
from kernel_harness import build
from row_programs import fold, softmax

from mlirstitch.dialects import new_context, stitch
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.resources import Resources, bound_launch, check_resources, try_schedule
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.stitching.template import Cluster, Schedule, find_template
from mlirstitch.target import Target

TARGET = Target.parse("sm_90")
SCHEDULE = Schedule("row", (64, 1, 1), (256, 1, 1))


@contextmanager
def chosen(text: str, target: Target = TARGET) -> Iterator[tuple[Schedule, Resources]]:
    """The schedule of the first template that applies, and what it takes."""
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        cluster = Cluster.of_function(module.body.operations[0].operation)
        template, why = find_template(cluster, target)
        assert template is not None, why
        schedule = template.schedules(cluster, target)[0]
        yield schedule, try_schedule(template, cluster, schedule, target)


def test_blocks_of_a_multiprocessor_follow_from_the_scarcest_resource() -> None:
    assert Resources(32, 256, 0, 0).blocks_per_sm(TARGET) == 8  # threads
    assert Resources(128, 256, 0, 0).blocks_per_sm(TARGET) == 2  # registers
    assert Resources(33, 256, 0, 0).blocks_per_sm(TARGET) == 6  # registers come by the eight
    assert Resources(176, 64, 0, 0).blocks_per_sm(TARGET) == 4  # two warps in each quarter
    assert Resources(32, 256, 1024, 99 * 1024).blocks_per_sm(TARGET) == 2  # shared memory


def test_registers_of_a_thread_are_limited_by_its_block() -> None:
    assert Resources(32, 1024, 0, 0).register_limit(TARGET) == 64
    assert Resources(32, 64, 0, 0).register_limit(TARGET) == TARGET.max_registers_per_thread


@pytest.mark.parametrize(
    ("resources", "schedule", "message"),
    [
        (Resources(200, 1024, 0, 0), SCHEDULE, "about 200 registers, and 1024 threads of a block can have 64 each"),
        (Resources(32, 256, 49 * 1024, 0), SCHEDULE, "bytes of static shared memory"),
        (Resources(32, 256, 0, 240 * 1024), SCHEDULE, "bytes of shared memory per block"),
        (Resources(32, 256, 0, 0), replace(SCHEDULE, grid=(1, 70_000, 1)), "grid size along y is 70000"),
        (Resources(32, 256, 0, 0), replace(SCHEDULE, grid=(2**31, 1, 1)), "grid size along x"),
        (Resources(32, 256, 0, 0), replace(SCHEDULE, grid=(133, 1, 1), cooperative=True), "wait for each other"),
    ],
)
def test_what_the_chip_does_not_have_is_refused(resources: Resources, schedule: Schedule, message: str) -> None:
    with pytest.raises(PassError, match=message):
        check_resources(resources, 3, schedule, TARGET)


def test_too_many_arguments_are_refused() -> None:
    with pytest.raises(PassError, match="bytes of arguments is 4104, the limit is 4096"):
        check_resources(Resources(32, 256, 0, 0), 513, SCHEDULE, TARGET)


def test_registers_for_loads_of_later_iterations_are_no_reason_to_refuse() -> None:
    check_resources(Resources(90, 1024, 0, 0, loops=True, ahead=32), 3, SCHEDULE, TARGET)
    with pytest.raises(PassError, match="about 90 registers"):
        check_resources(Resources(90, 1024, 0, 0, loops=True), 3, SCHEDULE, TARGET)


def test_resources_of_a_kernel_are_read_off_its_code() -> None:
    with chosen(softmax(64, 4096)) as (schedule, resources):
        assert resources.threads == schedule.block[0] > 32
        assert 16 <= resources.registers <= 64
        assert 0 < resources.static_shared <= 1024


@pytest.mark.parametrize(("rows", "cols", "few"), [(64, 4096, 4_096), (512, 50003, 16_384)])
def test_a_schedule_over_the_limits_makes_way_for_another(
    monkeypatch: pytest.MonkeyPatch, rows: int, cols: int, few: int
) -> None:
    """A chip with few registers runs smaller blocks than the template prefers, and still reads rows once."""
    text = softmax(rows, cols)
    text = text.replace(
        f"-> tensor<{rows}x{cols}xf32> {{", f"-> tensor<{rows}x{cols}xf32> attributes {{stitch.cluster}} {{"
    )
    maps, _, function = text.partition("func.func")
    threads: dict[int, int] = {}
    for registers in (65_536, few):
        chip = TARGET.override(registers_per_sm=registers, cluster_blocks=1)
        monkeypatch.setattr(stitch, "target_of", lambda _, target=chip: target)
        with new_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(f"{maps} module {{ func.func{function} }}")
            run_pipeline(module, "builtin.module(stitch-schedule)")
            schedule = stitch.SCHEDULE.get(module.body.operations[0].operation)
        assert schedule is not None
        assert schedule.parameter("mode") != "loop"
        threads[registers] = schedule.block[0]
    assert threads[few] < threads[65_536]


def test_only_kernels_with_many_registers_are_bounded() -> None:
    assert "nvvm.minctasm" not in build(softmax(4096, 1024), "row").gpu_text
    assert "nvvm.minctasm" not in build(fold((64, 64), (1,), "f32", "arith.addf", "0.0"), "loop_nest").gpu_text


def test_a_bound_leaves_room_above_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlirstitch.lowering.kernel.resources.resources_of", lambda *_: Resources(130, 64, 0, 0))
    with new_context() as context, ir.Location.unknown(context):
        op = ir.Module.create().operation
        bound_launch(op, SCHEDULE, TARGET)
        assert ir.IntegerAttr(op.attributes["nvvm.minctasm"]).value == 6
