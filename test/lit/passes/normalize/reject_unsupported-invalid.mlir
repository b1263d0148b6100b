// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-reject-unsupported)' --split-input-file --verify-diagnostics --allow-unregistered-dialect

// expected-error @below {{the module has no function @main with a body}}
module {
}

// -----

// expected-error @below {{has type tensor<4000000000x4000000000xf32>: 16000000000000000000 elements are more than}}
func.func @main(%a: tensor<4000000000x4000000000xf32>) -> tensor<4000000000x4000000000xf32> {
  return %a : tensor<4000000000x4000000000xf32>
}

// -----

func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{this op is not supported}}
  %0 = "tm_tensor.scan"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// expected-error @below {{argument 0 of @main has type tensor<?xf32>: dynamic dims are not supported yet}}
func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {
  return %a : tensor<?xf32>
}

// -----

// expected-error @below {{argument 1 of @main has type f32: not a ranked tensor}}
func.func @main(%a: tensor<4xf32>, %s: f32) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}

// -----

// expected-error @below {{complex numbers are not supported}}
func.func @main(%a: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  return %a : tensor<4xcomplex<f32>>
}

// -----

// expected-error @below {{element type i4 is not supported}}
func.func @main(%a: tensor<4xi4>) -> tensor<4xi4> {
  return %a : tensor<4xi4>
}

// -----

func.func @main(%a: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
  %p = tensor.extract %c[] : tensor<i1>
  // expected-error @below {{this op is not supported}}
  %0 = scf.if %p -> tensor<4xf32> {
    scf.yield %a : tensor<4xf32>
  } else {
    scf.yield %a : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}

// -----

func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{dynamic dims are not supported yet}}
  %0 = tensor.cast %a : tensor<4xf32> to tensor<?xf32>
  %1 = tensor.cast %0 : tensor<?xf32> to tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

// expected-error @below {{only the function @main may stand in the module}}
func.func private @other(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}

// -----

func.func @main(%a: tensor<4x4xf32>) -> tensor<2x2x2x2xf32> {
  %e = tensor.empty() : tensor<2x2x2x2xf32>
  // expected-error @below {{this op is not supported}}
  %0 = linalg.pack %a inner_dims_pos = [0, 1] inner_tiles = [2, 2] into %e : tensor<4x4xf32> -> tensor<2x2x2x2xf32>
  return %0 : tensor<2x2x2x2xf32>
}
