"""Bundles of real PTX on the emulated device."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from sample_bundles import TARGET, add_bundle, add_ptx, buffer, counter_bundle, launch, program

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import Executor, read_bundle
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.dtypes import aligned_copy
from mlirstitch.runtime.emulated_device import EmulatedDevice
from mlirstitch.runtime.program import Copy

F32 = np.float32


def test_a_bundle_of_ptx_runs_from_memory_and_from_disk(tmp_path):
    bundle = add_bundle(64)
    bundle.write(tmp_path / "b")
    x = np.random.default_rng(0).standard_normal(64).astype(F32)
    w = bundle.weights["w"]
    for one in (bundle, read_bundle(tmp_path / "b")):
        np.testing.assert_array_equal(Executor(one, EmulatedDevice()).run([x])[0], (x + w) + w)


def test_the_same_run_gives_the_same_bits():
    executor = Executor(add_bundle(64), EmulatedDevice())
    x = np.random.default_rng(0).standard_normal(64).astype(F32)
    assert executor.run([x])[0].tobytes() == executor.run([x])[0].tobytes()


def test_updates_in_place_reach_the_caller():
    bundle = counter_bundle()
    executor = Executor(bundle, EmulatedDevice())
    state = np.zeros(4, F32)
    for _ in range(2):
        executor.run([np.ones(4, F32), state])
    assert state.tolist() == bundle.weights["total"].tolist() == [2] * 4


def test_several_blocks_cover_a_tensor():
    bundle = add_bundle(96)
    base = bundle.programs[0]
    steps = tuple(dataclasses.replace(step, grid=(3, 1, 1), block=(32, 1, 1)) for step in base.steps)  # type: ignore
    (y,) = Executor(
        dataclasses.replace(bundle, programs=(dataclasses.replace(base, steps=steps),)), EmulatedDevice()
    ).run([np.zeros(96, F32)])
    np.testing.assert_array_equal(y, 2 * np.arange(96, dtype=F32))


@pytest.mark.parametrize("aligned", [True, False])
def test_a_kernel_that_leaves_its_tensor_is_caught_and_named(aligned):
    """Eight threads on an input of four elements: the neighbour in memory must not be read."""
    buffers = [buffer(0, "input", "x", [4]), buffer(1, "output", "y", [8])]
    steps = [launch(buffers, "add", [(0, "read"), (0, "read"), (1, "write")], source=("net.py:5",))]
    executor = Executor(Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")}), EmulatedDevice())
    x = aligned_copy(np.ones(4, F32)) if aligned else np.ones(9, F32)[1:5]
    with pytest.raises(LaunchError, match=r"step 0 of 1 \(kernel add\)") as caught:
        executor.run([x])
    assert caught.value.source


def test_temporaries_are_bounded_one_by_one():
    """The write of step 1 stays inside the arena but leaves its temporary."""
    buffers = [
        buffer(0, "input", "x", [96]),
        buffer(1, "temporary", "small", [64], offset=0),
        buffer(2, "temporary", "next", [64], offset=256),
        buffer(3, "output", "y", [64]),
    ]
    steps = [
        launch(buffers, "add", [(0, "read"), (0, "read"), (2, "write")]),
        launch(buffers, "add", [(0, "read"), (0, "read"), (1, "write")], block=(96, 1, 1)),
        launch(buffers, "add", [(1, "read"), (2, "read"), (3, "write")]),
    ]
    executor = Executor(Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")}), EmulatedDevice())
    with pytest.raises(LaunchError, match=r"step 1 of 3"):
        executor.run([np.ones(96, F32)])


def test_a_failed_run_leaves_the_executor_usable():
    executor = Executor(counter_bundle(), EmulatedDevice())

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run([np.ones(4, F32), np.zeros(4, F32)], on_step=interrupt)
    assert executor.run([np.ones(4, F32), np.zeros(4, F32)])[0].tolist() == [1] * 4


def test_part_of_a_tensor_that_nobody_wrote_is_nan():
    buffers = [
        buffer(0, "input", "x", [8]),
        buffer(1, "temporary", "t", [8], offset=0),
        buffer(2, "output", "y", [8]),
    ]
    steps = [launch(buffers, "add", [(0, "read"), (0, "read"), (1, "write")], block=(5, 1, 1)), Copy(1, 2, 32)]
    executor = Executor(Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")}), EmulatedDevice())
    for _ in range(2):
        (y,) = executor.run([np.ones(8, F32)])
        assert y[:5].tolist() == [2] * 5
        assert np.isnan(y[5:]).all()


def test_empty_tensors_are_valid_arguments():
    buffers = [buffer(0, "input", "e", [0]), buffer(1, "input", "x", [4]), buffer(2, "output", "y", [4])]
    ptx = add_ptx("add") + add_ptx("unused_third").split(".address_size 64\n")[1].replace(
        "ld.global.b32 \t%r6, [%rd9]", "mov.b32 \t%r6, 0"
    )
    steps = [launch(buffers, "unused_third", [(1, "read"), (0, "read"), (2, "write")])]
    (y,) = Executor(Bundle(TARGET, (program(buffers, steps),), {"kernels": ptx}), EmulatedDevice()).run(
        [np.zeros(0, F32), np.ones(4, F32)]
    )
    assert y.tolist() == [1] * 4


def test_the_report_carries_what_the_emulator_counted():
    _, report = Executor(add_bundle(64), EmulatedDevice()).run_with_report([np.ones(64, F32)])
    assert report.launches == 2
    assert report.steps[0].counters
    assert report.totals()
    json.dumps(report.to_json())
    json.loads(report.chrome_trace())


def test_ptx_that_cannot_be_read_is_refused_when_the_bundle_is_loaded():
    bundle = add_bundle()
    broken = bundle.modules["kernels"].replace("add.rn.f32", "frobnicate.f32")
    with pytest.raises(LaunchError, match="frobnicate"):
        Executor(dataclasses.replace(bundle, modules={"kernels": broken}), EmulatedDevice())


def test_a_kernel_that_writes_what_it_declares_to_read_is_caught():
    buffers = [buffer(0, "input", "x", [8]), buffer(1, "temporary", "t", [8], offset=0), buffer(2, "output", "y", [8])]
    fill = launch(buffers, "add", [(0, "read"), (0, "read"), (1, "write")])
    liar = launch(buffers, "add", [(0, "read"), (2, "write"), (1, "read")])
    bundle = Bundle(TARGET, (program(buffers, [fill, liar]),), {"kernels": add_ptx("add")})
    with pytest.raises(LaunchError, match="step 1 of 2"):
        Executor(bundle, EmulatedDevice()).run([np.ones(8, F32)])


def test_counters_do_not_depend_on_where_the_host_put_the_arrays():
    """Every buffer starts at a multiple of 256 on the device: 64 floats are 8 sectors of 32 bytes."""
    executor = Executor(add_bundle(64), EmulatedDevice())
    for skip in range(1, 9):
        wide = np.empty(64 + skip, F32)
        for x in (wide[skip:], aligned_copy(wide[skip:])):
            _, report = executor.run_with_report([np.nan_to_num(x)])
            for step in report.steps:
                assert step.counters is not None
                assert step.counters["sectors_loaded"] == 16
                assert step.counters["sectors_stored"] == 8


def test_nothing_is_counted_in_a_plain_run():
    seen = []

    class Watching(EmulatedDevice):
        def launch(self, module, step, arguments, *, count):
            seen.append(super().launch(module, step, arguments, count=count))
            return seen[-1]

    Executor(add_bundle(), Watching()).run([np.ones(8, F32)])
    assert seen == [None, None]


def test_thread_block_clusters_run():
    bundle = add_bundle()
    base = bundle.programs[0]
    step = dataclasses.replace(base.steps[0], grid=(2, 1, 1), block=(4, 1, 1), thread_block_cluster=(2, 1, 1))  # type: ignore
    clustered = dataclasses.replace(bundle, programs=(dataclasses.replace(base, steps=(step, *base.steps[1:])),))
    plain = Executor(bundle, EmulatedDevice()).run([np.ones(8, F32)])
    assert [a.tolist() for a in Executor(clustered, EmulatedDevice()).run([np.ones(8, F32)])] == [
        a.tolist() for a in plain
    ]


@pytest.mark.parametrize("frozen", [True, False])
def test_an_input_in_place_is_read_without_a_copy_and_never_written(frozen):
    x = np.ones(8, F32)
    x.flags.writeable = not frozen
    memory = EmulatedDevice().adopt(x)
    assert memory is not None
    assert np.shares_memory(memory, x)
    assert EmulatedDevice().adopt(np.ones(9, F32)[1:]) is None
    assert EmulatedDevice().adopt(np.ones((2, 2), F32).T) is None
