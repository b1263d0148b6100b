// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A row shared by the eight blocks of a thread-block cluster. Every block folds its part, keeps the total in its shared
// memory, and reads those of its peers behind a barrier of the cluster. Threads arrive at the last barrier when they have
// read the last of them, and wait for it at the end, so that no block leaves while another one still reads.
// CHECK-LABEL: gpu.func @c(
// CHECK-SAME: known_block_size = array<i32: 1024, 1, 1>, known_cluster_size = array<i32: 8, 1, 1>, known_grid_size = array<i32: 32, 1, 1>
// CHECK-COUNT-2: vector.load
// CHECK: arith.maximumf
// CHECK: gpu.barrier
// CHECK: llvm.store {{.*}}, !llvm.ptr<3>
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK: llvm.load {{.*}} : !llvm.ptr<7> -> f32
// CHECK-COUNT-3: gpu.shuffle xor
// CHECK-NOT: vector.load
// CHECK: math.exp
// CHECK: gpu.barrier
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK: llvm.load {{.*}} : !llvm.ptr<7> -> f32
// CHECK: nvvm.cluster.arrive
// CHECK-COUNT-2: vector.store
// CHECK: nvvm.cluster.wait
// CHECK-NEXT: gpu.return
// CHECK: gpu.launch_func @kernels::@c clusters in (%c8, %c1, %c1) blocks in (%c32, %c1, %c1) threads in (%c1024, %c1, %c1)
// CHECK-SAME: stitch.traffic = array<i64: 1048576, 1048576>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.target = "sm_90"} {
func.func @main(%a: tensor<4x65536xf32>) -> tensor<4x65536xf32> {
  %r = call @c(%a) : (tensor<4x65536xf32>) -> tensor<4x65536xf32>
  return %r : tensor<4x65536xf32>
}
func.func private @c(%a: tensor<4x65536xf32>) -> tensor<4x65536xf32> attributes {no_inline, stitch.cluster, stitch.schedule = {
    template = "row", grid = array<i64: 32, 1, 1>, block = array<i64: 1024, 1, 1>, vector = 4 : i64,
    thread_block_cluster = array<i64: 8, 1, 1>,
    parameters = {lanes = 1024 : i64, mode = "resident", rows_per_block = 1 : i64, splits = 8 : i64, unroll = 1 : i64}}} {
  %inf = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : tensor<4x1xf32>
  %ef = tensor.empty() : tensor<4x65536xf32>
  %i0 = linalg.fill ins(%inf : f32) outs(%er : tensor<4x1xf32>) -> tensor<4x1xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%er : tensor<4x1xf32>) -> tensor<4x1xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x65536xf32>) outs(%i0 : tensor<4x1xf32>) {
  ^bb0(%x: f32, %acc: f32):
    
    %r = arith.maximumf %x, %acc : f32
    linalg.yield %r : f32
  } -> tensor<4x1xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a, %m : tensor<4x65536xf32>, tensor<4x1xf32>) outs(%z0 : tensor<4x1xf32>) {
  ^bb0(%x: f32, %t: f32, %acc: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  } -> tensor<4x1xf32>
  %o = linalg.generic {indexing_maps = [#id, #row, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %m, %s : tensor<4x65536xf32>, tensor<4x1xf32>, tensor<4x1xf32>) outs(%ef : tensor<4x65536xf32>) {
  ^bb0(%x: f32, %t: f32, %u: f32, %out: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %u : f32
    
    linalg.yield %q : f32
  } -> tensor<4x65536xf32>
  return %o : tensor<4x65536xf32>
}
}
