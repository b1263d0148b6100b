from mlirstitch.driver.report.unfused import Unfused, unfused

TEXT = """
#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x2xf32>) -> tensor<8xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x8xf32>
  %double = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]}
      ins(%x, %x : tensor<4x8xf32>, tensor<4x8xf32>) outs(%empty : tensor<4x8xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %s = arith.addf %a, %b : f32
      linalg.yield %s : f32
    } -> tensor<4x8xf32>
  %out = tensor.empty() : tensor<4x2xf32>
  %init = linalg.fill ins(%zero : f32) outs(%out : tensor<4x2xf32>) -> tensor<4x2xf32>
  %product = linalg.matmul ins(%double, %w : tensor<4x8xf32>, tensor<8x2xf32>)
      outs(%init : tensor<4x2xf32>) -> tensor<4x2xf32>
  %flat = tensor.collapse_shape %product [[0, 1]] : tensor<4x2xf32> into tensor<8xf32>
  return %flat : tensor<8xf32>
}
"""


def test_each_op_is_a_kernel_that_touches_each_of_its_tensors_once():
    double = 2 * 4 * 8 * 4
    product = 4 * 8 * 4 + 8 * 2 * 4 + 4 * 2 * 4
    assert unfused(TEXT) == Unfused(memory_bound=1, compute_bound=1, bytes=double + product)
