// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-classify)' | FileCheck %s

#m = affine_map<(d0, d1) -> (d0, d1)>
#t = affine_map<(d0, d1) -> (d1, d0)>
#r = affine_map<(d0, d1) -> (d0)>
#a3 = affine_map<(d0, d1, d2) -> (d0, d2)>
#b3 = affine_map<(d0, d1, d2) -> (d2, d1)>
#c3 = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @main
func.func @main(%a: tensor<4x4xf32>, %i: tensor<4xf32>, %at: tensor<4x4xindex>)
    -> (tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>) {
  %e = tensor.empty() : tensor<4x4xf32>
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "light"}
  %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %v = math.absf %x : f32
    linalg.yield %v : f32
  } -> tensor<4x4xf32>
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "expensive"}
  %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%0 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %v = math.tanh %x : f32
    linalg.yield %v : f32
  } -> tensor<4x4xf32>
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "movement"}
  %2 = linalg.generic {indexing_maps = [#t, #m], iterator_types = ["parallel", "parallel"]}
      ins(%1 : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<4x4xf32>
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "reduction"}
  %3 = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%2 : tensor<4x4xf32>) outs(%i : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %v = arith.addf %x, %o : f32
    linalg.yield %v : f32
  } -> tensor<4xf32>
  // CHECK: linalg.matmul {stitch.kind = "compute"}
  %4 = linalg.matmul ins(%a, %2 : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  // A contraction in generic form, here of differences, is compute as well.
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "compute"}
  %5 = linalg.generic {indexing_maps = [#a3, #b3, #c3], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%4, %a : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %d = arith.subf %x, %y : f32
    %q = arith.mulf %d, %d : f32
    %v = arith.addf %q, %o : f32
    linalg.yield %v : f32
  } -> tensor<4x4xf32>
  // CHECK: tensor.extract_slice {{.*}} {stitch.kind = "movement"}
  %6 = tensor.extract_slice %a[0, 0] [2, 4] [1, 1] : tensor<4x4xf32> to tensor<2x4xf32>
  // A gather moves data.
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "movement"}
  %7 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%at : tensor<4x4xindex>) outs(%e : tensor<4x4xf32>) {
  ^bb0(%x: index, %o: f32):
    %d = linalg.index 1 : index
    %v = tensor.extract %a[%x, %d] : tensor<4x4xf32>
    linalg.yield %v : f32
  } -> tensor<4x4xf32>
  // CHECK-NOT: stitch.kind
  %8 = tensor.collapse_shape %7 [[0, 1]] : tensor<4x4xf32> into tensor<16xf32>
  %9 = tensor.expand_shape %8 [[0, 1]] output_shape [4, 4] : tensor<16xf32> into tensor<4x4xf32>
  return %2, %3, %5, %6, %9 : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>
}

// CHECK-LABEL: func.func @indexed
func.func @indexed(%a: tensor<4x4xf32>, %i: tensor<4xf32>, %at: tensor<4xi64>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %e = tensor.empty() : tensor<4x4xf32>
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "scan"}
  %0:2 = linalg.generic {indexing_maps = [#m, #m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x4xf32>) outs(%e, %i : tensor<4x4xf32>, tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32, %total: f32):
    %v = arith.addf %total, %x : f32
    linalg.yield %v, %v : f32, f32
  } -> (tensor<4x4xf32>, tensor<4xf32>)
  %neutral = arith.constant -0.0 : f32
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "scatter"}
  %1 = linalg.generic {indexing_maps = [affine_map<(d, c, n) -> (n)>, affine_map<(d, c, n) -> (n, c)>,
                                        affine_map<(d, c, n) -> (d, c)>],
                       iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%at, %a : tensor<4xi64>, tensor<4x4xf32>) outs(%0#0 : tensor<4x4xf32>) {
  ^bb0(%named: i64, %x: f32, %o: f32):
    %d = linalg.index 0 : index
    %row = arith.index_cast %d : index to i64
    %hit = arith.cmpi eq, %named, %row : i64
    %term = arith.select %hit, %x, %neutral : f32
    %v = arith.addf %o, %term : f32
    linalg.yield %v : f32
  } -> tensor<4x4xf32>
  // A mask along the row itself selects, but scatters nothing.
  // CHECK: linalg.generic {{.*}} attrs = {stitch.kind = "compute"}
  %2 = linalg.generic {indexing_maps = [affine_map<(d, c, n) -> (d)>, affine_map<(d, c, n) -> (n, c)>,
                                        affine_map<(d, c, n) -> (d, c)>],
                       iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%at, %a : tensor<4xi64>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
  ^bb0(%named: i64, %x: f32, %o: f32):
    %d = linalg.index 0 : index
    %row = arith.index_cast %d : index to i64
    %hit = arith.cmpi eq, %named, %row : i64
    %term = arith.select %hit, %x, %neutral : f32
    %v = arith.addf %o, %term : f32
    linalg.yield %v : f32
  } -> tensor<4x4xf32>
  return %1, %2 : tensor<4x4xf32>, tensor<4x4xf32>
}
