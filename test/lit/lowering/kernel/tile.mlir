// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A transpose beside an addition. A thread loads four vectors along the rows of the input, transposes them in registers
// and writes four vectors to shared memory at swizzled places; behind the barrier it reads vectors along the rows of the
// output, loads the other operand there, and stores.
// CHECK-LABEL: gpu.func @c(
// CHECK-SAME: workgroup(%[[SHARED:[a-z0-9]+]] : memref<4096xi8, #gpu.address_space<workgroup>>
// CHECK: %[[TILE:.+]] = memref.view %[[SHARED]]
// CHECK-COUNT-4: vector.load %arg0[{{.*}}] {alignment = 16 : i64} : memref<2048xf32>, vector<4xf32>
// CHECK: arith.xori
// CHECK-COUNT-4: vector.store {{.*}}, %[[TILE]][{{.*}}] {alignment = 16 : i64} : memref<1024xf32, #gpu.address_space<workgroup>>, vector<4xf32>
// CHECK: gpu.barrier
// CHECK: vector.load %[[TILE]][{{.*}}] {alignment = 16 : i64} : memref<1024xf32, #gpu.address_space<workgroup>>, vector<4xf32>
// CHECK: vector.load %arg1[{{.*}}] {alignment = 16 : i64} : memref<2048xf32>, vector<4xf32>
// CHECK: arith.addf %{{.*}} : vector<4xf32>
// CHECK-COUNT-4: vector.store {{.*}}, %arg2[{{.*}}] {alignment = 16 : i64} : memref<2048xf32>, vector<4xf32>
// CHECK-NOT: scf.if
// CHECK: gpu.return

// The same with 33 columns: the tiles that stick out have code of their own, in which every task is tested.
// CHECK-LABEL: gpu.func @ragged(
// CHECK: arith.cmpi ult, %block_id_x{{.*}}, %c1
// CHECK: scf.if
// CHECK: memref.load %arg0[{{.*}}] : memref<1056xf32>
// CHECK-NOT: scf.if
// CHECK: } else {
// CHECK: scf.if
// CHECK: memref.load %arg0
// CHECK: gpu.barrier
// CHECK: stitch.traffic = array<i64: 4224, 4224>
module attributes {stitch.target = "sm_90"} {
  func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x64xf32>, %x: tensor<33x32xf32>)
      -> (tensor<32x64xf32>, tensor<32x33xf32>) {
    %r = call @c(%a, %b) : (tensor<64x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %s = call @ragged(%x) : (tensor<33x32xf32>) -> tensor<32x33xf32>
    return %r, %s : tensor<32x64xf32>, tensor<32x33xf32>
  }
  func.func private @c(%a: tensor<64x32xf32>, %b: tensor<32x64xf32>) -> tensor<32x64xf32>
      attributes {no_inline, stitch.cluster, stitch.schedule = {template = "tile",
        grid = array<i64: 2, 1, 1>, block = array<i64: 64, 1, 1>, vector = 4 : i64,
        parameters = {across = 32 : i64, down = 32 : i64, vector_down = 4 : i64}}} {
    %e = tensor.empty() : tensor<32x64xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>,
                                          affine_map<(d0, d1) -> (d0, d1)>],
                         iterator_types = ["parallel", "parallel"]}
        ins(%a, %b : tensor<64x32xf32>, tensor<32x64xf32>) outs(%e : tensor<32x64xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
    } -> tensor<32x64xf32>
    return %r : tensor<32x64xf32>
  }
  func.func private @ragged(%a: tensor<33x32xf32>) -> tensor<32x33xf32>
      attributes {no_inline, stitch.cluster, stitch.schedule = {template = "tile",
        grid = array<i64: 2, 1, 1>, block = array<i64: 256, 1, 1>, vector = 1 : i64,
        parameters = {across = 32 : i64, down = 32 : i64, vector_down = 1 : i64}}} {
    %e = tensor.empty() : tensor<32x33xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>],
                         iterator_types = ["parallel", "parallel"]}
        ins(%a : tensor<33x32xf32>) outs(%e : tensor<32x33xf32>) {
    ^bb0(%x: f32, %o: f32):
      linalg.yield %x : f32
    } -> tensor<32x33xf32>
    return %r : tensor<32x33xf32>
  }
}
