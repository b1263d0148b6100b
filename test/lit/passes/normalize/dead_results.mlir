// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-dead-results)' --split-input-file | FileCheck %s

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
// The index of a maximum that nobody reads goes, with its init and what computed it.
// CHECK-LABEL: func.func @main
// CHECK: %[[MAX:.+]] = linalg.generic
// CHECK-SAME: ins(%arg0 : tensor<4x8xf32>) outs(%arg1 : tensor<4xf32>)
// CHECK-NEXT: ^bb0(%[[IN:.+]]: f32, %[[OUT:.+]]: f32):
// CHECK-NEXT: %[[M:.+]] = arith.maximumf %[[IN]], %[[OUT]]
// CHECK-NEXT: linalg.yield %[[M]] : f32
// CHECK: return %[[MAX]]
func.func @main(%a: tensor<4x8xf32>, %i: tensor<4xf32>, %j: tensor<4xi64>) -> tensor<4xf32> {
  %0:2 = linalg.generic {indexing_maps = [#m, #r, #r], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x8xf32>) outs(%i, %j : tensor<4xf32>, tensor<4xi64>) {
  ^bb0(%in: f32, %out: f32, %at: i64):
    %d = linalg.index 1 : index
    %k = arith.index_cast %d : index to i64
    %v = arith.maximumf %in, %out : f32
    %c = arith.cmpf ogt, %in, %out : f32
    %s = arith.select %c, %k, %at : i64
    linalg.yield %v, %s : f32, i64
  } -> (tensor<4xf32>, tensor<4xi64>)
  return %0#0 : tensor<4xf32>
}

// -----

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
// An argmax needs the running maximum although nobody reads the maximum.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic
// CHECK-SAME: outs(%arg1, %arg2 : tensor<4xf32>, tensor<4xi64>)
// CHECK: arith.maximumf
// CHECK: arith.select
func.func @main(%a: tensor<4x8xf32>, %i: tensor<4xf32>, %j: tensor<4xi64>) -> tensor<4xi64> {
  %0:2 = linalg.generic {indexing_maps = [#m, #r, #r], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x8xf32>) outs(%i, %j : tensor<4xf32>, tensor<4xi64>) {
  ^bb0(%in: f32, %out: f32, %at: i64):
    %d = linalg.index 1 : index
    %k = arith.index_cast %d : index to i64
    %v = arith.maximumf %in, %out : f32
    %c = arith.cmpf ogt, %in, %out : f32
    %s = arith.select %c, %k, %at : i64
    linalg.yield %v, %s : f32, i64
  } -> (tensor<4xf32>, tensor<4xi64>)
  return %0#1 : tensor<4xi64>
}

// -----

#m = affine_map<(d0) -> (d0)>
// An unread input and an unread init make no dependence; an op without uses goes.
// CHECK-LABEL: func.func @main
// CHECK-NOT: math.exp
// CHECK: %[[E:.+]] = tensor.empty() : tensor<4xf32>
// CHECK: linalg.generic
// CHECK-SAME: ins(%arg0 : tensor<4xf32>) outs(%[[E]] : tensor<4xf32>)
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b : tensor<4xf32>, tensor<4xf32>) outs(%b : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %r = arith.negf %x : f32
    linalg.yield %r : f32
  } -> tensor<4xf32>
  %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%a : tensor<4xf32>) outs(%b : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %r = math.exp %x : f32
    linalg.yield %r : f32
  } -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
