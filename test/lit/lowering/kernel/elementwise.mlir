// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A bias along the last dim and a transposed read: the bias is a vector, the transposed operand four strided scalars;
// 60 elements are 15 chunks of four, computed under one condition.
// CHECK-LABEL: gpu.func @c(
// CHECK: %[[IN:.+]] = arith.cmpi ult, %{{.*}}, %c15
// CHECK: scf.if %[[IN]]
// CHECK-COUNT-4: memref.load %{{.*}} : memref<60xf32>
// CHECK: vector.from_elements
// CHECK: vector.load %{{.*}} {alignment = 16 : i64} : memref<12xf32>, vector<4xf32>
// CHECK: arith.addf %{{.*}} : vector<4xf32>
// CHECK: vector.store %{{.*}} {alignment = 16 : i64} : memref<60xf32>, vector<4xf32>
// CHECK-NOT: scf.if
// CHECK: gpu.return
// CHECK: stitch.traffic = array<i64: 240, 240, 240>
module attributes {stitch.target = "sm_90"} {
  func.func @main(%a: tensor<12x5xf32>, %b: tensor<12xf32>) -> tensor<5x12xf32> {
    %r = call @c(%a, %b) : (tensor<12x5xf32>, tensor<12xf32>) -> tensor<5x12xf32>
    return %r : tensor<5x12xf32>
  }
  func.func private @c(%a: tensor<12x5xf32>, %b: tensor<12xf32>) -> tensor<5x12xf32>
      attributes {no_inline, stitch.cluster, stitch.schedule = {template = "elementwise",
        grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>, vector = 4 : i64}} {
    %e = tensor.empty() : tensor<5x12xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d1)>,
                                          affine_map<(d0, d1) -> (d0, d1)>],
                         iterator_types = ["parallel", "parallel"]}
        ins(%a, %b : tensor<12x5xf32>, tensor<12xf32>) outs(%e : tensor<5x12xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
    } -> tensor<5x12xf32>
    return %r : tensor<5x12xf32>
  }
}
