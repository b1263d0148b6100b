"""Barriers of blocks, clusters and memory, asynchronous copies, cooperative launches: what they do when used well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_text import kernel, run

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import emulator

_TILE = ".shared .align 16 .b8 tile[4096];\n"
_ORDERS = pytest.mark.parametrize("options", [{}, {"seed": 3}, {"sanitize": True}], ids=["plain", "seed", "sanitized"])
_INDEX = """mov.u32 %r60, %ctaid.x; mov.u32 %r61, %ntid.x; mad.lo.u32 %r61, %r60, %r61, %r0; shl.b32 %r62, %r0, 2;
mov.u32 %r63, tile; add.u32 %r63, %r63, %r62; mul.wide.u32 %d62, %r61, 4; add.u64 %d60, %a0, %d62;
"""


def _run(body: str, args: list[Any], block: int = 64, grid: int = 1, **options: Any) -> emulator.LaunchCounters:
    return run(kernel(_INDEX + body, len(args), before=_TILE), args, block=block, grid=grid, **options)


@_ORDERS
def test_barrier_with_reduction_gives_all_threads_the_same_value(options: dict[str, Any]) -> None:
    body = """setp.lt.u32 %p1, %r0, 20; bar.red.popc.u32 %r1, 0, %p1; bar.red.and.pred %p2, 0, %p1;
barrier.cta.red.or.aligned.pred %p3, 0, %p1; bar.red.popc.u32 %r2, 0, !%p1;
selp.b32 %r3, 100, 0, %p2; selp.b32 %r4, 1000, 0, %p3; add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4;
mul.lo.u32 %r2, %r2, 10000; add.u32 %r1, %r1, %r2; st.global.b32 [%d60], %r1;"""
    out = np.zeros(128, np.uint32)
    _run(body, [out], grid=2, **options)
    assert set(out.tolist()) == {20 + 1000 + 44 * 10000}


@_ORDERS
def test_producer_and_consumer_warps_take_turns(options: dict[str, Any]) -> None:
    """Warp 0 fills a buffer, warp 1 empties it, by two named barriers: one side arrives, the other waits."""
    body = """setp.ge.u32 %p1, %r0, 32; mov.b32 %r1, 0; mov.b32 %r2, 0; @%p1 bra $consume;
$produce: bar.sync 1, 64; mad.lo.u32 %r3, %r1, 100, %r0; st.shared.b32 [%r63], %r3; bar.arrive 2, 64;
add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5; @%p2 bra $produce; bra $end;
$consume: bar.arrive 1, 64; bar.sync 2, 64; ld.shared.b32 %r3, [%r63+-128]; add.u32 %r2, %r2, %r3;
add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5; @%p2 bra $consume;
st.global.b32 [%d60+-128], %r2;
$end:"""
    out = np.zeros(32, np.uint32)
    counters = _run(body, [out], **options)
    assert out.tolist() == [sum(100 * n + t for n in range(5)) for t in range(32)]
    assert counters.barriers == 20


@_ORDERS
def test_barrier_number_and_count_in_registers(options: dict[str, Any]) -> None:
    body = """shr.u32 %r1, %r0, 6; add.u32 %r1, %r1, 3; mov.b32 %r2, 64;
