// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(dist-expand-dims)' --split-input-file | FileCheck %s

// Batch and heads of a batch_matmul become loops of their own; the reshapes cancel.
// CHECK-DAG: #[[A:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
// CHECK-DAG: #[[B:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d4, d3)>
// CHECK-DAG: #[[C:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
// CHECK-LABEL: func.func @main
// CHECK-NOT: shape
// CHECK: %[[E:.+]] = tensor.empty() : tensor<2x3x4x6xf32>
// CHECK: %[[F:.+]] = linalg.fill {stitch.kind = "light"} ins(%{{.+}} : f32) outs(%[[E]] : tensor<2x3x4x6xf32>)
// CHECK: %[[R:.+]] = linalg.generic {indexing_maps = [#[[A]], #[[B]], #[[C]]],
// CHECK-SAME: iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}
// CHECK-SAME: ins(%arg0, %arg1 : tensor<2x3x4x5xf32>, tensor<2x3x5x6xf32>) outs(%[[F]] : tensor<2x3x4x6xf32>)
// CHECK-SAME: stitch.kind = "compute"
// CHECK: arith.mulf
// CHECK-NEXT: arith.addf
// CHECK: return %[[R]]
func.func @main(%x: tensor<2x3x4x5xf32>, %y: tensor<2x3x5x6xf32>) -> tensor<2x3x4x6xf32> {
  %z = arith.constant 0.0 : f32
  %a = tensor.collapse_shape %x [[0, 1], [2], [3]] : tensor<2x3x4x5xf32> into tensor<6x4x5xf32>
  %b = tensor.collapse_shape %y [[0, 1], [2], [3]] : tensor<2x3x5x6xf32> into tensor<6x5x6xf32>
  %e = tensor.empty() : tensor<6x4x6xf32>
  %f = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e : tensor<6x4x6xf32>) -> tensor<6x4x6xf32>
  %c = linalg.batch_matmul {stitch.kind = "compute"} ins(%a, %b : tensor<6x4x5xf32>, tensor<6x5x6xf32>) outs(%f : tensor<6x4x6xf32>) -> tensor<6x4x6xf32>
  %r = tensor.expand_shape %c [[0, 1], [2], [3]] output_shape [2, 3, 4, 6] : tensor<6x4x6xf32> into tensor<2x3x4x6xf32>
  return %r : tensor<2x3x4x6xf32>
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
#b = affine_map<(d0, d1) -> (d1)>
// Rows of a matmul and of what follows it. Features stay one dim: the weight is an argument, its shape is the user's.
// CHECK-LABEL: func.func @main
// CHECK-NOT: collapse_shape
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<2x5x4xf32>, tensor<4x6xf32>)
// CHECK-SAME: outs(%{{.+}} : tensor<2x5x6xf32>) attrs = {stitch.kind = "compute"}
// CHECK: linalg.generic {{.*}} ins(%{{.+}}, %arg2 : tensor<2x5x6xf32>, tensor<6xf32>)
// CHECK: %[[R:.+]] = tensor.expand_shape %{{.+}} {{\[\[}}0], [1], [2, 3]] output_shape [2, 5, 3, 2]
// CHECK: return %[[R]]
func.func @main(%x: tensor<2x5x4xf32>, %w: tensor<4x6xf32>, %c: tensor<6xf32>) -> tensor<2x5x3x2xf32> {
  %z = arith.constant 0.0 : f32
  %a = tensor.collapse_shape %x [[0, 1], [2]] : tensor<2x5x4xf32> into tensor<10x4xf32>
  %e = tensor.empty() : tensor<10x6xf32>
  %f = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e : tensor<10x6xf32>) -> tensor<10x6xf32>
  %m = linalg.matmul {stitch.kind = "compute"} ins(%a, %w : tensor<10x4xf32>, tensor<4x6xf32>) outs(%f : tensor<10x6xf32>) -> tensor<10x6xf32>
  %n = linalg.generic {indexing_maps = [#id, #b, #id], iterator_types = ["parallel", "parallel"]}
    ins(%m, %c : tensor<10x6xf32>, tensor<6xf32>) outs(%e : tensor<10x6xf32>) attrs = {stitch.kind = "light"} {
    ^bb0(%i: f32, %j: f32, %o: f32):
      %s = arith.addf %i, %j : f32
      linalg.yield %s : f32
  } -> tensor<10x6xf32>
  %r = tensor.expand_shape %n [[0, 1], [2, 3]] output_shape [2, 5, 3, 2] : tensor<10x6xf32> into tensor<2x5x3x2xf32>
  return %r : tensor<2x5x3x2xf32>
}

// -----

#id = affine_map<(d0) -> (d0)>
// A position in a collapsed dim is computed from those of its factors.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}}["parallel", "parallel"]
// CHECK: %[[I:.+]] = linalg.index 0
// CHECK: %[[C:.+]] = arith.constant 5 : index
// CHECK: %[[M:.+]] = arith.muli %[[I]], %[[C]]
// CHECK: %[[J:.+]] = linalg.index 1
// CHECK: arith.addi %[[M]], %[[J]]
// CHECK-NOT: shape
func.func @main() -> tensor<2x5xi64> {
  %e = tensor.empty() : tensor<10xi64>
  %p = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]} outs(%e : tensor<10xi64>) attrs = {stitch.kind = "light"} {
    ^bb0(%o: i64):
      %i = linalg.index 0 : index
      %v = arith.index_cast %i : index to i64
      linalg.yield %v : i64
  } -> tensor<10xi64>
  %r = tensor.expand_shape %p [[0, 1]] output_shape [2, 5] : tensor<10xi64> into tensor<2x5xi64>
  return %r : tensor<2x5xi64>
}

