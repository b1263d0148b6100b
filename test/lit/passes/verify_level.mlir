// RUN: mlirstitch-opt %s --stitch-set-module-attributes --normalize-classify --stitch-verify=level=linalg | FileCheck %s

// CHECK: func.func @main
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = tensor.empty() : tensor<4xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<4xf32>) outs(%0 : tensor<4xf32>) {
    ^bb0(%a: f32, %b: f32):
      %2 = math.exp %a : f32
      linalg.yield %2 : f32
  } -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
