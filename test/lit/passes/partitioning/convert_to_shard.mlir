// RUN: mlirstitch-opt %s --pass-pipeline='convert-dist-to-shard' --split-input-file | FileCheck %s
// Upstream's own parser and verifier take what is exported.
// RUN: mlirstitch-opt %s --pass-pipeline='convert-dist-to-shard' --split-input-file | mlir-opt --split-input-file | FileCheck %s

// CHECK: shard.grid @grid(shape = 2x4)
// CHECK-LABEL: func.func @main_0
// CHECK-SAME: dist.devices = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>
// CHECK: shard.process_multi_index on @grid axes = [1] : index
// CHECK: %[[G:.+]] = shard.all_gather %arg0 on @grid grid_axes = [0] gather_axis = 1 : tensor<8x4xf32> -> tensor<8x8xf32>
// CHECK: %[[R:.+]] = shard.all_reduce %[[G]] on @grid grid_axes = [0, 1] reduction = max : tensor<8x8xf32> -> tensor<8x8xf32>
// CHECK: %[[S:.+]] = shard.reduce_scatter %[[R]] on @grid grid_axes = [1] scatter_axis = 0 : tensor<8x8xf32> -> tensor<2x8xf32>
// CHECK: %[[A:.+]] = shard.all_to_all %[[S]] on @grid grid_axes = [1] split_axis = 1 concat_axis = 0 : tensor<2x8xf32> -> tensor<8x2xf32>
// CHECK: return %[[A]]
func.func @main_0(%x: tensor<8x4xf32>) -> (tensor<8x2xf32>, index)
    attributes {dist.mesh = [["dp", 2], ["tp", 4]], dist.devices = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>} {
  %i = "dist.coordinate"() {axis = "tp"} : () -> index
  %g = "dist.all_gather"(%x) {axes = ["dp"], dim = 1 : i64} : (tensor<8x4xf32>) -> tensor<8x8xf32>
  %r = "dist.all_reduce"(%g) {axes = ["dp", "tp"], combiner = "max"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %s = "dist.reduce_scatter"(%r) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 2, 2, 2, 2>} : (tensor<8x8xf32>) -> tensor<2x8xf32>
  %a = "dist.all_to_all"(%s) {axes = ["tp"], split_dim = 1 : i64, concat_dim = 0 : i64, parts = array<i64: 2, 2, 2, 2>} : (tensor<2x8xf32>) -> tensor<8x2xf32>
  return %a, %i : tensor<8x2xf32>, index
}

// -----

// Devices become places of the grid.
// CHECK-LABEL: func.func @main_0
// CHECK: shard.send %arg0 on @grid grid_axes = [0, 1] destination = [1, 0] : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-LABEL: func.func @main_1
// CHECK: %[[E:.+]] = tensor.empty() : tensor<4xf32>
// CHECK: %[[M:.+]] = shard.recv %[[E]] on @grid grid_axes = [0, 1] source = [0, 0] : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: return %[[M]]
func.func @main_0(%x: tensor<4xf32>) attributes {dist.mesh = [["pp", 2], ["tp", 1]], dist.devices = array<i64: 0>} {
  "dist.send"(%x) {to = 1 : i64} : (tensor<4xf32>) -> ()
  return
}
func.func @main_1() -> tensor<4xf32> attributes {dist.mesh = [["pp", 2], ["tp", 1]], dist.devices = array<i64: 1>} {
  %m = "dist.recv"() {from = 0 : i64} : () -> tensor<4xf32>
  return %m : tensor<4xf32>
}
