// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-named-ops)' --verify-diagnostics

func.func @main(%a: tensor<4x4xf32>) -> tensor<2x2x2x2xf32> {
  %e = tensor.empty() : tensor<2x2x2x2xf32>
  // expected-error @below {{this op has no element-wise body}}
  %0 = linalg.pack %a inner_dims_pos = [0, 1] inner_tiles = [2, 2] into %e : tensor<4x4xf32> -> tensor<2x2x2x2xf32>
  return %0 : tensor<2x2x2x2xf32>
}
