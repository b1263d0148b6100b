// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// Softmax by blocks of four warps: each thread keeps two chunks of four columns from pass to pass, the maximum and the
// sum each take five shuffles, one barrier and two more shuffles, and nothing is loaded twice.
// CHECK-LABEL: gpu.func @c(
// CHECK-SAME: memref<262144xf32> {llvm.align = 16 : i32, llvm.noalias, llvm.readonly}
// CHECK-SAME: memref<262144xf32> {llvm.align = 16 : i32, llvm.noalias, llvm.writeonly}
// CHECK-SAME: workgroup(%[[SHARED:[a-z0-9]+]] : memref<32xi8, #gpu.address_space<workgroup>> {llvm.align = 16 : i64}
// CHECK-SAME: known_block_size = array<i32: 128, 1, 1>, known_grid_size = array<i32: 256, 1, 1>
// CHECK-COUNT-2: memref.view %[[SHARED]]{{.*}} to memref<4xf32, #gpu.address_space<workgroup>>
// CHECK-COUNT-2: vector.load {{.*}} {alignment = 16 : i64} : memref<262144xf32>, vector<4xf32>
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK: gpu.barrier
// CHECK-COUNT-2: gpu.shuffle xor
// CHECK-NOT: gpu.shuffle
// CHECK-COUNT-2: math.exp {{.*}} : vector<4xf32>
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK: gpu.barrier
// CHECK-COUNT-2: gpu.shuffle xor
// CHECK-NOT: vector.load
// CHECK-COUNT-2: vector.store {{.*}} {alignment = 16 : i64} : memref<262144xf32>, vector<4xf32>
// CHECK: gpu.return
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.target = "sm_90"} {
func.func @main(%a: tensor<256x1024xf32>) -> tensor<256x1024xf32> {
  %r = call @c(%a) : (tensor<256x1024xf32>) -> tensor<256x1024xf32>
  return %r : tensor<256x1024xf32>
}
func.func private @c(%a: tensor<256x1024xf32>) -> tensor<256x1024xf32> attributes {no_inline, stitch.cluster, stitch.schedule = {template = "row", grid = array<i64: 256, 1, 1>, block = array<i64: 128, 1, 1>, vector = 4 : i64, parameters = {lanes = 128 : i64, mode = "resident", rows_per_block = 1 : i64, unroll = 1 : i64}}} {
  %inf = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : tensor<256x1xf32>
  %ef = tensor.empty() : tensor<256x1024xf32>
  %i0 = linalg.fill ins(%inf : f32) outs(%er : tensor<256x1xf32>) -> tensor<256x1xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%er : tensor<256x1xf32>) -> tensor<256x1xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<256x1024xf32>) outs(%i0 : tensor<256x1xf32>) {
  ^bb0(%x: f32, %acc: f32):
    
    %r = arith.maximumf %x, %acc : f32
    linalg.yield %r : f32
  } -> tensor<256x1xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a, %m : tensor<256x1024xf32>, tensor<256x1xf32>) outs(%z0 : tensor<256x1xf32>) {
  ^bb0(%x: f32, %t: f32, %acc: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  } -> tensor<256x1xf32>
  %o = linalg.generic {indexing_maps = [#id, #row, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %m, %s : tensor<256x1024xf32>, tensor<256x1xf32>, tensor<256x1xf32>) outs(%ef : tensor<256x1024xf32>) {
  ^bb0(%x: f32, %t: f32, %u: f32, %out: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %u : f32
    
    linalg.yield %q : f32
  } -> tensor<256x1024xf32>
  return %o : tensor<256x1024xf32>
}
}
