// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-schedule)' --verify-diagnostics

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
