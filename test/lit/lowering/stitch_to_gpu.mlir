// RUN: mlirstitch-opt %s --split-input-file --pass-pipeline='builtin.module(stitch-schedule,plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// One kernel for two calls of one cluster; a temporary lives in the arena; flat memrefs; bools are bytes.
// CHECK-LABEL: module attributes {gpu.container_module
// CHECK: gpu.module @kernels [#nvvm.target<O = 3, chip = "sm_80">] attributes {llvm.data_layout = "e-p6:32:32
// CHECK: gpu.func @c(%{{.*}}: memref<32xf32> {{.*}}llvm.noalias{{.*}}, %{{.*}}: memref<32xf32> {{.*}}llvm.noalias
// CHECK-NOT: gpu.func
// CHECK: func.func @main(%[[X:[^:]+]]: memref<32xf32> {stitch.buffer = {dtype = "float32", name = "x", role = "input", shape = array<i64: 4, 8>}}, %[[B:[^:]+]]: memref<2xi8> {stitch.buffer = {dtype = "bool", name = "flags", role = "input", shape = array<i64: 2>}}, %[[Y:[^:]+]]: memref<32xf32> {{.*}}role = "output"{{.*}}, %[[F:[^:]+]]: memref<2xi8>
// CHECK: %[[ARENA:.+]] = memref.alloc() {stitch.arena} : memref<256xi8>
// CHECK: %[[T:.+]] = memref.view %[[ARENA]][%c0][] {stitch.buffer = {{.*}}} : memref<256xi8> to memref<32xf32>
// CHECK: gpu.launch_func @kernels::@c blocks in {{.*}} args(%[[X]] : memref<32xf32>, %[[T]] : memref<32xf32>) {stitch.access = ["read", "write"], stitch.cluster = "c", stitch.kind = "memory_bound", stitch.template = "elementwise", stitch.touched = array<i64: 128, 128>, stitch.traffic = array<i64: 128, 128>}
// CHECK: gpu.launch_func @kernels::@c blocks in {{.*}} args(%[[T]] : memref<32xf32>, %[[Y]] : memref<32xf32>)
// CHECK: memref.copy %[[B]], %[[F]]
// CHECK-NOT: tensor<
module attributes {stitch.target = "sm_80"} {
  func.func @main(%x: tensor<4x8xf32> {stitch.name = "x"}, %b: tensor<2xi1> {stitch.name = "flags"})
      -> (tensor<4x8xf32>, tensor<2xi1>) {
    %t = call @c(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %y = call @c(%t) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %y, %b : tensor<4x8xf32>, tensor<2xi1>
  }
  func.func private @c(%a: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {no_inline, stitch.cluster} {
    %e = tensor.empty() : tensor<4x8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
                         iterator_types = ["parallel", "parallel"]}
        ins(%a : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.kind = "light"} {
    ^bb0(%in: f32, %out: f32):
      %n = arith.negf %in : f32
      linalg.yield %n : f32
    } -> tensor<4x8xf32>
    return %r : tensor<4x8xf32>
  }
}

// -----

// A cluster given to a library becomes a call; a result without elements is not computed.
// CHECK-LABEL: module attributes {stitch.target
// CHECK-NOT: gpu.module
// CHECK: call @library_mm(%{{.*}}, %{{.*}}, %{{.*}}) {stitch.access = ["read", "read", "write"]
// CHECK-SAME: stitch.attributes = {indexing_maps = [array<i64: 0, 2>, array<i64: 2, 1>, array<i64: 0, 1>]}
// CHECK-SAME: stitch.library = "matmul", stitch.shapes = [array<i64: 16, 8>, array<i64: 8, 4>, array<i64: 16, 4>]}
// CHECK-NOT: gpu.launch_func
// CHECK: func.func private @library_mm(memref<128xf32>, memref<32xf32>, memref<64xf32>) attributes {stitch.library = "matmul"}
module attributes {stitch.target = "sm_90"} {
  func.func @main(%x: tensor<16x8xf32>, %w: tensor<8x4xf32>) -> (tensor<16x4xf32>, tensor<0xf32>) {
    %y = call @mm(%x, %w) : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
    %z = call @none() : () -> tensor<0xf32>
    return %y, %z : tensor<16x4xf32>, tensor<0xf32>
  }
  func.func private @mm(%x: tensor<16x8xf32>, %w: tensor<8x4xf32>) -> tensor<16x4xf32>
      attributes {no_inline, stitch.cluster, stitch.library = "matmul"} {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<16x4xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : tensor<16x4xf32>) -> tensor<16x4xf32>
    %r = linalg.matmul ins(%x, %w : tensor<16x8xf32>, tensor<8x4xf32>) outs(%i : tensor<16x4xf32>) -> tensor<16x4xf32>
    return %r : tensor<16x4xf32>
  }
  func.func private @none() -> tensor<0xf32> attributes {no_inline, stitch.cluster, stitch.schedule =
      {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}} {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<0xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : tensor<0xf32>) -> tensor<0xf32>
    return %i : tensor<0xf32>
  }
}
