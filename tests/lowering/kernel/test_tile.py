"""Template tile: transposes through shared memory beside element-wise work."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_harness import DTYPES, build, moved_bytes, random_array, reason, reference
from tile_programs import both_ways, function, merged_heads, moved, permuted, pointwise, tensor

from mlirstitch.driver.ptxas import check as assemble
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.template import Schedule

EXTENTS = st.one_of(st.integers(1, 9), st.sampled_from((15, 16, 31, 32, 33, 40, 64, 70, 129)))


def check(text, shapes, elements, which=0, seed=11):
    """Outputs in the bits of the IR, no race, no access out of bounds, and the bytes that were promised."""
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, s, e) for s, e in zip(shapes, elements, strict=True)]
    built = build(text, "tile", which=which)
    got = built.run(inputs, sanitize=True, seed=seed)
    for value, expected in zip(got, reference(text, inputs, "ir"), strict=True):
        assert value.tobytes() == np.asarray(expected).tobytes()
    assert moved_bytes(built) == built.traffic
    return built


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_permutation_and_type_gives_the_bits_of_the_ir(data):
    shape = data.draw(st.lists(EXTENTS, min_size=2, max_size=4).filter(lambda s: 256 <= math.prod(s) <= 20000))
    order = data.draw(st.permutations(range(len(shape))))
    element = data.draw(st.sampled_from(sorted(DTYPES)))
    text, shapes = data.draw(st.sampled_from((permuted, moved)))(shape, order, element)
    assume(reason(text, "tile") is None)
    for which in (0, 1):
        check(text, shapes, [element] * len(shapes), which)


@pytest.mark.parametrize("element", sorted(DTYPES))
@pytest.mark.parametrize(("rows", "cols"), [(64, 96), (70, 33)])
def test_whole_and_ragged_tiles_of_every_type(element, rows, cols):
    text, shapes = permuted((rows, cols), (1, 0), element)
    check(text, shapes, [element] * 2)


@pytest.mark.parametrize(("rows", "cols"), [(64, 96), (33, 70), (257, 5)])
def test_outputs_of_both_orientations_that_need_each_other_are_one_kernel(rows, cols):
    text, shapes = both_ways(rows, cols, "f32")
    check(text, shapes, ["f32"] * 2)


@pytest.mark.parametrize("element", ["f16", "f32"])
def test_a_head_merge_is_split_where_the_reshape_divides(element):
    text, shapes = merged_heads(2, 4, 24, 64, element)
    check(text, shapes, [element] * 2)


def sectors(built):
    counted = built.counted[-1]
    return counted.sectors_loaded + counted.sectors_stored


@pytest.mark.parametrize(
    ("shape", "element", "vectors"),
    [
        ((1024, 1024), "f32", (4, 4)),
        ((1024, 512), "f16", (8, 8)),
        ((512, 512), "i8", (8, 8)),
        ((256, 256), "f64", (2, 2)),
    ],
)
def test_aligned_transposes_move_whole_sectors_in_wide_accesses_without_bank_conflicts(shape, element, vectors):
    text, shapes = moved(shape, (1, 0), element)
    built = build(text, "tile")
    inputs = [random_array(np.random.default_rng(2), s, element) for s in shapes]
    (got,) = built.run(inputs)
    np.testing.assert_array_equal(got, inputs[0].T)
    counted = built.counted[-1]
    assert (built.schedule.vector, built.schedule.parameter("vector_down")) == vectors
    assert sectors(built) * 32 == sum(moved_bytes(built))
    assert counted.shared_conflicts == 0
    width = vectors[0] * np.dtype(DTYPES[element]).itemsize
    assert counted.load_requests * 32 * width == counted.bytes_loaded
    assert built.ptx.count("bar.sync") == 1


@pytest.mark.parametrize(("shape", "element"), [((1023, 513), "f32"), ((257, 511), "f16"), ((999, 130), "f64")])
def test_ragged_transposes_have_no_bank_conflicts_and_at_most_one_sector_more_a_request(shape, element):
    text, shapes = moved(shape, (1, 0), element)
    built = build(text, "tile")
    inputs = [random_array(np.random.default_rng(3), s, element) for s in shapes]
    (got,) = built.run(inputs)
    np.testing.assert_array_equal(got, inputs[0].T)
    counted = built.counted[-1]
    assert counted.shared_conflicts == 0
    requests = counted.load_requests + counted.store_requests
    assert sectors(built) <= sum(moved_bytes(built)) / 32 + requests
    assert sectors(built) < sectors_of(text, "elementwise", inputs) / 2


def test_tasks_get_smaller_where_their_values_would_not_fit_into_registers():
    built = build(permuted((512, 512), (1, 0), "f16")[0], "tile")
    assert (built.schedule.vector, built.schedule.parameter("vector_down")) == (8, 4)
    inputs = [random_array(np.random.default_rng(6), (512, 512), "f16") for _ in range(2)]
    built.run(inputs)
    assert sectors(built) * 32 == sum(moved_bytes(built))
    assert built.counted[-1].shared_conflicts == 0


def sectors_of(text, template, inputs):
    built = build(text, template)
    built.run(inputs)
    return sectors(built)


def test_a_narrow_input_crosses_before_it_is_widened():
    a, r = tensor((64, 96), "f16"), tensor((96, 64), "f32")
    body = "%w = arith.extf %x0 : f16 to f32\n    %r = math.exp %w : f32\n    linalg.yield %r : f32"
    text = function([("a", a)], pointwise("r", (96, 64), "f32", [("a", a, (1, 0))], body), [("r", r)])
    built = build(text, "tile")
    assert "memref<4096xf16, #gpu.address_space<workgroup>>" in built.gpu_text
    inputs = [random_array(np.random.default_rng(4), (64, 96), "f16")]
    np.testing.assert_allclose(built.run(inputs)[0], np.exp(inputs[0].T.astype(np.float64)), rtol=1e-6)


def test_what_is_computed_from_several_inputs_of_one_direction_crosses_as_one_value():
    a, r = tensor((64, 96), "f32"), tensor((96, 64), "f32")
    body = pointwise("s", (64, 96), "f32", [("a", a, (0, 1)), ("b", a, (0, 1))])
    body += pointwise("r", (96, 64), "f32", [("s", a, (1, 0)), ("c", r, (0, 1))])
    text = function([("a", a), ("b", a), ("c", r)], body, [("r", r)])
    built = check(text, [(64, 96), (64, 96), (96, 64)], ["f32"] * 3)
    assert built.gpu_text.count("memref.view") == 1
    assert built.schedule.schemes == ((1, "block"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (permuted((64, 96), (0, 1), "f32")[0], "nothing is transposed"),
        (permuted((8, 4, 96), (1, 0, 2), "f32")[0], "nothing is transposed"),
        (permuted((4096, 2), (1, 0), "f32")[0], "a pass over the elements touches"),
        (permuted((0, 96), (1, 0), "f32")[0], "nothing is transposed"),
    ],
)
def test_what_a_pass_over_the_elements_does_as_well_is_refused(text, words):
    assert words in reason(text, "tile")


SCHEDULE = {"across": 32, "down": 32, "vector_down": 4}


@pytest.mark.parametrize(
    ("grid", "block", "vector", "changes", "words"),
    [
        (5, 64, 4, {}, "grid x is 5, not 6"),
        (6, 48, 4, {}, "block x is 48"),
        (6, 64, 3, {}, "vector is 3"),
        (6, 64, 8, {}, "vector is 8"),
        (6, 64, 4, {"across": 30}, "across is 30"),
        (6, 64, 4, {"vector_down": 5}, "vector_down is 5"),
        (6, 64, 4, {"unroll": 1}, "no parameter unroll"),
        (6, 64, 4, {"down": None}, "down is missing"),
        (1, 64, 4, {"across": 128, "down": 128}, "bytes of shared memory"),
        (1, 32, 1, {"across": 96, "down": 64, "vector_down": 1}, "block x is 32, not at least 96"),
    ],
)
def test_a_wrong_schedule_is_refused(grid, block, vector, changes, words):
    text, _ = permuted((64, 96), (1, 0), "f32")
    parameters = {name: value for name, value in (SCHEDULE | changes).items() if value is not None}
    schedule = Schedule("tile", (grid, 1, 1), (block, 1, 1), vector, parameters=tuple(parameters.items()))
    with pytest.raises(PassError, match=words):
        build(text, "tile", schedule=schedule)


@pytest.mark.parametrize(("tile", "threads"), [((64, 32), 32), ((16, 64), 128), ((96, 64), 256), ((20, 12), 64)])
def test_any_tile_and_number_of_threads_gives_the_same_bits(tile, threads):
    text, shapes = permuted((64, 96), (1, 0), "f32")
    blocks = -(-96 // tile[0]) * -(-64 // tile[1])
    parameters = (("across", tile[0]), ("down", tile[1]), ("vector_down", 4))
    schedule = Schedule("tile", (blocks, 1, 1), (threads, 1, 1), 4, parameters=parameters)
    inputs = [random_array(np.random.default_rng(5), s, "f32") for s in shapes]
    built = build(text, "tile", schedule=schedule)
    (got,) = built.run(inputs, sanitize=True, seed=1)
    np.testing.assert_array_equal(got, reference(text, inputs, "ir")[0])
    assert moved_bytes(built) == built.traffic


@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "text",
    [
        permuted((1024, 1024), (1, 0), "f16")[0],
        permuted((1023, 1021), (1, 0), "f32")[0],
        permuted((1024, 1024), (1, 0), "i8")[0],
        both_ways(1024, 1024, "f32")[0],
    ],
)
def test_registers_suffice(chip, text):
    report = assemble(build(text, "tile", chip=chip).ptx, chip)
    assert not report.errors
    assert [use.spill_stores + use.stack for use in report.kernels.values()] == [0]
