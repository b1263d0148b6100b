"""The emulated device under the sanitizer: memory that nobody has written, over all steps of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from sample_bundles import TARGET, add_bundle, add_ptx, buffer, launch, program

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import Executor, open_device
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.program import Access, Buffer, Copy, Launch, LibraryCall, Operand, Step
from mlirstitch.runtime.sanitized_device import SanitizedDevice

F32 = np.float32


def _half(bundle: Bundle, position: int) -> Bundle:
    """The bundle with one launch of half the threads it needs."""
    base = bundle.programs[0]
    steps = list(base.steps)
    step = steps[position]
    assert isinstance(step, Launch)
    steps[position] = dataclasses.replace(step, block=(step.block[0] // 2, 1, 1))
    return dataclasses.replace(bundle, programs=(dataclasses.replace(base, steps=tuple(steps)),))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_program_has_no_finding_and_the_same_result(seed: int) -> None:
    x = np.arange(8, dtype=F32)
    expected = Executor(add_bundle(), open_device()).run([x])
    found = Executor(add_bundle(), open_device(sanitize=True, seed=seed)).run([x])
    assert [a.tolist() for a in found] == [a.tolist() for a in expected]


def test_the_same_executor_may_run_again() -> None:
    executor = Executor(add_bundle(), SanitizedDevice())
    first, second = (executor.run([np.ones(8, F32)])[0].tolist() for _ in range(2))
    assert first == second


def test_a_temporary_that_is_half_written_is_found_with_kernel_line_and_source() -> None:
    faulty = _half(add_bundle(), 0)
    with pytest.raises(LaunchError, match=r"PTX line \d+ \(ld.global.b32\).*global memory that nobody has") as caught:
        Executor(faulty, SanitizedDevice()).run([np.ones(8, F32)])
    assert caught.value.source == "model.py:9"


def test_what_an_earlier_run_has_left_behind_does_not_count() -> None:
    device = SanitizedDevice()
    Executor(add_bundle(), device).run([np.ones(8, F32)])
    executor = Executor(_half(add_bundle(), 0), device)
    with pytest.raises(LaunchError, match="nobody has written"):
        executor.run([np.ones(8, F32)])


def test_an_output_that_is_half_written_is_found() -> None:
    with pytest.raises(
        LaunchError,
        match=r"output 'y' is copied to the host, but 16 of its 32 bytes were never written, the first is byte 16",
    ):
        Executor(_half(add_bundle(), 1), SanitizedDevice()).run([np.ones(8, F32)])


def _bundle(shape: tuple[int, ...], steps: Callable[[list[Buffer]], list[Step]]) -> Bundle:
    """Two inputs, two temporaries and an output of one shape."""
    buffers = [
        buffer(0, "input", "x", shape),
        buffer(1, "input", "w", shape),
        buffer(2, "temporary", "t", shape, offset=0),
        buffer(3, "temporary", "u", shape, offset=256),
        buffer(4, "output", "y", shape),
    ]
    return Bundle(TARGET, (program(buffers, steps(buffers)),), {"kernels": add_ptx("add")}, {})


def test_a_copy_hands_on_what_is_unwritten() -> None:
    bundle = _bundle(
        (4,),
        lambda buffers: [
            launch(buffers, "add", [(0, "read"), (1, "read"), (2, "write")]),
            Copy(2, 3, 16),
            launch(buffers, "add", [(0, "read"), (3, "read"), (4, "write")]),
        ],
    )
    Executor(bundle, SanitizedDevice()).run([np.ones(4, F32)] * 2)
    with pytest.raises(LaunchError, match=r"step 2 of 3.*nobody has written, at byte 8"):
        Executor(_half(bundle, 0), SanitizedDevice()).run([np.ones(4, F32)] * 2)


def test_a_library_step_that_reads_unwritten_memory_is_found() -> None:
    accesses: tuple[tuple[int, Access], ...] = ((0, "read"), (2, "read"), (4, "write"))
    operands = tuple(Operand(number, access, (2, 2), "float32") for number, access in accesses)
    bundle = _bundle(
        (2, 2),
        lambda buffers: [
            launch(buffers, "add", [(0, "read"), (1, "read"), (2, "write")]),
            LibraryCall("matmul", operands),
        ],
    )
    found = Executor(bundle, SanitizedDevice()).run([np.ones((2, 2), F32)] * 2)
    assert found[0].tolist() == [[4, 4], [4, 4]]
    with pytest.raises(LaunchError, match="is read by library matmul, but 8 of its 16 bytes were never written"):
        Executor(_half(bundle, 0), SanitizedDevice()).run([np.ones((2, 2), F32)] * 2)


def test_memory_of_a_device_that_is_gone_is_forgotten() -> None:
    device = SanitizedDevice()
    memory = device.allocate(64, "scratch")
    assert device._written.of(memory[8:16]) is not None
    address = memory.ctypes.data
    del memory
    assert address not in device._written._flags
