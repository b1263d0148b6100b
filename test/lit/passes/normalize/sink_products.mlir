// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-sink-products,canonicalize)' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{numerics=strict},normalize-sink-products)' | FileCheck %s --check-prefix=STRICT

// STRICT-COUNT-11: linalg.generic
#m = affine_map<(d0, d1) -> (d0, d1)>
#t = affine_map<(d0, d1) -> (d1, d0)>
#c = affine_map<(d0, d1) -> (d1)>
#r = affine_map<(d0, d1) -> (d0)>
// CHECK-DAG: #[[ID:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[TURNED:.+]] = affine_map<(d0, d1) -> (d1, d0)>
// CHECK-DAG: #[[COLUMN:.+]] = affine_map<(d0, d1) -> (d1)>
// CHECK-DAG: #[[ROW:.+]] = affine_map<(d0, d1) -> (d0)>

// x * w + b, with w and b per column: one op, product and sum in its body.
// CHECK-LABEL: func.func @affine(
// CHECK: linalg.generic {indexing_maps = [#[[COLUMN]], #[[ID]], #[[COLUMN]], #[[ID]]]
// CHECK: ^bb0(%[[B:.+]]: f32, %[[X:.+]]: f32, %[[W:.+]]: f32, %{{.*}}: f32):
// CHECK-NEXT: %[[P:.+]] = arith.mulf %[[X]], %[[W]] : f32
// CHECK-NEXT: arith.addf %[[P]], %[[B]] : f32
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @affine(%x: tensor<4x8xf32>, %w: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<4x8xf32>
  %p = linalg.generic {indexing_maps = [#m, #c, #m], iterator_types = ["parallel", "parallel"]}
      ins(%x, %w : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %q = arith.mulf %a, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %y = linalg.generic {indexing_maps = [#m, #c, #m], iterator_types = ["parallel", "parallel"]}
      ins(%p, %b : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %q = arith.addf %a, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// A sum of squares, of the transposed product: fma on the running value.
// CHECK-LABEL: func.func @squares(
// CHECK: linalg.generic {indexing_maps = [#[[TURNED]], #[[ROW]]], iterator_types = ["parallel", "reduction"]}
// CHECK: ^bb0(%[[X:.+]]: f32, %[[ACC:.+]]: f32):
// CHECK-NEXT: math.fma %[[X]], %[[X]], %[[ACC]] : f32
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @squares(%x: tensor<8x4xf32>, %i: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4x8xf32>
  %p = linalg.generic {indexing_maps = [#t, #m], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<8x4xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.mulf %a, %a : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %y = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%p : tensor<4x8xf32>) outs(%i : tensor<4xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %q = arith.addf %a, %acc : f32
    linalg.yield %q : f32
  } -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// Two products that cancel, a product that is returned too, and a sum that would become a contraction stay apart.
// CHECK-LABEL: func.func @apart(
// CHECK-COUNT-3: arith.mulf
// CHECK: arith.subf
// CHECK: arith.addf
// CHECK: arith.mulf
// CHECK: arith.addf
// CHECK: return
func.func @apart(%x: tensor<4x8xf32>, %w: tensor<8xf32>, %v: tensor<4xf32>, %i: tensor<4xf32>)
    -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4x8xf32>
  %p = linalg.generic {indexing_maps = [#m, #c, #m], iterator_types = ["parallel", "parallel"]}
      ins(%x, %w : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %q = arith.mulf %a, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %p2 = linalg.generic {indexing_maps = [#m, #r, #m], iterator_types = ["parallel", "parallel"]}
      ins(%x, %v : tensor<4x8xf32>, tensor<4xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %q = arith.mulf %a, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %p3 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.mulf %a, %a : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %d = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel", "parallel"]}
      ins(%p, %p2 : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %q = arith.subf %a, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %y = linalg.generic {indexing_maps = [#m, #c, #m], iterator_types = ["parallel", "parallel"]}
      ins(%p3, %w : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %q = arith.addf %a, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %o = linalg.generic {indexing_maps = [#c, #r, #m], iterator_types = ["parallel", "parallel"]}
      ins(%w, %v : tensor<8xf32>, tensor<4xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %q = arith.mulf %a, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %z = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%o : tensor<4x8xf32>) outs(%i : tensor<4xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %q = arith.addf %a, %acc : f32
    linalg.yield %q : f32
  } -> tensor<4xf32>
  return %d, %y, %p3, %z : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xf32>
}