// -----

#id = affine_map<(d0) -> (d0)>
// Three reshapes agree on 2 x 3 x 4: the op between gets all three loops.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}}["parallel", "parallel", "parallel"]
// CHECK-SAME: ins(%arg0 : tensor<2x3x4xf32>)
func.func @main(%x: tensor<2x3x4xf32>) -> (tensor<6x4xf32>, tensor<2x12xf32>) {
  %a = tensor.collapse_shape %x [[0, 1, 2]] : tensor<2x3x4xf32> into tensor<24xf32>
  %e = tensor.empty() : tensor<24xf32>
  %p = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%a : tensor<24xf32>) outs(%e : tensor<24xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = math.exp %i : f32
      linalg.yield %v : f32
  } -> tensor<24xf32>
  %r = tensor.expand_shape %p [[0, 1]] output_shape [6, 4] : tensor<24xf32> into tensor<6x4xf32>
  %s = tensor.expand_shape %p [[0, 1]] output_shape [2, 12] : tensor<24xf32> into tensor<2x12xf32>
  return %r, %s : tensor<6x4xf32>, tensor<2x12xf32>
}

// -----

#id = affine_map<(d0) -> (d0)>
// 4 x 6 and 3 x 8 do not fit together (6 does not divide 8): nothing but the first is cut.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}}["parallel", "parallel"]
// CHECK-SAME: ins(%arg0 : tensor<4x6xf32>)
// CHECK: tensor.collapse_shape %{{.+}} {{\[\[}}0, 1]] : tensor<4x6xf32> into tensor<24xf32>
// CHECK: tensor.expand_shape %{{.+}} output_shape [3, 8]
func.func @main(%x: tensor<4x6xf32>) -> tensor<3x8xf32> {
  %a = tensor.collapse_shape %x [[0, 1]] : tensor<4x6xf32> into tensor<24xf32>
  %e = tensor.empty() : tensor<24xf32>
  %p = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%a : tensor<24xf32>) outs(%e : tensor<24xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = math.exp %i : f32
      linalg.yield %v : f32
  } -> tensor<24xf32>
  %r = tensor.expand_shape %p [[0, 1]] output_shape [3, 8] : tensor<24xf32> into tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
