"""What the JIT engine always looks for is found, in the words of the reference engine; sound twins run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_text import kernel, line_of
from test_findings import _SHARED, FAULTS, Fault, _twin

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import emulator

_ALWAYS = (
    "out of bounds", "not aligned", "misaligned", "still running", "selects target", "trap reached", "read-only",
)  # fmt: skip
_FOUND = [fault for fault in FAULTS if any(words in fault.message for words in _ALWAYS)]
_OWN = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0; cvt.u64.u32 %d0, %r3;
shl.b64 %d0, %d0, 2; add.u64 %d1, %a0, %d0;
"""


def _finding(text: str, engine: str, args: list[Any], **options: Any) -> str:
    module = emulator.load(text)
    with pytest.raises(LaunchError) as caught:
        module.launch(
            "k", options.pop("grid", 1), options.pop("block", 32), args, checks=False, engine=engine, **options
        )
    assert module.engine_of("k") == engine, module.fallback("k")
    return str(caught.value)


def _same_finding(text: str, args: list[Any], **options: Any) -> str:
    """The text of the finding, which is the same in both engines."""
    copies = [a.copy() if isinstance(a, np.ndarray) and a.flags.writeable else a for a in args]
    found = _finding(text, "jit", args, **options)
    assert found == _finding(text, "reference", copies, **options)
    return found


def test_there_are_faults_of_every_kind() -> None:
    assert len(_FOUND) >= 9


@pytest.mark.parametrize("fault", _FOUND, ids=lambda fault: fault.name)
def test_fault_is_found_at_its_line_in_the_same_words(fault: Fault) -> None:
    text = kernel(fault.body, pointers=1, before=_SHARED)
    options = {"block": fault.block, **dict(fault.options)}
    found = _same_finding(text, [np.zeros(fault.elements, np.int32)], **options)
    assert f"kernel 'k', PTX line {line_of(text, 'FAULT')} (" in found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_sound_twin_runs(fault: Fault) -> None:
    module = emulator.load(kernel(_twin(fault), pointers=1, before=_SHARED))
    options = dict(fault.options)
    module.launch("k", 1, fault.block, [np.zeros(fault.elements, np.int32)], checks=False, engine="jit", **options)
    assert module.engine_of("k") == "jit"


@pytest.mark.parametrize("access", ["ld.global.b32 %r9, [%d1+4]", "st.global.b32 [%d1+4], %r9"])
@pytest.mark.parametrize("width", [1, 4])
def test_last_thread_one_element_past_the_end(access: str, width: int) -> None:
    """The fast path of a whole warp, after accesses that were in bounds."""
    if width == 4:
        access = access.replace("global.b32", "global.v4.b32").replace("%r9", "{%r9, %r10, %r11, %r12}")
    start = _OWN.replace(", 2;", f", {2 if width == 1 else 4};")
    body = f"mov.b32 %r9, 0; mov.b32 %r10, 0; mov.b32 %r11, 0; mov.b32 %r12, 0;\n{start}"
    access = access.replace("+4", f"+{4 * width}")
    found = _same_finding(kernel(f"{body}{access};", 1), [np.zeros(64 * 256 * width, np.int32)], grid=256, block=64)
    assert "thread (63, 0, 0) of block (255, 0, 0)" in found
    assert "out of bounds" in found


def test_finding_of_the_lowest_block_wins_whatever_the_threads_do() -> None:
    """Every block from 100 on is faulty."""
    body = f"{_OWN}setp.lt.u32 %p1, %r1, 100; @%p1 bra $fine;\nadd.u64 %d1, %d1, 1000000;\n"
    body += "$fine: st.global.b32 [%d1], %r3;"
    for _ in range(5):
        found = _finding(kernel(body, 1), "jit", [np.zeros(128 * 1000, np.int32)], grid=1000, block=128)
        assert "thread (0, 0, 0) of block (100, 0, 0)" in found


def test_store_to_a_read_only_array() -> None:
    constant = np.zeros(64, np.int32)
    constant.flags.writeable = False
    found = _same_finding(kernel(f"{_OWN}st.global.b32 [%d1], %r3;", 1), [constant], block=64)
    assert "read-only" in found


def test_reads_of_a_read_only_array_do_not_open_it_for_writing() -> None:
    """Load and store have a site each, and the load comes first."""
    constant = np.zeros(64, np.int32)
    constant.flags.writeable = False
    body = f"{_OWN}ld.global.b32 %r9, [%d1]; add.u32 %r9, %r9, 1; st.global.b32 [%d1], %r9;"
    assert "read-only" in _same_finding(kernel(body, 1), [constant], block=64)
    assert not constant.any()


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_misaligned_access_of_a_whole_warp(offset: int) -> None:
    found = _same_finding(kernel(f"{_OWN}ld.global.b32 %r9, [%d1+{offset}];", 1), [np.zeros(256, np.int32)], block=64)
    assert "not aligned to 4 bytes" in found


