// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// Tiles of 64 threads with four columns each: a thread scans its columns, a warp the threads' sums by shuffles, and the
// two warps theirs through shared memory. The total of a tile is carried to the next.
// CHECK-LABEL: gpu.func @c(
// CHECK: %[[SUMS:[a-z0-9_]+]] = memref.view {{.*}} to memref<2xf32, #gpu.address_space<workgroup>>
// CHECK: scf.for {{.*}} iter_args(%[[CARRY:[a-z0-9]+]] = %cst) -> (f32)
// CHECK: vector.load {{.*}} vector<4xf32>
// CHECK-COUNT-3: arith.addf
// CHECK-COUNT-5: gpu.shuffle up
// CHECK: gpu.barrier
// CHECK: memref.store {{.*}}, %[[SUMS]]
// CHECK: gpu.barrier
// CHECK: %[[BEFORE:[a-z0-9]+]]:2 = scf.for {{.*}} iter_args({{.*}} = %[[CARRY]], {{.*}} = %[[CARRY]])
// CHECK: memref.load %[[SUMS]]
// CHECK: gpu.shuffle up
// CHECK: vector.from_elements
// CHECK: vector.store
// CHECK: scf.yield %[[BEFORE]]#1
// CHECK: gpu.return
// CHECK: gpu.launch_func @kernels::@c
// CHECK-SAME: stitch.traffic = array<i64: 16384, 16384>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func private @c(%x: tensor<8x512xf32>) -> tensor<8x512xf32> attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "scan", grid = array<i64: 8, 1, 1>, block = array<i64: 64, 1, 1>, vector = 4 : i64,
                         parameters = {lanes = 64 : i64, mode = "loop", rows_per_block = 1 : i64, unroll = 1 : i64}}} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<8x512xf32>
    %rows = tensor.empty() : tensor<8xf32>
    %start = linalg.fill {stitch.kind = "light"} ins(%zero : f32) outs(%rows : tensor<8xf32>) -> tensor<8xf32>
    %scan:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>,
                                               affine_map<(d0, d1) -> (d0)>],
                              iterator_types = ["parallel", "reduction"]}
        ins(%x : tensor<8x512xf32>) outs(%empty, %start : tensor<8x512xf32>, tensor<8xf32>)
        attrs = {stitch.kind = "scan"} {
    ^bb0(%in: f32, %unread: f32, %total: f32):
      %next = arith.addf %total, %in : f32
      linalg.yield %next, %next : f32, f32
    } -> (tensor<8x512xf32>, tensor<8xf32>)
    return %scan#0 : tensor<8x512xf32>
  }
  func.func @main(%x: tensor<8x512xf32> {stitch.dtype = "float32", stitch.name = "x", stitch.role = "input"})
      -> (tensor<8x512xf32> {stitch.dtype = "float32", stitch.name = "y"}) {
    %0 = call @c(%x) : (tensor<8x512xf32>) -> tensor<8x512xf32>
    return %0 : tensor<8x512xf32>
  }
}
