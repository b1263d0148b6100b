"""Counters are exact: every number here is worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ptx_text import kernel, run

_ADDRESS = "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d1, %a0, %d0;\n"


def test_instructions_by_class_and_traffic_of_a_copy() -> None:
    # 2 blocks of 2 warps; the parameters and %tid are moves.
    body = """mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 64, %r0; cvt.u64.u32 %d0, %r2; shl.b64 %d0, %d0, 2;
add.u64 %d1, %a0, %d0; ld.global.b32 %r3, [%d1]; add.rn.f32 %r3, %r3, 0f3F800000; ex2.approx.f32 %r3, %r3;
add.u64 %d2, %a1, %d0; st.global.b32 [%d2], %r3;"""
    source, target = np.zeros(128, "f4"), np.zeros(128, "f4")
    counters = run(kernel(body, pointers=2), [source, target], block=64, grid=2)
    assert (target == 2).all()
    per_warp = {
        "move": 4, "integer": 4, "convert": 1, "load_global": 1, "float": 1, "special": 1,
        "store_global": 1, "control": 1,
    }  # fmt: skip
    assert counters.instructions == {kind: 4 * n for kind, n in sorted(per_warp.items())}
    assert counters.warp_instructions == 4 * 14
    assert (counters.threads, counters.warps) == (128, 4)
    assert (counters.load_requests, counters.store_requests, counters.atomic_requests) == (4, 4, 0)
    assert (counters.bytes_loaded, counters.bytes_stored) == (512, 512)
    assert (counters.sectors_loaded, counters.sectors_stored) == (16, 16)
    assert counters.argument_bytes_loaded == (512, 0)
    assert counters.argument_bytes_stored == (0, 512)
    assert json.loads(json.dumps(counters.to_dict()))["warp_instructions"] == 56


@pytest.mark.parametrize(
    ("scale", "offset", "sectors"),
    [(4, 0, 4), (4, 4, 5), (8, 0, 8), (32, 0, 32), (128, 0, 32), (0, 0, 1), (4, 16, 5)],
)
def test_sectors_of_a_warp_by_stride_and_offset(scale: int, offset: int, sectors: int) -> None:
    body = f"mul.wide.u32 %d0, %r0, {scale}; add.u64 %d1, %a0, %d0; ld.global.b32 %r1, [%d1+{offset}];"
    counters = run(kernel(body, pointers=1), [np.zeros(4096, np.int32)])
    assert counters.sectors_loaded == sectors
    assert counters.bytes_loaded == 128


def test_sectors_of_shuffled_and_repeated_addresses() -> None:
    # Lane t reads element 5t mod 16: 16 elements, each twice, in two sectors.
    body = "mul.lo.u32 %r1, %r0, 5; and.b32 %r1, %r1, 15; mul.wide.u32 %d0, %r1, 4; add.u64 %d1, %a0, %d0;\n"
    counters = run(kernel(body + "ld.global.b32 %r2, [%d1];", pointers=1), [np.zeros(16, np.int32)])
    assert (counters.sectors_loaded, counters.bytes_loaded) == (2, 128)


def test_wide_accesses_touch_as_many_sectors_as_they_have_bytes() -> None:
    body = "mul.wide.u32 %d0, %r0, 16; add.u64 %d1, %a0, %d0; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d1];\n"
    body += "add.u64 %d2, %a1, %d0; st.global.v4.b32 [%d2], {%r1, %r2, %r3, %r4};"
    counters = run(kernel(body, pointers=2), [np.zeros(256, np.int32), np.zeros(256, np.int32)], block=64)
    assert (counters.load_requests, counters.bytes_loaded, counters.sectors_loaded) == (2, 1024, 32)
    assert (counters.store_requests, counters.bytes_stored, counters.sectors_stored) == (2, 1024, 32)


def test_only_active_threads_and_warps_count() -> None:
    # 5 threads of the first warp and none of the second one.
    body = "setp.ge.u32 %p1, %r0, 5; @%p1 bra $end;\n" + _ADDRESS + "ld.global.b32 %r1, [%d1];\n$end:"
    counters = run(kernel(body, pointers=1), [np.zeros(64, np.int32)], block=64)
    assert (counters.load_requests, counters.bytes_loaded, counters.sectors_loaded) == (1, 20, 1)
    assert counters.divergent_branches == 1
    assert counters.instructions["load_global"] == 1
    # ret: the first warp once, because its threads meet again at $end, and the second one.
    assert counters.instructions["control"] == 2 + 2


def test_partial_warp_and_value_shared_by_a_block() -> None:
    # 40 threads: two warps. All threads of a block read the element of the block.
    body = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %d0, %r1, 4; add.u64 %d1, %a0, %d0; ld.global.b32 %r2, [%d1];"
    counters = run(kernel(body, pointers=1), [np.zeros(3, np.int32)], block=40, grid=3)
    assert (counters.warps, counters.load_requests, counters.bytes_loaded) == (6, 6, 3 * 40 * 4)
    assert counters.sectors_loaded == 6
    # Every thread reads its own: 40 elements are 4 + 1 sectors.
    counters = run(
        kernel(_ADDRESS + "ld.global.b32 %r2, [%d1];", pointers=1), [np.zeros(40, np.int32)], block=40, grid=3
    )
    assert (counters.bytes_loaded, counters.sectors_loaded) == (480, 15)


def test_bytes_of_arguments_when_threads_of_one_access_choose_between_them() -> None:
    body = """setp.lt.u32 %p1, %r0, 8; selp.b64 %d5, %a0, %a1, %p1; cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2;
