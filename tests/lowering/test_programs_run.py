"""Programs executed on the emulated device: copies, mutations, arena reuse and views leave the right bytes behind."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  gives numpy the name bfloat16
import numpy as np
import pytest

from mlirstitch.driver.reference import run as evaluate
from mlirstitch.driver.stages import run_stages
from mlirstitch.lowering.buffers import DTYPE_BYTES
from mlirstitch.options import CompileOptions
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.emulated_device import EmulatedDevice
from mlirstitch.runtime.executor import Executor
from mlirstitch.runtime.manifest import decode_program
from mlirstitch.runtime.program import Launch

Array = np.ndarray[Any, Any]
MAP = "affine_map<(d0, d1) -> (d0, d1)>"


def pointwise(result: str, operand: str, expression: str, shape: str = "6x40", element: str = "f32") -> str:
    """``%result = expression(%operand)``, where ``expression`` computes %r from %in."""
    kind = f"tensor<{shape}x{element}>"
    return f"""
      %{result}_e = tensor.empty() : {kind}
      %{result} = linalg.generic {{indexing_maps = [{MAP}, {MAP}], iterator_types = ["parallel", "parallel"]}}
          ins(%{operand} : {kind}) outs(%{result}_e : {kind}) {{
      ^bb0(%in: {element}, %out: {element}):
        {expression}
        linalg.yield %r : {element}
      }} -> {kind}"""


def row_sum(result: str, operand: str) -> str:
    return f"""
      %{result}_z = arith.constant dense<0.0> : tensor<6xf32>
      %{result} = linalg.generic {{indexing_maps = [{MAP}, affine_map<(d0, d1) -> (d0)>],
                                   iterator_types = ["parallel", "reduction"]}}
          ins(%{operand} : tensor<6x40xf32>) outs(%{result}_z : tensor<6xf32>) {{
      ^bb0(%in: f32, %acc: f32):
        %r = arith.addf %acc, %in : f32
        linalg.yield %r : f32
      }} -> tensor<6xf32>"""


DOUBLE = "%r = arith.addf %in, %in : f32"
SQUARE = "%r = arith.mulf %in, %in : f32"


def run_program(text: str, inputs: list[Array]) -> list[Array]:
    """Compile and run; the inputs are changed in place where the program says so."""
    result = run_stages(text, CompileOptions())
    assert result.program is not None
    program = decode_program(result.program)
    bundle = Bundle(target={"chip": "sm_90", "ptx": "7.8"}, programs=(program,), modules=result.ptx)
    return Executor(bundle, EmulatedDevice()).run(inputs)


def arrays(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_arguments_that_swap_contents_swap_them() -> None:
    a, b = arrays((6, 40), (6, 40))
    old = a.copy(), b.copy()
    outputs = run_program(
        """func.func @main(%a: tensor<6x40xf32> {stitch.name = "a"}, %b: tensor<6x40xf32> {stitch.name = "b"})
            -> (tensor<6x40xf32> {stitch.mutates = "a"}, tensor<6x40xf32> {stitch.mutates = "b"}) {
          return %b, %a : tensor<6x40xf32>, tensor<6x40xf32>
        }""",
        [a, b],
    )
    assert outputs == []
    np.testing.assert_array_equal(a, old[1])
    np.testing.assert_array_equal(b, old[0])


def test_an_update_in_place_is_read_back_and_the_old_contents_can_be_returned() -> None:
    x, state = arrays((6, 40), (6, 40))
    old = state.copy()
    outputs = run_program(
        """func.func @main(%x: tensor<6x40xf32>, %s: tensor<6x40xf32> {stitch.name = "s"})
            -> (tensor<6x40xf32> {stitch.mutates = "s"}, tensor<6x40xf32>, tensor<6xf32>) {"""
        + pointwise("n", "s", DOUBLE)
        + row_sum("t", "n")
        + "return %n, %s, %t : tensor<6x40xf32>, tensor<6x40xf32>, tensor<6xf32> }",
        [x, state],
    )
    np.testing.assert_array_equal(state, old * 2)
    np.testing.assert_array_equal(outputs[0], old)
    np.testing.assert_allclose(outputs[1], (old * 2).sum(1), rtol=1e-5, atol=1e-5)


def test_views_repeats_and_arguments_among_the_results_each_get_their_own_array() -> None:
    (x,) = arrays((6, 40))
    outputs = run_program(
        """func.func @main(%x: tensor<6x40xf32>)
            -> (tensor<6x40xf32>, tensor<240xf32>, tensor<6x40xf32>, tensor<6x8x5xf32>) {"""
        + pointwise("n", "x", SQUARE)
        + """
          %flat = tensor.collapse_shape %n [[0, 1]] : tensor<6x40xf32> into tensor<240xf32>
          %split = tensor.expand_shape %x [[0], [1, 2]] output_shape [6, 8, 5] : tensor<6x40xf32> into tensor<6x8x5xf32>
          return %n, %flat, %x, %split : tensor<6x40xf32>, tensor<240xf32>, tensor<6x40xf32>, tensor<6x8x5xf32>
        }""",
        [x],
    )
    for output, wanted in zip(outputs, (x * x, (x * x).reshape(-1), x, x.reshape(6, 8, 5)), strict=True):
        np.testing.assert_array_equal(output, wanted)
    outputs[0][...] = 0
    np.testing.assert_array_equal(outputs[1], (x * x).reshape(-1))
    assert not np.shares_memory(outputs[2], x)


def test_many_temporaries_in_one_arena_do_not_disturb_each_other() -> None:
    # Matrix products keep the steps apart; each value is used again several steps later, so lifetimes overlap.
    steps = 7
    text = "func.func @main(%v0: tensor<24x24xf32>, %w: tensor<24x24xf32>) -> tensor<24x24xf32> {\n"
    text += "%z = arith.constant dense<0.0> : tensor<24x24xf32>\n"
    kind = "tensor<24x24xf32>"
    for i in range(1, steps + 1):
        other = max(0, i - 3)
        text += f"%v{i} = linalg.matmul ins(%v{i - 1}, %w : {kind}, {kind}) outs(%z : {kind}) -> {kind}\n"
        text += f"%u{i} = linalg.matmul ins(%v{i}, %v{other} : {kind}, {kind}) outs(%z : {kind}) -> {kind}\n"
    text += (
        f"%e = tensor.empty() : {kind}\n%s1 = linalg.add ins(%u1, %u2 : {kind}, {kind}) outs(%e : {kind}) -> {kind}\n"
    )
    for i in range(2, steps):
        text += f"%s{i} = linalg.add ins(%s{i - 1}, %u{i + 1} : {kind}, {kind}) outs(%e : {kind}) -> {kind}\n"
    text += f"return %s{steps - 1} : {kind} }}"
    rng = np.random.default_rng(3)
    v, w = (rng.standard_normal((24, 24)).astype(np.float32) / 5 for _ in range(2))
    result = run_stages(text, CompileOptions())
    assert result.program is not None
    assert 0 < result.program["arena_bytes"] < result.program["temporary_bytes"], "nothing is shared"
    (output,) = run_program(text, [v, w])
    (wanted,) = evaluate(text, [v, w], precision="float64")
    np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)


def test_empty_and_scalar_tensors_pass_through() -> None:
    empty, scalar = np.zeros((0, 3), np.float32), np.float32(5).reshape(())
    outputs = run_program(
        """func.func @main(%e: tensor<0x3xf32>, %s: tensor<f32>) -> (tensor<0x3xf32>, tensor<f32>, tensor<0x3xf32>) {
          %i = tensor.empty() : tensor<0x3xf32>
          %n = linalg.negf ins(%e : tensor<0x3xf32>) outs(%i : tensor<0x3xf32>) -> tensor<0x3xf32>
          %j = tensor.empty() : tensor<f32>
          %m = linalg.negf ins(%s : tensor<f32>) outs(%j : tensor<f32>) -> tensor<f32>
          return %n, %m, %e : tensor<0x3xf32>, tensor<f32>, tensor<0x3xf32>
        }""",
        [empty, scalar],
    )
    assert [output.shape for output in outputs] == [(0, 3), (), (0, 3)]
    assert outputs[1] == -5


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("f16", "float16"),
        ("bf16", "bfloat16"),
        ("f64", "float64"),
        ("i8", "int8"),
        ("i16", "int16"),
        ("i32", "int32"),
        ("i64", "int64"),
        ("i1", "bool"),
    ],
)
def test_every_element_type_survives_the_way_through_memory(element: str, dtype: str) -> None:
    values = np.random.default_rng(1).integers(0, 2, (6, 40)).astype(np.dtype(dtype))
    body = "%r = arith.addf %in, %in : T" if "f" in element else "%r = arith.xori %in, %in : T"
    outputs = run_program(
        f"func.func @main(%x: tensor<6x40x{element}>) -> (tensor<6x40x{element}>, tensor<6x40x{element}>) {{"
        + pointwise("n", "x", body.replace("T", element), element=element)
        + f"return %n, %x : tensor<6x40x{element}>, tensor<6x40x{element}> }}",
        [values],
    )
    assert [output.dtype.name for output in outputs] == [dtype, dtype]
    assert outputs[0].itemsize == DTYPE_BYTES[dtype]
    np.testing.assert_array_equal(outputs[0], values + values if "f" in element else values ^ values)
    np.testing.assert_array_equal(outputs[1], values)


def column_sum(shape: str, element: str = "f32") -> str:
    cols = shape.split("x")[1]
    return f"""
    func.func @main(%x: tensor<{shape}x{element}>) -> tensor<{cols}x{element}> {{
      %z = arith.constant dense<0.0> : tensor<{cols}x{element}>
      %s = linalg.generic {{indexing_maps = [{MAP}, affine_map<(d0, d1) -> (d1)>],
                           iterator_types = ["reduction", "parallel"]}}
          ins(%x : tensor<{shape}x{element}>) outs(%z : tensor<{cols}x{element}>) {{
      ^bb0(%in: {element}, %acc: {element}):
        %r = arith.addf %acc, %in : {element}
        linalg.yield %r : {element}
      }} -> tensor<{cols}x{element}>
      return %s : tensor<{cols}x{element}>
    }}"""


def test_a_split_reduction_runs_again_and_again_with_the_same_bits() -> None:
    result = run_stages(column_sum("9000x32"), CompileOptions())
    assert result.program is not None
    program = decode_program(result.program)
    assert [buffer.role for buffer in program.buffers] == ["input", "output", "persistent", "temporary"]
    executor = Executor(
        Bundle(target={"chip": "sm_90", "ptx": "7.8"}, programs=(program,), modules=result.ptx), EmulatedDevice()
    )
    x = np.random.default_rng(0).standard_normal((9000, 32)).astype(np.float32)
    (first,), report = executor.run_with_report([x])
    (second,) = executor.run([x])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, x.sum(0, dtype=np.float64), atol=1e-3)
    launch = program.steps[0]
    assert isinstance(launch, Launch)
    counted = report.steps[0].counters
    assert counted is not None
    both = (counted["argument_bytes_loaded"], counted["argument_bytes_stored"])
    moved = [loaded + stored for loaded, stored in zip(*both, strict=True)]
    assert moved == [argument.traffic for argument in launch.arguments]
    assert launch.arguments[-1].access == "readwrite"
