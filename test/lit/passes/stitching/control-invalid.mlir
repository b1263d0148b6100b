// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{never=sqrd})' 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{never="model.py:40"})' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=LINE
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{never="other.py:1"})' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=FILE
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{never="exp,"})' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=EMPTY
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{together="exp,sqrt"})' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=GAP
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{apart="exp|e*"})' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=BOTH
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{apart="*"})' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=ALL
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{apart="exp|mul|sqrt"})' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=SIDES
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{together="exp,mul" apart="exp|mul"},stitch-cluster)' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=AGAINST
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{together="sqrt,matmul,batch_reduce_matmul"},stitch-cluster)' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=NOMATCH
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-control{together="linalg.matmul"},stitch-cluster)' 2>&1 \
// RUN:     | FileCheck %s --check-prefix=TEMPLATES

// NAME: never fuse sqrd: no op of the program matches 'sqrd'
// NAME: did you mean sqrt?
// LINE: never fuse model.py:40: no op of the program matches 'model.py:40'
// LINE: the nearest lines with ops are a/model.py:11, a/model.py:12, a/model.py:13
// FILE: the program comes from a/model.py
// EMPTY: never fuse exp,: 'exp,' lists an empty pattern
// GAP: keep together exp,sqrt: no two of the ops that match read each other (exp at a/model.py:10, sqrt at a/model.py:12)
// GAP: name what lies between them too, or a range of source lines
// BOTH: keep apart exp|e*: exp at a/model.py:10 stands on both sides
// ALL: keep apart *: every op of the program matches
// SIDES: keep apart exp|mul|sqrt: 3 sides
// AGAINST: keep together exp,mul (exp at a/model.py:10, mul at a/model.py:11): keep apart exp|mul is asked for too
// NOMATCH: no op of the program matches 'batch_reduce_matmul'
// NOMATCH: its ops are exp, linalg.generic, linalg.matmul, matmul, mul, sqrt
// TEMPLATES: keep together linalg.matmul (matmul at a/model.py:13, matmul at a/model.py:13): no kernel template can compute them together:
// TEMPLATES-SAME: row:
#m = affine_map<(d0, d1) -> (d0, d1)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<8x8xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.exp %i0 : f32
      linalg.yield %r : f32
    } -> tensor<8x8xf32> loc("a/model.py":10:0)
    %1 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%0 : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = arith.mulf %i0, %i0 : f32
      linalg.yield %r : f32
    } -> tensor<8x8xf32> loc("a/model.py":11:0)
    %2 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
        ins(%1 : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {
    ^bb0(%i0: f32, %o: f32):
      %r = math.sqrt %i0 : f32
      linalg.yield %r : f32
    } -> tensor<8x8xf32> loc("a/model.py":12:0)
    %3 = linalg.matmul ins(%2, %x : tensor<8x8xf32>, tensor<8x8xf32>)
        outs(%f : tensor<8x8xf32>) -> tensor<8x8xf32> loc("a/model.py":13:0)
    %4 = linalg.matmul ins(%3, %x : tensor<8x8xf32>, tensor<8x8xf32>)
        outs(%f : tensor<8x8xf32>) -> tensor<8x8xf32> loc("a/model.py":13:0)
    return %4 : tensor<8x8xf32>
  }
}
