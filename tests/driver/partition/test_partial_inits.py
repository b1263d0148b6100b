"""A sum that stays partial through a contraction with an init: the init is added once."""

from __future__ import annotations

import numpy as np

from mlirstitch.dialects import parse_module
from mlirstitch.driver.partition import partition
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.plan import Plan

TEXT = """func.func @main(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %d: tensor<6x2xf32>, %c: tensor<4x2xf32>)
    -> tensor<4x2xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %p = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
  %q = linalg.matmul ins(%p, %d : tensor<4x6xf32>, tensor<6x2xf32>) outs(%c : tensor<4x2xf32>) -> tensor<4x2xf32>
  return %q : tensor<4x2xf32>
}"""


def _sum_split(plan: Plan) -> None:
    plan.trans_op(1, 2, space="tp")


def test_an_init_beside_a_delayed_partial_sum_is_added_once() -> None:
    found = partition(parse_module(TEXT), _sum_split, Mesh.of(tp=4))  # which keeps the module alive
    random = np.random.default_rng(0)
    a, b, d, c = (random.integers(-4, 5, s).astype(np.float32) for s in ((4, 8), (8, 6), (6, 2), (4, 2)))
    (got,) = found.run([a, b, d, c])
    np.testing.assert_array_equal(got, a @ b @ d + c)
    product = found.program.placed.graph.ops[2].results[0].value
    layouts = [buffer.layout.partial for buffer in found.program.buffers if buffer.value == product]
    assert (("tp", "add"),) in layouts, "the sum is delayed: the test is about that"
