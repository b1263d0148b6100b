// RUN: mlirstitch compile %s --numerics fast-math --emit ptx | FileCheck %s
// RUN: mlirstitch compile %s --numerics default --emit ptx | FileCheck %s --check-prefix=EXACT
// RUN: mlirstitch compile %s --numerics strict --emit ptx | FileCheck %s --check-prefix=EXACT

// Every relaxation that docs/numerics.md lists for fast-math shows in the PTX, and none in the other modes. libdevice
// computes with ex2.approx.ftz and rcp.approx.ftz inside; the ones here do not flush.
// EXACT-NOT: ex2.approx.f32
// EXACT-NOT: rcp.approx.f32
// EXACT-NOT: sqrt.approx
// EXACT-NOT: tanh.approx
// EXACT-NOT: div.approx
// EXACT-NOT: div.full
// EXACT: sqrt.rn.f32
// EXACT-NOT: rcp.approx.f32
// EXACT-NOT: ex2.approx.f32

// CHECK-NOT: div.
// CHECK-NOT: .ftz
// CHECK: ex2.approx.f32
// CHECK: tanh.approx.f32
// CHECK: sqrt.approx.f32
// CHECK: rcp.approx.f32
// CHECK: fma.rn.f32
#m = affine_map<(d0) -> (d0)>
func.func @main(%a: tensor<4096xf32>, %b: tensor<4096xf32>) -> tensor<4096xf32> {
  %e = tensor.empty() : tensor<4096xf32>
  %0 = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}
      ins(%a, %b : tensor<4096xf32>, tensor<4096xf32>) outs(%e : tensor<4096xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = math.exp %x : f32
    %t = math.tanh %p : f32
    %r = math.sqrt %t : f32
    %q = arith.divf %r, %y : f32
    %c = arith.mulf %x, %y : f32
    %s = arith.addf %q, %c : f32
    linalg.yield %s : f32
  } -> tensor<4096xf32>
  return %0 : tensor<4096xf32>
}
