// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A product of 300 terms: runs of 128 are summed from zero by fused multiply-adds, then the runs.
// CHECK-LABEL: gpu.func @c(
// CHECK: %[[SUM:.+]] = scf.for %[[START:.+]] = %c0{{.*}} to %c300{{.*}} step %c128{{.*}} iter_args(%[[ACC:.+]] = %[[ZERO:.+]]) -> (f32)
// CHECK: %[[PART:.+]] = scf.for {{.*}} = %[[START]] to %{{.*}} iter_args({{.*}} = %[[ZERO]]) -> (f32)
// CHECK-COUNT-2: memref.load
// CHECK: math.fma
// CHECK: arith.addf %[[ACC]], %[[PART]] : f32
// CHECK: memref.store
module attributes {stitch.target = "sm_90"} {
  func.func @main(%a: tensor<4x300xf32>, %b: tensor<300x8xf32>) -> tensor<4x8xf32> {
    %r = call @c(%a, %b) : (tensor<4x300xf32>, tensor<300x8xf32>) -> tensor<4x8xf32>
    return %r : tensor<4x8xf32>
  }
  func.func private @c(%a: tensor<4x300xf32>, %b: tensor<300x8xf32>) -> tensor<4x8xf32>
      attributes {no_inline, stitch.cluster, stitch.schedule = {template = "loop_nest",
        grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}} {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x8xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    %r = linalg.matmul ins(%a, %b : tensor<4x300xf32>, tensor<300x8xf32>) outs(%i : tensor<4x8xf32>) -> tensor<4x8xf32>
    return %r : tensor<4x8xf32>
  }
}
