// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-returned-constants)' | FileCheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[D:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]>
// CHECK: %[[A:.+]] = linalg.generic {{.*}} ins(%[[D]] : tensor<2xf32>)
// CHECK: %[[B:.+]] = linalg.generic {{.*}} outs(%{{.*}} : tensor<3xi64>)
// CHECK: %[[C:.+]] = linalg.generic {{.*}} outs(%{{.*}} : tensor<4xf32>)
// What nobody reads any more goes: a dead op would get a kernel.
// CHECK-NOT: linalg.fill
// An argument that is returned needs no op.
// CHECK: return %[[A]], %[[B]], %[[C]], %arg0
func.func @main(%x: tensor<5xf32>) -> (tensor<2xf32>, tensor<3xi64>, tensor<4xf32>, tensor<5xf32>) {
  %d = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %s = arith.constant dense<7> : tensor<3xi64>
  %z = arith.constant 0.5 : f32
  %e = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %d, %s, %f, %x : tensor<2xf32>, tensor<3xi64>, tensor<4xf32>, tensor<5xf32>
}
