"""Planted faults: each is found at its line, and its sound twin runs without a finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from ptx_text import kernel, line_of, run

from mlirstitch.errors import LaunchError

_SHARED = ".shared .align 16 .b8 tile[1024];\n"
_OWN = "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d1, %a0, %d0; shl.b32 %r20, %r0, 2; mov.u32 %r21, tile;\n"
_OWN += "add.u32 %r22, %r21, %r20;\n"


@dataclass(frozen=True)
class Fault:
    """A kernel with a fault in the line marked FAULT; in its twin ``sound`` replaces that line (or ``instead``)."""

    name: str
    body: str
    message: str
    sound: str
    instead: str = "FAULT"
    block: int = 64
    elements: int = 64
    options: tuple[tuple[str, Any], ...] = ()


FAULTS = [
    Fault(
        "load past the end",
        _OWN + "ld.global.b32 %r1, [%d1+4]; // FAULT\nst.shared.b32 [%r22], %r1;",
        r"thread \(63, 0, 0\) of block \(0, 0, 0\) reads 4 bytes .*out of bounds: 256 bytes after the start of "
        r"argument 0, int32\[64\] of 256 bytes",
        "ld.global.b32 %r1, [%d1];",
    ),
    Fault(
        "store before the start",
        _OWN + "st.shared.b32 [%r22], 1;\nst.global.b32 [%d1+-4], %r0; // FAULT",
        r"thread \(0, 0, 0\) of block \(0, 0, 0\) writes 4 bytes .*out of bounds: 4 bytes before argument 0",
        "st.global.b32 [%d1], %r0;",
    ),
    Fault(
        "atomic out of bounds",
        _OWN + "st.shared.b32 [%r22], 1;\nred.global.add.u32 [%d1+1024], 1; // FAULT",
        r"thread \(0, 0, 0\) of block \(0, 0, 0\) updates 4 bytes .*out of bounds",
        "red.global.add.u32 [%d1], 1;",
    ),
    Fault(
        "vector load of a misaligned address",
        "st.shared.b32 [tile], 0;\nld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%a0+8]; // FAULT",
        r"reads 16 bytes .*not aligned to 16 bytes",
        "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%a0+16];",
        block=1,
    ),
    Fault(
        "scalar store of a misaligned address",
        "st.shared.b32 [tile], 0;\nst.global.b32 [%a0+2], %r0; // FAULT",
        r"not aligned to 4 bytes",
        "st.global.b32 [%a0+4], %r0;",
        block=1,
    ),
    Fault(
        "shared memory out of bounds",
        _OWN + "st.shared.b32 [%r22+772], %r0; // FAULT",
        r"thread \(63, 0, 0\) of block \(0, 0, 0\) accesses 4 bytes at shared offset 1024, out of bounds of the 1024",
        "st.shared.b32 [%r22+768], %r0;",
    ),
    Fault(
        "shared memory misaligned",
        _OWN + "st.shared.v2.b32 [%r22], {%r0, %r0}; // FAULT",
        r"thread \(1, 0, 0\) .* at shared offset 4, not aligned to 8 bytes",
        "st.shared.b32 [%r22], %r0;",
    ),
    Fault(
        "shared memory read before anybody wrote it",
        _OWN + "setp.ne.u32 %p1, %r0, 5; @%p1 bra $write; bra $sync;\n$write: st.shared.b32 [%r22], %r0;\n"
        "$sync: bar.sync 0;\nld.shared.b32 %r1, [%r22]; // FAULT",
        r"thread \(5, 0, 0\) of block \(0, 0, 0\) reads shared memory that nobody has written, at shared offset 20",
        "ld.shared.b32 %r1, [%r21+24];",
    ),
    Fault(
        "read of another warp's value without a barrier",
        _OWN + "st.shared.b32 [%r22], %r0;\n// SYNC\nxor.b32 %r1, %r20, 128; add.u32 %r1, %r1, %r21;\n"
        "ld.shared.b32 %r2, [%r1]; // FAULT",
        r"thread \(0, 0, 0\) .* reads shared memory that another warp wrote since the last barrier",
        "bar.sync 0;",
        instead="SYNC",
    ),
    Fault(
        "write over what another warp reads",
        _OWN + "st.shared.b32 [%r22], %r0; bar.sync 0; xor.b32 %r1, %r20, 128; add.u32 %r1, %r1, %r21;\n"
        "ld.shared.b32 %r2, [%r1];\n// SYNC\nst.shared.b32 [%r22], %r2; // FAULT",
        r"writes shared memory that another warp read since the last barrier",
        "bar.sync 0;",
        instead="SYNC",
    ),
    Fault(
        "write over what all warps read",
        _OWN + "setp.eq.u32 %p1, %r0, 0; @%p1 bra $w; bra $s;\n$w: st.shared.b32 [tile], %r0;\n$s: bar.sync 0;\n"
        "ld.shared.b32 %r2, [tile];\n// SYNC\n@%p1 bra $w2; bra $e;\n$w2: st.shared.b32 [tile], %r2; // FAULT\n$e:",
        r"thread \(0, 0, 0\) .*writes shared memory that another warp read since the last barrier",
        "bar.sync 0;",
        instead="SYNC",
    ),
    Fault(
        "write over what two warps read in one instruction",
        _OWN + "setp.eq.u32 %p1, %r0, 0; @%p1 bra $w; bra $s;\n$w: st.shared.b32 [tile], %r0;\n$s: bar.sync 0;\n"
        "and.b32 %r3, %r20, 0; add.u32 %r3, %r3, %r21; ld.shared.b32 %r2, [%r3];\n// SYNC\n"
        "setp.eq.u32 %p2, %r0, 63; @%p2 bra $w2; bra $e;\n$w2: st.shared.b32 [tile], %r2; // FAULT\n$e:",
        r"thread \(63, 0, 0\) .*writes shared memory that another warp read since the last barrier",
        "bar.sync 0;",
        instead="SYNC",
    ),
    Fault(
        "two warps write one place",
        _OWN + "and.b32 %r1, %r20, 127; add.u32 %r1, %r1, %r21;\nst.shared.b32 [%r1], %r0; // FAULT",
        r"writes shared memory that another warp wrote since the last barrier",
        "st.shared.b32 [%r22], %r0;",
    ),
    Fault(
        "register that only some threads have written",
        _OWN + "setp.lt.u32 %p1, %r0, 9; @%p1 bra $set; bra $use;\n$set: mov.b32 %r9, 4;\n"
        "$use: st.shared.b32 [%r22], %r9; // FAULT",
        r"thread \(9, 0, 0\) .*reads register %r9, which it has not written",
        "$use: st.shared.b32 [%r22], %r0;",
    ),
    Fault(
        "local memory read before it is written",
        ".local .align 4 .b8 depot[8];\nst.shared.b32 [tile], 0;\nmov.u64 %d5, depot; st.local.b32 [%d5], %r0;\n"
        "ld.local.b32 %r1, [%d5+4]; // FAULT",
        r"reads local memory that it has not written",
        "ld.local.b32 %r1, [%d5];",
        block=1,
    ),
    Fault(
        "barrier that half a block has left behind",
        "st.shared.b32 [tile], 0;\nsetp.lt.u32 %p1, %r0, 16;\n@%p1 ret;\nbar.sync 0; // FAULT",
        r"divergent barrier: thread \(16, 0, 0\) of block \(0, 0, 0\) waits, but thread \(0, 0, 0\) .* has exited",
        "bar.warp.sync -1;",
        block=32,
    ),
    Fault(
        "threads wait at two barriers",
        "st.shared.b32 [tile], 0;\nsetp.lt.u32 %p1, %r0, 16; @%p1 bra $a;\nbar.sync 0; bra $e; // FAULT\n"
        "$a: bar.sync 0;\n$e:",
        r"divergent barrier: thread .* waits here, thread .* at PTX line \d+",
        "$a:",
        block=32,
        instead="bar.sync 0; bra $e;",
    ),
    Fault(
        "shuffle from a lane that has left",
        "st.shared.b32 [tile], 0;\nsetp.ge.u32 %p1, %r0, 16;\n@%p1 bra $end;\n"
        "shfl.sync.bfly.b32 %r1, %r0, 16, 31, 0xffff; // FAULT\n$end:",
        r"thread \(0, 0, 0\) .*reads lane 16 of its warp, which does not take part",
        "shfl.sync.bfly.b32 %r1, %r0, 8, 31, 0xffff;",
        block=32,
    ),
    Fault(
        "shuffle with a member mask that leaves its threads out",
        "st.shared.b32 [tile], 0;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xff; // FAULT",
        r"thread \(8, 0, 0\) .*executes with a member mask that leaves it out",
        "shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;",
        block=32,
    ),
    Fault(
        "shuffle while members of the mask run elsewhere",
        "st.shared.b32 [tile], 0;\nsetp.ge.u32 %p1, %r0, 16; @%p1 bra $end;\n"
        "shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; // FAULT\n$end: mov.b32 %r2, 0;",
        r"thread \(16, 0, 0\) .*is in the member mask but does not execute this with its warp",
        "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffff;",
        block=32,
    ),
    Fault(
        "endless loop",
        "st.shared.b32 [tile], 0;\nmov.b32 %r1, 0;\n$loop: add.u32 %r1, %r1, 1; // FAULT\n"
        "setp.ne.u32 %p1, %r1, 0; @%p1 bra $loop;",
        r"still running after 20000 instructions",
        "$loop: add.u32 %r1, %r1, 0x1000000;",
        block=1,
        options=(("budget", 20000),),
    ),
    Fault(
        "switch past its table",
        "st.shared.b32 [tile], 0;\n$T: .branchtargets $A, $B;\nadd.u32 %r1, %r0, 1;\nbrx.idx %r1, $T; // FAULT\n"
        "$A:\n$B:",
        r"thread \(1, 0, 0\) .*selects target 2 of 2",
        "brx.idx %r0, $T;",
        block=2,
    ),
    Fault(
        "failed assertion",
        "st.shared.b32 [tile], 0;\nsetp.ne.u32 %p1, %r0, 3; @%p1 bra $ok;\ntrap; // FAULT\n$ok:",
        r"trap reached in thread \(3, 0, 0\) of block",
        "mov.b32 %r1, 0;",
        block=8,
    ),
]


def _twin(fault: Fault) -> str:
    lines = [fault.sound if fault.instead in line else line for line in fault.body.splitlines()]
    return "\n".join(lines)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_at_its_line(fault: Fault) -> None:
    text = kernel(fault.body, pointers=1, before=_SHARED)
    with pytest.raises(LaunchError, match=fault.message) as caught:
        run(text, [np.zeros(fault.elements, np.int32)], block=fault.block, **dict(fault.options))
    assert f"kernel 'k', PTX line {line_of(text, 'FAULT')} (" in str(caught.value)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_sound_twin_has_no_finding(fault: Fault) -> None:
    text = kernel(_twin(fault), pointers=1, before=_SHARED)
    run(text, [np.zeros(fault.elements, np.int32)], block=fault.block, **dict(fault.options))


def test_fault_names_block_thread_and_source_line_in_three_dimensions() -> None:
    body = """mov.u32 %r1, %ctaid.z; mov.u32 %r2, %tid.y; setp.ne.u32 %p1, %r1, 2; @%p1 bra $end;