st.shared.b32 [%r63], %r0; barrier.sync %r1, %r2;
xor.b32 %r3, %r63, 128; ld.shared.b32 %r4, [%r3]; st.global.b32 [%d60], %r4;"""
    out = np.zeros(128, np.uint32)
    _run(body, [out], block=128, **options)
    assert out.tolist() == [t ^ 32 for t in range(128)]


_GRID_BARRIER = """st.global.b32 [%d60], %r61; bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra $sync;
mov.u32 %r2, %nctaid.x; atom.acq_rel.gpu.global.add.u32 %r3, [%a1], 1;
$spin: ld.acquire.gpu.global.b32 %r4, [%a1]; setp.lt.u32 %p2, %r4, %r2; @%p2 bra $spin;
$sync: bar.sync 0; mov.u32 %r2, %nctaid.x; add.u32 %r5, %r60, 1; rem.u32 %r5, %r5, %r2; mad.lo.u32 %r5, %r5, 64, %r0;
mul.wide.u32 %d2, %r5, 4; add.u64 %d2, %a0, %d2; ld.global.b32 %r6, [%d2]; add.u64 %d3, %a2, %d62;
st.global.b32 [%d3], %r6;"""


@_ORDERS
@pytest.mark.parametrize("grid", [1, 7, 40])
def test_grid_barrier_of_a_cooperative_launch(grid: int, options: dict[str, Any]) -> None:
    out = np.zeros(64 * grid, np.uint32)
    _run(_GRID_BARRIER, [np.zeros_like(out), np.zeros(1, np.uint32), out], grid=grid, cooperative=True, **options)
    assert out.tolist() == [(n + 64) % (64 * grid) for n in range(64 * grid)]


def test_barrier_nobody_completes_is_a_deadlock_with_all_waiting_lines() -> None:
    body = _GRID_BARRIER.replace("[%a1], 1;", "[%a1], 0;")
    arrays = [np.zeros(128, np.uint32), np.zeros(1, np.uint32), np.zeros(128, np.uint32)]
    with pytest.raises(LaunchError, match=r"deadlock: no thread makes progress any more; waiting are ") as caught:
        _run(body, arrays, grid=2, cooperative=True)
    text = str(caught.value)
    assert "(ld.acquire.gpu.global.b32)" in text
    assert "(bar.sync)" in text


@_ORDERS
@pytest.mark.parametrize("cooperative", [False, True])
def test_lock_taken_by_every_thread_in_turn(cooperative: bool, options: dict[str, Any]) -> None:
    """A thread that holds the lock must run on while its warp spins (independent thread scheduling)."""
    body = """mov.b32 %r9, 0;
