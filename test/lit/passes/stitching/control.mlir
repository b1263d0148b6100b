// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{apart="exp|sqrt" never=tanh})' \
// RUN:     | FileCheck %s --check-prefix=WRITES
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{apart="exp|sqrt"},stitch-cluster)' \
// RUN:     | FileCheck %s --check-prefix=APART
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{apart="model.py:11-12"},stitch-cluster)' \
// RUN:     | FileCheck %s --check-prefix=LINES
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{never="m*"},stitch-cluster)' \
// RUN:     | FileCheck %s --check-prefix=NEVER
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{together="exp,mul" never="sqrt"},stitch-cluster)' \
// RUN:     | FileCheck %s --check-prefix=TOGETHER

// Without a request all four are one kernel. Requests are written on the ops, honoured, and taken off.
// WRITES: stitch.keep_apart = ["left of exp|sqrt"]
// WRITES: stitch.keep_apart = ["right of exp|sqrt"]
// WRITES: stitch.never_fuse = "tanh"

// APART: detail = "keep apart exp|sqrt"
// APART-SAME: rule = "asked"
// APART: stitch.cluster = array<i64: 0>
// APART: stitch.cluster = array<i64: 0>
// APART: stitch.cluster = array<i64: 1>
// APART: stitch.cluster = array<i64: 1>
// APART-NOT: stitch.keep_apart

// LINES: rule = "asked"
// LINES: stitch.cluster = array<i64: 0>
// LINES: stitch.cluster = array<i64: 1>
// LINES: stitch.cluster = array<i64: 1>
// LINES: stitch.cluster = array<i64: 2>

// NEVER: detail = "never fuse m*"
// NEVER-SAME: rule = "asked"
// NEVER: stitch.cluster = array<i64: 0>
// NEVER: stitch.cluster = array<i64: 1>
// NEVER: stitch.cluster = array<i64: 2>
// NEVER: stitch.cluster = array<i64: 2>

// TOGETHER: stitch.cluster = array<i64: 0>
// TOGETHER: stitch.cluster = array<i64: 0>
// TOGETHER: stitch.cluster = array<i64: 1>
// TOGETHER: stitch.cluster = array<i64: 2>
// TOGETHER-NOT: stitch.keep_together
#m = affine_map<(d0, d1) -> (d0, d1)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %e = tensor.empty() : tensor<4x8xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32> loc("a/model.py":10:0)
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%0 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = arith.mulf %i0, %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32> loc("a/model.py":11:0)
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.sqrt %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32> loc(callsite("b/other.py":3:0 at "a/model.py":12:0))
    %3 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%2 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.tanh %i0 : f32
      linalg.yield %r : f32
    } -> tensor<4x8xf32> loc("a/model.py":13:0)
    return %3 : tensor<4x8xf32>
  }
}
