// RUN: mlirstitch-opt %s --pass-pipeline='dist-check-schedule' --split-input-file | FileCheck %s

// Messages in one order, a collective of all; the pass changes nothing.
// CHECK-LABEL: func.func @main_0
// CHECK: "dist.send"
// CHECK-LABEL: func.func @main_1
// CHECK: "dist.recv"
func.func @main_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 0>} {
  "dist.send"(%x) {to = 1 : i64} : (tensor<4xf32>) -> ()
  %a = "dist.recv"() {from = 1 : i64} : () -> tensor<4xf32>
  %r = "dist.all_reduce"(%a) {axes = ["pp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func @main_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 1>} {
  %a = "dist.recv"() {from = 0 : i64} : () -> tensor<4xf32>
  "dist.send"(%x) {to = 0 : i64} : (tensor<4xf32>) -> ()
  %r = "dist.all_reduce"(%a) {axes = ["pp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// -----

// Groups of different axes: rows first, then columns; parts of different size meet in a gather.
// CHECK-LABEL: func.func @main_0
func.func @main_0(%x: tensor<2xf32>) -> tensor<5xf32>
    attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 2>} {
  %r = "dist.all_reduce"(%x) {axes = ["dp"], combiner = "add"} : (tensor<2xf32>) -> tensor<2xf32>
  %g = "dist.all_gather"(%r) {axes = ["tp"], dim = 0 : i64} : (tensor<2xf32>) -> tensor<5xf32>
  return %g : tensor<5xf32>
}
func.func @main_1(%x: tensor<3xf32>) -> tensor<5xf32>
    attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 1, 3>} {
  %r = "dist.all_reduce"(%x) {axes = ["dp"], combiner = "add"} : (tensor<3xf32>) -> tensor<3xf32>
  %g = "dist.all_gather"(%r) {axes = ["tp"], dim = 0 : i64} : (tensor<3xf32>) -> tensor<5xf32>
  return %g : tensor<5xf32>
}
