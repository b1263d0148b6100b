// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A row shared by all 64 blocks of a cooperative launch. The first thread of a block stores its part in global memory,
// makes it visible (the fence), counts itself on the ticket and waits until all blocks of the row have; the others wait
// at the barrier of the block. The ticket counts 64 arrivals a level and 64 exits, the last of which wraps it to 0.
// CHECK-LABEL: gpu.func @c(
// CHECK-NOT: known_cluster_size
// CHECK: memref.store {{.*}}, %arg2
// CHECK: llvm.fence syncscope("device") acq_rel
// CHECK: llvm.atomicrmw uinc_wrap {{.*}} syncscope("device") monotonic
// CHECK: scf.while
// CHECK: llvm.load {{.*}} atomic syncscope("device") acquire
// CHECK: gpu.barrier
// CHECK: memref.load %arg2
// CHECK: math.exp
// CHECK: memref.store {{.*}}, %arg3
// CHECK: llvm.atomicrmw uinc_wrap
// CHECK: llvm.load {{.*}} acquire
// CHECK: gpu.barrier
// CHECK: memref.load %arg3
// CHECK: llvm.atomicrmw uinc_wrap
// CHECK: vector.store
// CHECK: gpu.launch_func @kernels::@c blocks in
// CHECK-SAME: stitch.cooperative
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.target = "sm_80"} {
func.func @main(%a: tensor<1x262144xf32>) -> tensor<1x262144xf32> {
  %r = call @c(%a) : (tensor<1x262144xf32>) -> tensor<1x262144xf32>
  return %r : tensor<1x262144xf32>
}
func.func private @c(%a: tensor<1x262144xf32>) -> tensor<1x262144xf32> attributes {no_inline, stitch.cluster, stitch.schedule = {
    template = "row", grid = array<i64: 64, 1, 1>, block = array<i64: 1024, 1, 1>, vector = 4 : i64, cooperative,
    scratch = [["f32", 64], ["f32", 64]], tickets = 1 : i64,
    parameters = {lanes = 1024 : i64, mode = "resident", rows_per_block = 1 : i64, splits = 64 : i64, unroll = 1 : i64}}} {
  %inf = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : tensor<1x1xf32>
  %ef = tensor.empty() : tensor<1x262144xf32>
  %i0 = linalg.fill ins(%inf : f32) outs(%er : tensor<1x1xf32>) -> tensor<1x1xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%er : tensor<1x1xf32>) -> tensor<1x1xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<1x262144xf32>) outs(%i0 : tensor<1x1xf32>) {
  ^bb0(%x: f32, %acc: f32):
    
    %r = arith.maximumf %x, %acc : f32
    linalg.yield %r : f32
  } -> tensor<1x1xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a, %m : tensor<1x262144xf32>, tensor<1x1xf32>) outs(%z0 : tensor<1x1xf32>) {
  ^bb0(%x: f32, %t: f32, %acc: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  } -> tensor<1x1xf32>
  %o = linalg.generic {indexing_maps = [#id, #row, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %m, %s : tensor<1x262144xf32>, tensor<1x1xf32>, tensor<1x1xf32>) outs(%ef : tensor<1x262144xf32>) {
  ^bb0(%x: f32, %t: f32, %u: f32, %out: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %u : f32
    
    linalg.yield %q : f32
  } -> tensor<1x262144xf32>
  return %o : tensor<1x262144xf32>
}
}
