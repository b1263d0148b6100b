// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster{explorer=greedy})' | FileCheck %s

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // What is element-wise before and behind a scan goes into its kernel, and so does a sum of the scanned rows; what needs
  // that sum at every place of the rows reads it from memory.
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: rule = "template", tensor = "tensor<64x256xf32>"
  func.func @main(%x: tensor<64x256xf32>) -> tensor<64x256xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<64x256xf32>
    %er = tensor.empty() : tensor<64xf32>
    %f = linalg.fill ins(%zero : f32) outs(%er : tensor<64xf32>) -> tensor<64xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    // CHECK: math.exp
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<64x256xf32>) outs(%e : tensor<64x256xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = math.exp %i : f32
      linalg.yield %v : f32
    } -> tensor<64x256xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    // CHECK: arith.addf
    %1:2 = linalg.generic {indexing_maps = [#m, #m, #r], iterator_types = ["parallel", "reduction"]}
        ins(%0 : tensor<64x256xf32>) outs(%e, %f : tensor<64x256xf32>, tensor<64xf32>) {
    ^bb0(%i: f32, %o: f32, %total: f32):
      %v = arith.addf %total, %i : f32
      linalg.yield %v, %v : f32, f32
    } -> (tensor<64x256xf32>, tensor<64xf32>)
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    // CHECK: math.log
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1#0 : tensor<64x256xf32>) outs(%e : tensor<64x256xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = math.log %i : f32
      linalg.yield %v : f32
    } -> tensor<64x256xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    // CHECK: arith.addf
    %3 = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
        ins(%2 : tensor<64x256xf32>) outs(%f : tensor<64xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = arith.addf %o, %i : f32
      linalg.yield %v : f32
    } -> tensor<64xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 1>}
    // CHECK: arith.divf
    %4 = linalg.generic {indexing_maps = [#m, #r, #m], iterator_types = ["parallel", "parallel"]}
        ins(%2, %3 : tensor<64x256xf32>, tensor<64xf32>) outs(%e : tensor<64x256xf32>) {
    ^bb0(%i: f32, %j: f32, %o: f32):
      %v = arith.divf %i, %j : f32
      linalg.yield %v : f32
    } -> tensor<64x256xf32>
    return %4 : tensor<64x256xf32>
  }
}
