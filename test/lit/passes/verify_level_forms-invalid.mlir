// RUN: mlirstitch-opt %s --stitch-verify=level=linalg --split-input-file --verify-diagnostics

module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
func.func @main(%x: tensor<4x8xf32> {stitch.dtype = "float32", stitch.name = "x", stitch.role = "input"})
    -> (tensor<4x8xf32> {stitch.dtype = "float32", stitch.name = "y"}) {
  %e = tensor.empty() : tensor<4x8xf32>
  // expected-error@+2 {{a result is indexed by a reduced dim, but a scan has two results, the scanned tensor and its total, not 1}}
  // expected-note@+1 {{hint: write a scan as docs/architecture.md says}}
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
                       iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.kind = "reduction"} {
  ^bb0(%in: f32, %o: f32):
    %v = arith.addf %in, %o : f32
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
}

// -----

module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
func.func @main(%x: tensor<4x8xf32> {stitch.dtype = "float32", stitch.name = "x", stitch.role = "input"})
    -> (tensor<4x8xf32> {stitch.dtype = "float32", stitch.name = "y"}) {
  %e = tensor.empty() : tensor<4x8xf32>
  // expected-error@+2 {{stitch.kind is scatter, but the op has not that form}}
  // expected-note@+1 {{hint: run normalize-classify}}
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) attrs = {stitch.kind = "scatter"} {
  ^bb0(%in: f32, %o: f32):
    %v = arith.addf %in, %in : f32
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
}