// What a scan walks along stays one dim, its rows do not have to.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}}["parallel", "parallel", "reduction"]
// CHECK-SAME: ins(%{{.+}} : tensor<2x3x20xf32>)
func.func @main(%x: tensor<2x3x4x5xf32>) -> tensor<2x3x20xf32> {
  %z = arith.constant 0.0 : f32
  %a = tensor.collapse_shape %x [[0, 1], [2, 3]] : tensor<2x3x4x5xf32> into tensor<6x20xf32>
  %e = tensor.empty() : tensor<6x20xf32>
  %g = tensor.empty() : tensor<6xf32>
  %f = linalg.fill ins(%z : f32) outs(%g : tensor<6xf32>) -> tensor<6xf32>
  %s:2 = linalg.generic {indexing_maps = [#m, #m, #r], iterator_types = ["parallel", "reduction"]}
    ins(%a : tensor<6x20xf32>) outs(%e, %f : tensor<6x20xf32>, tensor<6xf32>) {
    ^bb0(%i: f32, %o: f32, %t: f32):
      %v = arith.addf %t, %i : f32
      linalg.yield %v, %v : f32, f32
  } -> (tensor<6x20xf32>, tensor<6xf32>)
  %r = tensor.expand_shape %s#0 [[0, 1], [2]] output_shape [2, 3, 20] : tensor<6x20xf32> into tensor<2x3x20xf32>
  return %r : tensor<2x3x20xf32>
}

// -----

#m = affine_map<(d0, d1) -> (d0, d1)>
// A slice works on the collapsed dim: it stays, and so does what is tied to it.
// CHECK-LABEL: func.func @main
// CHECK: tensor.collapse_shape
// CHECK: linalg.generic {{.*}}ins(%{{.+}} : tensor<6x4xf32>)
// CHECK: tensor.extract_slice
func.func @main(%x: tensor<2x3x4xf32>) -> tensor<5x4xf32> {
  %a = tensor.collapse_shape %x [[0, 1], [2]] : tensor<2x3x4xf32> into tensor<6x4xf32>
  %e = tensor.empty() : tensor<6x4xf32>
  %p = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<6x4xf32>) outs(%e : tensor<6x4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = math.exp %i : f32
      linalg.yield %v : f32
  } -> tensor<6x4xf32>
  %r = tensor.extract_slice %p[1, 0] [5, 4] [1, 1] : tensor<6x4xf32> to tensor<5x4xf32>
  return %r : tensor<5x4xf32>
}

// -----

// A convolution keeps its name, and its batch dim.
// CHECK-LABEL: func.func @main
// CHECK: tensor.collapse_shape
// CHECK: linalg.conv_2d_nchw_fchw
// CHECK: tensor.expand_shape
func.func @main(%x: tensor<2x3x4x8x8xf32>, %w: tensor<5x4x3x3xf32>) -> tensor<2x3x5x6x6xf32> {
  %z = arith.constant 0.0 : f32
  %a = tensor.collapse_shape %x [[0, 1], [2], [3], [4]] : tensor<2x3x4x8x8xf32> into tensor<6x4x8x8xf32>
  %e = tensor.empty() : tensor<6x5x6x6xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<6x5x6x6xf32>) -> tensor<6x5x6x6xf32>
  %c = linalg.conv_2d_nchw_fchw ins(%a, %w : tensor<6x4x8x8xf32>, tensor<5x4x3x3xf32>) outs(%f : tensor<6x5x6x6xf32>) -> tensor<6x5x6x6xf32>
  %r = tensor.expand_shape %c [[0, 1], [2], [3], [4]] output_shape [2, 3, 5, 6, 6] : tensor<6x5x6x6xf32> into tensor<2x3x5x6x6xf32>
  return %r : tensor<2x3x5x6x6xf32>
}
