// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-named-ops)' --split-input-file | FileCheck %s

// CHECK-LABEL: func.func @main
// CHECK-NOT: linalg.transpose
// CHECK-NOT: linalg.broadcast
// CHECK-NOT: linalg.map
// CHECK-NOT: linalg.reduce
// CHECK-NOT: linalg.exp
// CHECK-NOT: linalg.copy
// CHECK-COUNT-6: linalg.generic
func.func @main(%a: tensor<4x8xf32>, %c: tensor<8xf32>) -> (tensor<8xf32>, tensor<8x4xf32>) {
  %e = tensor.empty() : tensor<8x4xf32>
  %0 = linalg.transpose ins(%a : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]
  %1 = linalg.exp ins(%0 : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = linalg.map { math.absf } ins(%1 : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>)
  %3 = linalg.copy ins(%2 : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  %4 = linalg.reduce { arith.addf } ins(%3 : tensor<8x4xf32>) outs(%c : tensor<8xf32>) dimensions = [1]
  %5 = linalg.broadcast ins(%4 : tensor<8xf32>) outs(%e : tensor<8x4xf32>) dimensions = [1]
  return %4, %5 : tensor<8xf32>, tensor<8x4xf32>
}

// -----

// Contractions, convolutions, poolings and fills stay named; a splat becomes a fill.
// CHECK-LABEL: func.func @main
// CHECK: linalg.fill
// CHECK: linalg.matmul
// CHECK: linalg.conv_2d_nchw_fchw
// CHECK: linalg.pooling_nchw_max
// CHECK-NOT: tensor.splat
// CHECK: linalg.fill
func.func @main(%a: tensor<4x8xf32>, %b: tensor<8x4xf32>, %i: tensor<1x2x8x8xf32>, %k: tensor<3x2x3x3xf32>,
                %o: tensor<1x3x6x6xf32>, %w: tensor<2x2xf32>, %q: tensor<1x2x4x4xf32>)
    -> (tensor<4x4xf32>, tensor<1x3x6x6xf32>, tensor<1x2x4x4xf32>, tensor<5xf32>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x4xf32>) outs(%f : tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = linalg.conv_2d_nchw_fchw ins(%i, %k : tensor<1x2x8x8xf32>, tensor<3x2x3x3xf32>)
      outs(%o : tensor<1x3x6x6xf32>) -> tensor<1x3x6x6xf32>
  %2 = linalg.pooling_nchw_max {strides = dense<2> : vector<2xi64>}
      ins(%i, %w : tensor<1x2x8x8xf32>, tensor<2x2xf32>) outs(%q : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %3 = tensor.splat %z : tensor<5xf32>
  return %0, %1, %2, %3 : tensor<4x4xf32>, tensor<1x3x6x6xf32>, tensor<1x2x4x4xf32>, tensor<5xf32>
}

// -----

// Softmax of f16 is computed in f32 and rounded once.
// CHECK-LABEL: func.func @main
// CHECK-NOT: linalg.softmax
// CHECK: arith.extf %{{.*}} : f16 to f32
// CHECK: arith.maximumf %{{.*}} : f32
// CHECK: math.exp %{{.*}} : f32
// CHECK: arith.addf %{{.*}} : f32
// CHECK: arith.divf %{{.*}} : f32
// CHECK: arith.truncf %{{.*}} : f32 to f16
// CHECK-NOT: arith.truncf
func.func @main(%a: tensor<4x8xf16>) -> tensor<4x8xf16> {
  %e = tensor.empty() : tensor<4x8xf16>
  %0 = linalg.softmax dimension(1) ins(%a : tensor<4x8xf16>) outs(%e : tensor<4x8xf16>) -> tensor<4x8xf16>
  return %0 : tensor<4x8xf16>
}
