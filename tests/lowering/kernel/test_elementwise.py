"""Template elementwise: index maps, broadcasts, element types, tails, views, choices and gathers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import DTYPES, build, moved_bytes, random_array, reason, reference

ADD = {"f": "arith.addf", "i": "arith.addi"}
EXTENTS = st.one_of(st.integers(1, 9), st.sampled_from((16, 17, 31, 33, 64, 127)))


def tensor(shape, element: str) -> str:
    return f"tensor<{''.join(f'{extent}x' for extent in shape)}{element}>"


def binary(shape, left_dims, right_dims, element: str) -> tuple[str, list[tuple[int, ...]]]:
    """``max(left[d of left_dims] + right[d of right_dims], right[...])``; xor and and for bools."""
    dims = ", ".join(f"d{i}" for i in range(len(shape)))
    operands = [tuple(shape[d] for d in which) for which in (left_dims, right_dims)]
    maps = [f"affine_map<({dims}) -> ({', '.join(f'd{d}' for d in which)})>" for which in (left_dims, right_dims)]
    identity = f"affine_map<({dims}) -> ({dims})>"
    kind = element[0] if element != "bf16" else "f"
    first, second = (
        ("arith.xori", "arith.andi")
        if element == "i1"
        else (ADD[kind], f"arith.{'maximumf' if kind == 'f' else 'maxsi'}")
    )
    left, right, out = tensor(operands[0], element), tensor(operands[1], element), tensor(shape, element)
    iterators = ", ".join('"parallel"' for _ in shape)
    return (
        f"""func.func @f(%a: {left}, %b: {right}) -> {out} {{
  %e = tensor.empty() : {out}
  %r = linalg.generic {{indexing_maps = [{maps[0]}, {maps[1]}, {identity}], iterator_types = [{iterators}]}}
      ins(%a, %b : {left}, {right}) outs(%e : {out}) {{
  ^bb0(%x: {element}, %y: {element}, %o: {element}):
    %s = {first} %x, %y : {element}
    %t = {second} %s, %y : {element}
    linalg.yield %t : {element}
  }} -> {out}
  return %r : {out}
}}""",
        operands,
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_map_and_type_gives_the_bits_of_the_ir(data):
    shape = data.draw(st.lists(EXTENTS, min_size=0, max_size=4).filter(lambda s: np.prod(s, initial=1) <= 20000))
    dims = list(range(len(shape)))
    choose = st.permutations(dims).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: p[:n]))
    left, right = data.draw(choose), data.draw(choose)
    element = data.draw(st.sampled_from(sorted(DTYPES)))
    text, shapes = binary(shape, left, right, element)
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, s, element) for s in shapes]
    for which in (0, 1):
        (got,) = build(text, "elementwise", which=which).run(inputs)
        (expected,) = reference(text, inputs, "ir")
        assert got.tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize(("element", "vector"), [("f32", 4), ("f16", 8), ("bf16", 8), ("f64", 2), ("i8", 8), ("i1", 8)])
def test_contiguous_accesses_are_128_bits_wide_or_as_wide_as_eight_lanes(element, vector):
    text, _ = binary((64, 128), (0, 1), (1,), element)
    built = build(text, "elementwise")
    assert built.schedule.vector == vector
    wide = vector * np.dtype(DTYPES[element]).itemsize
    assert f"{{alignment = {wide} : i64}}" in built.gpu_text
    assert "ld.global.nc.v" in built.ptx
    assert "st.global.v" in built.ptx


def test_rows_that_are_not_aligned_use_scalar_accesses():
    text, _ = binary((64, 127), (0, 1), (1,), "f32")
    assert build(text, "elementwise").schedule.vector == 1


def test_a_long_flat_tensor_with_a_remainder_keeps_wide_accesses_and_stores_every_element_once():
    text, shapes = binary((9001,), (0,), (0,), "f32")
    built = build(text, "elementwise")
    assert built.schedule.vector == 4
    rng = np.random.default_rng(1)
    inputs = [random_array(rng, s, "f32") for s in shapes]
    (got,) = built.run(inputs)
    np.testing.assert_array_equal(got, reference(text, inputs, "ir")[0])
    assert built.counted[-1].argument_bytes_stored[2] == 4 * 9001
    assert moved_bytes(built) == built.traffic


def test_promised_traffic_is_what_the_device_counts_with_broadcasts():
    text, shapes = binary((6, 40, 16), (0, 1, 2), (0, 2), "f16")
    built = build(text, "elementwise")
    built.run([np.zeros(s, np.float16) for s in shapes])
    assert moved_bytes(built) == built.traffic


def test_an_empty_tensor_has_nothing_to_launch():
    text, shapes = binary((0, 5), (0, 1), (1,), "f32")
    built = build(text, "elementwise")
    assert built.schedule.grid == (0, 1, 1)
    assert built.run([np.zeros(s, np.float32) for s in shapes])[0].shape == (0, 5)


VIEWS = """func.func @f(%a: tensor<6x20xf32>) -> tensor<5x3x4xf32> {
  %s = tensor.extract_slice %a[1, 1] [3, 10] [2, 2] : tensor<6x20xf32> to tensor<3x10xf32>
  %c = tensor.collapse_shape %s [[0, 1]] : tensor<3x10xf32> into tensor<30xf32>
  %e = tensor.expand_shape %c [[0, 1, 2]] output_shape [5, 3, 2] : tensor<30xf32> into tensor<5x3x2xf32>
  %z = arith.constant -1.5 : f32
  %p = tensor.pad %e low[0, 0, 1] high[0, 0, 1] {
  ^bb0(%i: index, %j: index, %k: index):
    tensor.yield %z : f32
  } : tensor<5x3x2xf32> to tensor<5x3x4xf32>
  %o = tensor.empty() : tensor<5x3x4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>,
      affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%p : tensor<5x3x4xf32>) outs(%o : tensor<5x3x4xf32>) {
  ^bb0(%x: f32, %y: f32):
    %n = arith.negf %x : f32
    linalg.yield %n : f32
  } -> tensor<5x3x4xf32>
  return %r : tensor<5x3x4xf32>
}"""


def test_slices_reshapes_and_padding_are_index_arithmetic():
    a = np.arange(120, dtype=np.float32).reshape(6, 20)
    built = build(VIEWS, "elementwise")
    np.testing.assert_array_equal(built.run([a])[0], reference(VIEWS, [a], "ir")[0])


CONCAT = """func.func @f(%a: tensor<4x3x8xf32>, %b: tensor<4x5x8xf32>, %c: tensor<4x1x8xf32>) -> tensor<4x9x8xf32> {
  %r = tensor.concat dim(1) %a, %b, %c : (tensor<4x3x8xf32>, tensor<4x5x8xf32>, tensor<4x1x8xf32>) -> tensor<4x9x8xf32>
  return %r : tensor<4x9x8xf32>
}"""

CONCAT_INNER = """func.func @f(%a: tensor<5x3xf32>, %b: tensor<5x5xf32>) -> tensor<5x8xf32> {
  %r = tensor.concat dim(1) %a, %b : (tensor<5x3xf32>, tensor<5x5xf32>) -> tensor<5x8xf32>
  return %r : tensor<5x8xf32>
}"""


@pytest.mark.parametrize("text", [CONCAT, CONCAT_INNER])
def test_concat_reads_each_source_once(text):
    rng = np.random.default_rng(2)
    shapes = [(4, 3, 8), (4, 5, 8), (4, 1, 8)] if text is CONCAT else [(5, 3), (5, 5)]
    inputs = [random_array(rng, s, "f32") for s in shapes]
    built = build(text, "elementwise")
    np.testing.assert_array_equal(built.run(inputs)[0], reference(text, inputs, "ir")[0])
    assert moved_bytes(built) == built.traffic
    assert list(built.traffic[: len(inputs)]) == [x.nbytes for x in inputs]


INSERT = """func.func @f(%a: tensor<2x4xf32>, %b: tensor<7x12xf32>) -> tensor<7x12xf32> {
  %r = tensor.insert_slice %a into %b[1, 3] [2, 4] [3, 2] : tensor<2x4xf32> into tensor<7x12xf32>
  return %r : tensor<7x12xf32>
}"""


def test_a_strided_insert_keeps_the_elements_between():
    rng = np.random.default_rng(3)
    inputs = [random_array(rng, s, "f32") for s in ((2, 4), (7, 12))]
    built = build(INSERT, "elementwise")
    np.testing.assert_array_equal(built.run(inputs)[0], reference(INSERT, inputs, "ir")[0])


GATHER = """func.func @f(%t: tensor<10x16xf32>, %i: tensor<6xi64>) -> tensor<6x16xf32> {
  %e = tensor.empty() : tensor<6x16xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]}
    ins(%i : tensor<6xi64>) outs(%e : tensor<6x16xf32>) {
  ^bb0(%n: i64, %o: f32):
    %row = arith.index_cast %n : i64 to index
    %col = linalg.index 1 : index
    %x = tensor.extract %t[%row, %col] : tensor<10x16xf32>
    linalg.yield %x : f32
  } -> tensor<6x16xf32>
  return %r : tensor<6x16xf32>
}"""


def test_rows_are_gathered_with_wide_loads():
    table = np.arange(160, dtype=np.float32).reshape(10, 16)
    index = np.array([0, 9, 3, 3, 7, 1])
    built = build(GATHER, "elementwise")
    np.testing.assert_array_equal(built.run([table, index])[0], table[index])
    assert "ld.global.nc.v4" in built.ptx


def test_an_index_outside_the_table_reads_inside_it():
    table = np.arange(160, dtype=np.float32).reshape(10, 16)
    index = np.array([-1, 10, 2**40, -(2**62), 5, 0])
    np.testing.assert_array_equal(build(GATHER, "elementwise").run([table, index])[0], table[index.clip(0, 9)])


def test_a_gather_by_lane_reads_each_element_by_itself():
    text = """func.func @f(%t: tensor<50xf16>, %i: tensor<32xi32>) -> tensor<32xf16> {
  %e = tensor.empty() : tensor<32xf16>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}
    ins(%i : tensor<32xi32>) outs(%e : tensor<32xf16>) {
  ^bb0(%n: i32, %o: f16):
    %at = arith.index_cast %n : i32 to index
    %x = tensor.extract %t[%at] : tensor<50xf16>
    linalg.yield %x : f16
  } -> tensor<32xf16>
  return %r : tensor<32xf16>
}"""
    table = np.arange(50).astype(np.float16)
    index = np.random.default_rng(4).integers(0, 50, 32).astype(np.int32)
    np.testing.assert_array_equal(build(text, "elementwise").run([table, index])[0], table[index])


@pytest.mark.parametrize("element", ["f32", "i64", "i1", "bf16"])
def test_a_dense_constant_is_a_table_of_the_kernel(element):
    values = {"f32": "[1.5, -2.0, 3.25, 0.0, 9.0]", "bf16": "[1.5, -2.0, 3.25, 0.0, 9.0]"}
    values |= {"i64": "[1, -2, 3, 4, 5]", "i1": "[true, false, true, true, false]"}
    text = f"""func.func @f(%a: tensor<3x5xi8>) -> (tensor<3x5x{element}>) {{
  %c = arith.constant dense<{values[element]}> : tensor<5x{element}>
  %e = tensor.empty() : tensor<3x5x{element}>
  %r = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]}}
    ins(%c : tensor<5x{element}>) outs(%e : tensor<3x5x{element}>) {{
  ^bb0(%x: {element}, %o: {element}):
    linalg.yield %x : {element}
  }} -> tensor<3x5x{element}>
  return %r : tensor<3x5x{element}>
}}"""
    a = np.zeros((3, 5), np.int8)
    got = build(text, "elementwise").run([a])[0]
    np.testing.assert_array_equal(got, reference(text, [a], "ir")[0])


def test_positions_become_values_in_any_lane():
    text = """func.func @f() -> tensor<3x20xi32> {
  %e = tensor.empty() : tensor<3x20xi32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} outs(%e : tensor<3x20xi32>) {
  ^bb0(%o: i32):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %a = arith.index_cast %i : index to i32
    %b = arith.index_cast %j : index to i32
    %c = arith.constant 100 : i32
    %d = arith.muli %a, %c : i32
    %s = arith.addi %d, %b : i32
    linalg.yield %s : i32
  } -> tensor<3x20xi32>
  return %r : tensor<3x20xi32>
}"""
    expected = np.arange(3)[:, None] * 100 + np.arange(20)
    np.testing.assert_array_equal(build(text, "elementwise").run([])[0], expected)


def test_one_value_returned_twice_is_stored_to_both_destinations():
    text = """func.func @f(%a: tensor<40xf32>) -> (tensor<40xf32>, tensor<40xf32>) {
  %e = tensor.empty() : tensor<40xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}
    ins(%a : tensor<40xf32>) outs(%e : tensor<40xf32>) {
  ^bb0(%x: f32, %o: f32):
    %n = arith.negf %x : f32
    linalg.yield %n : f32
  } -> tensor<40xf32>
  return %r, %r : tensor<40xf32>, tensor<40xf32>
}"""
    a = np.arange(40, dtype=np.float32)
    first, second = build(text, "elementwise").run([a])
    np.testing.assert_array_equal(first, -a)
    np.testing.assert_array_equal(second, -a)


def test_outputs_of_different_sizes_are_refused_by_name_and_shape():
    text = """func.func @f(%a: tensor<4xf32>, %b: tensor<8xf32>) -> (tensor<4xf32>, tensor<8xf32>) {
  return %a, %b : tensor<4xf32>, tensor<8xf32>
}"""
    why = reason(text, "elementwise")
    assert why is not None
    assert "outputs differ in size" in why
    assert "shape [8] has 8" in why


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_every_chip_gets_a_kernel(chip):
    text, _ = binary((8, 64), (0, 1), (1,), "f32")
    built = build(text, "elementwise", chip=chip)
    assert f".target {chip}" in built.ptx


def test_aliasing_arguments_lose_the_promise_not_to_alias():
    text, _ = binary((8, 64), (0, 1), (1,), "f32")
    text = text.replace("-> tensor<8x64xf32> {", "-> tensor<8x64xf32> attributes {stitch.cluster} {", 1)
    aliased = text.replace("%a: tensor<8x64xf32>", "%a: tensor<8x64xf32> {stitch.noalias = false}")
    assert build(text, "elementwise").gpu_text.count("llvm.noalias") == 3
    assert build(aliased, "elementwise").gpu_text.count("llvm.noalias") == 2
