// RUN: mlirstitch-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(plan-buffers)'

func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{holds calls and reshapes only}}
  %e = tensor.empty() : tensor<8xf32>
  return %e : tensor<8xf32>
}

// -----

// expected-error @below {{has no func.func @main}}
module {
  func.func private @c(tensor<8xf32>) -> tensor<8xf32>
}

// -----

// expected-error @below {{tensor<?xf32> has a dynamic shape}}
module {
  func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
    return %x : tensor<?xf32>
  }
}
