// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(dist-separate-fills)' --split-input-file | FileCheck %s

// Two contractions start from the same zeros; each gets its own. tensor.empty stays shared: it has no contents.
// CHECK-LABEL: func.func @main
// CHECK: %[[E:.+]] = tensor.empty
// CHECK: %[[A:.+]] = linalg.fill {stitch.kind = "light"} ins(%{{.+}} : f32) outs(%[[E]] : tensor<4x4xf32>)
// CHECK: %[[B:.+]] = linalg.fill {stitch.kind = "light"} ins(%{{.+}} : f32) outs(%[[E]] : tensor<4x4xf32>)
// CHECK-DAG: linalg.matmul ins(%arg0, %arg1 : {{.*}}) outs(%[[A]] :
// CHECK-DAG: linalg.matmul ins(%arg1, %arg0 : {{.*}}) outs(%[[B]] :
// CHECK-NOT: linalg.fill
func.func @main(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x4xf32>
  %f = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %a = linalg.matmul ins(%x, %y : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = linalg.matmul ins(%y, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %a, %b : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

#id = affine_map<(d0) -> (d0)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>
// Positions that are compared with themselves become positions of rows and positions of columns, with what they are
// computed from.
// CHECK-LABEL: func.func @main
// CHECK-COUNT-2: linalg.index 0
// CHECK-COUNT-2: arith.addi
// CHECK: arith.cmpi sge
// CHECK-NOT: linalg.index
func.func @main() -> tensor<4x4xi1> {
  %e = tensor.empty() : tensor<4xi64>
  %p = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]} outs(%e : tensor<4xi64>) {
    ^bb0(%o: i64):
      %i = linalg.index 0 : index
      %v = arith.index_cast %i : index to i64
      linalg.yield %v : i64
  } -> tensor<4xi64>
  %q = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%p : tensor<4xi64>) outs(%e : tensor<4xi64>) {
    ^bb0(%a: i64, %o: i64):
      %v = arith.addi %a, %a : i64
      linalg.yield %v : i64
  } -> tensor<4xi64>
  %f = tensor.empty() : tensor<4x4xi1>
  %r = linalg.generic {indexing_maps = [#row, #column, #m], iterator_types = ["parallel", "parallel"]}
    ins(%q, %q : tensor<4xi64>, tensor<4xi64>) outs(%f : tensor<4x4xi1>) {
    ^bb0(%a: i64, %b: i64, %o: i1):
      %v = arith.cmpi sge, %a, %b : i64
      linalg.yield %v : i1
  } -> tensor<4x4xi1>
  return %r : tensor<4x4xi1>
}

// -----

// Constants with data stay shared.
// CHECK-LABEL: func.func @main
// CHECK-COUNT-1: arith.constant dense<[1.000000e+00, 2.000000e+00]>
// CHECK-NOT: arith.constant
func.func @main() -> (tensor<2x1xf32>, tensor<1x2xf32>) {
  %c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %a = tensor.expand_shape %c [[0, 1]] output_shape [2, 1] : tensor<2xf32> into tensor<2x1xf32>
  %b = tensor.expand_shape %c [[0, 1]] output_shape [1, 2] : tensor<2xf32> into tensor<1x2xf32>
  return %a, %b : tensor<2x1xf32>, tensor<1x2xf32>
}
