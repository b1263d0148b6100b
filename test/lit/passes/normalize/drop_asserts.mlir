// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-drop-asserts)' | FileCheck %s

#m = affine_map<(d0) -> (d0)>
// The assertion and the comparison that fed only it go; the division and a comparison with other uses stay.
// CHECK-LABEL: func.func @main
// CHECK-NOT: cf.assert
// CHECK: arith.cmpf ogt
// CHECK-NOT: arith.cmpf one
// CHECK: arith.divf
func.func @main(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xi1>) {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %t = arith.constant true
  cf.assert %t, "on the function level"
  %e = tensor.empty() : tensor<4xf32>
  %b = tensor.empty() : tensor<4xi1>
  %0:2 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%a : tensor<4xf32>) outs(%e, %b : tensor<4xf32>, tensor<4xi1>) {
  ^bb0(%x: f32, %o: f32, %p: i1):
    %g = arith.cmpf ogt, %x, %zero : f32
    cf.assert %g, "positive"
    %n = arith.cmpf one, %x, %zero : f32
    cf.assert %n, "not zero"
    %r = arith.divf %one, %x : f32
    linalg.yield %r, %g : f32, i1
  } -> (tensor<4xf32>, tensor<4xi1>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xi1>
}