def test_misaligned_access_after_aligned_ones_at_the_same_place() -> None:
    """The allocation is known by then; the second block is two bytes off."""
    body = f"{_OWN}mul.wide.u32 %d3, %r1, 2; add.u64 %d1, %d1, %d3; ld.global.b32 %r9, [%d1];"
    found = _same_finding(kernel(body, 1), [np.zeros(256, np.int32)], grid=2)
    assert "thread (0, 0, 0) of block (1, 0, 0) reads 4 bytes" in found
    assert "not aligned to 4 bytes" in found


def test_views_keep_the_alignment_they_have_in_their_array() -> None:
    arena = np.zeros(256, np.int32)
    body = "mul.wide.u32 %d0, %r0, 16; add.u64 %d1, %a0, %d0; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d1];"
    emulator.load(kernel(body, 1)).launch("k", 1, 32, [arena[4:]], checks=False, engine="jit")
    assert "not aligned to 16 bytes" in _finding(kernel(body, 1), "jit", [arena[1:130]])


def test_neighbouring_array_is_out_of_bounds() -> None:
    arena = np.zeros(128, np.int32)
    found = _finding(kernel(f"{_OWN}st.global.b32 [%d1+128], %r3;", 2), "jit", [arena[:32], arena[32:]])
    assert "out of bounds" in found
    assert not arena.any()


def test_address_that_wraps_around() -> None:
    body = f"{_OWN}sub.u64 %d2, 0, %d1; add.u64 %d2, %d2, %d0; ld.global.b32 %r9, [%d2];"
    module = emulator.load(kernel(body, 1))
    with pytest.raises(LaunchError, match="out of bounds"):
        module.launch("k", 1, 32, [np.zeros(32, np.int32)], checks=False, engine="jit")


def test_no_array_at_all() -> None:
    found = _same_finding(kernel("mov.b64 %d1, 4096; ld.global.b32 %r9, [%d1];"), [])
    assert "the launch has no array arguments" in found


@pytest.mark.parametrize("space", ["shared", "local"])
def test_space_the_kernel_does_not_have(space: str) -> None:
    found = _same_finding(kernel(f"mov.b64 %d1, 0; st.{space}.b32 [%d1], %r0;"), [])
    assert f"accesses {space} memory, but the kernel has none" in found


@pytest.mark.parametrize("offset", ["1024", "-4", "1022"])
def test_shared_access_of_a_whole_warp_out_of_bounds(offset: str) -> None:
    body = f"cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d0, %d0, {offset}; ld.shared.b32 %r1, [%d0];\n"
    body += "st.shared.b32 [tile], 0;"
    assert "shared" in _same_finding(kernel(body, before=_SHARED), [])


def test_waiting_for_a_barrier_nobody_else_reaches_is_no_hang() -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra $one;\nbar.sync 1, 64; bra $e;\n$one: bar.sync 2, 64;\n$e:"
    found = _finding(kernel(body), "jit", [], block=64)
    assert "divergent barrier: thread (0, 0, 0) of block (0, 0, 0) waits, but thread (32, 0, 0)" in found
    sound = "setp.lt.u32 %p1, %r0, 32; @%p1 bra $one;\nbar.sync 1, 32; bra $e;\n$one: bar.sync 2, 32;\n$e:"
    emulator.load(kernel(sound)).launch("k", 1, 64, [], checks=False, engine="jit")


def test_threads_that_have_exited_do_not_hold_up_a_barrier() -> None:
    body = "setp.lt.u32 %p1, %r0, 16; @%p1 ret;\nbar.sync 0;\nst.global.b32 [%a0], %r0;"
    out = np.zeros(1, np.int32)
    emulator.load(kernel(body, 1)).launch("k", 1, 64, [out], checks=False, engine="jit")
    assert out[0] == 63


def test_jit_engine_refuses_checks_it_does_not_have() -> None:
    with pytest.raises(LaunchError, match="does not look for uninitialised reads") as caught:
        emulator.load(kernel("")).launch("k", 1, 32, [], engine="jit")
    assert caught.value.hint
    with pytest.raises(LaunchError, match="unknown engine 'fast'"):
        emulator.load(kernel(""), "fast")
