// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-assign{ops=0-1 at=dp=0},dist-op-assign{ops=2,3 at=dp=1},dist-op-assign{argument=down at=dp=0}' | FileCheck %s --check-prefix=ASSIGN
// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-assign{stages=2 along=tp}' | FileCheck %s --check-prefix=STAGES
// RUN: mlirstitch-opt %s --pass-pipeline='dist-op-trans{dims=x/0 time=2},dist-op-order{first=1 first-at=micro=1 then=3 then-at=micro=0},dist-op-order{first=3 first-at=micro=0 then=3 then-at=micro=1}' | FileCheck %s --check-prefix=ORDER
// RUN: mlirstitch-opt %s --pass-pipeline='dist-mesh{axes=tp=4}' | FileCheck %s --check-prefix=MESH
// RUN: mlirstitch-opt %s --pass-pipeline='dist-plan{plan=dp+tp}' | FileCheck %s --check-prefix=PLAN

// ASSIGN: "down"
// ASSIGN: linalg.fill {dist.devices = array<i64: 0, 1>, dist.mesh = {{\[}}["tp", 2]],
// ASSIGN: linalg.matmul {dist.devices = array<i64: 0, 1>, dist.mesh = {{\[}}["tp", 2]],
// ASSIGN: linalg.fill {dist.devices = array<i64: 2, 3>, dist.mesh = {{\[}}["tp", 2]],
// ASSIGN: linalg.matmul {dist.devices = array<i64: 2, 3>, dist.mesh = {{\[}}["tp", 2]],

// STAGES: linalg.matmul {dist.devices = array<i64: 0, 2>, dist.mesh = {{\[}}["dp", 2]],
// STAGES: linalg.matmul {dist.devices = array<i64: 1, 3>, dist.mesh = {{\[}}["dp", 2]],

// Groups are numbered as they occur; an op may be in several.
// ORDER: dist.orders = [{first = 0 : i64, first_at = {{\[}}["micro", 1]], then = 1 : i64, then_at = {{\[}}["micro", 0]]},
// ORDER-SAME: {first = 1 : i64, first_at = {{\[}}["micro", 0]], then = 1 : i64, then_at = {{\[}}["micro", 1]]}]
// ORDER: linalg.matmul {{.*}}dist.groups = array<i64: 0>
// ORDER: linalg.matmul {{.*}}dist.groups = array<i64: 1>

// MESH: module attributes {dist.devices = array<i64: 0, 1, 2, 3>, dist.mesh = {{\[}}["tp", 4]]}

// PLAN: linalg.matmul {dist.cuts = {{\[}}["dp"], ["tp"], []],
// PLAN: linalg.matmul {dist.cuts = {{\[}}["dp"], [], ["tp"]],
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
