// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-sink-scalars)' --verify-diagnostics

func.func @main(%a: tensor<8xf32>, %s: tensor<index>) -> tensor<4xf32> {
  // expected-error @below {{a computed scalar is used outside of a body}}
  %v = tensor.extract %s[] : tensor<index>
  %0 = tensor.extract_slice %a[%v] [4] [1] : tensor<8xf32> to tensor<4xf32>
  return %0 : tensor<4xf32>
}
