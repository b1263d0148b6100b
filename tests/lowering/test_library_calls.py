"""Clusters that a library computes."""

from __future__ import annotations

import pytest

from mlirstitch.dialects import parse_module
from mlirstitch.errors import PassError
from mlirstitch.lowering.library_calls import LibraryCall, library_call

MATMUL = """
func.func private @c(%w: tensor<8x4xf32>, %x: tensor<16x8xf32>) -> tensor<16x4xf32>
    attributes {no_inline, stitch.cluster, stitch.library = "matmul"} {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x4xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<16x4xf32>) -> tensor<16x4xf32>
  %r = linalg.matmul ins(%x, %w : tensor<16x8xf32>, tensor<8x4xf32>) outs(%i : tensor<16x4xf32>) -> tensor<16x4xf32>
  return %r : tensor<16x4xf32>
}
"""


def described(text: str) -> tuple[LibraryCall, dict[str, str]]:
    module = parse_module(text)
    call = library_call(module.body.operations[0].operation)
    return call, {name: str(value) for name, value in call.attributes.items()}


def test_operands_stand_in_the_order_of_the_routine() -> None:
    call, attributes = described(MATMUL)
    assert (call.routine, call.operands) == ("matmul", (1, 0))
    assert call.shapes == ((16, 8), (8, 4), (16, 4))
    assert attributes == {"indexing_maps": "[array<i64: 0, 2>, array<i64: 2, 1>, array<i64: 0, 1>]"}


def test_a_transposed_operand_shows_in_the_maps() -> None:
    maps = "[affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]"
    text = MATMUL.replace("linalg.matmul ins", f"linalg.matmul indexing_maps = {maps} ins").replace(
        "8x4xf32", "4x8xf32"
    )
    _, attributes = described(text)
    assert attributes == {"indexing_maps": "[array<i64: 0, 2>, array<i64: 1, 2>, array<i64: 0, 1>]"}


def test_reshapes_around_the_routine_are_seen_through() -> None:
    text = MATMUL.replace("%x: tensor<16x8xf32>", "%y: tensor<2x8x8xf32>").replace(
        "%z = arith",
        "%x = tensor.collapse_shape %y [[0, 1], [2]] : tensor<2x8x8xf32> into tensor<16x8xf32>\n%z = arith",
    )
    call, _ = described(text)
    assert call.operands == (1, 0)
    assert call.shapes[0] == (16, 8)


def test_a_convolution_carries_strides_and_dilations() -> None:
    call, attributes = described("""
    func.func private @c(%x: tensor<1x3x9x9xf32>, %w: tensor<5x3x3x3xf32>) -> tensor<1x5x4x4xf32>
        attributes {no_inline, stitch.cluster, stitch.library = "conv_2d_nchw_fchw"} {
      %i = arith.constant dense<0.0> : tensor<1x5x4x4xf32>
      %r = linalg.conv_2d_nchw_fchw {strides = dense<2> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
          ins(%x, %w : tensor<1x3x9x9xf32>, tensor<5x3x3x3xf32>) outs(%i : tensor<1x5x4x4xf32>) -> tensor<1x5x4x4xf32>
      return %r : tensor<1x5x4x4xf32>
    }""")
    assert (call.routine, call.operands) == ("conv_2d_nchw_fchw", (0, 1))
    assert attributes == {"strides": "array<i64: 2, 2>", "dilations": "array<i64: 1, 1>"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.0 : f32", "1.0 : f32", "cannot add to a tensor"),
        ("outs(%i :", "outs(%e :", "cannot add to a tensor"),
        ('stitch.library = "matmul"', 'stitch.library = "batch_matmul"', "given to the library as batch_matmul"),
        ("return %r", "return %i", "the product is not used"),
        (
            "%r = linalg.matmul ins(%x",
            "%p = tensor.pad %x low[0, 0] high[0, 0] {\n^bb0(%a: index, %b: index):\ntensor.yield %z : f32\n} : "
            "tensor<16x8xf32> to tensor<16x8xf32>\n%r = linalg.matmul ins(%p",
            "no routine addresses the result of tensor.pad",
        ),
    ],
)
def test_what_no_library_can_do_is_refused(old: str, new: str, message: str) -> None:
    assert old in MATMUL
    with pytest.raises(PassError, match=message):
        described(MATMUL.replace(old, new))
