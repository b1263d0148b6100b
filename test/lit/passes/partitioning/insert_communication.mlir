// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{dims=x/0 space=dp},dist-op-trans{dims=up/1 space=tp},dist-insert-communication,dist-check-schedule,stitch-verify' | FileCheck %s --check-prefix=SUM
// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-assign{ops=0-1 at=dp=0},dist-op-assign{ops=2-3 at=dp=1},dist-op-trans{ops=1 loop=1 space=tp},dist-op-trans{ops=3 loop=2 space=tp},dist-insert-communication,dist-check-schedule' | FileCheck %s --check-prefix=MOVE

// All devices do the same, on parts of a half and a quarter; the sum over tp is found, and the result is whole again.
// SUM-LABEL: func.func @main_0(%arg0: tensor<4x16xf32>
// SUM-SAME: dist.devices = array<i64: 0, 1, 2, 3>, dist.mesh = {{\[}}["dp", 2], ["tp", 2]]
// SUM-NOT: dist.cuts
// SUM: linalg.matmul {{.*}} -> tensor<4x16xf32>
// SUM: %[[P:.+]] = linalg.matmul {{.*}} -> tensor<4x16xf32>
// SUM: %[[S:.+]] = "dist.all_reduce"(%[[P]]) {axes = ["tp"], combiner = "add"} : (tensor<4x16xf32>) -> tensor<4x16xf32>
// SUM: "dist.all_gather"(%[[S]]) {axes = ["dp"], dim = 0 : i64} : (tensor<4x16xf32>) -> tensor<8x16xf32>
// SUM-NOT: func.func

// Devices 0 and 1 make the hidden values, each a half, which 2 and 3 go on with.
// MOVE-LABEL: func.func @main_0
// MOVE-SAME: dist.devices = array<i64: 0>
// MOVE: "dist.send"{{.*}} {to = 2 : i64} : (tensor<8x16xf32>) -> ()
// MOVE-LABEL: func.func @main_1
// MOVE: "dist.send"{{.*}} {to = 3 : i64} : (tensor<8x16xf32>) -> ()
// MOVE-LABEL: func.func @main_2
// MOVE: "dist.recv"() {from = 0 : i64} : () -> tensor<8x16xf32>
// MOVE: "dist.all_reduce"{{.*}} {axes = ["tp"], combiner = "add"}
// MOVE-LABEL: func.func @main_3
// MOVE: "dist.recv"() {from = 1 : i64} : () -> tensor<8x16xf32>
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
