// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-fold-transposes,canonicalize)' | FileCheck %s

#i = affine_map<(d0, d1) -> (d0, d1)>
#t = affine_map<(d0, d1) -> (d1, d0)>
#i3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#t3 = affine_map<(d0, d1, d2) -> (d0, d2, d1)>
#b3 = affine_map<(d0, d1, d2) -> (d1, d0, d2)>
// CHECK-DAG: #[[NK:.+]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK-DAG: #[[BNK:.+]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>

// CHECK-LABEL: func.func @main
// CHECK: linalg.matmul indexing_maps = [{{.*}}, #[[NK]], {{.*}}] ins(%arg0, %arg1 : tensor<4x16xf32>, tensor<8x16xf32>)
func.func @main(%x: tensor<4x16xf32>, %w: tensor<8x16xf32>, %o: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<16x8xf32>
  %0 = linalg.generic {indexing_maps = [#t, #i], iterator_types = ["parallel", "parallel"]}
      ins(%w : tensor<8x16xf32>) outs(%e : tensor<16x8xf32>) {
  ^bb0(%a: f32, %b: f32):
    linalg.yield %a : f32
  } -> tensor<16x8xf32>
  %1 = linalg.matmul ins(%x, %0 : tensor<4x16xf32>, tensor<16x8xf32>) outs(%o : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @batch
// CHECK: linalg.batch_matmul indexing_maps = [{{.*}}, #[[BNK]], {{.*}}] ins(%arg0, %arg1 : tensor<2x4x16xf32>, tensor<2x8x16xf32>)
func.func @batch(%x: tensor<2x4x16xf32>, %w: tensor<2x8x16xf32>, %o: tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  %e = tensor.empty() : tensor<2x16x8xf32>
  %0 = linalg.generic {indexing_maps = [#t3, #i3], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w : tensor<2x8x16xf32>) outs(%e : tensor<2x16x8xf32>) {
  ^bb0(%a: f32, %b: f32):
    linalg.yield %a : f32
  } -> tensor<2x16x8xf32>
  %1 = linalg.batch_matmul ins(%x, %0 : tensor<2x4x16xf32>, tensor<2x16x8xf32>)
      outs(%o : tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  return %1 : tensor<2x4x8xf32>
}

// A transpose that moves the batch dim, and one that computes something, stay.
// CHECK-LABEL: func.func @stays
// CHECK: linalg.generic
// CHECK: linalg.batch_matmul ins
// CHECK: linalg.generic
// CHECK: linalg.matmul ins
func.func @stays(%x: tensor<2x4x16xf32>, %w: tensor<16x2x8xf32>, %o: tensor<2x4x8xf32>,
                 %y: tensor<4x16xf32>, %v: tensor<8x16xf32>, %p: tensor<4x8xf32>)
    -> (tensor<2x4x8xf32>, tensor<4x8xf32>) {
  %e = tensor.empty() : tensor<2x16x8xf32>
  %0 = linalg.generic {indexing_maps = [#b3, #i3], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w : tensor<16x2x8xf32>) outs(%e : tensor<2x16x8xf32>) {
  ^bb0(%a: f32, %b: f32):
    linalg.yield %a : f32
  } -> tensor<2x16x8xf32>
  %1 = linalg.batch_matmul ins(%x, %0 : tensor<2x4x16xf32>, tensor<2x16x8xf32>)
      outs(%o : tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %f = tensor.empty() : tensor<16x8xf32>
  %2 = linalg.generic {indexing_maps = [#t, #i], iterator_types = ["parallel", "parallel"]}
      ins(%v : tensor<8x16xf32>) outs(%f : tensor<16x8xf32>) {
  ^bb0(%a: f32, %b: f32):
    %n = arith.negf %a : f32
    linalg.yield %n : f32
  } -> tensor<16x8xf32>
  %3 = linalg.matmul ins(%y, %2 : tensor<4x16xf32>, tensor<16x8xf32>) outs(%p : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %3 : tensor<2x4x8xf32>, tensor<4x8xf32>
}