setp.ne.u32 %p1, %r2, 3; @%p1 bra $end;
.loc 1 77 0
st.global.b32 [%a0+4], %r1;
$end:"""
    text = kernel(body, pointers=1, before='.file 1 "net.mlir"\n')
    with pytest.raises(LaunchError, match=r"^net\.mlir:77: .*thread \(0, 3, 0\) of block \(0, 0, 2\)") as caught:
        run(text, [np.zeros(1, np.int32)], block=(2, 4), grid=(2, 1, 3))
    assert caught.value.source == "net.mlir:77"


def test_neighbouring_array_of_an_arena_is_out_of_bounds() -> None:
    arena = np.zeros(16, np.int32)
    text = kernel("mov.b32 %r1, 5; st.global.b32 [%a0+32], %r1;", pointers=2)
    with pytest.raises(LaunchError, match="out of bounds"):
        run(text, [arena[:8], arena[8:]], block=1)
    assert not arena.any()


def test_view_keeps_the_alignment_it_has_in_its_arena() -> None:
    arena = np.zeros(32, np.int32)
    text = kernel("ld.global.v2.b32 {%r1, %r2}, [%a0];", pointers=1)
    run(text, [arena[2:]], block=1)
    with pytest.raises(LaunchError, match="not aligned to 8 bytes"):
        run(text, [arena[3:]], block=1)


def test_store_to_a_read_only_array_is_found() -> None:
    constant = np.zeros(4, np.int32)
    constant.setflags(write=False)
    run(kernel("ld.global.b32 %r1, [%a0];", pointers=1), [constant], block=1)
    with pytest.raises(LaunchError, match="read-only"):
        run(kernel("st.global.b32 [%a0], 1;", pointers=1), [constant], block=1)


def test_without_checks_only_bounds_and_alignment_are_looked_at() -> None:
    race = kernel(_OWN + "and.b32 %r1, %r20, 127; add.u32 %r1, %r1, %r21; st.shared.b32 [%r1], %r9;", 1, before=_SHARED)
    run(race, [np.zeros(64, np.int32)], block=64, checks=False)
    early = kernel("setp.lt.u32 %p1, %r0, 16; @%p1 ret;\nbar.sync 0;")
    run(early, [], checks=False)
    with pytest.raises(LaunchError, match="out of bounds"):
        run(kernel("ld.global.b32 %r1, [%a0+4];", pointers=1), [np.zeros(1, np.int32)], block=1, checks=False)


def test_faults_in_a_later_chunk_of_blocks_are_named_right() -> None:
    body = """mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 64, %r0; cvt.u64.u32 %d0, %r2; shl.b64 %d0, %d0, 2;
