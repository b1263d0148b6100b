// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// Sums along the rows of a transposed input plus another one: slabs of 32 columns of the transposed input are loaded
// along the rows of the result and cross in shared memory; a barrier keeps a slab until all threads have read it.
// CHECK-LABEL: gpu.func @c(
// CHECK-SAME: workgroup(%[[SHARED:[a-z0-9]+]] : memref<4096xi8, #gpu.address_space<workgroup>>
// CHECK: %[[TILE:.+]] = memref.view %[[SHARED]]
// CHECK: scf.for %{{.*}} = %c0{{.*}} to %c2 
// CHECK: gpu.barrier
// CHECK-COUNT-4: vector.load %arg0[{{.*}}] {alignment = 16 : i64} : memref<2048xf32>, vector<4xf32>
// CHECK: vector.store {{.*}}, %[[TILE]]
// CHECK: gpu.barrier
// CHECK: vector.load %[[TILE]][{{.*}}] {alignment = 16 : i64} : memref<1024xf32, #gpu.address_space<workgroup>>, vector<4xf32>
// CHECK: vector.load %arg1[{{.*}}] {alignment = 16 : i64} : memref<2048xf32>, vector<4xf32>
// CHECK: scf.yield
// CHECK-COUNT-3: gpu.shuffle xor
// CHECK: memref.store %{{.*}}, %arg2
// CHECK: stitch.traffic = array<i64: 8192, 8192, 128>
module attributes {stitch.target = "sm_90"} {
  func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x64xf32>) -> tensor<32x1xf32> {
    %r = call @c(%a, %b) : (tensor<64x32xf32>, tensor<32x64xf32>) -> tensor<32x1xf32>
    return %r : tensor<32x1xf32>
  }
  func.func private @c(%a: tensor<64x32xf32>, %b: tensor<32x64xf32>) -> tensor<32x1xf32>
      attributes {no_inline, stitch.cluster, stitch.schedule = {template = "row_tile",
        grid = array<i64: 1, 1, 1>, block = array<i64: 256, 1, 1>, vector = 4 : i64,
        parameters = {lanes = 8 : i64, rows_per_block = 32 : i64, slab = 1 : i64, vector_down = 4 : i64}}} {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<32x64xf32>
    %er = tensor.empty() : tensor<32x1xf32>
    %z = linalg.fill ins(%zero : f32) outs(%er : tensor<32x1xf32>) -> tensor<32x1xf32>
    %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>,
                                          affine_map<(d0, d1) -> (d0, d1)>],
                         iterator_types = ["parallel", "parallel"]}
        ins(%a, %b : tensor<64x32xf32>, tensor<32x64xf32>) outs(%e : tensor<32x64xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %p = arith.addf %x, %y : f32
      linalg.yield %p : f32
    } -> tensor<32x64xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>],
                         iterator_types = ["parallel", "reduction"]}
        ins(%s : tensor<32x64xf32>) outs(%z : tensor<32x1xf32>) {
    ^bb0(%x: f32, %acc: f32):
      %p = arith.addf %x, %acc : f32
      linalg.yield %p : f32
    } -> tensor<32x1xf32>
    return %r : tensor<32x1xf32>
  }
}
