// RUN: mlirstitch-opt %s --pass-pipeline='convert-dist-to-shard' --split-input-file --verify-diagnostics

// expected-error@+2 {{the module has no device programs}}
// expected-note@+1 {{hint: run dist-insert-communication first}}
module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

func.func @main_0(%x: tensor<4xf32>, %i: tensor<4xi64>) -> tensor<4xi64>
    attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0, 1>} {
  // expected-error@+2 {{convert-dist-to-shard: dist.all_reduce (tensor<4xf32>, tensor<4xi64>) -> (tensor<4xf32>, tensor<4xi64>): the combiner argmax has no name in shard}}
  // expected-note@+1 {{hint: it knows add, mul, max, min, and, or}}
  %v:2 = "dist.all_reduce"(%x, %i) {axes = ["tp"], combiner = "argmax"} : (tensor<4xf32>, tensor<4xi64>) -> (tensor<4xf32>, tensor<4xi64>)
  return %v#1 : tensor<4xi64>
}

// -----

func.func @main_0(%x: tensor<2xf32>) -> tensor<5xf32>
    attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0, 1>} {
  // expected-error@+2 {{dim 0 grows from 2 to 5 over 2 members: their parts are not of one size}}
  // expected-note@+1 {{hint: split evenly}}
  %g = "dist.all_gather"(%x) {axes = ["tp"], dim = 0 : i64} : (tensor<2xf32>) -> tensor<5xf32>
  return %g : tensor<5xf32>
}

// -----

func.func @main_0(%x: tensor<5xf32>) -> tensor<2xf32>
    attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0, 1>} {
  // expected-error@+2 {{shares [(0, 2), (2, 5)] are not of one size: shard deals dims out evenly}}
  // expected-note@+1 {{hint: split evenly}}
  %s = "dist.reduce_scatter"(%x) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 2, 3>} : (tensor<5xf32>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}

// -----

func.func @main_0(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0, 1>} {
  // expected-error@+2 {{a collective over no axis: shard takes an empty list of axes for all of them}}
  // expected-note@+1 {{hint: drop it}}
  %r = "dist.all_reduce"(%x) {axes = [], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// -----

func.func @main_0(%x: tensor<4xf32>) attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0, 1>} {
  // expected-error@+2 {{there is no device 2}}
  // expected-note@+1 {{hint: the mesh is tp=2}}
  "dist.send"(%x) {to = 2 : i64} : (tensor<4xf32>) -> ()
  return
}
