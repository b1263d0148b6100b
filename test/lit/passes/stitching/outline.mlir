// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-outline)' | FileCheck %s

#m = affine_map<(d0) -> (d0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // One function for two equal clusters, with the constant inside; the library call is one of its own.
  // CHECK: func.func private @cluster_0_mul(%{{.*}}: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster} {
  // CHECK-DAG: arith.constant 2.000000e+00 : f32
  // CHECK-DAG: tensor.empty
  // CHECK: linalg.generic
  // CHECK-NOT: stitch.cluster
  // CHECK: return
  // CHECK: func.func private @cluster_1_matmul
  // CHECK-SAME: attributes {no_inline, stitch.cluster, stitch.library = "matmul"}
  // CHECK: linalg.matmul ins
  // CHECK-NOT: func.func private
  // CHECK: func.func @main(%[[X:.+]]: tensor<8xf32>)
  // CHECK-NEXT: %[[A:.+]] = call @cluster_0_mul(%[[X]])
  // CHECK-NEXT: %[[B:.+]] = call @cluster_0_mul(%[[A]])
  // CHECK-NEXT: %[[V:.+]] = tensor.expand_shape %[[B]]
  // CHECK-NEXT: %[[W:.+]] = tensor.expand_shape %[[A]]
  // CHECK-NEXT: %[[P:.+]] = call @cluster_1_matmul(%[[V]], %[[W]])
  // CHECK-NEXT: return %[[P]], %[[A]], %[[X]]
  func.func @main(%x: tensor<8xf32>) -> (tensor<4x4xf32>, tensor<8xf32>, tensor<8xf32>) {
    %two = arith.constant 2.0 : f32
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<8xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
        ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) attrs = {stitch.cluster = array<i64: 0>} {
    ^bb0(%i: f32, %o: f32):
      %r = arith.mulf %i, %two : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
        ins(%0 : tensor<8xf32>) outs(%e : tensor<8xf32>) attrs = {stitch.cluster = array<i64: 1>} {
    ^bb0(%i: f32, %o: f32):
      %r = arith.mulf %i, %two : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    %a = tensor.expand_shape %1 [[0, 1]] output_shape [4, 2] : tensor<8xf32> into tensor<4x2xf32>
    %b = tensor.expand_shape %0 [[0, 1]] output_shape [2, 4] : tensor<8xf32> into tensor<2x4xf32>
    %f = tensor.empty() : tensor<4x4xf32>
    %g = linalg.fill ins(%zero : f32) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = linalg.matmul {stitch.cluster = array<i64: 2>, stitch.library = "matmul"}
        ins(%a, %b : tensor<4x2xf32>, tensor<2x4xf32>) outs(%g : tensor<4x4xf32>) -> tensor<4x4xf32>
    return %2, %0, %x : tensor<4x4xf32>, tensor<8xf32>, tensor<8xf32>
  }
}
