// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{numerics=fast-math},normalize-fast-math,normalize-form-fma)' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{numerics=fast-math target=sm_75},normalize-fast-math)' | FileCheck %s --check-prefix=OLD
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes,normalize-fast-math)' | FileCheck %s --check-prefix=EXACT
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{numerics=strict},normalize-fast-math)' | FileCheck %s --check-prefix=EXACT

// EXACT-NOT: stitch.approximate
#m = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @main
// OLD-LABEL: func.func @main
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>, %h: tensor<4xf16>, %d: tensor<4xf64>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf16>, tensor<4xf64>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4xf32>
  %eh = tensor.empty() : tensor<4xf16>
  %ed = tensor.empty() : tensor<4xf64>
  // The functions; tanh only where the chip's PTX has it.
  // CHECK: ^bb0(%[[X:.+]]: f32, %[[Y:.+]]: f32, %{{.*}}: f32):
  // CHECK-NEXT: %[[P:.+]] = math.exp %[[X]] {stitch.approximate} : f32
  // CHECK-NEXT: %[[R:.+]] = math.sqrt %[[P]] {stitch.approximate} : f32
  // CHECK-NEXT: math.tanh %[[R]] {stitch.approximate} : f32
  // OLD: math.sqrt %{{.*}} {stitch.approximate}
  // OLD-NEXT: math.tanh %{{[0-9a-z_]+}} : f32
  %0 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = math.exp %x : f32
    %r = math.sqrt %p : f32
    %t = math.tanh %r : f32
    linalg.yield %t : f32
  } -> tensor<4xf32>
  // A quotient is a product with the reciprocal, which then takes part in a fused multiply-add; 1 / y is one op.
  // CHECK: ^bb0(%[[X:.+]]: f32, %[[Y:.+]]: f32, %{{.*}}: f32):
  // CHECK: %[[I:.+]] = arith.divf %{{.*}}, %[[Y]] {stitch.approximate} : f32
  // CHECK: %[[S:.+]] = math.fma %[[X]], %[[I]], %[[Y]] : f32
  // CHECK: %[[U:.+]] = arith.divf %{{.*}}, %[[S]] {stitch.approximate} : f32
  // CHECK-NEXT: linalg.yield %[[U]]
  %1 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %one = arith.constant 1.0 : f32
    %q = arith.divf %x, %y : f32
    %s = arith.addf %q, %y : f32
    %u = arith.divf %one, %s : f32
    linalg.yield %u : f32
  } -> tensor<4xf32>
  // Half types are widened and rounded once.
  // CHECK: ^bb0(%[[X:.+]]: f16, %{{.*}}: f16):
  // CHECK-NEXT: %[[W:.+]] = arith.extf %[[X]] : f16 to f32
  // CHECK-NEXT: %[[P:.+]] = math.exp %[[W]] {stitch.approximate} : f32
  // CHECK-NEXT: arith.truncf %[[P]] : f32 to f16
  %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%h : tensor<4xf16>) outs(%eh : tensor<4xf16>) {
  ^bb0(%x: f16, %o: f16):
    %p = math.exp %x : f16
    linalg.yield %p : f16
  } -> tensor<4xf16>
  // Double precision stays.
  // CHECK: math.exp %{{[0-9a-z_]+}} : f64
  // CHECK-NEXT: arith.divf %{{[0-9a-z_]+}}, %{{[0-9a-z_]+}} : f64
  %3 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%d : tensor<4xf64>) outs(%ed : tensor<4xf64>) {
  ^bb0(%x: f64, %o: f64):
    %p = math.exp %x : f64
    %q = arith.divf %p, %x : f64
    linalg.yield %q : f64
  } -> tensor<4xf64>
  // Products with other uses, and next to products, are fused as well.
  // CHECK: ^bb0(%[[X:.+]]: f32, %[[Y:.+]]: f32, %{{.*}}: f32):
  // CHECK-NEXT: %[[P:.+]] = arith.mulf %[[X]], %[[Y]]
  // CHECK-NEXT: %[[Q:.+]] = arith.mulf %[[X]], %[[X]]
  // CHECK-NEXT: %[[S:.+]] = math.fma %[[X]], %[[Y]], %[[Q]]
  // CHECK-NEXT: arith.mulf %[[S]], %[[P]]
  %4 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %q = arith.mulf %x, %x : f32
    %s = arith.addf %p, %q : f32
    %t = arith.mulf %s, %p : f32
    linalg.yield %t : f32
  } -> tensor<4xf32>
  return %0, %1, %2, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf16>, tensor<4xf64>, tensor<4xf32>
}
