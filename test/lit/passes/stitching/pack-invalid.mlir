// RUN: mlirstitch-opt %s --split-input-file --pass-pipeline='builtin.module(stitch-schedule)' --verify-diagnostics

// A part has no parts of its own.
#v = affine_map<(d0) -> (d0)>
module attributes {stitch.target = "sm_90"} {
  // expected-error @below {{a part has parts of its own}}
  func.func private @nested(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "packed", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>, parts = [
        {template = "packed", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>, parts = [
          {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}]}]}} {
    %e = tensor.empty() : tensor<8xf32>
    %0 = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]}
        ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.mulf %i, %i : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = call @nested(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// The blocks of the launch are those of its parts.
#v = affine_map<(d0) -> (d0)>
module attributes {stitch.target = "sm_90"} {
  // expected-error @below {{grid is (3, 1, 1), not (2, 1, 1), which its parts take together}}
  func.func private @two(%x: tensor<8xf32>, %y: tensor<9xf32>) -> (tensor<8xf32>, tensor<9xf32>)
      attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "packed", grid = array<i64: 3, 1, 1>, block = array<i64: 32, 1, 1>, parts = [
        {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>},
        {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}]}} {
    %e = tensor.empty() : tensor<8xf32>
    %f = tensor.empty() : tensor<9xf32>
    %0 = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]}
        ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.mulf %i, %i : f32
      linalg.yield %r : f32
    } -> tensor<8xf32>
    %1 = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]}
        ins(%y : tensor<9xf32>) outs(%f : tensor<9xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.addf %i, %i : f32
      linalg.yield %r : f32
    } -> tensor<9xf32>
    return %0, %1 : tensor<8xf32>, tensor<9xf32>
  }
  func.func @main(%x: tensor<8xf32>, %y: tensor<9xf32>) -> (tensor<8xf32>, tensor<9xf32>) {
    %0, %1 = call @two(%x, %y) : (tensor<8xf32>, tensor<9xf32>) -> (tensor<8xf32>, tensor<9xf32>)
    return %0, %1 : tensor<8xf32>, tensor<9xf32>
  }
}
