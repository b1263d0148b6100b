// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-fold-splats)' --split-input-file | FileCheck %s

#m = affine_map<(d0) -> (d0)>
#s = affine_map<(d0) -> ()>
// Splats, fills and rank-0 constants are read as scalars; a dense constant stays an input.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic
// CHECK-SAME: ins(%arg0, %{{.*}} : tensor<3xf32>, tensor<3xf32>) outs
func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
  %z = arith.constant 3.0 : f32
  %c = arith.constant dense<2.0> : tensor<3xf32>
  %d = arith.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %k = arith.constant dense<5.0> : tensor<f32>
  %e = tensor.empty() : tensor<3xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  %0 = linalg.generic {indexing_maps = [#m, #m, #m, #m, #s, #m], iterator_types = ["parallel"]}
      ins(%a, %c, %f, %d, %k : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<f32>)
      outs(%e : tensor<3xf32>) {
  ^bb0(%x: f32, %p: f32, %q: f32, %t: f32, %u: f32, %o: f32):
    %1 = arith.mulf %x, %p : f32
    %2 = arith.mulf %1, %q : f32
    %3 = arith.mulf %2, %t : f32
    %4 = arith.mulf %3, %u : f32
    linalg.yield %4 : f32
  } -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
// The only operand that tells the extent of d1 stays, splat or not.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic
// CHECK-SAME: ins(%{{.*}} : tensor<4x8xf32>)
func.func @main(%i: tensor<4xf32>) -> tensor<4xf32> {
  %c = arith.constant dense<2.0> : tensor<4x8xf32>
  %0 = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%c : tensor<4x8xf32>) outs(%i : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = arith.addf %x, %o : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

#m = affine_map<(d0) -> (d0)>
// 1e-5 as f64 is rounded to f32 once; truncf of a value stays.
// CHECK-LABEL: func.func @main
// CHECK: %[[C:.+]] = arith.constant 9.99999974E-6 : f32
// CHECK: arith.addf %{{.*}}, %[[C]] : f32
// CHECK: arith.truncf %{{.*}} : f32 to f16
func.func @main(%a: tensor<3xf32>) -> tensor<3xf16> {
  %eps = arith.constant 1.0e-05 : f64
  %e = tensor.empty() : tensor<3xf16>
  %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%a : tensor<3xf32>) outs(%e : tensor<3xf16>) {
  ^bb0(%x: f32, %o: f16):
    %c = arith.truncf %eps : f64 to f32
    %s = arith.addf %x, %c : f32
    %t = arith.truncf %s : f32 to f16
    linalg.yield %t : f16
  } -> tensor<3xf16>
  return %0 : tensor<3xf16>
}
