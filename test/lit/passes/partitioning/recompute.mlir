// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(dist-recompute)' --split-input-file | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(dist-recompute,cse)' --split-input-file | FileCheck %s

#v = affine_map<(d0) -> (d0)>
#s = affine_map<(d0) -> ()>
// loss = sum(exp(w)); its gradient is exp(w), computed again in front of the update, and cse keeps both.
// CHECK-LABEL: func.func @main
// CHECK: %[[E:.+]] = linalg.generic {{.*}} ins(%arg0
// CHECK-NOT: dist.recompute
// CHECK: math.exp
// CHECK: linalg.generic {{.*}} ins(%[[E]]
// CHECK: %[[AGAIN:.+]] = linalg.generic {{.*}} ins(%arg0 {{.*}} attrs = {dist.recompute}
// CHECK: math.exp
// CHECK: linalg.generic {{.*}} ins(%arg0, %[[AGAIN]]
func.func @main(%w: tensor<4xf32> {stitch.name = "w", stitch.role = "weight"}) -> (tensor<f32>, tensor<4xf32> {stitch.mutates = "w"}) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %h = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]} ins(%w : tensor<4xf32>) outs(%e : tensor<4xf32>) attrs = {dist.recompute} {
    ^bb0(%i: f32, %o: f32):
      %x = math.exp %i : f32
      linalg.yield %x : f32
  } -> tensor<4xf32>
  %l = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%z : f32) outs(%l : tensor<f32>) -> tensor<f32>
  %loss = linalg.generic {indexing_maps = [#v, #s], iterator_types = ["reduction"]} ins(%h : tensor<4xf32>) outs(%f : tensor<f32>) {
    ^bb0(%i: f32, %o: f32):
      %x = arith.addf %o, %i : f32
      linalg.yield %x : f32
  } -> tensor<f32>
  %new = linalg.generic {indexing_maps = [#v, #v, #v], iterator_types = ["parallel"]} ins(%w, %h : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%i: f32, %g: f32, %o: f32):
      %x = arith.subf %i, %g : f32
      linalg.yield %x : f32
  } -> tensor<4xf32>
  return %loss, %new : tensor<f32>, tensor<4xf32>
}
