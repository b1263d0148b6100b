// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-sink-scalars)' | FileCheck %s

#m = affine_map<(d0) -> (d0)>
// The scalar is computed inside every body that uses it, a fill with it becomes a generic, a constant stays.
// CHECK-LABEL: func.func @main
// CHECK-NOT: tensor.extract
// CHECK: linalg.fill
// CHECK: linalg.generic
// CHECK: %[[S:.+]] = tensor.extract %arg1[]
// CHECK-NEXT: %[[T:.+]] = arith.mulf %[[S]], %[[S]]
// CHECK: arith.addf %{{.*}}, %[[T]]
// CHECK: linalg.generic
// CHECK-NEXT: ^bb0(%{{.*}}: f32):
// CHECK-NEXT: tensor.extract %arg1[]
func.func @main(%a: tensor<4xf32>, %s: tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c = arith.constant 2.0 : f32
  %v = tensor.extract %s[] : tensor<f32>
  %t = arith.mulf %v, %v : f32
  %e = tensor.empty() : tensor<4xf32>
  %k = linalg.fill ins(%c : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%a : tensor<4xf32>) outs(%k : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %r = arith.addf %x, %t : f32
    linalg.yield %r : f32
  } -> tensor<4xf32>
  %1 = linalg.fill ins(%t : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
