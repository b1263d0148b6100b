"""Our passes in a compiler of your own: your context, your module, your pass manager.

Run this file: ``python embed.py``.
"""

from __future__ import annotations

from mlir import ir
from mlir.passmanager import PassManager

import mlirstitch

SOURCE = """
func.func @main(%x: tensor<64x128xf32>, %bias: tensor<128xf32>) -> tensor<64x128xf32> {
  %init = tensor.empty() : tensor<64x128xf32>
  %sum = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%x, %bias : tensor<64x128xf32>, tensor<128xf32>) outs(%init : tensor<64x128xf32>) {
    ^bb0(%a: f32, %b: f32, %out: f32):
      %add = arith.addf %a, %b : f32
      linalg.yield %add : f32
  } -> tensor<64x128xf32>
  %result = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%sum : tensor<64x128xf32>) outs(%init : tensor<64x128xf32>) {
    ^bb0(%a: f32, %out: f32):
      %tanh = math.tanh %a : f32
      linalg.yield %tanh : f32
  } -> tensor<64x128xf32>
  return %result : tensor<64x128xf32>
}
"""


def main() -> None:
    """Normalise and stitch a module that lives in a context mlirstitch did not make."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(SOURCE)
        manager = PassManager("builtin.module")
        manager.add("canonicalize")
        mlirstitch.add_passes(manager, "stitch-set-module-attributes{target=sm_90},normalize-classify")
        mlirstitch.add_passes(manager, "stitch-cluster,stitch-outline,stitch-schedule,stitch-verify{level=stitched}")
        manager.add("canonicalize")
        manager.run(module.operation)
        print(module)  # one call of one cluster function, which says how its kernel will run


if __name__ == "__main__":
    main()
