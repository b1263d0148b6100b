// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-schedule)' --split-input-file --verify-diagnostics

// Two contractions in one kernel: no template.
module attributes {stitch.target = "sm_90"} {
  // expected-error @below {{no kernel template can compute this cluster}}
  func.func private @both(%x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {no_inline, stitch.cluster} {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x4xf32>
    %c = arith.constant true
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
    %0 = linalg.matmul ins(%x, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = scf.if %c -> tensor<4x4xf32> {
      scf.yield %0 : tensor<4x4xf32>
    } else {
      scf.yield %x : tensor<4x4xf32>
    }
    return %1 : tensor<4x4xf32>
  }
  func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = call @both(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
}

// -----

// A schedule in the input is kept, if it fits: this one leaves half of the elements out.
#m = affine_map<(d0) -> (d0)>
module attributes {stitch.target = "sm_90"} {
  // expected-error @below {{its stitch.schedule does not fit, template elementwise: stitch.schedule: grid x is 1, not enough blocks for 64 elements; these compute 32}}
  func.func private @half(%x: tensor<64xf32>) -> tensor<64xf32> attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}} {
    %e = tensor.empty() : tensor<64xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
        ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.mulf %i, %i : f32
      linalg.yield %r : f32
    } -> tensor<64xf32>
    return %0 : tensor<64xf32>
  }
}

// -----

#m = affine_map<(d0) -> (d0)>
module attributes {stitch.target = "sm_90"} {
  // expected-error @below {{stitch.schedule: no kernel template is named 'spiral'}}
  func.func private @unknown(%x: tensor<64xf32>) -> tensor<64xf32> attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "spiral", grid = array<i64: 2, 1, 1>, block = array<i64: 32, 1, 1>}} {
    %e = tensor.empty() : tensor<64xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
        ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.mulf %i, %i : f32
      linalg.yield %r : f32
    } -> tensor<64xf32>
    return %0 : tensor<64xf32>
  }
}
