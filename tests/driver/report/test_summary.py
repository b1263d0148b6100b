from mlirstitch.driver.report.summary import Bytes, Launches, summarise
from mlirstitch.runtime.program import Argument, Buffer, Copy, Kind, Launch, LibraryCall, Operand, Program, Signature
from mlirstitch.target import Target

TARGET = Target.parse("sm_90").override(l2_bytes=8 * 1000)


def launch(kernel, *arguments, kind: Kind = "memory_bound"):
    return Launch("kernels", kernel, (1, 1, 1), (32, 1, 1), tuple(arguments), kind=kind)


def read(buffer, size, traffic):
    return Argument(buffer, "read", size, traffic)


def write(buffer, size):
    return Argument(buffer, "write", size, size)


def program(*steps):
    buffers = tuple(Buffer(k, "temporary", f"t{k}", (8,), "float32", 32, 0) for k in range(4))
    return Program("main", (0,), Signature((), ()), 256, 1024, buffers, steps)


def test_steps_are_counted_by_what_bounds_them():
    matmul = LibraryCall("matmul", (Operand(0, "read", (8,), "float32"), Operand(1, "write", (8,), "float32")))
    summary = summarise(
        program(
            launch("norm", read(0, 32, 32), write(1, 32)),
            launch("norm", read(1, 32, 32), write(2, 32)),
            launch("matmul", read(0, 32, 32), write(1, 32), kind="compute_bound"),
            matmul,
            Copy(0, 1, 32),
        ),
        TARGET,
    )
    assert summary.launches == Launches(memory_bound=2, compute_bound=2, copies=1)
    assert summary.distinct_kernels == 1
    assert summary.bytes.arguments == 5 * 64
    assert summary.bytes.memory_bound == 3 * 64
    assert (summary.peak_temporary_bytes, summary.temporary_bytes) == (256, 1024)


def test_rereads_of_tensors_that_stay_in_the_cache_are_counted_apart():
    small, large = read(0, 1000, 5000), read(1, 1001, 3003)
    summary = summarise(program(launch("norm", small, large, write(2, 10))), TARGET)
    assert summary.bytes == Bytes(
        arguments=2011, traffic=1000 + 3003 + 10, cached_rereads=4000, memory_bound=2011, memory_bound_traffic=4013
    )


def test_a_tensor_read_in_part_counts_in_full_as_argument_and_in_part_as_traffic():
    summary = summarise(program(launch("slice", read(0, 4000, 40))), TARGET)
    assert summary.bytes == Bytes(
        arguments=4000, traffic=40, cached_rereads=0, memory_bound=4000, memory_bound_traffic=40
    )


def test_of_a_tensor_known_to_be_touched_in_part_only_that_part_counts():
    slices = launch("slice", Argument(0, "read", 4000, 120, touched=40), Argument(1, "read", 64, 64, touched=64))
    summary = summarise(program(slices), TARGET)
    assert summary.bytes == Bytes(104, 104, 80, 104, memory_bound_traffic=104)


def test_one_buffer_passed_twice_is_one_tensor():
    summary = summarise(program(launch("add", read(0, 32, 32), read(0, 32, 32), write(1, 32))), TARGET)
    assert summary.bytes == Bytes(64, 64, 32, 64, memory_bound_traffic=64)
