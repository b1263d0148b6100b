"""The executor on a device whose kernels are Python functions."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from sample_bundles import (
    TARGET,
    HostDevice,
    add_bundle,
    add_ptx,
    buffer,
    counter_bundle,
    launch,
    library_call,
    program,
)

from mlirstitch.errors import BundleError, LaunchError
from mlirstitch.runtime import Executor, open_device
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.dtypes import aligned_copy
from mlirstitch.runtime.program import Copy, Value

F32 = np.float32


def ones(count: int = 8) -> np.ndarray:
    return np.ones(count, F32)


def test_steps_run_in_order_over_temporaries():
    (y,) = Executor(add_bundle(), HostDevice()).run([ones()])
    np.testing.assert_array_equal(y, 1 + 2 * np.arange(8, dtype=F32))


def test_outputs_are_new_arrays_every_time():
    executor = Executor(add_bundle(), HostDevice())
    (first,) = executor.run([ones()])
    (second,) = executor.run([2 * ones()])
    assert first[0] == 1
    assert second[0] == 2


def test_strided_and_unaligned_inputs_are_read_as_their_elements():
    wide = np.arange(32, dtype=F32)
    executor = Executor(add_bundle(), HostDevice())
    for x in (wide[::4], wide[::-1][:8], wide[1:9]):
        np.testing.assert_array_equal(executor.run([x])[0], x + 2 * np.arange(8, dtype=F32))


def test_an_aligned_input_is_used_where_it_stands():
    x, seen = aligned_copy(ones()), []

    def look(a, _b, y):
        seen.append(np.shares_memory(a, x))
        y.view(F32)[...] = 0

    Executor(add_bundle(), HostDevice({"add": look})).run([x])
    assert seen == [True, False]


def test_a_read_only_input_is_fine():
    x = ones()
    x.flags.writeable = False
    assert Executor(add_bundle(), HostDevice()).run([x])[0][0] == 1


@pytest.mark.parametrize(
    ("inputs", "parts"),
    [
        ([], ["expected 1 inputs, got 0", "x: float32 [8]"]),
        ([ones(), ones()], ["expected 1 inputs, got 2"]),
        ([np.ones(8)], ["input 0 'x'", "expected float32 [8]", "got float64 [8]"]),
        ([np.ones(8, ">f4")], ["expected float32 [8]", "byte-swapped"]),
        ([np.ones(8, ml_dtypes.bfloat16)], ["got bfloat16 [8]"]),
        ([ones(7)], ["expected float32 [8], got float32 [7]", "fixed shapes"]),
        ([ones().reshape(2, 4)], ["got float32 [2, 4]"]),
        ([[1.0] * 8], ["expected a numpy array float32 [8], got list"]),
    ],
)
def test_inputs_that_do_not_fit_are_named_before_anything_runs(inputs, parts):
    device = HostDevice()
    with pytest.raises(LaunchError) as caught:
        Executor(add_bundle(), device).run(inputs)
    for part in parts:
        assert part in str(caught.value)
    assert device.launched == []


def test_a_weight_changed_in_place_between_runs_is_seen():
    bundle = add_bundle()
    executor = Executor(bundle, HostDevice())
    executor.run([ones()])
    bundle.weights["w"][:] = 10
    assert executor.run([ones()])[0].tolist() == [21.0] * 8


def test_in_place_updates_reach_the_caller_and_the_weights():
    bundle = counter_bundle()
    executor = Executor(bundle, HostDevice())
    state = np.zeros((4, 2), F32)[:, 0]
    for round_ in (1, 2, 3):
        (y,) = executor.run([ones(4), state])
        assert y.tolist() == state.tolist() == bundle.weights["total"].tolist() == [round_] * 4


def test_a_failed_run_leaves_arrays_weights_and_executor_as_they_were():
    # Aligned storage is what the device would use in place, were it only read.
    bundle = dataclasses.replace(counter_bundle(), weights={"total": aligned_copy(np.zeros(4, F32))})
    device = HostDevice()
    executor = Executor(bundle, device)
    works = device.kernels["add"]

    def fails_at_second(*arguments):
        works(*arguments)
        if len(device.launched) == 2:
            raise LaunchError("out of bounds", hint="look there")

    device.kernels["add"] = fails_at_second
    state = aligned_copy(np.zeros(4, F32))
    with pytest.raises(LaunchError, match=r"step 1 of 3 \(kernel add\): out of bounds") as caught:
        executor.run([ones(4), state])
    assert caught.value.source == "model.py:7"
    assert caught.value.hint == "look there"
    assert not state.any()
    assert not bundle.weights["total"].any()
    executor.run([ones(4), state])
    assert state.tolist() == bundle.weights["total"].tolist() == [1] * 4


def test_an_updated_input_that_shares_memory_with_another_is_refused():
    executor = Executor(counter_bundle(), HostDevice())
    storage = np.zeros(8, F32)
    with pytest.raises(LaunchError, match="input 'state' is updated in place and shares memory with input 'x'"):
        executor.run([storage[2:6], storage[4:8]])
    executor.run([storage[0:4], storage[4:8]])
    executor.run([storage[0::2], storage[1::2]])


def test_an_updated_weight_that_shares_memory_with_an_input_is_refused():
    bundle = counter_bundle()
    with pytest.raises(LaunchError, match="weight 'total' is updated in place and shares memory with input 'x'"):
        Executor(bundle, HostDevice()).run([bundle.weights["total"], np.zeros(4, F32)])


def test_inputs_that_share_memory_and_are_only_read_are_fine():
    buffers = [
        buffer(k, role, name, [4]) for k, (role, name) in enumerate([("input", "a"), ("input", "b"), ("output", "y")])
    ]
    steps = [launch(buffers, "add", [(0, "read"), (1, "read"), (2, "write")])]
    bundle = Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")})
    x = ones(4)
    assert Executor(bundle, HostDevice()).run([x, x])[0].tolist() == [2] * 4


def test_an_updated_input_must_be_writable_storage():
    executor = Executor(counter_bundle(), HostDevice())
    frozen = np.zeros(4, F32)
    frozen.flags.writeable = False
    with pytest.raises(LaunchError, match="'state' is updated in place, but its array is read-only"):
        executor.run([ones(4), frozen])


def scalar_bundle(mutated: bool) -> Bundle:
    buffers = [buffer(0, "input", "x", []), buffer(1, "output", "y", [])]
    steps = [Copy(0, 1, 4)] + ([launch(buffers, "add", [(1, "read"), (1, "read"), (0, "write")])] if mutated else [])
    return Bundle(TARGET, (program(buffers, steps, mutated=[0] if mutated else []),), {"kernels": add_ptx("add")})


def test_tensors_of_rank_0():
    (y,) = Executor(scalar_bundle(False), HostDevice()).run([np.float32(3)])
    assert y.shape == ()
    assert y == 3
    x = np.array(3, F32)
    Executor(scalar_bundle(True), HostDevice()).run([x])
    assert x == 6


def test_a_numpy_scalar_cannot_be_updated_in_place():
    with pytest.raises(LaunchError, match="numpy scalar"):
        Executor(scalar_bundle(True), HostDevice()).run([np.float32(3)])


def test_empty_tensors_beside_full_ones():
    buffers = [
        buffer(0, "input", "e", [0, 3]),
        buffer(1, "weight", "w", [2, 0]),
        buffer(2, "temporary", "t", [0], offset=0),
        buffer(3, "output", "f", [0, 3]),
        buffer(4, "input", "x", [2]),
        buffer(5, "output", "y", [2]),
    ]
    steps = [Copy(0, 2, 0), Copy(2, 3, 0), launch(buffers, "add", [(4, "read"), (4, "read"), (5, "write")])]
    bundle = Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")}, {"w": np.zeros((2, 0), F32)})
    f, y = Executor(bundle, HostDevice()).run([np.zeros((0, 3), F32), ones(2)])
    assert f.shape == (0, 3)
    assert y.tolist() == [2, 2]


def test_persistent_memory_is_kept_between_runs_and_cleared_after_a_failure():
    buffers = [buffer(0, "input", "x", [2]), buffer(1, "persistent", "ticket", [2]), buffer(2, "output", "y", [2])]
    steps = [launch(buffers, "add", [(0, "read"), (1, "read"), (1, "write")]), Copy(1, 2, 8)]
    bundle = Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")})
    executor = Executor(bundle, HostDevice())
    assert [executor.run([ones(2)])[0][0] for _ in range(3)] == [1, 2, 3]

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run([ones(2)], on_step=interrupt)
    assert executor.run([ones(2)])[0][0] == 1


def test_a_temporary_read_before_it_is_written_shows_as_nan():
    buffers = [buffer(0, "temporary", "t", [4], offset=0), buffer(1, "output", "y", [4])]
    # A kernel that declares its write and does not perform it, in the second run where old data would still be there.
    writes = {"flag": True}

    def fill(_a, _b, y):
        if writes["flag"]:
            y.view(F32)[...] = 5

    steps = [launch(buffers, "add", [(0, "write"), (0, "write"), (0, "write")]), Copy(0, 1, 16)]
    executor = Executor(
        Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")}), HostDevice({"add": fill})
    )
    assert executor.run([])[0].tolist() == [5] * 4
    writes["flag"] = False
    assert np.isnan(executor.run([])[0]).all()


def test_one_buffer_may_be_several_outputs_and_an_input_may_be_one():
    base = program([buffer(0, "input", "x", [4])], [])
    values = (Value("y", (4,), "float32", 0), Value("z", (2, 2), "float32", 0))
    base = dataclasses.replace(base, signature=dataclasses.replace(base.signature, outputs=values))
    x = ones(4)
    y, z = Executor(Bundle(TARGET, (base,), {}), HostDevice()).run([x])
    y[0] = 9
    assert z.tolist() == [[1, 1], [1, 1]]
    assert x[0] == 1


def test_library_steps_go_to_the_devices_library():
    a, b, c = buffer(0, "input", "a", [2, 3]), buffer(1, "input", "b", [3, 4]), buffer(2, "output", "c", [2, 4])
    call = library_call("matmul", [(a, "read"), (b, "read"), (c, "write")])
    bundle = Bundle(TARGET, (program([a, b, c], [call]),), {})
    left, right = np.arange(6, dtype=F32).reshape(2, 3), np.arange(12, dtype=F32).reshape(3, 4)
    outputs, report = Executor(bundle, HostDevice()).run_with_report([left, right])
    np.testing.assert_array_equal(outputs[0], left @ right)
    assert report.steps[0].op == "library"
    assert report.steps[0].argument_bytes == 4 * (6 + 12 + 8)
    assert report.launches == 0


def test_an_unknown_routine_is_refused_when_the_bundle_is_loaded():
    a, c = buffer(0, "input", "a", [2, 2]), buffer(1, "output", "c", [2, 2])
    bundle = Bundle(TARGET, (program([a, c], [library_call("fft", [(a, "read"), (a, "read"), (c, "write")])]),), {})
    with pytest.raises(BundleError, match="unknown routine 'fft'"):
        Executor(bundle, HostDevice())


def test_a_device_may_refuse_the_target():
    class Old(HostDevice):
        def refuses(self, target):
            return f"{target['chip']} is newer than sm_75"

    with pytest.raises(BundleError, match="sm_80 is newer than sm_75"):
        Executor(add_bundle(), Old())


def test_memory_that_cannot_be_had_is_a_launch_error():
    class Small(HostDevice):
        def allocate(self, count, label):
            if count > 16:
                raise MemoryError
            return super().allocate(count, label)

    with pytest.raises(LaunchError, match="no memory for arena of temporaries: 256 bytes"):
        Executor(add_bundle(), Small())


def test_a_report_has_one_entry_a_step_and_sums_the_counters():
    seen = []
    outputs, report = Executor(counter_bundle(), HostDevice()).run_with_report(
        [ones(4), np.zeros(4, F32)], on_step=lambda i, n, step: seen.append((i, n, step.__class__.__name__))
    )
    assert seen == [(0, 3, "Launch"), (1, 3, "Launch"), (2, 3, "Copy")]
    assert [step.op for step in report.steps] == ["launch", "launch", "copy"]
    assert report.launches == 2
    assert report.totals() == {"launches": 2, "bytes": {"read": 16, "written": 8}}
    assert [step.argument_bytes for step in report.steps] == [48, 32, 32]
    assert all(0 <= step.seconds <= report.seconds for step in report.steps)
    assert outputs[0].tolist() == [1] * 4


def test_devices_by_name():
    assert open_device("emulator").name == "emulator"
    with pytest.raises(LaunchError, match=r"not supported yet(.|\n)*--device emulator"):
        open_device("cuda")
    with pytest.raises(LaunchError, match="unknown device 'tpu'"):
        open_device("tpu")


def test_weights_in_memory_may_have_any_strides_and_are_updated_through_them():
    storage = np.zeros((4, 3), F32)
    bundle = dataclasses.replace(counter_bundle(), weights={"total": storage[:, 1]})
    executor = Executor(bundle, HostDevice())
    executor.run([ones(4), np.zeros(4, F32)])
    storage[0, 1] = 10
    executor.run([ones(4), np.zeros(4, F32)])
    assert storage.tolist() == [[0, 11, 0], [0, 2, 0], [0, 2, 0], [0, 2, 0]]


def test_threads_may_share_an_executor():
    device = HostDevice()
    add = device.kernels["add"]

    def yielding(*arguments):
        time.sleep(0.001)
        add(*arguments)

    device.kernels["add"] = yielding
    executor = Executor(add_bundle(), device)
    expected = 2 * np.arange(8, dtype=F32)
    with ThreadPoolExecutor(4) as pool:
        for k, (y,) in enumerate(pool.map(lambda k: executor.run([k * ones()]), range(40))):
            np.testing.assert_array_equal(y, expected + k)
