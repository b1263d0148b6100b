// Stitched IR needs none of our dialects: a stock mlir-opt parses it and keeps the attributes.
// RUN: mlir-opt %s --canonicalize --cse | FileCheck %s
// RUN: mlir-opt %s | mlirstitch-opt --pass-pipeline=canonicalize | FileCheck %s

#map = affine_map<(d0) -> (d0)>
// CHECK: module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"}
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // CHECK: func.func private @cluster_0
  // CHECK-SAME: no_inline, stitch.cluster
  // CHECK-SAME: stitch.schedule = {block = array<i64: 32, 1, 1>, grid = array<i64: 1, 1, 1>, template = "elementwise"}
  func.func private @cluster_0(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}} {
    %0 = tensor.empty() : tensor<8xf32>
    // CHECK: attrs = {stitch.kind = "expensive"}
    %1 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]}
        ins(%x : tensor<8xf32>) outs(%0 : tensor<8xf32>) attrs = {stitch.kind = "expensive"} {
      ^bb0(%a: f32, %b: f32):
        %2 = math.exp %a : f32
        linalg.yield %2 : f32
    } -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
  // CHECK: func.func @main
  // CHECK-SAME: {stitch.dtype = "float32", stitch.name = "x", stitch.role = "weight"}
  // CHECK-SAME: {stitch.mutates = "x"}
  func.func @main(%x: tensor<8xf32> {stitch.dtype = "float32", stitch.name = "x", stitch.role = "weight"})
      -> (tensor<8xf32> {stitch.mutates = "x"}) {
    // CHECK: call @cluster_0
    %0 = call @cluster_0(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
