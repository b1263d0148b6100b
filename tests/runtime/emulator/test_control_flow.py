"""Order of blocks: diverged threads meet again before anything that needs them together."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import kernel, run

from mlirstitch.runtime.emulator.ptx.lower import lower_kernel
from mlirstitch.runtime.emulator.ptx.parser import parse


def test_blocks_come_after_their_predecessors_wherever_they_stand_in_the_text() -> None:
    # The cold block stands at the end of the text and jumps back: text order would run the shuffle without its threads.
    body = (
        "setp.lt.u32 %p1, %r0, 8; mov.b32 %r1, 1; @%p1 bra $cold;\n"
        "$join: shfl.sync.bfly.b32 %r2, %r1, 8, 31, -1;\n"
        "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d0, %a0, %d0; st.global.b32 [%d0], %r2; ret;\n"
        "$cold: mov.b32 %r1, 5; bra $join;\n"
    )
    text = kernel(body, pointers=1)
    blocks = lower_kernel(parse(text), "k").blocks
    for block in blocks:
        assert all(target > block.index for target in block.terminator.targets)
    out = np.zeros(32, np.uint32)
    run(text, [out])
    assert out.tolist() == [1] * 8 + [5] * 8 + [1] * 16


def test_blocks_behind_a_loop_wait_for_the_last_thread_in_it() -> None:
    # Thread t leaves after t rounds; the exit stands before the loop in the text.
    body = (
        "mov.b32 %r1, 0; bra $head;\n"
        "$exit: shfl.sync.idx.b32 %r2, %r1, 31, 31, -1;\n"
        "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d0, %a0, %d0; st.global.b32 [%d0], %r2; ret;\n"
        "$head: setp.ge.u32 %p1, %r1, %r0; @%p1 bra $exit;\nadd.u32 %r1, %r1, 1; bra $head;\n"
    )
    out = np.zeros(32, np.uint32)
    run(kernel(body, pointers=1), [out])
    assert (out == 31).all()


def test_guarded_return_and_guarded_instruction() -> None:
    body = (
        "mov.b32 %r1, 3; setp.lt.u32 %p1, %r0, 4; @%p1 mov.b32 %r1, 9; @!%p1 add.u32 %r1, %r1, 1;\n"
        "setp.eq.u32 %p2, %r0, 2; @%p2 ret;\n"
        "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d0, %a0, %d0; @%p1 st.global.b32 [%d0], %r1;\n"
    )
    out = np.full(8, 77, np.uint32)
    run(kernel(body, pointers=1), [out], block=8)
    assert out.tolist() == [9, 9, 77, 9, 77, 77, 77, 77]


_COLLATZ = (
    "cvt.u64.u32 %d0, %r1; shl.b64 %d0, %d0, 2; add.u64 %d1, %a0, %d0; ld.global.b32 %r2, [%d1]; mov.b32 %r3, 0;\n"
    "$head: setp.le.u32 %p1, %r2, 1; @%p1 bra $done;\n"
    "and.b32 %r4, %r2, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra $even;\n"
    "mad.lo.u32 %r2, %r2, 3, 1; bra $next;\n$even: shr.u32 %r2, %r2, 1;\n$next: add.u32 %r3, %r3, 1; bra $head;\n"
    "$done: add.u64 %d2, %a1, %d0; st.global.b32 [%d2], %r3;\n"
)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=70, max_size=70))
def test_nested_divergence_gives_every_thread_its_own_result(values: list[int]) -> None:
    text = kernel("mov.u32 %r5, %ctaid.x; mad.lo.u32 %r1, %r5, 35, %r0;\n" + _COLLATZ, pointers=2)
    out = np.zeros(70, np.uint32)
    run(text, [np.array(values, np.uint32), out], block=35, grid=2)

    def steps(n: int) -> int:
        return 0 if n <= 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert out.tolist() == [steps(v) for v in values]


def test_liveness_keeps_only_what_a_later_block_reads() -> None:
    body = (
        "mov.b32 %r1, 1; mov.b32 %r2, 2; setp.eq.u32 %p1, %r0, 0; @%p1 bra $a;\nadd.u32 %r1, %r1, %r2;\n"
        "$a: st.global.b32 [%a0], %r1;"
    )
    blocks = lower_kernel(parse(kernel(body, pointers=1)), "k").blocks
    assert [r.name for r in blocks[0].live_out] == ["%a0", "%r1", "%r2"]
    assert [r.name for r in blocks[1].live_out] == ["%a0", "%r1"]
    assert blocks[0].live_in == ()
