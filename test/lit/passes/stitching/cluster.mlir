// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster)' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster{max-ops=1})' | FileCheck %s --check-prefix=LIMIT

#m = affine_map<(d0, d1) -> (d0, d1)>
#t = affine_map<(d0, d1) -> (d1, d0)>
#k = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // The transpose and the addition go into the matmul, the softmax-like rest is one row cluster, and the tensor between
  // them is listed with the rule, its size and the lines.
  // CHECK: func.func @main
  // CHECK-SAME: stitch.apart = [{bytes = 128 : i64, clusters = array<i64: 0, 1>, lines = ["model.py:3", "model.py:4"]
  // CHECK-SAME: rule = "compute", tensor = "tensor<4x8xf32>"}
  // LIMIT: stitch.apart
  // LIMIT-SAME: rule = "limit"
  func.func @main(%x: tensor<4x16xf32>, %w: tensor<8x16xf32>, %b: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %zero = arith.constant 0.0 : f32
    // CHECK: tensor.empty() : tensor<16x8xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    // LIMIT: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    %e0 = tensor.empty() : tensor<16x8xf32>
    %0 = linalg.generic {indexing_maps = [#t, #m], iterator_types = ["parallel", "parallel"]}
        ins(%w : tensor<8x16xf32>) outs(%e0 : tensor<16x8xf32>) {
    ^bb0(%i: f32, %o: f32):
      linalg.yield %i : f32
    } -> tensor<16x8xf32>
    %e = tensor.empty() : tensor<4x8xf32>
    // CHECK: linalg.fill ins
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: linalg.matmul {stitch.cluster = array<i64: 0>}
    // LIMIT: linalg.matmul {stitch.cluster = array<i64: 1>}
    %1 = linalg.matmul ins(%x, %0 : tensor<4x16xf32>, tensor<16x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
        loc("model.py":3:0)
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 1>}
    %2 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1, %b : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i: f32, %j: f32, %o: f32):
      %r = arith.addf %i, %j : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32> loc("model.py":4:0)
    %e1 = tensor.empty() : tensor<4x1xf32>
    %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<4x1xf32>) -> tensor<4x1xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 1>}
    %3 = linalg.generic {indexing_maps = [#m, #k], iterator_types = ["parallel", "reduction"]}
        ins(%2 : tensor<4x8xf32>) outs(%f1 : tensor<4x1xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.addf %i, %o : f32
      linalg.yield %r : f32
    } -> tensor<4x1xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 1>}
    %4 = linalg.generic {indexing_maps = [#m, #k, #m], iterator_types = ["parallel", "parallel"]}
        ins(%2, %3 : tensor<4x8xf32>, tensor<4x1xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i: f32, %j: f32, %o: f32):
      %r = arith.divf %i, %j : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %4 : tensor<4x8xf32>
  }
}
