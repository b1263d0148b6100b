// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-f64-statistics)' --split-input-file | FileCheck %s

#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0, 0)>
// A variance that the importer widened is computed in f32, by the same two passes.
// CHECK-LABEL: func.func @variance_in_f64
// CHECK-NOT: extf
// CHECK: arith.addf %{{.*}} : f32
// CHECK: arith.divf %{{.*}} : f32
// CHECK: arith.subf %{{.*}} : f32
// CHECK: arith.mulf %{{.*}} : f32
// CHECK: arith.addf %{{.*}} : f32
// CHECK: arith.divf %{{.*}} : f32
// CHECK-NOT: truncf
func.func @variance_in_f64(%a: tensor<4x8xf32>) -> tensor<4x1xf32> {
  %z = arith.constant 0.0 : f64
  %n = arith.constant 8.0 : f64
  %e = tensor.empty() : tensor<4x8xf64>
  %f = tensor.empty() : tensor<4x1xf64>
  %g = tensor.empty() : tensor<4x1xf32>
  %w = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<4x8xf32>) outs(%e : tensor<4x8xf64>) {
  ^bb0(%x: f32, %o: f64):
    %r = arith.extf %x : f32 to f64
    linalg.yield %r : f64
  } -> tensor<4x8xf64>
  %zero = linalg.fill ins(%z : f64) outs(%f : tensor<4x1xf64>) -> tensor<4x1xf64>
  %s = linalg.generic {indexing_maps = [#m, #k], iterator_types = ["parallel", "reduction"]}
      ins(%w : tensor<4x8xf64>) outs(%zero : tensor<4x1xf64>) {
  ^bb0(%x: f64, %o: f64):
    %r = arith.addf %x, %o : f64
    linalg.yield %r : f64
  } -> tensor<4x1xf64>
  %mean = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%s : tensor<4x1xf64>) outs(%f : tensor<4x1xf64>) {
  ^bb0(%x: f64, %o: f64):
    %r = arith.divf %x, %n : f64
    linalg.yield %r : f64
  } -> tensor<4x1xf64>
  %d = linalg.generic {indexing_maps = [#m, #k, #m], iterator_types = ["parallel", "parallel"]}
      ins(%w, %mean : tensor<4x8xf64>, tensor<4x1xf64>) outs(%e : tensor<4x8xf64>) {
  ^bb0(%x: f64, %y: f64, %o: f64):
    %r = arith.subf %x, %y : f64
    linalg.yield %r : f64
  } -> tensor<4x8xf64>
  %q = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%d, %d : tensor<4x8xf64>, tensor<4x8xf64>) outs(%e : tensor<4x8xf64>) {
  ^bb0(%x: f64, %y: f64, %o: f64):
    %r = arith.mulf %x, %y : f64
    linalg.yield %r : f64
  } -> tensor<4x8xf64>
  %v = linalg.generic {indexing_maps = [#m, #k], iterator_types = ["parallel", "reduction"]}
      ins(%q : tensor<4x8xf64>) outs(%zero : tensor<4x1xf64>) {
  ^bb0(%x: f64, %o: f64):
    %r = arith.addf %x, %o : f64
    linalg.yield %r : f64
  } -> tensor<4x1xf64>
  %u = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%v : tensor<4x1xf64>) outs(%g : tensor<4x1xf32>) {
  ^bb0(%x: f64, %o: f32):
    %r = arith.divf %x, %n : f64
    %t = arith.truncf %r : f64 to f32
    linalg.yield %t : f32
  } -> tensor<4x1xf32>
  return %u : tensor<4x1xf32>
}

// -----

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
#v = affine_map<(d0) -> (d0)>
// A plain sum that a program widens to f64 on purpose stays in f64.
// CHECK-LABEL: func.func @sum_in_f64
// CHECK: arith.extf
// CHECK: arith.addf %{{.*}} : f64
// CHECK: arith.truncf
func.func @sum_in_f64(%a: tensor<4x8xf32>) -> tensor<4xf32> {
  %z = arith.constant 0.0 : f64
  %f = tensor.empty() : tensor<4xf64>
  %g = tensor.empty() : tensor<4xf32>
  %zero = linalg.fill ins(%z : f64) outs(%f : tensor<4xf64>) -> tensor<4xf64>
  %s = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x8xf32>) outs(%zero : tensor<4xf64>) {
  ^bb0(%x: f32, %o: f64):
    %w = arith.extf %x : f32 to f64
    %r = arith.addf %w, %o : f64
    linalg.yield %r : f64
  } -> tensor<4xf64>
  %t = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]}
      ins(%s : tensor<4xf64>) outs(%g : tensor<4xf32>) {
  ^bb0(%x: f64, %o: f32):
    %r = arith.truncf %x : f64 to f32
    linalg.yield %r : f32
  } -> tensor<4xf32>
  return %t : tensor<4xf32>
}

// -----

#m = affine_map<(d0) -> (d0)>
// f64 arguments and results stay f64.
// CHECK-LABEL: func.func @true_f64
// CHECK: arith.mulf %{{.*}} : f64
func.func @true_f64(%a: tensor<4xf64>) -> tensor<4xf64> {
  %e = tensor.empty() : tensor<4xf64>
  %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%a : tensor<4xf64>) outs(%e : tensor<4xf64>) {
  ^bb0(%x: f64, %o: f64):
    %r = arith.mulf %x, %x : f64
    linalg.yield %r : f64
  } -> tensor<4xf64>
  return %0 : tensor<4xf64>
}
