// RUN: not mlirstitch-opt %s --pass-pipeline='dist-op-trans{dims=x/0 space=dp},dist-op-trans{dims=up/1 space=dp strict}' 2>&1 | FileCheck %s --check-prefix=STRICT
// RUN: not mlirstitch-opt %s --pass-pipeline='dist-op-trans{ops=1 loop=0 space=dp},dist-op-assign{ops=1 at=dp=0}' 2>&1 | FileCheck %s --check-prefix=GONE
// RUN: not mlirstitch-opt %s --pass-pipeline='dist-op-order{first=3 then=1},dist-insert-communication' 2>&1 | FileCheck %s --check-prefix=CYCLE

// STRICT: op_refusals-invalid.mlir:{{[0-9]+}}:{{[0-9]+}}: error: dist-op-trans: linalg.fill (op 0), loop 1 of up/1: axis dp cuts another loop
// GONE: linalg.matmul (op 1), loop 0: cut by axis dp, but placed on a mesh with tp
// CYCLE: dist-insert-communication: the orders of the plan contradict each other or the data: linalg.matmul (op 1) before linalg.matmul (op 3) before linalg.matmul (op 1)
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
