// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A column sum split over blocks: 32 chunks of four columns side by side, four threads above each other, two parts. The
// warps fold through shared memory with one barrier; each block leaves its part, and the one that draws the last number
// folds the parts and puts the ticket back to 0. No floating-point atomics.
// CHECK-LABEL: gpu.func @c(
// CHECK-SAME: %[[X:[a-z0-9]+]]: memref<8192xf32> {llvm.align = 16 : i32, llvm.noalias, llvm.readonly}
// CHECK-SAME: %[[Y:[a-z0-9]+]]: memref<128xf32> {llvm.align = 16 : i32, llvm.noalias, llvm.writeonly}
// CHECK-SAME: %[[PARTS:[a-z0-9]+]]: memref<256xf32> {llvm.align = 16 : i32}
// CHECK-SAME: %[[TICKETS:[a-z0-9]+]]: memref<1xi32> {llvm.align = 4 : i32}
// CHECK-SAME: workgroup(%[[SHARED:[a-z0-9]+]] : memref<{{[0-9]+}}xi8, #gpu.address_space<workgroup>>
// CHECK: %[[SLOTS:[a-z0-9_]+]] = memref.view %[[SHARED]]{{.*}} to memref<512xf32, #gpu.address_space<workgroup>>
// CHECK: scf.for
// CHECK-COUNT-4: vector.load %[[X]]{{.*}} {alignment = 16 : i64} : memref<8192xf32>, vector<4xf32>
// CHECK-NOT: gpu.shuffle
// CHECK: vector.store %{{.*}}, %[[SLOTS]]
// CHECK-NEXT: gpu.barrier
// CHECK-COUNT-4: vector.load %[[SLOTS]]
// CHECK: vector.store %{{.*}}, %[[PARTS]]{{.*}} {alignment = 16 : i64}
// CHECK: llvm.fence syncscope("device") acq_rel
// CHECK-NEXT: gpu.barrier
// CHECK: %[[DRAWN:[a-z0-9]+]] = memref.atomic_rmw addi %{{.*}}, %[[TICKETS]]
// CHECK: memref.store %[[DRAWN]], %[[FLAG:[a-z0-9_]+]][
// CHECK: gpu.barrier
// CHECK: memref.load %[[FLAG]]
// CHECK: scf.if
// CHECK-NEXT: llvm.fence syncscope("device") acq_rel
// CHECK: memref.store %c0{{.*}}, %[[TICKETS]]
// CHECK: scf.for
// CHECK: vector.load %[[PARTS]]
// CHECK: gpu.barrier
// CHECK: vector.store %{{.*}}, %[[Y]]{{.*}} {alignment = 16 : i64}
// CHECK-NOT: atomic_rmw
// CHECK: gpu.return
// CHECK-LABEL: func.func @main(
// CHECK-SAME: role = "persistent"
// CHECK: gpu.launch_func @kernels::@c
// CHECK-SAME: stitch.access = ["read", "write", "write", "readwrite"]
// CHECK-SAME: stitch.traffic = array<i64: 32768, 512, 2048, 20>
module attributes {stitch.target = "sm_90"} {
func.func @main(%a: tensor<64x128xf32>) -> tensor<128xf32> {
  %r = call @c(%a) : (tensor<64x128xf32>) -> tensor<128xf32>
  return %r : tensor<128xf32>
}
func.func private @c(%a: tensor<64x128xf32>) -> tensor<128xf32> attributes {no_inline, stitch.cluster, stitch.schedule = {
    template = "column", grid = array<i64: 2, 1, 1>, block = array<i64: 128, 1, 1>, vector = 4 : i64,
    parameters = {across = 32 : i64, mode = "loop", splits = 2 : i64, unroll = 4 : i64},
    scratch = [["f32", 256]], tickets = 1 : i64}} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<128xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<128xf32>) -> tensor<128xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>],
                       iterator_types = ["reduction", "parallel"]}
      ins(%a : tensor<64x128xf32>) outs(%z : tensor<128xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %r = arith.addf %x, %acc : f32
    linalg.yield %r : f32
  } -> tensor<128xf32>
  return %s : tensor<128xf32>
}
}
