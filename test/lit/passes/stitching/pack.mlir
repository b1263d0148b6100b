// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster)' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster{max-parts=1})' | FileCheck %s --check-prefix=OFF
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster,stitch-outline,stitch-schedule)' | FileCheck %s --check-prefix=PARTS
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-cluster,stitch-outline,stitch-schedule)' \
// RUN:   | mlirstitch-opt --pass-pipeline='builtin.module(stitch-schedule)' | FileCheck %s --check-prefix=PARTS

#m = affine_map<(d0, d1) -> (d0, d1)>
#k = affine_map<(d0, d1) -> (d0)>
#v = affine_map<(d0) -> (d0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  // Two clusters of different shapes do not depend on each other: they share a launch. A third reads one of them, and
  // does not.
  // PARTS: func.func private @cluster_0_{{[a-z_]*}}(
  // PARTS-SAME: stitch.schedule = {
  // PARTS-SAME: parts = [{{{.*}}template = "row"{{.*}}}, {{{.*}}template = "elementwise"{{.*}}}],
  // PARTS-SAME: template = "packed"
  // PARTS: func.func private @cluster_1_{{[a-z_]*}}(
  // PARTS-NOT: parts = [
  // PARTS: func.func @main
  func.func @main(%x: tensor<32x64xf32>, %y: tensor<100xf32>, %w: tensor<100x100xf32>)
      -> (tensor<32xf32>, tensor<100xf32>, tensor<100xf32>) {
    %zero = arith.constant 0.0 : f32
    %er = tensor.empty() : tensor<32xf32>
    %ey = tensor.empty() : tensor<100xf32>
    %f = linalg.fill ins(%zero : f32) outs(%er : tensor<32xf32>) -> tensor<32xf32>
    // CHECK: iterator_types = ["parallel", "reduction"]
    // CHECK-SAME: attrs = {stitch.cluster = array<i64: 0>}
    // OFF: iterator_types = ["parallel", "reduction"]
    // OFF-SAME: attrs = {stitch.cluster = array<i64: 0>}
    %0 = linalg.generic {indexing_maps = [#m, #k], iterator_types = ["parallel", "reduction"]}
        ins(%x : tensor<32x64xf32>) outs(%f : tensor<32xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = arith.addf %i, %o : f32
      linalg.yield %r : f32
    } -> tensor<32xf32>
    // CHECK: linalg.generic
    // CHECK-SAME: attrs = {stitch.cluster = array<i64: 0>}
    // OFF: linalg.generic
    // OFF-SAME: attrs = {stitch.cluster = array<i64: 1>}
    %1 = linalg.generic {indexing_maps = [#v, #v], iterator_types = ["parallel"]}
        ins(%y : tensor<100xf32>) outs(%ey : tensor<100xf32>) {
    ^bb0(%i: f32, %o: f32):
      %r = math.exp %i : f32
      linalg.yield %r : f32
    } -> tensor<100xf32>
    %g = linalg.fill ins(%zero : f32) outs(%ey : tensor<100xf32>) -> tensor<100xf32>
    // CHECK: linalg.matvec {stitch.cluster = array<i64: 1>}
    // OFF: linalg.matvec {stitch.cluster = array<i64: 2>}
    %2 = linalg.matvec ins(%w, %1 : tensor<100x100xf32>, tensor<100xf32>) outs(%g : tensor<100xf32>) -> tensor<100xf32>
    return %0, %1, %2 : tensor<32xf32>, tensor<100xf32>, tensor<100xf32>
  }
}
