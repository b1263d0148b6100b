// RUN: mlirstitch compile %s --emit ptx | FileCheck %s --check-prefix=CLUSTER
// RUN: mlirstitch compile %s --grid-composition on --emit ptx | FileCheck %s --check-prefix=GRID
// RUN: mlirstitch compile %s --target sm_80 --emit ptx | FileCheck %s --check-prefix=ALONE
// RUN: mlirstitch compile %s --target sm_80 --grid-composition on --emit ptx | FileCheck %s --check-prefix=GRID

// Two long rows: by a thread-block cluster each where the chip has clusters, by all blocks of a cooperative launch where
// the option allows it, else by a block each.
// CLUSTER: .maxntid 1024, 1, 1
// CLUSTER-NEXT: .explicitcluster
// CLUSTER-NEXT: .reqnctapercluster 8, 1, 1
// CLUSTER: ld.global.nc.v4.b32
// CLUSTER: bar.sync
// CLUSTER: barrier.cluster.arrive.aligned
// CLUSTER: barrier.cluster.wait.aligned
// CLUSTER: ld.shared::cluster.b32
// CLUSTER-NOT: ld.global
// CLUSTER: bar.sync
// CLUSTER: barrier.cluster.arrive.aligned
// CLUSTER: barrier.cluster.wait.aligned
// CLUSTER: ld.shared::cluster.b32
// CLUSTER: barrier.cluster.arrive.aligned
// CLUSTER: st.global.v4.b32
// CLUSTER: barrier.cluster.wait.aligned
// CLUSTER-NOT: shared
// CLUSTER: ret;

// GRID-NOT: reqnctapercluster
// GRID: ld.global.nc.v4.b32
// GRID: st.global.b32
// GRID: fence.acq_rel.gpu
// GRID: atom.global.inc.u32
// GRID: ld.acquire.gpu.global.b32
// GRID: bar.sync
// GRID-NOT: ld.global.nc
// GRID: ld.global.b32
// GRID: fence.acq_rel.gpu
// GRID: atom.global.inc.u32
// GRID: ld.acquire.gpu.global.b32
// GRID: atom.global.inc.u32
// GRID: st.global.v4.b32

// ALONE-NOT: reqnctapercluster
// ALONE-NOT: fence
// ALONE: ret;
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, 0)>
func.func @main(%a: tensor<2x100000xf32>) -> tensor<2x100000xf32> {
  %inf = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : tensor<2x1xf32>
  %ef = tensor.empty() : tensor<2x100000xf32>
  %i0 = linalg.fill ins(%inf : f32) outs(%er : tensor<2x1xf32>) -> tensor<2x1xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%er : tensor<2x1xf32>) -> tensor<2x1xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<2x100000xf32>) outs(%i0 : tensor<2x1xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %r = arith.maximumf %x, %acc : f32
    linalg.yield %r : f32
  } -> tensor<2x1xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a, %m : tensor<2x100000xf32>, tensor<2x1xf32>) outs(%z0 : tensor<2x1xf32>) {
  ^bb0(%x: f32, %t: f32, %acc: f32):
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  } -> tensor<2x1xf32>
  %o = linalg.generic {indexing_maps = [#id, #row, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %m, %s : tensor<2x100000xf32>, tensor<2x1xf32>, tensor<2x1xf32>) outs(%ef : tensor<2x100000xf32>) {
  ^bb0(%x: f32, %t: f32, %u: f32, %out: f32):
    %d = arith.subf %x, %t : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %u : f32
    linalg.yield %q : f32
  } -> tensor<2x100000xf32>
  return %o : tensor<2x100000xf32>
}
