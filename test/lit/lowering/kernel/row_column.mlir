// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// Row sums, a result of full size and column sums of it. Four blocks take the rows in turn, two rows at a time, a warp a
// row; a thread keeps the running sums of its columns from row to row. At the end the two rows are folded in shared
// memory, then two blocks, then two groups, by the block that comes last. The input is loaded once.
// CHECK-LABEL: gpu.func @c(
// CHECK-SAME: %[[X:[a-z0-9]+]]: memref<8192xf32> {llvm.align = 16 : i32, llvm.noalias, llvm.readonly}
// CHECK-SAME: %[[Q:[a-z0-9]+]]: memref<8192xf32>
// CHECK-SAME: %[[S:[a-z0-9]+]]: memref<64xf32>
// CHECK-SAME: %[[O:[a-z0-9]+]]: memref<128xf32>
// CHECK-SAME: %[[PARTS:[a-z0-9]+]]: memref<768xf32> {llvm.align = 16 : i32}
// CHECK-SAME: %[[TICKETS:[a-z0-9]+]]: memref<3xi32> {llvm.align = 4 : i32}
// CHECK-SAME: workgroup(%[[SHARED:[a-z0-9]+]] : memref<{{[0-9]+}}xi8, #gpu.address_space<workgroup>>
// CHECK: %[[SLOTS:[a-z0-9_]+]] = memref.view %[[SHARED]]{{.*}} to memref<256xf32, #gpu.address_space<workgroup>>
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<4xf32>)
// CHECK: vector.load %[[X]]{{.*}} {alignment = 16 : i64}
// CHECK-NOT: vector.load
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK: vector.store %{{.*}}, %[[Q]]{{.*}} {alignment = 16 : i64}
// CHECK: memref.store %{{.*}}, %[[S]]
// CHECK: scf.yield %{{.*}} : vector<4xf32>
// CHECK: vector.store %{{.*}}, %[[SLOTS]]
// CHECK: gpu.barrier
// CHECK-COUNT-2: vector.load %[[SLOTS]]
// CHECK: vector.store %{{.*}}, %[[PARTS]]
// CHECK: llvm.fence syncscope("device") acq_rel
// CHECK: memref.atomic_rmw addi %{{.*}}, %[[TICKETS]]
// CHECK-COUNT-2: vector.load %[[PARTS]]
// CHECK: vector.store %{{.*}}, %[[PARTS]]
// CHECK: llvm.fence syncscope("device") acq_rel
// CHECK: memref.atomic_rmw addi %{{.*}}, %[[TICKETS]]
// CHECK-COUNT-2: vector.load %[[PARTS]]
// CHECK: vector.store %{{.*}}, %[[O]]
// CHECK: gpu.return
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#col = affine_map<(d0, d1) -> (d1)>
#one = affine_map<(d0) -> (d0)>
#all = affine_map<(d0) -> ()>
module attributes {stitch.target = "sm_90"} {
func.func @main(%a: tensor<64x128xf32>) -> (tensor<64x128xf32>, tensor<64xf32>, tensor<128xf32>) {
  %r:3 = call @c(%a) : (tensor<64x128xf32>) -> (tensor<64x128xf32>, tensor<64xf32>, tensor<128xf32>)
  return %r#0, %r#1, %r#2 : tensor<64x128xf32>, tensor<64xf32>, tensor<128xf32>
}
func.func private @c(%a: tensor<64x128xf32>) -> (tensor<64x128xf32>, tensor<64xf32>, tensor<128xf32>) attributes {no_inline, stitch.cluster, stitch.schedule = {template = "row_column", grid = array<i64: 4, 1, 1>, block = array<i64: 64, 1, 1>, vector = 4 : i64,
    parameters = {group = 2 : i64, lanes = 32 : i64, mode = "resident", rows_per_block = 2 : i64, unroll = 1 : i64},
    scratch = [["f32", 768]], tickets = 3 : i64}} {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %two = arith.constant 2.0 : f32
  %er = tensor.empty() : tensor<64xf32>
  %ef = tensor.empty() : tensor<64x128xf32>
  %ec = tensor.empty() : tensor<128xf32>
  %et = tensor.empty() : tensor<f32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : tensor<64xf32>) -> tensor<64xf32>
  %zc = linalg.fill ins(%zero : f32) outs(%ec : tensor<128xf32>) -> tensor<128xf32>
  %zt = linalg.fill ins(%one : f32) outs(%et : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<64x128xf32>) outs(%zr : tensor<64xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %w = arith.addf %x, %zero : f32
    %r = arith.addf %w, %acc : f32
    linalg.yield %r : f32
  } -> tensor<64xf32>
  %q = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %s : tensor<64x128xf32>, tensor<64xf32>) outs(%ef : tensor<64x128xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %w = arith.addf %x, %zero : f32
    %p = arith.mulf %w, %y : f32
    %n = arith.addf %p, %zero : f32
    linalg.yield %n : f32
  } -> tensor<64x128xf32>
  %c = linalg.generic {indexing_maps = [#id, #row, #col], iterator_types = ["reduction", "parallel"]}
      ins(%a, %s : tensor<64x128xf32>, tensor<64xf32>) outs(%zc : tensor<128xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %w = arith.addf %x, %zero : f32
    %p = arith.mulf %w, %y : f32
    %r = arith.addf %p, %acc : f32
    linalg.yield %r : f32
  } -> tensor<128xf32>
  %o = linalg.generic {indexing_maps = [#one, #one], iterator_types = ["parallel"]}
      ins(%c : tensor<128xf32>) outs(%ec : tensor<128xf32>) {
  ^bb0(%x: f32, %out: f32):
    %p = arith.mulf %x, %two : f32
    %r = arith.addf %p, %one : f32
    linalg.yield %r : f32
  } -> tensor<128xf32>
  %t = linalg.generic {indexing_maps = [#one, #all], iterator_types = ["reduction"]}
      ins(%s : tensor<64xf32>) outs(%zt : tensor<f32>) {
  ^bb0(%x: f32, %acc: f32):
    %p = arith.mulf %x, %x : f32
    %r = arith.addf %p, %acc : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  return %q, %s, %o : tensor<64x128xf32>, tensor<64xf32>, tensor<128xf32>
}
}
