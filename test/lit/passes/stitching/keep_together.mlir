// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster)' --split-input-file | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster,stitch-outline,stitch-schedule)' \
// RUN:     --split-input-file | FileCheck %s --check-prefix=CALLS

// Four element-wise ops would be one kernel. The two in the middle are kept together, so that the others are kernels of
// their own; numbers are given anew, in the order in which the kernels run.
#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: rule = "kept"
  // CALLS-COUNT-3: call @cluster_
  // CALLS-NOT: call @cluster_
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %e = tensor.empty() : tensor<4x8xf32>
    // CHECK: stitch.cluster = array<i64: 0>
    // CHECK: stitch.cluster = array<i64: 1>
    // CHECK: stitch.cluster = array<i64: 1>
    // CHECK: stitch.cluster = array<i64: 2>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%0 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 7>} {
    ^bb0(%i0: f32, %o: f32):
      %r = arith.mulf %i0, %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 7>} {
    ^bb0(%i0: f32, %o: f32):
      %r = math.sqrt %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %3 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%2 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.tanh %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %3 : tensor<4x8xf32>
  }
}

// -----

// Ops that do not read each other may be kept together too; what only one of them feeds stays around them.
#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // CHECK-LABEL: func.func @main
  // CALLS-COUNT-2: call @cluster_
  // CALLS-NOT: call @cluster_
  func.func @main(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
    %e = tensor.empty() : tensor<4x8xf32>
    // CHECK: stitch.cluster = array<i64: 0>
    // CHECK: stitch.cluster = array<i64: 0>
    // CHECK: stitch.cluster = array<i64: 1>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 0>} {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%y : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 0>} {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.tanh %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %0, %2 : tensor<4x8xf32>, tensor<4x8xf32>
  }
}
