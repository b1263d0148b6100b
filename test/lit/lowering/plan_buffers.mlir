// RUN: mlirstitch-opt %s --split-input-file --pass-pipeline='builtin.module(plan-buffers)' | FileCheck %s

// A chain: the first value is a temporary, the last goes straight into the output; a reshape shares its source's buffer.
// CHECK-LABEL: func.func @main(%arg0: tensor<8xf32>
// CHECK-SAME: stitch.arena_bytes = 256 : i64
// CHECK-SAME: {dtype = "float32", name = "x", role = "input", shape = array<i64: 8>}
// CHECK-SAME: {dtype = "float32", name = "result0", role = "output", shape = array<i64: 2, 4>}
// CHECK-SAME: {dtype = "float32", name = "t0", offset = 0 : i64, role = "temporary", shape = array<i64: 8>}
// CHECK-SAME: stitch.copies = [],
// CHECK-SAME: stitch.results = array<i64: 1>
// CHECK-SAME: stitch.temporary_bytes = 32 : i64
// CHECK: call @c(%arg0) {stitch.reads = array<i64: 0>, stitch.writes = array<i64: 2>}
// CHECK: call @c(%{{.*}}) {stitch.reads = array<i64: 2>, stitch.writes = array<i64: 1>}
func.func @main(%x: tensor<8xf32> {stitch.name = "x"}) -> tensor<2x4xf32> {
  %a = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %b = call @c(%a) : (tensor<8xf32>) -> tensor<8xf32>
  %v = tensor.expand_shape %b [[0, 1]] output_shape [2, 4] : tensor<8xf32> into tensor<2x4xf32>
  return %v : tensor<2x4xf32>
}
func.func private @c(tensor<8xf32>) -> tensor<8xf32>

// -----

// Temporaries that are not alive together share bytes of the arena: four of 256 bytes fit into two.
// CHECK-LABEL: func.func @main(%arg0: tensor<64xf32>
// CHECK-SAME: stitch.arena_bytes = 512 : i64
// CHECK-SAME: name = "t0", offset = 0 : i64
// CHECK-SAME: name = "t1", offset = 256 : i64
// CHECK-SAME: name = "t2", offset = 0 : i64
// CHECK-SAME: name = "t3", offset = 256 : i64
// CHECK-SAME: stitch.temporary_bytes = 1024 : i64
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %a = call @c(%x) : (tensor<64xf32>) -> tensor<64xf32>
  %b = call @c(%a) : (tensor<64xf32>) -> tensor<64xf32>
  %c = call @c(%b) : (tensor<64xf32>) -> tensor<64xf32>
  %d = call @c(%c) : (tensor<64xf32>) -> tensor<64xf32>
  %e = call @c(%d) : (tensor<64xf32>) -> tensor<64xf32>
  return %e : tensor<64xf32>
}
func.func private @c(tensor<64xf32>) -> tensor<64xf32>

// -----

// A value returned twice and a returned argument are copied; new contents of an argument that the same call reads come
// last, after the output that still wants the old ones.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: {dtype = "float32", mutated, name = "state", role = "weight", shape = array<i64: 8>}
// CHECK-SAME: stitch.copies = [array<i64: 0, 1>, array<i64: 2, 3>, array<i64: 2, 0>]
// CHECK-SAME: stitch.results = array<i64: 0, 1, 2, 3>
// CHECK: call @c(%arg0) {stitch.reads = array<i64: 0>, stitch.writes = array<i64: 2>}
func.func @main(%s: tensor<8xf32> {stitch.name = "state", stitch.role = "weight"})
    -> (tensor<8xf32> {stitch.mutates = "state"}, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %a = call @c(%s) : (tensor<8xf32>) -> tensor<8xf32>
  return %a, %s, %a, %a : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
func.func private @c(tensor<8xf32>) -> tensor<8xf32>
