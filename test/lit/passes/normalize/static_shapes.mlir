// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-static-concat,canonicalize)' | FileCheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[C:.+]] = tensor.concat dim(0) %arg0, %arg1 : (tensor<2x3xf32>, tensor<1x3xf32>) -> tensor<3x3xf32>
// CHECK-NOT: tensor.cast
// CHECK: return %[[C]]
func.func @main(%a: tensor<2x3xf32>, %b: tensor<1x3xf32>) -> tensor<3x3xf32> {
  %0 = tensor.cast %a : tensor<2x3xf32> to tensor<?x3xf32>
  %1 = tensor.cast %b : tensor<1x3xf32> to tensor<?x3xf32>
  %2 = tensor.concat dim(0) %0, %1 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
  %3 = tensor.cast %2 : tensor<?x3xf32> to tensor<3x3xf32>
  return %3 : tensor<3x3xf32>
}

// A concat whose operands really are dynamic stays.
// CHECK-LABEL: func.func @dynamic
// CHECK: tensor.concat dim(0) %arg0, %arg0 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
func.func @dynamic(%a: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %0 = tensor.concat dim(0) %a, %a : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
  return %0 : tensor<?x3xf32>
}
