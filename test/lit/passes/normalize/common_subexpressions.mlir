// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-cse)' | FileCheck %s

#id = affine_map<(d0) -> (d0)>
module {
  // Equal ops are merged: constants, generics with equal bodies, and what then reads the same.
  // CHECK-LABEL: func.func @main
  func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    // CHECK: %[[TWO:.*]] = arith.constant 2.0
    %two = arith.constant 2.0 : f32
    // CHECK-NOT: arith.constant 2.0
    %again = arith.constant 2.0 : f32
    // CHECK: %[[THREE:.*]] = arith.constant 3.0
    %three = arith.constant 3.0 : f32
    // CHECK: tensor.empty
    // CHECK-NOT: tensor.empty
    %e0 = tensor.empty() : tensor<4xf32>
    %e1 = tensor.empty() : tensor<4xf32>
    // CHECK: %[[FIRST:.*]] = linalg.generic
    // CHECK: arith.mulf %{{.*}}, %[[TWO]]
    %0 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
        ins(%x : tensor<4xf32>) outs(%e0 : tensor<4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = arith.mulf %i, %two : f32
      linalg.yield %v : f32
    } -> tensor<4xf32>
    %1 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
        ins(%x : tensor<4xf32>) outs(%e1 : tensor<4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = arith.mulf %i, %again : f32
      linalg.yield %v : f32
    } -> tensor<4xf32>
    // Another body and another captured scalar are other ops; in a body equal ops are merged too.
    // CHECK: %[[OTHER:.*]] = linalg.generic
    // CHECK: arith.mulf %{{.*}}, %[[THREE]]
    // CHECK-NOT: arith.mulf
    %2 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
        ins(%x : tensor<4xf32>) outs(%e0 : tensor<4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = arith.mulf %i, %three : f32
      %w = arith.mulf %i, %three : f32
      %s = arith.addf %v, %w : f32
      linalg.yield %s : f32
    } -> tensor<4xf32>
    // CHECK: %[[READER:.*]] = linalg.generic
    // CHECK-SAME: ins(%[[FIRST]]
    %3 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
        ins(%1 : tensor<4xf32>) outs(%e0 : tensor<4xf32>) {
    ^bb0(%i: f32, %o: f32):
      %v = math.exp %i : f32
      linalg.yield %v : f32
    } -> tensor<4xf32>
    // CHECK: return %[[FIRST]], %[[FIRST]], %[[OTHER]], %[[READER]]
    return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
