// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster)' --split-input-file --verify-diagnostics

// expected-error @below {{the attribute stitch.target is missing}}
module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

#m = affine_map<(d0) -> (d0)>
module attributes {stitch.library = "none", stitch.target = "sm_90"} {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %e = tensor.empty() : tensor<4xf32>
    // expected-error @below {{no kernel template can compute this op}}
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
        ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %c = arith.constant true
      %r = scf.if %c -> f32 {
        scf.yield %i : f32
      } else {
        scf.yield %o : f32
      }
      linalg.yield %r : f32
    } -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
