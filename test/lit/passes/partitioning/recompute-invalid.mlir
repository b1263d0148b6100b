// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(dist-recompute)' --split-input-file --verify-diagnostics

#v = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  // expected-error @below {{the function trains nothing}}
  %h = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) attrs = {dist.recompute} {
    ^bb0(%i: f32, %o: f32):
      %r = math.exp %i : f32
      linalg.yield %r : f32
  } -> tensor<4xf32>
  return %h : tensor<4xf32>
}

// -----

#v = affine_map<(d0) -> (d0)>
func.func @main(%w: tensor<4xf32> {stitch.name = "w", stitch.role = "weight"}) -> (tensor<4xf32>, tensor<4xf32> {stitch.mutates = "w"}) {
  %e = tensor.empty() : tensor<4xf32>
  %loss = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]} ins(%w : tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = math.exp %i : f32
      linalg.yield %r : f32
  } -> tensor<4xf32>
  // expected-error @below {{this op is not of the forward pass}}
  %new = linalg.generic {indexing_maps = [#v, #v, #v], iterator_types = ["parallel"]} ins(%w, %loss : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) attrs = {dist.recompute} {
    ^bb0(%i: f32, %g: f32, %o: f32):
      %x = arith.subf %i, %g : f32
      linalg.yield %x : f32
  } -> tensor<4xf32>
  return %loss, %new : tensor<4xf32>, tensor<4xf32>
}

// -----

#v = affine_map<(d0) -> (d0)>
func.func @main(%w: tensor<4xf32> {stitch.name = "w", stitch.role = "weight"}) -> (tensor<4xf32>, tensor<4xf32> {stitch.mutates = "w"}) {
  // expected-error @below {{this op computes no tensor that could be computed again}}
  %e = tensor.empty() {dist.recompute} : tensor<4xf32>
  %loss = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]} ins(%w : tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = math.exp %i : f32
      linalg.yield %r : f32
  } -> tensor<4xf32>
  return %loss, %loss : tensor<4xf32>, tensor<4xf32>
}
