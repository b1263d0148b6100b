// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-reject-unsupported)' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-reject-unsupported{dynamic=true})' | FileCheck %s

// Every supported element type and rank-0 tensors pass; asserts are dropped later.
// CHECK-LABEL: func.func @main
func.func @main(%a: tensor<4xf16>, %b: tensor<f64>, %c: tensor<0x3xi1>, %d: tensor<2xi16>) -> tensor<4xf16> {
  // CHECK: cf.assert
  %t = arith.constant true
  cf.assert %t, "fine"
  %k = arith.constant dense<[1, 2]> : tensor<2xi8>
  return %a : tensor<4xf16>
}
