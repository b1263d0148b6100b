// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-slice-products)' | FileCheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>
#line = affine_map<(d0, d1) -> (d1)>
#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
#o = affine_map<(d0, d1, d2) -> (d0, d1)>
module {
  // Two gates: matrix and bias are sliced, the vector is not, and zeros are made in the size of a gate.
  // CHECK-LABEL: func.func @gates(
  // CHECK-SAME: %[[X:.+]]: tensor<1x8xf32>, %[[W:.+]]: tensor<12x8xf32>, %[[B:.+]]: tensor<12xf32>
  // CHECK-NOT: tensor<1x12xf32>
  // CHECK-DAG: %[[W0:.+]] = tensor.extract_slice %[[W]][0, 0] [6, 8] [1, 1]
  // CHECK-DAG: %[[W1:.+]] = tensor.extract_slice %[[W]][6, 0] [6, 8] [1, 1]
  // CHECK-DAG: tensor.extract_slice %[[B]][0] [6] [1]
  // CHECK-DAG: tensor.extract_slice %[[B]][6] [6] [1]
  // CHECK-DAG: ins(%[[X]], %[[W0]] : tensor<1x8xf32>, tensor<6x8xf32>) outs(%{{.*}} : tensor<1x6xf32>)
  // CHECK-DAG: ins(%[[X]], %[[W1]] : tensor<1x8xf32>, tensor<6x8xf32>) outs(%{{.*}} : tensor<1x6xf32>)
  // CHECK-NOT: tensor<1x12xf32>
  // CHECK: return
  func.func @gates(%x: tensor<1x8xf32>, %w: tensor<12x8xf32>, %b: tensor<12xf32>) -> tensor<1x6xf32> {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<1x12xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x12xf32>) -> tensor<1x12xf32>
    %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<1x8xf32>, tensor<12x8xf32>) outs(%f : tensor<1x12xf32>) {
    ^bb0(%a: f32, %c: f32, %acc: f32):
      %s = math.fma %a, %c, %acc : f32
      linalg.yield %s : f32
    } -> tensor<1x12xf32>
    %q = linalg.generic {indexing_maps = [#id, #line, #id], iterator_types = ["parallel", "parallel"]}
        ins(%p, %b : tensor<1x12xf32>, tensor<12xf32>) outs(%e : tensor<1x12xf32>) {
    ^bb0(%a: f32, %c: f32, %old: f32):
      %s = arith.addf %a, %c : f32
      linalg.yield %s : f32
    } -> tensor<1x12xf32>
    %g = tensor.extract_slice %q[0, 0] [1, 6] [1, 1] : tensor<1x12xf32> to tensor<1x6xf32>
    %h = tensor.extract_slice %q[0, 6] [1, 6] [1, 1] : tensor<1x12xf32> to tensor<1x6xf32>
    %n = tensor.empty() : tensor<1x6xf32>
    %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%g, %h : tensor<1x6xf32>, tensor<1x6xf32>) outs(%n : tensor<1x6xf32>) {
    ^bb0(%a: f32, %c: f32, %old: f32):
      %s = arith.mulf %a, %c : f32
      linalg.yield %s : f32
    } -> tensor<1x6xf32>
    return %r : tensor<1x6xf32>
  }

  // Through a view that adds a dim of one element.
  // CHECK-LABEL: func.func @view(
  // CHECK: tensor.extract_slice %{{.*}}[0, 0] [6, 8]
  // CHECK: tensor.expand_shape %{{.*}} {{\[\[}}0, 1]] output_shape [1, 6] : tensor<6xf32> into tensor<1x6xf32>
  // CHECK: return
  func.func @view(%w: tensor<12x8xf32>, %f: tensor<12xf32>) -> tensor<1x6xf32> {
    %p = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
        ins(%w : tensor<12x8xf32>) outs(%f : tensor<12xf32>) {
    ^bb0(%c: f32, %acc: f32):
      %s = arith.addf %c, %acc : f32
      linalg.yield %s : f32
    } -> tensor<12xf32>
    %q = tensor.expand_shape %p [[0, 1]] output_shape [1, 12] : tensor<12xf32> into tensor<1x12xf32>
    %g = tensor.extract_slice %q[0, 0] [1, 6] [1, 1] : tensor<1x12xf32> to tensor<1x6xf32>
    %h = tensor.extract_slice %q[0, 6] [1, 6] [1, 1] : tensor<1x12xf32> to tensor<1x6xf32>
    %n = tensor.empty() : tensor<1x6xf32>
    %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%g, %h : tensor<1x6xf32>, tensor<1x6xf32>) outs(%n : tensor<1x6xf32>) {
    ^bb0(%a: f32, %c: f32, %old: f32):
      %s = arith.mulf %a, %c : f32
      linalg.yield %s : f32
    } -> tensor<1x6xf32>
    return %r : tensor<1x6xf32>
  }

  // Slices that do not meet, that overlap, or that are not all the readers; and those of a contraction.
  // CHECK-LABEL: func.func @stay(
  // CHECK-NOT: tensor.extract_slice %{{.*}} : tensor<12x8xf32>
  // CHECK: return
  func.func @stay(%w: tensor<12x8xf32>, %f: tensor<12xf32>, %l: tensor<2x8xf32>, %i: tensor<2x12xf32>)
      -> (tensor<6xf32>, tensor<6xf32>, tensor<7xf32>, tensor<12xf32>, tensor<6xf32>, tensor<2x6xf32>) {
    %d = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
        ins(%w : tensor<12x8xf32>) outs(%f : tensor<12xf32>) {
    ^bb0(%c: f32, %acc: f32):
      %t = arith.minimumf %c, %acc : f32
      linalg.yield %t : f32
    } -> tensor<12xf32>
    %d0 = tensor.extract_slice %d[0] [6] [1] : tensor<12xf32> to tensor<6xf32>
    %d1 = tensor.extract_slice %d[6] [6] [1] : tensor<12xf32> to tensor<6xf32>
    %n = tensor.empty() : tensor<7xf32>
    %m = tensor.empty() : tensor<6xf32>
    %s = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
        ins(%w : tensor<12x8xf32>) outs(%f : tensor<12xf32>) {
    ^bb0(%c: f32, %acc: f32):
      %t = arith.addf %c, %acc : f32
      linalg.yield %t : f32
    } -> tensor<12xf32>
    %a0 = tensor.extract_slice %s[0] [7] [1] : tensor<12xf32> to tensor<7xf32>
    %a1 = tensor.extract_slice %s[5] [7] [1] : tensor<12xf32> to tensor<7xf32>
    %1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
        ins(%a0, %a1 : tensor<7xf32>, tensor<7xf32>) outs(%n : tensor<7xf32>) {
    ^bb0(%a: f32, %c: f32, %old: f32):
      %t = arith.mulf %a, %c : f32
      linalg.yield %t : f32
    } -> tensor<7xf32>
    %k = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
        ins(%w : tensor<12x8xf32>) outs(%f : tensor<12xf32>) {
    ^bb0(%c: f32, %acc: f32):
      %t = arith.maximumf %c, %acc : f32
      linalg.yield %t : f32
    } -> tensor<12xf32>
    %b0 = tensor.extract_slice %k[0] [6] [1] : tensor<12xf32> to tensor<6xf32>
    %b1 = tensor.extract_slice %k[6] [6] [1] : tensor<12xf32> to tensor<6xf32>
    %2 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
        ins(%b0, %b1 : tensor<6xf32>, tensor<6xf32>) outs(%m : tensor<6xf32>) {
    ^bb0(%a: f32, %c: f32, %old: f32):
      %t = arith.mulf %a, %c : f32
      linalg.yield %t : f32
    } -> tensor<6xf32>
    %g = linalg.matmul indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>]
        ins(%l, %w : tensor<2x8xf32>, tensor<12x8xf32>) outs(%i : tensor<2x12xf32>) -> tensor<2x12xf32>
    %c0 = tensor.extract_slice %g[0, 0] [2, 6] [1, 1] : tensor<2x12xf32> to tensor<2x6xf32>
    %c1 = tensor.extract_slice %g[0, 6] [2, 6] [1, 1] : tensor<2x12xf32> to tensor<2x6xf32>
    %u = tensor.empty() : tensor<2x6xf32>
    %3 = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%c0, %c1 : tensor<2x6xf32>, tensor<2x6xf32>) outs(%u : tensor<2x6xf32>) {
    ^bb0(%a: f32, %c: f32, %old: f32):
      %t = arith.mulf %a, %c : f32
      linalg.yield %t : f32
    } -> tensor<2x6xf32>
    return %d0, %d1, %1, %k, %2, %3 : tensor<6xf32>, tensor<6xf32>, tensor<7xf32>, tensor<12xf32>, tensor<6xf32>, tensor<2x6xf32>
  }
}
