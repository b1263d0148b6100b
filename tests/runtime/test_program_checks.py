"""Programs that make no sense are refused with the place and the reason; those that do pass."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_bundles import add_bundle, buffer, counter_bundle, launch, library_call, program

from mlirstitch.errors import BundleError
from mlirstitch.runtime.program import Copy, Mutation, Program, Value
from mlirstitch.runtime.program_checks import check_program

ENTRIES = {"kernels": {"add": 3, "none": 0}}


def check(p: Program) -> None:
    check_program(p, ENTRIES)


def replaced(p: Program, **changes) -> Program:
    return dataclasses.replace(p, **changes)


def with_buffer(p: Program, index: int, **changes) -> Program:
    buffers = list(p.buffers)
    buffers[index] = dataclasses.replace(buffers[index], **changes)
    return replaced(p, buffers=tuple(buffers))


def with_step(p: Program, index: int, **changes) -> Program:
    steps = list(p.steps)
    steps[index] = dataclasses.replace(steps[index], **changes)
    return replaced(p, steps=tuple(steps))


def with_signature(p: Program, **changes) -> Program:
    return replaced(p, signature=dataclasses.replace(p.signature, **changes))


ADD = add_bundle().programs[0]
COUNTER = counter_bundle().programs[0]
ARGUMENTS = ADD.steps[0].arguments
X, Y = ADD.signature.inputs[0], ADD.signature.outputs[0]


def test_sound_programs_pass():
    check(ADD)
    check(COUNTER)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (with_buffer(ADD, 1, id=2), "buffer 1 'w': its id is 2"),
        (with_buffer(ADD, 1, bytes=31), r"float32 \[8\] takes 32 bytes, the manifest says 31"),
        (with_buffer(ADD, 1, arena_offset=0), "role weight and arena_offset 0 contradict"),
        (with_buffer(ADD, 2, arena_offset=None), "role temporary and arena_offset None contradict"),
        (with_buffer(ADD, 2, arena_offset=128), "128 is not a multiple of 256"),
        (with_buffer(ADD, 2, arena_offset=256), "ends at byte 288 of an arena of 256 bytes"),
        (with_buffer(COUNTER, 2, name="x", role="constant"), "only inputs and weights can be updated"),
        (with_signature(ADD, inputs=(dataclasses.replace(X, buffer=9),)), "input 'x': buffer 9 does not exist"),
        (with_signature(ADD, inputs=(dataclasses.replace(X, buffer=1),)), "buffer 1 has role weight, not input"),
        (with_signature(ADD, inputs=(dataclasses.replace(X, shape=(9,)),)), r"float32 \[9\] does not fit buffer 0"),
        (with_signature(ADD, inputs=()), r"fill buffers \[\], but the buffers of role input are \[0\]"),
        (with_signature(ADD, inputs=(X, X)), r"fill buffers \[0, 0\]"),
        (with_signature(ADD, outputs=(dataclasses.replace(Y, dtype="int32"),)), r"int32 \[8\] does not fit buffer 3"),
        (with_signature(ADD, mutated=(Mutation("y", 3),)), "buffer 3 has role output"),
        (with_signature(ADD, mutated=(Mutation("y", 7),)), "buffer 7 does not exist"),
        (with_signature(COUNTER, mutated=(Mutation("state", 1),) * 2), "listed twice"),
        (with_signature(COUNTER, mutated=(Mutation("total", 2),)), "step 2 .copy.: writes input 'state', which is not"),
        (with_signature(COUNTER, mutated=(Mutation("state", 1),)), "step 1 .kernel add.: writes weight 'total'"),
        (with_step(ADD, 0, module="other"), r"step 0 \(kernel add\): there is no module 'other'"),
        (with_step(ADD, 1, kernel="mul"), r"step 1 \(kernel mul\): module 'kernels' has no such kernel"),
        (with_step(ADD, 1, kernel="none"), "takes 0 parameters, the step gives 3 arguments"),
        (with_step(ADD, 0, grid=(0, 1, 1)), "grid .0, 1, 1. has an extent below 1"),
        (with_step(ADD, 0, grid=(1, 65536, 1)), "grid .1, 65536, 1. exceeds the limit"),
        (with_step(ADD, 0, block=(1, 1, 65)), "more than 64 threads along z"),
        (with_step(ADD, 0, block=(32, 33, 1)), "1056 threads, the limit is 1024"),
        (with_step(ADD, 0, grid=(3, 1, 1), thread_block_cluster=(2, 1, 1)), "is not a multiple"),
        (with_step(ADD, 0, arguments=(dataclasses.replace(ARGUMENTS[0], bytes=4), *ARGUMENTS[1:])),
         "argument 0: 4 bytes, but buffer 0 has 32"),
        (with_step(ADD, 0, arguments=(dataclasses.replace(ARGUMENTS[0], buffer=4), *ARGUMENTS[1:])),
         "buffer 4 does not exist, there are 4"),
        (with_step(COUNTER, 2, bytes=8), "copies 8 bytes, but buffer 3 has 16, buffer 1 16"),
        (with_step(ADD, 1, arguments=(dataclasses.replace(ARGUMENTS[2], access="readwrite"), *ARGUMENTS[:2])),
         "outputs: needs buffer 3 'y', which nothing has written yet"),
        (replaced(ADD, steps=ADD.steps[1:]), "step 0 .kernel add.: needs buffer 2 't', which nothing has written yet"),
        (replaced(ADD, steps=ADD.steps[:1]), "outputs: needs buffer 3 'y'"),
        (with_step(ADD, 0, arguments=(*ARGUMENTS[:2], dataclasses.replace(ARGUMENTS[2], access="readwrite"))),
         "step 0 .kernel add.: needs buffer 2 't', which nothing has written yet"),
    ],
)  # fmt: skip
def test_unsound_programs_are_refused(broken, message):
    with pytest.raises(BundleError, match=message):
        check(broken)


def test_names_of_weights_are_unique():
    twice = [buffer(0, "weight", "w", [2]), buffer(1, "constant", "w", [2])]
    with pytest.raises(BundleError, match="same name"):
        check(program(twice, []))


@pytest.mark.parametrize(
    "accesses", [("read", "read", "read"), ("read", "write", "write"), ("read", "read", "readwrite")]
)
def test_a_library_call_writes_exactly_one_operand(accesses):
    buffers = [buffer(0, "input", "a", [2, 2]), buffer(1, "output", "b", [2, 2]), buffer(2, "output", "c", [2, 2])]
    call = library_call("matmul", list(zip(buffers, accesses, strict=True)))
    with pytest.raises(BundleError):
        check(program(buffers, [Copy(0, 1, 16), Copy(0, 2, 16), call]))


def test_a_library_operand_fits_its_buffer():
    a, c = buffer(0, "input", "a", [2, 2]), buffer(1, "output", "c", [2, 2])
    call = library_call("matmul", [(a, "read"), (a, "read"), (dataclasses.replace(c, shape=(2, 3)), "write")])
    with pytest.raises(BundleError, match=r"operand 2: float32 \[2, 3\] does not fit buffer 1"):
        check(program([a, c], [call]))


def two_temporaries(first: int, second: int, order: str) -> Program:
    """Steps by letter: a and b write the temporaries, A and B read them."""
    buffers = [
        buffer(0, "input", "x", [96]),
        buffer(1, "temporary", "a", [96], offset=first),
        buffer(2, "temporary", "b", [96], offset=second),
        buffer(3, "output", "y", [96]),
    ]
    steps = {"a": Copy(0, 1, 384), "b": Copy(0, 2, 384), "A": Copy(1, 3, 384), "B": Copy(2, 3, 384)}
    return program(buffers, [steps[letter] for letter in order])


@pytest.mark.parametrize("order", ["aAbB", "bBaA", "aAaA", "aabBaA"])
def test_temporaries_may_share_bytes_one_after_the_other(order):
    for offsets in ((0, 0), (0, 256), (256, 0)):
        check(two_temporaries(*offsets, order))


@pytest.mark.parametrize("offsets", [(0, 0), (0, 256), (256, 0)])
@pytest.mark.parametrize("order", ["abA", "baB", "aAbA", "abBA"])
def test_a_temporary_that_another_one_overwrote_cannot_be_read(offsets, order):
    with pytest.raises(BundleError, match=r"but step \d writes other data to the same bytes of the arena"):
        check(two_temporaries(*offsets, order))
    check(two_temporaries(0, 512, order))


def test_arguments_of_one_launch_cannot_share_bytes_unless_they_are_one_buffer():
    buffers = [
        buffer(0, "input", "x", [8]),
        buffer(1, "temporary", "a", [8], offset=0),
        buffer(2, "temporary", "b", [8], offset=0),
        buffer(3, "output", "y", [8]),
    ]
    start = Copy(0, 1, 32)
    overlapping = launch(buffers, "add", [(1, "read"), (0, "read"), (2, "write")])
    with pytest.raises(BundleError, match=r"step 1 \(kernel add\): needs buffer 1 'a', but step 1 writes other data"):
        check(program(buffers, [start, overlapping, Copy(2, 3, 32)]))
    in_place = launch(buffers, "add", [(1, "read"), (0, "read"), (1, "write")])
    check(program(buffers, [start, in_place, Copy(1, 3, 32)]))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_data_flow_agrees_with_marking_every_byte(data):
    """Against a plain model: each byte of the arena remembers which temporary wrote it last."""
    units = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 600)), min_size=1, max_size=4))
    buffers = [buffer(0, "input", "x", [1], "int8")]
    for offset, size in units:
        buffers.append(buffer(len(buffers), "temporary", f"t{len(buffers)}", [size], "int8", offset * 256))
    entries = {"kernels": {"r": 1, "w": 1}}
    choices = st.tuples(st.sampled_from("rw"), st.integers(1, len(units)))
    actions = data.draw(st.lists(choices, min_size=1, max_size=8))
    steps = [launch(buffers, k, [(b, "read" if k == "r" else "write")], block=(1, 1, 1)) for k, b in actions]
    owner: dict[int, int] = {}
    sound = True
    for kind, index in actions:
        b = buffers[index]
        assert b.arena_offset is not None
        touched = range(b.arena_offset, b.arena_offset + b.bytes)
        if kind == "w":
            owner.update(dict.fromkeys(touched, index))
        else:
            sound = sound and all(owner.get(byte) == index for byte in touched)
    try:
        check_program(program(buffers, steps), entries)
    except BundleError:
        assert not sound
    else:
        assert sound


def test_an_output_may_show_a_buffer_with_another_shape():
    check(with_signature(ADD, outputs=(Value("y", (2, 4), "float32", 3), Y)))
