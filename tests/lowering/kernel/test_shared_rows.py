"""Rows shared by several blocks that all need the results: in a thread-block cluster, or in the whole grid."""

from __future__ import annotations

import re
from dataclasses import replace

import mlir.ir as ir
import numpy as np
import pytest
from kernel_harness import Built, build, moved_bytes, random_array, reason, reference
from row_programs import argmax, fold, softmax

from mlirstitch.dialects import new_context
from mlirstitch.driver.ptxas import check
from mlirstitch.errors import LaunchError, PassError
from mlirstitch.passes.stitching.template import Cluster, Schedule, templates
from mlirstitch.target import TARGETS, Target

WHOLE_GRID = "sm_90 with grid composition"


@pytest.fixture(autouse=True)
def grid_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chip for which the compiler may let blocks wait for each other."""
    monkeypatch.setitem(TARGETS, WHOLE_GRID, Target.parse("sm_90").override(grid_composition=True))


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


def without(built: Built, *numbers: int, of: str) -> Built:
    """The kernel without some of the instructions that match ``of``, by number."""
    lines = built.ptx.splitlines()
    found = [place for place, line in enumerate(lines) if re.search(of, line)]
    dropped = {found[number] for number in numbers}
    return replace(built, ptx="\n".join(line for place, line in enumerate(lines) if place not in dropped))


# In a thread-block cluster ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "cols", "element"),
    [
        (1, 70001, "f32"),
        (2, 65537, "f32"),
        (3, 50003, "f32"),
        (1, 131072, "bf16"),
        (2, 99999, "f16"),
        (2, 20000, "f32"),
    ],
)
def test_a_cluster_reads_and_writes_a_long_row_once(rows, cols, element):
    text = softmax(rows, cols, element)
    built = build(text, "row")
    blocks = built.schedule.cluster_blocks
    assert blocks > 1
    assert built.schedule.grid[0] == rows * blocks
    x = random_array(np.random.default_rng(cols), (rows, cols), element)
    (got,) = built.run([x])
    close(got.astype(np.float64) * cols, reference(text, [x])[0] * cols, 1e-5 if element == "f32" else 1e-2)
    assert moved_bytes(built) == built.traffic == (x.nbytes, x.nbytes)


@pytest.mark.parametrize("seed", [1, 2])
def test_blocks_of_a_cluster_are_ordered_by_barriers_alone(seed):
    text = softmax(2, 33001)
    built = build(text, "row")
    x = random_array(np.random.default_rng(0), (2, 33001), "f32")
    (got,), (expected,) = built.run([x], seed=seed, sanitize=True), built.run([x])
    np.testing.assert_array_equal(got, expected)


def test_rows_of_minus_infinity_and_nan_in_a_cluster_follow_the_ir():
    cols = 40001
    text = softmax(4, cols)
    x = random_array(np.random.default_rng(0), (4, cols), "f32")
    x[0] = -np.inf
    x[1, cols - 1] = np.nan
    x[2, 3] = np.inf
    x[3, 1:] = -np.inf
    built = build(text, "row")
    assert built.schedule.cluster_blocks > 1
    (got,) = built.run([x])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(reference(text, [x], "ir")[0]))
    close(got[3, :5], np.eye(5)[0], 0)


def test_a_row_too_long_for_the_registers_of_a_cluster_is_staged_in_its_shared_memory():
    cols = 300_007
    text = softmax(1, cols)
    built = build(text, "row")
    assert built.schedule.parameter("mode") == "staged"
    assert built.schedule.cluster_blocks == 8
    assert built.schedule.shared_bytes >= cols // 8 * 4 - 4096 * 4
    x = random_array(np.random.default_rng(0), (1, cols), "f32")
    (got,) = built.run([x], sanitize=True, seed=3)
    close(got.astype(np.float64) * cols, reference(text, [x])[0] * cols, 1e-5)
    assert moved_bytes(built) == built.traffic == (x.nbytes, x.nbytes)


def test_a_row_that_no_cluster_can_keep_is_read_again_by_all_of_its_blocks():
    cols = 700_001
    text = softmax(1, cols)
    built = build(text, "row")
    assert (built.schedule.parameter("mode"), built.schedule.cluster_blocks) == ("loop", 8)
    x = random_array(np.random.default_rng(0), (1, cols), "f32")
    (got,) = built.run([x])
    close(got.astype(np.float64) * cols, reference(text, [x])[0] * cols, 1e-5)


def test_the_quality_of_a_long_softmax_in_a_cluster():
    """Registers, shared memory and instruction counts of the probe that showed the scheme to work, or better."""
    built = build(softmax(64, 131072), "row")
    (use,) = check(built.ptx, "sm_90").kernels.values()
    assert built.schedule.thread_block_cluster == (8, 1, 1)
    assert use.registers <= 34
    assert use.stack == use.spill_stores == use.spill_loads == 0
    assert use.shared <= 264
    assert built.ptx.count("shfl.sync") <= 26
    assert len(re.findall(r"\bbar\.sync|barrier\.", built.ptx)) <= 8
    body = built.ptx[built.ptx.index("{") :]
    assert sum(line.strip().endswith(";") for line in body.splitlines()) <= 342
    assert built.traffic == (64 * 131072 * 4,) * 2
    assert "ld.global.nc.v4.b32" in built.ptx


def test_few_rows_that_one_block_could_keep_are_spread_over_clusters():
    assert build(softmax(16, 32768), "row").schedule.cluster_blocks == 8
    assert build(softmax(60, 16384), "row").schedule.cluster_blocks == 2
    assert build(softmax(512, 16384), "row").schedule.cluster_blocks == 1
    assert build(softmax(512, 50003), "row").schedule.parameter("mode") == "staged"
    assert build(softmax(16, 4096), "row").schedule.cluster_blocks == 1


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_89"])
def test_chips_without_clusters_keep_their_schedules(chip):
    built = build(softmax(3, 131072), "row", chip=chip)
    assert built.schedule.cluster_blocks == 1
    assert built.schedule.parameter("mode") == "loop"
    assert "cluster" not in built.ptx


@pytest.mark.parametrize(("number", "what"), [(-2, "arrive"), (-1, "wait")])
def test_a_block_that_leaves_before_its_peers_have_read_is_found(number, what):
    built = build(softmax(2, 16387), "row")
    faulty = without(built, number, of="barrier.cluster")
    assert what in built.ptx.replace(faulty.ptx, "")
    x = random_array(np.random.default_rng(0), (2, 16387), "f32")
    with pytest.raises(LaunchError, match="which may have exited before"):
        faulty.run([x], sanitize=True, seed=0)


@pytest.mark.parametrize("number", range(4))
def test_a_cluster_barrier_that_is_missing_between_writing_and_reading_is_found(number):
    faulty = without(build(softmax(1, 16387), "row"), number, of="barrier.cluster")
    x = random_array(np.random.default_rng(0), (1, 16387), "f32")
    with pytest.raises(LaunchError):
        faulty.run([x], sanitize=True, seed=0)


# In the whole grid ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "cols", "element"), [(1, 300_007, "f32"), (3, 40_009, "bf16"), (2, 70_001, "f32"), (1, 1 << 16, "f16")]
)
def test_the_grid_reads_and_writes_a_long_row_once(rows, cols, element):
    text = softmax(rows, cols, element)
    built = build(text, "row", chip=WHOLE_GRID)
    assert built.schedule.cooperative
    assert rows < built.schedule.grid[0] <= 132
    assert built.schedule.tickets == rows
    x = random_array(np.random.default_rng(0), (rows, cols), element)
    (got,) = built.run([x])
    close(got.astype(np.float64) * cols, reference(text, [x])[0] * cols, 1e-5 if element == "f32" else 1e-2)
    assert moved_bytes(built)[:2] == built.traffic[:2] == (x.nbytes, x.nbytes)


@pytest.mark.parametrize("seed", [1, 2])
def test_blocks_of_the_grid_are_ordered_by_their_barrier_alone(seed):
    built = build(softmax(2, 20011), "row", chip=WHOLE_GRID)
    assert built.schedule.cooperative
    x = random_array(np.random.default_rng(0), (2, 20011), "f32")
    (got,), (expected,) = built.run([x], seed=seed, sanitize=True), built.run([x])
    np.testing.assert_array_equal(got, expected)


def test_a_row_longer_than_the_grid_keeps_is_read_again():
    built = build(softmax(1, 20_000_000), "row", chip=WHOLE_GRID)
    assert (built.schedule.parameter("mode"), built.schedule.grid[0]) == ("loop", 132)


@pytest.mark.parametrize("cols", [1 << 16, 40000 * 132])
def test_registers_suffice_where_the_grid_shares_a_row(cols):
    built = build(softmax(1, cols), "row", chip=WHOLE_GRID)
    (use,) = check(built.ptx, "sm_90").kernels.values()
    assert built.schedule.cooperative
    assert use.spill_stores == use.stack == 0


@pytest.mark.parametrize(
    ("of", "number", "finding"),
    [
        (r"\tfence\.acq_rel", 0, "race"),
        (r"\tfence\.acq_rel", 1, "race"),
        (r"atom\.global\.inc", 0, "deadlock"),
        (r"@%p\d+ bra.*\$L__BB0_\d+;", 2, "race|nobody has written"),
    ],
    ids=["first fence", "second fence", "arrival", "waiting"],
)
def test_a_grid_barrier_with_a_part_missing_is_found(of, number, finding):
    built = build(softmax(1, 20011), "row", chip=WHOLE_GRID)
    faulty = without(built, number, of=of)
    x = random_array(np.random.default_rng(0), (1, 20011), "f32")
    with pytest.raises(LaunchError, match=finding):
        faulty.run([x], sanitize=True, seed=0)


def test_an_exit_that_is_not_counted_leaves_the_ticket_for_the_next_launch_wrong():
    built = build(softmax(1, 20011), "row", chip=WHOLE_GRID)
    faulty = without(built, -1, of=r"atom\.global\.inc|red\.global\.inc")
    with pytest.raises(AssertionError, match="tickets are not put back"):
        faulty.run([random_array(np.random.default_rng(0), (1, 20011), "f32")])


def test_without_the_option_nothing_is_cooperative():
    for rows, cols in ((1, 300_007), (2, 70_001), (64, 131072)):
        for chip in ("sm_80", "sm_90"):
            assert not build(softmax(rows, cols), "row", chip=chip).schedule.cooperative
    assert reason(softmax(1, 1 << 21), "row") is not None
    assert reason(softmax(1, 1 << 21), "row", chip=WHOLE_GRID) is None


# Both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["sm_90", WHOLE_GRID])
def test_an_argmax_travels_with_its_index_and_the_first_of_equals_wins(chip):
    """The one-hot form of an argmax, with the value and the index for themselves, which one block stores."""
    rows, cols = 3, 20011
    full, places = f"tensor<{rows}x{cols}xf32>", f"tensor<{rows}xi64>"
    text = argmax(rows, cols)
    text = text.replace(f"{places}) {{\n  %inf", f"{places}, {full}) {{\n  %inf")
    text = text.replace(
        f"return %r#0, %r#1 : tensor<{rows}xf32>, {places}",
        f"""%eo = tensor.empty() : {full}
  %o = linalg.generic {{indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %r#1 : {full}, {places}) outs(%eo : {full}) {{
  ^bb0(%x: f32, %p: i64, %old: f32):
    %i = linalg.index 1 : index
    %n = arith.index_cast %i : index to i64
    %eq = arith.cmpi eq, %n, %p : i64
    %nothing = arith.constant 0.0 : f32
    %y = arith.select %eq, %x, %nothing : f32
    linalg.yield %y : f32
  }} -> {full}
  return %r#0, %r#1, %o : tensor<{rows}xf32>, {places}, {full}""",
    )
    built = build(text, "row", chip=chip)
    assert built.schedule.cluster_blocks > 1 or built.schedule.cooperative
    x = random_array(np.random.default_rng(0), (rows, cols), "f32")
    x[0, [7, 9000, 20010]] = 9
    x[1, [19000, 8192]] = np.nan
    value, place, hot = built.run([x], sanitize=True, seed=1)
    np.testing.assert_array_equal(place, x.argmax(1))
    np.testing.assert_array_equal(value, x.max(1))
    np.testing.assert_array_equal(hot, np.where(np.arange(cols) == x.argmax(1)[:, None], x, 0))


