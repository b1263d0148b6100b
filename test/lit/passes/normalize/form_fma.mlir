// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-form-fma)' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{numerics=strict},normalize-form-fma)' | FileCheck %s --check-prefix=STRICT

// STRICT-NOT: math.fma
#m = affine_map<(d0) -> (d0)>
#m2 = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
// CHECK-LABEL: func.func @main
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>, %h: tensor<4xf16>, %w: tensor<4x8xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf16>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4xf32>
  %eh = tensor.empty() : tensor<4xf16>
  // a * b + c
  // CHECK: ^bb0(%[[A:.+]]: f32, %[[B:.+]]: f32, %[[C:.+]]: f32, %{{.*}}: f32):
  // CHECK-NEXT: math.fma %[[A]], %[[B]], %[[C]] : f32
  %0 = linalg.generic {indexing_maps = [#m, #m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %p, %z : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  // c - a * b
  // CHECK: ^bb0(%[[A:.+]]: f32, %[[B:.+]]: f32, %[[C:.+]]: f32, %{{.*}}: f32):
  // CHECK-NEXT: %[[N:.+]] = arith.negf %[[A]]
  // CHECK-NEXT: math.fma %[[N]], %[[B]], %[[C]] : f32
  %1 = linalg.generic {indexing_maps = [#m, #m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.subf %z, %p : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  // a * b - c * c cancels for equal products: not formed. Neither if the product has another use.
  // CHECK: linalg.generic
  // CHECK-NOT: math.fma
  %2:2 = linalg.generic {indexing_maps = [#m, #m, #m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) outs(%e, %e : tensor<4xf32>, tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32, %o: f32, %o2: f32):
    %p = arith.mulf %x, %y : f32
    %q = arith.mulf %z, %z : f32
    %s = arith.subf %p, %q : f32
    %u = arith.mulf %s, %s : f32
    %t = arith.addf %u, %x : f32
    %v = arith.addf %t, %u : f32
    linalg.yield %s, %v : f32, f32
  } -> (tensor<4xf32>, tensor<4xf32>)
  // f16 rounds the product, as eager does.
  %3 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%h : tensor<4xf16>) outs(%eh : tensor<4xf16>) {
  ^bb0(%x: f16, %o: f16):
    %p = arith.mulf %x, %x : f16
    %s = arith.addf %p, %x : f16
    linalg.yield %s : f16
  } -> tensor<4xf16>
  // The combining addition of a reduction stays visible.
  %4 = linalg.generic {indexing_maps = [#m2, #r], iterator_types = ["parallel", "reduction"]}
      ins(%w : tensor<4x8xf32>) outs(%c : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %p = arith.mulf %x, %x : f32
    %s = arith.addf %p, %o : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  // The other operand is the product of another op: x * s - (x * s) must stay zero.
  %5 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    linalg.yield %p : f32
  } -> tensor<4xf32>
  %6 = linalg.generic {indexing_maps = [#m, #m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.subf %p, %z : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %0, %1, %2#0, %2#1, %3, %4, %5, %6
    : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf16>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
