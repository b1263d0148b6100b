// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster)' --split-input-file --verify-diagnostics

// An op between two that are kept together: as one kernel they would wait for themselves.
#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %e = tensor.empty() : tensor<4x8xf32>
    // expected-error @below {{stitch.cluster keeps 2 ops together as 3}}
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 3>} {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%0 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = arith.mulf %i0, %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %2 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1, %0 : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 3>} {
    ^bb0(%i0: f32, %i1: f32, %o: f32):
      %r = arith.addf %i0, %i1 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
}

// -----

// No template computes two contractions.
#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<8x8xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>
    // expected-error @below {{no kernel template can compute them together}}
    %0 = linalg.matmul {stitch.cluster = array<i64: 0>} ins(%x, %x : tensor<8x8xf32>, tensor<8x8xf32>)
        outs(%f : tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = linalg.matmul {stitch.cluster = array<i64: 0>} ins(%0, %x : tensor<8x8xf32>, tensor<8x8xf32>)
        outs(%f : tensor<8x8xf32>) -> tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
}

// -----

// One op, one cluster.
#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %e = tensor.empty() : tensor<4x8xf32>
    // expected-error @below {{stitch.cluster names the clusters 1, 2}}
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 1, 2>} {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%0 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 1>} {
    ^bb0(%i0: f32, %o: f32):
      %r = arith.mulf %i0, %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
}

// -----

// Two sets, each of which needs the other.
#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %e = tensor.empty() : tensor<4x8xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 1>} {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    // expected-error @below {{together with another stitch.cluster they would need each other's results}}
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 2>} {
    ^bb0(%i0: f32, %o: f32):
      %r = math.tanh %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 1>} {
    ^bb0(%i0: f32, %o: f32):
      %r = arith.mulf %i0, %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %3 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%0 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.cluster = array<i64: 2>} {
    ^bb0(%i0: f32, %o: f32):
      %r = arith.mulf %i0, %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    %4 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%2, %3 : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %i1: f32, %o: f32):
      %r = arith.addf %i0, %i1 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %4 : tensor<4x8xf32>
  }
}
