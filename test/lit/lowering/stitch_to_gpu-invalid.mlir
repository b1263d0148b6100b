// RUN: mlirstitch-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(convert-stitch-to-gpu)'

// expected-error @below {{@main carries no buffer plan}}
module attributes {stitch.target = "sm_90"} {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

module attributes {stitch.target = "sm_90"} {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {
      stitch.buffers = [{role = "input", name = "x", shape = array<i64: 8>, dtype = "float32"},
                        {role = "output", name = "y", shape = array<i64: 8>, dtype = "float32"}],
      stitch.results = array<i64: 1>, stitch.copies = [], stitch.arena_bytes = 0 : i64} {
    %y = call @c(%x) {stitch.reads = array<i64: 0>, stitch.writes = array<i64: 1>} : (tensor<8xf32>) -> tensor<8xf32>
    return %y : tensor<8xf32>
  }
  // expected-error @below {{stitch.schedule: shared_bytes is 999999, not 0}}
  func.func private @c(%a: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster, stitch.schedule =
      {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>, shared_bytes = 999999 : i64}} {
    %e = tensor.empty() : tensor<8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                         iterator_types = ["parallel"]}
        ins(%a : tensor<8xf32>) outs(%e : tensor<8xf32>) attrs = {stitch.kind = "light"} {
    ^bb0(%in: f32, %out: f32):
      %n = arith.negf %in : f32
      linalg.yield %n : f32
    } -> tensor<8xf32>
    return %r : tensor<8xf32>
  }
}

// -----

// expected-error @below {{the attribute stitch.target is missing}}
module {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {
      stitch.buffers = [{role = "input", name = "x", shape = array<i64: 8>, dtype = "float32"},
                        {role = "output", name = "y", shape = array<i64: 8>, dtype = "float32"}],
      stitch.results = array<i64: 1>, stitch.copies = [array<i64: 0, 1>], stitch.arena_bytes = 0 : i64} {
    return %x : tensor<8xf32>
  }
}

// -----


module attributes {stitch.target = "sm_90"} {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {
      stitch.buffers = [{role = "input", name = "x", shape = array<i64: 8>, dtype = "float32"},
                        {role = "output", name = "y", shape = array<i64: 8>, dtype = "float32"}],
      stitch.results = array<i64: 1>, stitch.copies = [], stitch.arena_bytes = 0 : i64} {
    %y = call @c(%x) {stitch.reads = array<i64: 0>, stitch.writes = array<i64: 1>} : (tensor<8xf32>) -> tensor<8xf32>
    return %y : tensor<8xf32>
  }
  // expected-error @below {{kernel of @c, template elementwise: stitch.schedule: grid x is 1, not enough blocks for 8 elements; these compute 4}}
  func.func private @c(%a: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster, stitch.schedule =
      {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 4, 1, 1>}} {
    %e = tensor.empty() : tensor<8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                         iterator_types = ["parallel"]}
        ins(%a : tensor<8xf32>) outs(%e : tensor<8xf32>) attrs = {stitch.kind = "light"} {
    ^bb0(%in: f32, %out: f32):
      %n = arith.negf %in : f32
      linalg.yield %n : f32
    } -> tensor<8xf32>
    return %r : tensor<8xf32>
  }
}
