// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{ops=1 loop=3 space=dp}' --verify-diagnostics
module attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  func.func @main(%x: tensor<8x16xf32> {stitch.name = "x", stitch.role = "input"},
                  %u: tensor<16x32xf32> {stitch.name = "up", stitch.role = "weight"},
                  %d: tensor<32x16xf32> {stitch.name = "down", stitch.role = "weight"}) -> tensor<8x16xf32> {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<8x32xf32>
    %f = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>
    // expected-error@+1 {{dist-op-trans: linalg.matmul (op 1), loop 3: it has loops 0 to 2}}
    %h = linalg.matmul {stitch.kind = "compute"} ins(%x, %u : tensor<8x16xf32>, tensor<16x32xf32>) outs(%f : tensor<8x32xf32>) -> tensor<8x32xf32>
    %e2 = tensor.empty() : tensor<8x16xf32>
    %f2 = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e2 : tensor<8x16xf32>) -> tensor<8x16xf32>
    %y = linalg.matmul {stitch.kind = "compute"} ins(%h, %d : tensor<8x32xf32>, tensor<32x16xf32>) outs(%f2 : tensor<8x16xf32>) -> tensor<8x16xf32>
    return %y : tensor<8x16xf32>
  }
}