@pytest.mark.parametrize("chip", ["sm_90", WHOLE_GRID])
@pytest.mark.parametrize("rows", [1, 5])
def test_results_of_rows_are_stored_by_one_block(rows, chip):
    """Squared deviations from the sum: two levels, and nothing of full size is stored."""
    cols = 16403
    kind, row = f"tensor<{rows}x{cols}xf32>", f"tensor<{rows}xf32>"
    text = fold((rows, cols), (1,), "f32", "arith.addf", "0.0").replace(
        f"return %r : {row}",
        f"""%q = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>,
      affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}}
      ins(%a, %r : {kind}, {row}) outs(%i : {row}) {{
  ^bb0(%x: f32, %t: f32, %acc: f32):
    %d = arith.subf %x, %t : f32
    %p = arith.mulf %d, %d : f32
    %y = arith.addf %p, %acc : f32
    linalg.yield %y : f32
  }} -> {row}
  return %q : {row}""",
    )
    built = build(text, "row", chip=chip)
    assert built.schedule.cluster_blocks > 1 or built.schedule.cooperative
    x = random_array(np.random.default_rng(0), (rows, cols), "f32")
    (got,) = built.run([x], sanitize=True, seed=1)
    close(got / cols, reference(text, [x])[0] / cols, 1e-4)
    assert moved_bytes(built)[:2] == (x.nbytes, 4 * rows)