add.u64 %d0, %a0, %d0; st.global.b32 [%d0], %r2;"""
    data = np.zeros(64 * 1000 - 3, np.int32)
    with pytest.raises(LaunchError, match=r"thread \(61, 0, 0\) of block \(999, 0, 0\)"):
        run(kernel(body, pointers=1), [data], block=64, grid=1000)


def test_waiting_for_a_barrier_nobody_else_reaches_is_no_hang() -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra $one;\nbar.sync 1, 64; bra $e;\n$one: bar.sync 2, 64;\n$e:"
    with pytest.raises(LaunchError, match="divergent barrier"):
        run(kernel(body), [], block=64)
    sound = "setp.lt.u32 %p1, %r0, 32; @%p1 bra $one;\nbar.sync 1, 32; bra $e;\n$one: bar.sync 2, 32;\n$e:"
    run(kernel(sound), [], block=64)


UNPACKED = "mov.b32 {_, %h1}, %r7; mov.b16 %h2, 5;\n"


@pytest.mark.parametrize("checks", [True, False])
def test_half_of_an_undefined_pair_may_be_packed_again(checks: bool) -> None:
    out = np.zeros(1, np.uint32)
    text = kernel(f"{UNPACKED}mov.b32 %r1, {{%h2, %h1}};\nmov.b32 {{%h3, _}}, %r1; st.global.b16 [%a0], %h3;", 1)
    run(text, [out], block=1, checks=checks)
    assert out.tolist() == [5]


def test_half_of_an_undefined_pair_may_not_be_stored() -> None:
    with pytest.raises(LaunchError, match=r"reads register %r7, which it has not written"):
        run(kernel(f"{UNPACKED}st.global.b16 [%a0], %h1;", 1), [np.zeros(1, np.uint32)], block=1, checks=True)


@pytest.mark.parametrize("checks", [True, False])
def test_a_permutation_reads_no_source_that_it_takes_no_byte_of(checks: bool) -> None:
    out = np.zeros(2, np.uint32)
    text = "mov.b32 %r1, 0x01020304; prmt.b32 %r2, %r1, %r7, 0x123U; prmt.b32 %r3, %r7, %r1, 0x4567U;\n"
    run(kernel(f"{text}st.global.v2.b32 [%a0], {{%r2, %r3}};", 1), [out], block=1, checks=checks)
    assert out.tolist() == [0x04030201, 0x04030201]


def test_a_permutation_of_bytes_that_nothing_wrote_is_found() -> None:
    for selector in ("0x4321U", "%r1"):
        text = f"mov.b32 %r1, 0; prmt.b32 %r2, %r1, %r7, {selector}; st.global.b32 [%a0], %r2;"
        with pytest.raises(LaunchError, match=r"reads register %r7, which it has not written"):
            run(kernel(text, 1), [np.zeros(1, np.uint32)], block=1, checks=True)