add.u64 %d1, %d5, %d0; ld.global.b32 %r1, [%d1]; st.global.b32 [%d1], %r1;"""
    first, second = np.arange(8, dtype=np.int32), np.arange(32, dtype=np.int32)
    counters = run(kernel(body, pointers=2), [first, second])
    assert counters.argument_bytes_loaded == (32, 96)
    assert counters.argument_bytes_stored == (32, 96)
    assert second.tolist() == list(range(32))


def test_atomics_count_as_loaded_and_stored() -> None:
    body = "and.b32 %r1, %r0, 1; mul.wide.u32 %d0, %r1, 4; add.u64 %d1, %a0, %d0; red.global.add.u32 [%d1], 1;"
    out = np.zeros(2, np.uint32)
    counters = run(kernel(body, pointers=1), [out], block=64)
    assert out.tolist() == [32, 32]
    assert (counters.atomic_requests, counters.load_requests, counters.store_requests) == (2, 0, 0)
    assert (counters.bytes_loaded, counters.bytes_stored, counters.sectors_stored) == (256, 256, 2)


def test_barriers_and_divergence_are_counted_for_each_warp() -> None:
    # Odd threads go one way: all 4 warps split. Then by warp: none splits.
    body = """and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra $even;
mov.b32 %r2, 1;
$even: bar.sync 0; setp.lt.u32 %p2, %r0, 32; @%p2 bra $low;
mov.b32 %r2, 2;
$low: bar.sync 0;"""
    counters = run(kernel(body), [], block=64, grid=2)
    assert (counters.divergent_branches, counters.barriers) == (4, 8)
    assert counters.instructions["barrier"] == 8


def _transpose(row: int) -> str:
    """32 x 32 tile with ``row`` words a row: threads store rows and load columns."""
    return kernel(
        f"""and.b32 %r1, %r0, 31; shr.u32 %r2, %r0, 5; mad.lo.u32 %r3, %r2, {row}, %r1; shl.b32 %r3, %r3, 2;
mov.u32 %r4, tile; add.u32 %r3, %r3, %r4; st.shared.b32 [%r3], %r0; bar.sync 0;
mad.lo.u32 %r5, %r1, {row}, %r2; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r4; ld.shared.b32 %r6, [%r5];
mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; st.global.b32 [%d1], %r6;""",
        pointers=1,
        before=f".shared .align 4 .b8 tile[{row * 32 * 4}];\n",
    )


def test_bank_conflicts_of_a_square_tile_and_none_with_a_padded_row() -> None:
    want = np.arange(1024).reshape(32, 32).T.reshape(-1).tolist()
    for row, conflicts in ((32, 32 * 31), (33, 0)):
        out = np.zeros(1024, np.int32)
        counters = run(_transpose(row), [out], block=1024)
        assert out.tolist() == want
        assert counters.shared_requests == 64
        assert counters.shared_conflicts == conflicts
        assert counters.shared_wavefronts == 64 + conflicts


@pytest.mark.parametrize(
    ("scale", "access", "wavefronts"),
    [
        (4, "b32 %r9", 1),
        (0, "b32 %r9", 1),
        (8, "b32 %r9", 2),
        (128, "b32 %r9", 32),
        (2, "b16 %h9", 1),
        (1, "b8 %h9", 1),
        (8, "b64 %d9", 2),
        (16, "b64 %d9", 4),
        (16, "v4.b32 {%r9, %r10, %r11, %r12}", 4),
        (32, "v4.b32 {%r9, %r10, %r11, %r12}", 8),
    ],
)
def test_wavefronts_by_stride_and_width(scale: int, access: str, wavefronts: int) -> None:
    kind, registers = access.split(" ", 1)
    body = f"""mov.u32 %r4, tile; mad.lo.u32 %r3, %r0, {scale}, %r4; mov.b32 %r1, 0;
$fill: add.u32 %r2, %r1, %r4; st.shared.b32 [%r2], 0; add.u32 %r1, %r1, 4; setp.lt.u32 %p1, %r1, 4096; @%p1 bra $fill;
ld.shared.{kind} {registers}, [%r3];"""
    counters = run(kernel(body, before=".shared .align 16 .b8 tile[4096];\n"), [])
    assert counters.shared_wavefronts == 1024 + wavefronts
    least = {"b64": 2, "v4.b32": 4}.get(kind, 1)
    assert counters.shared_conflicts == wavefronts - least


def test_wavefronts_count_active_threads_only() -> None:
    body = """shl.b32 %r1, %r0, 7; mov.u32 %r4, tile; add.u32 %r3, %r1, %r4; setp.ge.u32 %p1, %r0, 3; @%p1 bra $end;
st.shared.b32 [%r3], %r0;
$end:"""
    counters = run(kernel(body, before=".shared .align 16 .b8 tile[4096];\n"), [], block=64)
    assert (counters.shared_requests, counters.shared_wavefronts, counters.shared_conflicts) == (1, 3, 2)


def test_counters_do_not_depend_on_the_address_of_the_arrays() -> None:
    body = _ADDRESS + "ld.global.b32 %r1, [%d1];"
    seen = set()
    for padding in (0, 1, 2, 3):
        keep = [np.zeros(7 + padding, np.int8) for _ in range(padding)]
        seen.add(run(kernel(body, pointers=1), [np.zeros(32, np.int32)]).sectors_loaded)
        assert len(keep) == padding
    assert len(seen) == 1


def test_without_counters_nothing_is_counted() -> None:
    counters = run(kernel(_ADDRESS + "ld.global.b32 %r1, [%d1];", 1), [np.zeros(32, np.int32)], counters=False)
    assert counters.warp_instructions == counters.bytes_loaded == 0
    assert counters.warps == 1