$spin: atom.acquire.gpu.global.cas.b32 %r1, [%a1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra $next;
ld.global.b32 %r2, [%a0]; add.u32 %r2, %r2, 1; st.global.b32 [%a0], %r2; mov.b32 %r9, 1;
atom.release.gpu.global.exch.b32 %r3, [%a1], 0;
$next: setp.eq.u32 %p2, %r9, 0; @%p2 bra $spin;"""
    count = np.zeros(1, np.uint32)
    _run(body, [count, np.zeros(1, np.uint32)], block=40, grid=3, cooperative=cooperative, **options)
    assert count[0] == 120


def test_lock_held_across_the_loop_by_another_lane_is_no_livelock() -> None:
    body = """$spin: atom.acquire.gpu.global.cas.b32 %r1, [%a1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra $spin;
ld.global.b32 %r2, [%a0]; add.u32 %r2, %r2, 1; st.global.b32 [%a0], %r2; st.release.gpu.global.b32 [%a1], 0;"""
    for options in ({}, {"seed": 1}, {"cooperative": True}):
        count = np.zeros(1, np.uint32)
        _run(body, [count, np.zeros(1, np.uint32)], block=32, grid=2, **options)
        assert count[0] == 64


def test_order_of_blocks_and_warps_is_drawn_from_the_seed() -> None:
    """A race shows as results that depend on the seed; equal seeds give equal results."""
    body = """and.b32 %r1, %r0, 31; setp.ne.u32 %p1, %r1, 0; @%p1 bra $e; atom.global.add.u32 %r2, [%a1], 1;
mul.wide.u32 %d1, %r2, 4; add.u64 %d1, %a0, %d1; st.global.b32 [%d1], %r61;
$e:"""
    found = {}
    for seed in (None, 0, 1, 2, 0):
        out = np.zeros(12, np.uint32)
        _run(body, [out, np.zeros(1, np.uint32)], grid=6, seed=seed)
        assert sorted(out.tolist()) == [32 * n for n in range(12)]
        assert found.setdefault(seed, out.tolist()) == out.tolist()
    assert len({tuple(order) for order in found.values()}) == 4


@_ORDERS
@pytest.mark.parametrize(
    "copy", ["cp.async.ca.shared.global [%r63], [%d60], 4", "cp.async.ca.shared.global [%r63], [%d60], 4, %r9"]
)
def test_asynchronous_copies_in_groups(copy: str, options: dict[str, Any]) -> None:
    body = f"""mov.b32 %r9, 4; {copy}; cp.async.commit_group; cp.async.ca.shared.global [%r63+256], [%d60+256], 4;
cp.async.commit_group; cp.async.wait_group 1; bar.sync 0; xor.b32 %r1, %r63, 128; ld.shared.b32 %r2, [%r1];
cp.async.wait_group 0; bar.sync 0; ld.shared.b32 %r3, [%r1+256]; mad.lo.u32 %r2, %r3, 1000, %r2;
add.u64 %d1, %a1, %d62; st.global.b32 [%d1], %r2;"""
    out = np.zeros(64, np.uint32)
    _run(body, [np.arange(128, dtype=np.uint32), out], **options)
    assert out.tolist() == [1000 * ((t ^ 32) + 64) + (t ^ 32) for t in range(64)]


@pytest.mark.parametrize("amount", [0, 3, 6, 16])
def test_asynchronous_copy_fills_up_with_zeros(amount: int) -> None:
    body = f"""shl.b32 %r1, %r0, 4; mov.u32 %r2, tile; add.u32 %r1, %r1, %r2; mov.b32 %r3, {amount};
mul.wide.u32 %d1, %r0, 16; add.u64 %d2, %a0, %d1; mov.b64 %d9, 0;
cp.async.cg.shared.global.L2::cache_hint [%r1], [%d2], 16, %r3, %d9; cp.async.wait_all;
ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r1]; add.u64 %d2, %a1, %d1;
st.global.v4.b32 [%d2], {{%r10, %r11, %r12, %r13}};"""
    source, out = np.arange(1, 65, dtype=np.uint8), np.full(64, 9, np.uint8)
    _run(body, [source, out], block=4)
    expected = source.reshape(4, 16) * (np.arange(16) < amount)
    assert out.reshape(4, 16).tolist() == expected.tolist()


def test_asynchronous_copy_left_out_by_its_predicate_reads_nothing() -> None:
    body = """setp.eq.u32 %p1, %r0, 0; cp.async.ca.shared.global [%r63], [%d60], 4, %p1; cp.async.wait_all;
ld.shared.b32 %r1, [%r63]; add.u64 %d1, %a1, %d62; st.global.b32 [%d1], %r1;"""
    out = np.full(4, 9, np.uint32)
    counters = _run(body, [np.arange(5, 9, dtype=np.uint32), out], block=4)
    assert out.tolist() == [0, 6, 7, 8]
    assert counters.bytes_loaded == 12


@_ORDERS
def test_barrier_object_phase_by_phase(options: dict[str, Any]) -> None:
    """Warp 0 waits by parity, warp 1 by the state of its own arrival; three phases."""
    body = """setp.ne.u32 %p1, %r0, 0; @%p1 bra $go; mbarrier.init.shared::cta.b64 [tile+1024], 64;
$go: bar.sync 0; mov.b32 %r1, 0; setp.ge.u32 %p2, %r0, 32;
$loop: mad.lo.u32 %r2, %r1, 100, %r0; st.shared.b32 [%r63], %r2; mbarrier.arrive.shared.b64 %d1, [tile+1024];
mbarrier.pending_count.b64 %r8, %d1; and.b32 %r3, %r1, 1; @%p2 bra $state;
$parity: mbarrier.try_wait.parity.shared.b64 %p3, [tile+1024], %r3; @!%p3 bra $parity; bra $read;
$state: mbarrier.test_wait.shared.b64 %p3, [tile+1024], %d1; @!%p3 bra $state;
$read: xor.b32 %r4, %r63, 128; ld.shared.b32 %r5, [%r4]; st.global.b32 [%d60], %r5;
mbarrier.arrive.shared.b64 _, [tile+1024]; bar.sync 0; add.u32 %r1, %r1, 2; setp.lt.u32 %p4, %r1, 6; @%p4 bra $loop;"""
    out = np.zeros(64, np.uint32)
    _run(body, [out], **options)
    assert out.tolist() == [400 + (t ^ 32) for t in range(64)]


def test_barrier_object_counts_bytes_and_arrivals_that_drop_out() -> None:
    body = """mbarrier.init.shared.b64 [tile], 2; mbarrier.arrive.expect_tx.shared.b64 %d1, [tile], 16;
mbarrier.arrive_drop.shared.b64 %d2, [tile]; mbarrier.test_wait.shared.b64 %p1, [tile], %d1;
mbarrier.complete_tx.shared.b64 [tile], 16; mbarrier.test_wait.shared.b64 %p2, [tile], %d1;
mbarrier.arrive.shared.b64 %d3, [tile]; mbarrier.test_wait.shared.b64 %p3, [tile], %d3;
selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; selp.b32 %r3, 4, 0, %p3; or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3;
st.global.b32 [%a0], %r1;"""
    out = np.zeros(1, np.uint32)
    _run(body, [out], block=1)
    assert out[0] == 2 + 4


_CLUSTER = """st.shared.b32 [%r63], %r61; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; add.u32 %r1, %r1, 1; rem.u32 %r1, %r1, %r2;
mapa.shared::cluster.u32 %r3, %r63, %r1; ld.shared::cluster.b32 %r4, [%r3]; getctarank.shared::cluster.u32 %r6, %r3;
cvt.u64.u32 %d1, %r63; cvta.shared.u64 %d1, %d1; mapa.u64 %d1, %d1, %r1; ld.b32 %r5, [%d1];
mad.lo.u32 %r4, %r4, 1000, %r5; mad.lo.u32 %r4, %r6, 1000000, %r4; st.global.b32 [%d60], %r4;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""


@_ORDERS
@pytest.mark.parametrize("size", [2, 4])
def test_blocks_of_a_cluster_read_each_others_shared_memory(size: int, options: dict[str, Any]) -> None:
    out = np.zeros(32 * 8, np.uint32)
    _run(_CLUSTER, [out], block=32, grid=8, cluster=size, **options)
    for thread, value in enumerate(out.tolist()):
        block, lane = divmod(thread, 32)
        rank = (block % size + 1) % size
        other = (block - block % size + rank) * 32 + lane
        assert value == rank * 1000000 + other * 1001


@_ORDERS
def test_atomics_on_the_shared_memory_of_another_block(options: dict[str, Any]) -> None:
    body = """setp.ne.u32 %p1, %r0, 0; @%p1 bra $go; st.shared.b32 [tile], 0;
$go: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; mov.b32 %r1, 0; mov.u32 %r2, tile;
mapa.shared::cluster.u32 %r3, %r2, %r1; atom.shared::cluster.add.u32 %r4, [%r3], 1;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @%p1 bra $end; ld.shared.b32 %r5, [tile];
mul.wide.u32 %d1, %r60, 4; add.u64 %d1, %a0, %d1; st.global.b32 [%d1], %r5;
$end:"""
    out = np.zeros(6, np.uint32)
    _run(body, [out], block=32, grid=6, cluster=3, **options)
    assert out.tolist() == [96, 0, 0, 96, 0, 0]


def test_special_registers_of_a_cluster_in_two_dimensions() -> None:
    names = [
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%clusterid.x",
        "%clusterid.y",
        "%nclusterid.x",
        "%cluster_nctaid.y",
    ]
    names += ["%cluster_ctarank", "%is_explicit_cluster"]
    body = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x; mad.lo.u32 %r1, %r2, %r3, %r1;\n"
    body += f"mul.wide.u32 %d1, %r1, {4 * len(names)}; add.u64 %d1, %a0, %d1;\n"
    body += "\n".join(f"mov.u32 %r4, {name}; st.global.b32 [%d1+{4 * n}], %r4;" for n, name in enumerate(names))
    out = np.zeros((4, 6, len(names)), np.uint32)
    run(kernel(body, pointers=1), [out], block=1, grid=(6, 4), cluster=(3, 2))
    for y in range(4):
        for x in range(6):
            assert out[y, x].tolist() == [x % 3, y % 2, x // 3, y // 2, 2, 2, x % 3 + y % 2 * 3, 1]


def test_the_cluster_a_kernel_declares_is_taken_and_enforced() -> None:
    text = kernel("mov.u32 %r1, %cluster_nctarank; st.global.b32 [%a0], %r1;", pointers=1)
    text = text.replace(")\n{", ")\n.reqnctapercluster 2, 1, 1\n{")
    out = np.zeros(1, np.uint32)
    run(text, [out], block=1, grid=4)
    assert out[0] == 2
    with pytest.raises(LaunchError, match="compiled for"):
        run(text, [out], block=1, grid=4, cluster=4)
    with pytest.raises(LaunchError, match="is not made of clusters"):
        run(text, [out], block=1, grid=3)


@pytest.mark.parametrize("other", [0xFFC00000, 0x7FFF0000, 0xFFFF0000])
def test_nans_of_either_sign_or_made_by_bfloat16_are_one_value(other: int) -> None:
    """Odd threads add the NaN first and even ones last, so the sign that is kept differs: still no race."""
    body = """ld.global.b32 %r1, [%a0]; ld.global.b32 %r2, [%a0+4]; and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0;
selp.b32 %r4, %r1, %r2, %p1; selp.b32 %r5, %r2, %r1, %p1; add.f32 %r6, %r4, %r5; mov.u32 %r7, tile;
st.shared.b32 [%r7], %r6; st.global.b32 [%a1], %r6;"""
    nans = np.array([0x7FC00000, other], np.uint32)
    out = np.zeros(1, np.float32)
    _run(body, [nans, out], block=64, sanitize=True)
    assert np.isnan(out).all()