@pytest.mark.parametrize(("op", "initial", "element"), [("arith.addf", "2.5", "f64"), ("arith.maxsi", "-7", "i8")])
def test_other_types_travel_between_blocks(op, initial, element):
    """A second level makes the row needed again: the sum of what differs from the first level's result."""
    rows, cols = 2, 16411
    first = fold((rows, cols), (1,), element, op, initial)
    kind, row = f"tensor<{rows}x{cols}x{element}>", f"tensor<{rows}x{element}>"
    sub = "arith.subf" if element.startswith("f") else "arith.subi"
    more = f"""%out = tensor.empty() : {kind}
  %d = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>,
      affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %r : {kind}, {row}) outs(%out : {kind}) {{
  ^bb0(%x: {element}, %t: {element}, %o: {element}):
    %y = {sub} %x, %t : {element}
    linalg.yield %y : {element}
  }} -> {kind}
  return %d : {kind}"""
    text = first.replace(f"return %r : {row}", more).replace(f"-> {row} {{\n  %c", f"-> {kind} {{\n  %c")
    x = random_array(np.random.default_rng(0), (rows, cols), element)
    for chip in ("sm_90", WHOLE_GRID):
        built = build(text, "row", chip=chip)
        assert built.schedule.cluster_blocks > 1 or built.schedule.cooperative
        (got,) = built.run([x], sanitize=True, seed=1)
        if element.startswith("f"):
            close(got, reference(text, [x])[0], 1e-12)
        else:
            np.testing.assert_array_equal(got, reference(text, [x], "ir")[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thread_block_cluster": (4, 1, 1)}, "thread_block_cluster is 4, 1, 1, not 8, 1, 1"),
        ({"thread_block_cluster": (1, 1, 1)}, "splits is 8, not 1"),
        ({"thread_block_cluster": (8, 1, 1), "cooperative": True}, "cooperative is set, not left out"),
        ({"tickets": 3}, "tickets is 3, not 0"),
        ({"grid": (8, 1, 1)}, "grid x is 8, not 16"),
        ({"thread_block_cluster": (1, 1, 1), "cooperative": True}, "scratch is"),
    ],
)
def test_a_schedule_whose_blocks_cannot_share_rows_is_refused(changes, message):
    text = softmax(2, 33001)
    schedule = build(text, "row").schedule
    with pytest.raises(PassError, match=message):
        build(text, "row", schedule=replace(schedule, **changes))


def test_other_kernels_refuse_clusters_and_cooperative_launches():
    text = softmax(2, 33001)
    plain = build(text, "row", chip="sm_80").schedule
    for changes, message in (({"thread_block_cluster": (2, 1, 1)}, "cluster"), ({"cooperative": True}, "cooperative")):
        changed: Schedule = replace(plain, **changes)  # pyright: ignore[reportArgumentType]
        with pytest.raises(PassError, match=message):
            build(text, "row", schedule=changed)


def test_clusters_of_every_size_are_among_the_candidates():
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(softmax(500, 40000))
        cluster = Cluster.of_function(module.body.operations[0].operation)
        target = Target.parse("sm_90")
        (template,) = (template for template in templates() if template.name == "row")
        sizes = [schedule.cluster_blocks for schedule in template.candidates(cluster, target)]
        assert sizes[0] == 1
        assert {2, 4, 8} <= set(sizes)
        assert {schedule.cluster_blocks for schedule in template.candidates(cluster, Target.parse("sm_80"))} == {1}
