// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(plan-buffers,convert-stitch-to-gpu)' | FileCheck %s

// A warp for every row: each lane compares an index, a vote tells which name the row, and the updates of these are added
// in order. No atomics, and no update is loaded for a row that it does not go to.
// CHECK-LABEL: gpu.func @c(
// CHECK-SAME: %[[I:[a-z0-9]+]]: memref<64xi64>
// CHECK-SAME: %[[U:[a-z0-9]+]]: memref<8192xf32>
// CHECK: scf.for
// CHECK: %[[INDEX:[a-z0-9]+]] = memref.load %[[I]]
// CHECK: %[[HIT:[a-z0-9]+]] = arith.cmpi eq, %[[INDEX]]
// CHECK: %[[MASK:[a-z0-9]+]] = nvvm.vote.sync ballot %{{.*}}, %[[HIT]]
// CHECK: math.ctpop %[[MASK]]
// CHECK-NOT: vector.load %[[U]]
// CHECK: scf.for {{.*}} iter_args(%[[LEFT:[a-z0-9]+]] = %[[MASK]]
// CHECK: math.cttz %[[LEFT]]
// CHECK: vector.load %[[U]]
// CHECK-NOT: atomic
// CHECK: vector.store
// CHECK: gpu.return
// CHECK: gpu.launch_func @kernels::@c
// CHECK-SAME: stitch.kind = "memory_bound"
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func private @c(%i: tensor<64xi64>, %u: tensor<64x128xf32>) -> tensor<10x128xf32> attributes {no_inline,
      stitch.cluster, stitch.schedule = {template = "scatter", grid = array<i64: 5, 1, 1>,
                                         block = array<i64: 64, 1, 1>, vector = 4 : i64,
                                         parameters = {chunks = 1 : i64, tiles = 1 : i64}}} {
    %zero = arith.constant 0.0 : f32
    %neutral = arith.constant -0.0 : f32
    %empty = tensor.empty() : tensor<10x128xf32>
    %zeros = linalg.fill {stitch.kind = "light"} ins(%zero : f32) outs(%empty : tensor<10x128xf32>)
        -> tensor<10x128xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d, c, n) -> (n)>, affine_map<(d, c, n) -> (n, c)>,
                                          affine_map<(d, c, n) -> (d, c)>],
                         iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%i, %u : tensor<64xi64>, tensor<64x128xf32>) outs(%zeros : tensor<10x128xf32>)
        attrs = {stitch.kind = "scatter"} {
    ^bb0(%named: i64, %update: f32, %running: f32):
      %row = linalg.index 0 : index
      %own = arith.index_cast %row : index to i64
      %hit = arith.cmpi eq, %named, %own : i64
      %term = arith.select %hit, %update, %neutral : f32
      %next = arith.addf %running, %term : f32
      linalg.yield %next : f32
    } -> tensor<10x128xf32>
    return %r : tensor<10x128xf32>
  }
  func.func @main(%i: tensor<64xi64> {stitch.dtype = "int64", stitch.name = "i", stitch.role = "input"},
                  %u: tensor<64x128xf32> {stitch.dtype = "float32", stitch.name = "u", stitch.role = "input"})
      -> (tensor<10x128xf32> {stitch.dtype = "float32", stitch.name = "y"}) {
    %0 = call @c(%i, %u) : (tensor<64xi64>, tensor<64x128xf32>) -> tensor<10x128xf32>
    return %0 : tensor<10x128xf32>
  }
}
