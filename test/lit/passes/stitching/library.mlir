// RUN: mlirstitch-opt %s --split-input-file --pass-pipeline='builtin.module(stitch-cluster)' | FileCheck %s

// What a library call takes in: a transposed operand, the bias, ReLU.

#m = affine_map<(d0, d1) -> (d0, d1)>
#t = affine_map<(d0, d1) -> (d1, d0)>
#c = affine_map<(d0, d1) -> (d1)>
module attributes {stitch.library = "auto", stitch.numerics = "default", stitch.target = "sm_90"} {
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: stitch.apart = []
  func.func @main(%x: tensor<4x16xf32>, %w: tensor<8x16xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
    %zero = arith.constant 0.0 : f32
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    %e0 = tensor.empty() : tensor<16x8xf32>
    %0 = linalg.generic {indexing_maps = [#t, #m], iterator_types = ["parallel", "parallel"]}
        ins(%w : tensor<8x16xf32>) outs(%e0 : tensor<16x8xf32>) {
    ^bb0(%i: f32, %o: f32):
      linalg.yield %i : f32
    } -> tensor<16x8xf32>
    %e = tensor.empty() : tensor<4x8xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: linalg.matmul {stitch.cluster = array<i64: 0>, stitch.library = "matmul"}
    %1 = linalg.matmul ins(%x, %0 : tensor<4x16xf32>, tensor<16x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    %2 = linalg.generic {indexing_maps = [#m, #c, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1, %b : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i: f32, %j: f32, %o: f32):
      %s = arith.addf %i, %j : f32
      %r = arith.maximumf %s, %zero : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
}

// -----

// GELU in its tanh form is an epilogue, however it is written.

#m = affine_map<(d0, d1) -> (d0, d1)>
module attributes {stitch.library = "auto", stitch.numerics = "default", stitch.target = "sm_90"} {
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: stitch.apart = []
  func.func @main(%x: tensor<4x16xf32>, %w: tensor<16x8xf32>) -> tensor<4x8xf32> {
    %zero = arith.constant 0.0 : f32
    %half = arith.constant 0.5 : f32
    %one = arith.constant 1.0 : f32
    %scale = arith.constant 0.797884583 : f32
    %cubic = arith.constant 0.0356774069 : f32
    %e = tensor.empty() : tensor<4x8xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = linalg.matmul ins(%x, %w : tensor<4x16xf32>, tensor<16x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 0>}
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i: f32, %o: f32):
      %a = arith.mulf %i, %i : f32
      %b = math.fma %a, %cubic, %scale : f32
      %c = arith.mulf %b, %i : f32
      %d = math.tanh %c : f32
      %g = arith.addf %one, %d : f32
      %h = arith.mulf %g, %half : f32
      %r = arith.mulf %h, %i : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
}

// -----

// GELU by the error function is not; the reason stands with the pair.

#m = affine_map<(d0, d1) -> (d0, d1)>
module attributes {stitch.library = "auto", stitch.numerics = "default", stitch.target = "sm_90"} {
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: detail = "no epilogue computes math.erf"
  // CHECK-SAME: rule = "library"
  func.func @main(%x: tensor<4x16xf32>, %w: tensor<16x8xf32>) -> tensor<4x8xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x8xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: linalg.matmul {stitch.cluster = array<i64: 0>, stitch.library = "matmul"}
    %1 = linalg.matmul ins(%x, %w : tensor<4x16xf32>, tensor<16x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: linalg.generic {{.*}} attrs = {stitch.cluster = array<i64: 1>}
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = math.erf %i : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
}

// -----

// Strict numerics: a routine that adds in one rounding what the ops add in two is not asked.

#m = affine_map<(d0, d1) -> (d0, d1)>
#c = affine_map<(d0, d1) -> (d1)>
module attributes {stitch.library = "auto", stitch.numerics = "strict", stitch.target = "sm_90"} {
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: detail = "strict numerics
  func.func @main(%x: tensor<4x16xf32>, %w: tensor<16x8xf32>, %b: tensor<8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x8xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = linalg.matmul ins(%x, %w : tensor<4x16xf32>, tensor<16x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = linalg.generic {indexing_maps = [#m, #c, #m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1, %b, %y : tensor<4x8xf32>, tensor<8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i: f32, %j: f32, %k: f32, %o: f32):
      %s = arith.addf %i, %j : f32
      %r = arith.addf %s, %k : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
}
