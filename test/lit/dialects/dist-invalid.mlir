// RUN: mlirstitch-opt %s --pass-pipeline=stitch-verify --split-input-file --verify-diagnostics

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+2 {{the mesh has no axis 'pp'}}
  // expected-note@+1 {{hint: its axes are dp, tp}}
  %c = "dist.coordinate"() {axis = "pp"} : () -> index
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{axis 'tp' is named twice}}
  %g = "dist.all_gather"(%x) {axes = ["tp", "tp"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<16x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{dim = 2 is no dim of a tensor of rank 2}}
  %g = "dist.all_gather"(%x) {axes = ["tp"], dim = 2 : i64} : (tensor<4x6xf32>) -> tensor<8x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{dim 1 has extent 6 before and 5 after}}
  %g = "dist.all_gather"(%x) {axes = ["tp"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<8x5xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{dim 0 shrinks from 4 to 3}}
  %g = "dist.all_gather"(%x) {axes = ["tp"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<3x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{the result has 1 dims, the operand 2}}
  %g = "dist.all_gather"(%x) {axes = ["tp"], dim = 0 : i64} : (tensor<4x6xf32>) -> tensor<48xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+2 {{unknown combiner 'mean'}}
  // expected-note@+1 {{hint: choose one of add, mul, max, min, and, or, argmax, argmin}}
  %r = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "mean"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{combiner argmax takes 2 operands, not 1}}
  %r = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "argmax"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{a reduction of tensor<4x6xf32> gives tensor<4x6xf16>}}
  %r = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "add"} : (tensor<4x6xf32>) -> tensor<4x6xf16>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{are 3, the group has 2 members}}
  %s = "dist.reduce_scatter"(%x) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 1, 1, 2>} : (tensor<4x6xf32>) -> tensor<2x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{leave its extent of 4}}
  %s = "dist.reduce_scatter"(%x) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 2, 3>} : (tensor<4x6xf32>) -> tensor<2x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{dim 0 of the result has extent 3, which no member's share has}}
  %s = "dist.reduce_scatter"(%x) {axes = ["tp"], combiner = "add", dim = 0 : i64, parts = array<i64: 2, 2>} : (tensor<4x6xf32>) -> tensor<3x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{dim 0 is both split and concatenated}}
  %s = "dist.all_to_all"(%x) {axes = ["tp"], split_dim = 0 : i64, concat_dim = 0 : i64, parts = array<i64: 2, 2>} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func @main_0(%x: tensor<4x6xf32>) attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  // expected-error@+1 {{op expects exactly 0 results, but got 1}}
  %s = "dist.send"(%x) {to = 1 : i64} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}
