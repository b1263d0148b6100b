// Every op of the dialect, printed and parsed again.
// RUN: mlirstitch-opt %s --pass-pipeline=stitch-verify | mlirstitch-opt --pass-pipeline=stitch-verify | FileCheck %s

// CHECK-LABEL: func.func @main_0
// CHECK-SAME: dist.devices = array<i64: 0, 1, 2, 3>, dist.mesh = {{\[}}["dp", 2], ["tp", 2]]
// CHECK: "dist.coordinate"() {axis = "tp"} : () -> index
// CHECK: "dist.all_gather"(%{{.+}}) {axes = ["tp"], dim = 0 : i64} : (tensor<2x6xf32>) -> tensor<5x6xf32>
// CHECK: "dist.all_reduce"(%{{.+}}) {axes = ["dp", "tp"], combiner = "max"} : (tensor<5x6xf32>) -> tensor<5x6xf32>
// CHECK: "dist.all_reduce"(%{{.+}}, %{{.+}}) {axes = ["tp"], combiner = "argmax"} : (tensor<4xf32>, tensor<4xi64>) -> (tensor<4xf32>, tensor<4xi64>)
// CHECK: "dist.reduce_scatter"(%{{.+}}) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 2, 3>} : (tensor<5x6xf32>) -> tensor<2x6xf32>
// CHECK: "dist.reduce_scatter"(%{{.+}}) {axes = ["tp"], combiner = "add", dim = 0 : i64, offsets = array<i64: 0, 2>, parts = array<i64: 3, 3>}
// CHECK: "dist.all_to_all"(%{{.+}}) {axes = ["tp"], concat_dim = 0 : i64, parts = array<i64: 3, 3>, split_dim = 1 : i64} : (tensor<2x6xf32>) -> tensor<4x3xf32>
// CHECK: "dist.send"(%{{.+}}) {to = 3 : i64} : (tensor<2x6xf32>) -> ()
// CHECK: "dist.recv"() {from = 2 : i64} : () -> tensor<2x6xf32>
func.func @main_0(%x: tensor<2x6xf32>, %v: tensor<4xf32>, %i: tensor<4xi64>) -> tensor<2x6xf32>
    attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  %c = "dist.coordinate"() {axis = "tp"} : () -> index
  %g = "dist.all_gather"(%x) {axes = ["tp"], dim = 0 : i64} : (tensor<2x6xf32>) -> tensor<5x6xf32>
  %r = "dist.all_reduce"(%g) {axes = ["dp", "tp"], combiner = "max"} : (tensor<5x6xf32>) -> tensor<5x6xf32>
  %m:2 = "dist.all_reduce"(%v, %i) {axes = ["tp"], combiner = "argmax"} : (tensor<4xf32>, tensor<4xi64>) -> (tensor<4xf32>, tensor<4xi64>)
  %s = "dist.reduce_scatter"(%r) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 2, 3>} : (tensor<5x6xf32>) -> tensor<2x6xf32>
  %o = "dist.reduce_scatter"(%r) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 3, 3>, offsets = array<i64: 0, 2>} : (tensor<5x6xf32>) -> tensor<3x6xf32>
  %a = "dist.all_to_all"(%s) {axes = ["tp"], split_dim = 1 : i64, concat_dim = 0 : i64, parts = array<i64: 3, 3>} : (tensor<2x6xf32>) -> tensor<4x3xf32>
  "dist.send"(%s) {to = 3 : i64} : (tensor<2x6xf32>) -> ()
  %t = "dist.recv"() {from = 2 : i64} : () -> tensor<2x6xf32>
  return %t : tensor<2x6xf32>
}
