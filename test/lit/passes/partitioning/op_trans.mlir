// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{dims=x/0 space=dp time=4},dist-op-trans{dims=up/1 space=tp}' | FileCheck %s --check-prefix=CLASS
// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{ops=1 loop=2 space=tp,dp}' | FileCheck %s --check-prefix=LOOP
// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{dims=x/0 space=dp ops=linalg.matmul}' | FileCheck %s --check-prefix=AMONG
// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{dims=x/0 space=dp},dist-op-trans{dims=up/1 space=dp}' | FileCheck %s --check-prefix=NOTE
// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{dims=x/0 space=dp time=4},dist-drop-plan' | FileCheck %s --check-prefix=DROP

// A name cuts the whole class: the batch of every op, in space and in time; the inner dim of one matmul is a sum of the other.
// CLASS: module attributes {{{.*}}dist.time = {{\[}}["micro", 4]]}
// CLASS: %arg0: tensor<8x16xf32> {dist.store = {{\[}}["dp"], []], stitch.name = "x"
// CLASS-SAME: %arg1: tensor<16x32xf32> {dist.store = {{\[}}[], ["tp"]], stitch.name = "up"
// CLASS-SAME: %arg2: tensor<32x16xf32> {dist.store = {{\[}}["tp"], []], stitch.name = "down"
// CLASS: linalg.fill {dist.cuts = {{\[}}["dp", "micro"], ["tp"]],
// CLASS: linalg.matmul {dist.cuts = {{\[}}["dp", "micro"], ["tp"], []],
// CLASS: linalg.fill {dist.cuts = {{\[}}["dp", "micro"], []],
// CLASS: linalg.matmul {dist.cuts = {{\[}}["dp", "micro"], [], ["tp"]],

// One loop of one op, and nothing else.
// LOOP-NOT: dist.store
// LOOP-NOT: dist.time
// LOOP: linalg.fill {stitch.kind
// LOOP: linalg.matmul {dist.cuts = {{\[}}[], [], ["tp", "dp"]],
// LOOP: linalg.matmul {stitch.kind

// A class among some ops alone; arguments are then stored whole.
// AMONG-NOT: dist.store
// AMONG: linalg.fill {stitch.kind
// AMONG: linalg.matmul {dist.cuts = {{\[}}["dp"], [], []],
// AMONG: linalg.fill {stitch.kind
// AMONG: linalg.matmul {dist.cuts = {{\[}}["dp"], [], []],

// What cannot be cut says why.
// NOTE: linalg.matmul {dist.cuts = {{\[}}["dp"], [], []],
// NOTE-SAME: dist.notes = [{axes = ["dp"], loop = 1 : i64, reason = "axis dp cuts another loop of it, or this one, already"}]

// DROP-NOT: dist.
module attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  func.func @main(%x: tensor<8x16xf32> {stitch.name = "x", stitch.role = "input"},
                  %u: tensor<16x32xf32> {stitch.name = "up", stitch.role = "weight"},
                  %d: tensor<32x16xf32> {stitch.name = "down", stitch.role = "weight"}) -> tensor<8x16xf32> {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<8x32xf32>
    %f = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>

    %h = linalg.matmul {stitch.kind = "compute"} ins(%x, %u : tensor<8x16xf32>, tensor<16x32xf32>) outs(%f : tensor<8x32xf32>) -> tensor<8x32xf32>
    %e2 = tensor.empty() : tensor<8x16xf32>
    %f2 = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e2 : tensor<8x16xf32>) -> tensor<8x16xf32>
    %y = linalg.matmul {stitch.kind = "compute"} ins(%h, %d : tensor<8x32xf32>, tensor<32x16xf32>) outs(%f2 : tensor<8x16xf32>) -> tensor<8x16xf32>
    return %y : tensor<8x16xf32>
  }
}
