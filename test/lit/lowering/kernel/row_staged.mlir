// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A row too long for registers: the pass that finds the maximum stages it in dynamic shared memory, the other two read
// it there. A thread reads what it wrote, so no barrier is added. What is left over for some threads stays in registers.
// CHECK: llvm.mlir.global external @dynamic_shared() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<0 x i8>
// CHECK-LABEL: gpu.func @c(
// CHECK: llvm.mlir.addressof @dynamic_shared : !llvm.ptr<3>
// CHECK: scf.for
// CHECK: vector.load %arg0{{.*}} {alignment = 16 : i64}
// CHECK: llvm.store %{{.*}} {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<3>
// CHECK: arith.maximumf
// CHECK: gpu.barrier
// CHECK-NOT: vector.load
// CHECK: scf.for
// CHECK: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<3> -> vector<4xf32>
// CHECK: math.exp
// CHECK: gpu.barrier
// CHECK-NOT: vector.load
// CHECK: scf.for
// CHECK: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<3> -> vector<4xf32>
// CHECK: vector.store %{{.*}}, %arg1
// CHECK: gpu.launch_func @kernels::@c {{.*}} dynamic_shared_memory_size
// CHECK-SAME: stitch.traffic = array<i64: 400384, 400384>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, 0)>
module attributes {stitch.target = "sm_90"} {
func.func @main(%a: tensor<2x50048xf32>) -> tensor<2x50048xf32> {
  %r = call @c(%a) : (tensor<2x50048xf32>) -> tensor<2x50048xf32>
  return %r : tensor<2x50048xf32>
}
func.func private @c(%a: tensor<2x50048xf32>) -> tensor<2x50048xf32> attributes {no_inline, stitch.cluster, stitch.schedule = {
    template = "row", grid = array<i64: 2, 1, 1>, block = array<i64: 1024, 1, 1>, vector = 4 : i64,
    shared_bytes = 196608 : i64,
    parameters = {lanes = 1024 : i64, mode = "staged", rows_per_block = 1 : i64, unroll = 1 : i64}}} {
  %inf = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : tensor<2x1xf32>
  %ef = tensor.empty() : tensor<2x50048xf32>
  %i0 = linalg.fill ins(%inf : f32) outs(%er : tensor<2x1xf32>) -> tensor<2x1xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%er : tensor<2x1xf32>) -> tensor<2x1xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<2x50048xf32>) outs(%i0 : tensor<2x1xf32>) {
  ^bb0(%x: f32, %acc: f32):
    
    %r = arith.maximumf %x, %acc : f32
    linalg.yield %r : f32
  } -> tensor<2x1xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a, %m : tensor<2x50048xf32>, tensor<2x1xf32>) outs(%z0 : tensor<2x1xf32>) {
  ^bb0(%x: f32, %t: f32, %acc: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  } -> tensor<2x1xf32>
  %o = linalg.generic {indexing_maps = [#id, #row, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %m, %s : tensor<2x50048xf32>, tensor<2x1xf32>, tensor<2x1xf32>) outs(%ef : tensor<2x50048xf32>) {
  ^bb0(%x: f32, %t: f32, %u: f32, %out: f32):
    
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %u : f32
    
    linalg.yield %q : f32
  } -> tensor<2x50048xf32>
  return %o : tensor<2x50048xf32>
}
}
