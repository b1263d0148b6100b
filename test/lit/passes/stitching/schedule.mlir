// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-schedule)' | FileCheck %s

#m = affine_map<(d0) -> (d0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // CHECK: func.func private @open
  // CHECK-SAME: stitch.schedule = {block = array<i64: {{[0-9]+}}, 1, 1>, grid = array<i64: {{.*}}template = "elementwise"
  func.func private @open(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster} {
    %e = tensor.empty() : tensor<8xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
        ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.mulf %i, %i : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  // A schedule that is there stays.
  // CHECK: func.func private @chosen
  // CHECK-SAME: template = "loop_nest"
  func.func private @chosen(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "loop_nest", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}} {
    %e = tensor.empty() : tensor<8xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
        ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.addf %i, %i : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  // CHECK: func.func private @given_away
  // CHECK-NOT: stitch.schedule
  func.func private @given_away(%x: tensor<4x4xf32>) -> tensor<4x4xf32>
      attributes {no_inline, stitch.cluster, stitch.library = "matmul"} {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x4xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
    %0 = linalg.matmul ins(%x, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
  func.func @main(%x: tensor<8xf32>, %y: tensor<4x4xf32>) -> (tensor<8xf32>, tensor<4x4xf32>) {
    %0 = call @open(%x) : (tensor<8xf32>) -> tensor<8xf32>
    %1 = call @chosen(%0) : (tensor<8xf32>) -> tensor<8xf32>
    %2 = call @given_away(%y) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %1, %2 : tensor<8xf32>, tensor<4x4xf32>
  }
}
