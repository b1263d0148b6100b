// RUN: mlirstitch-opt %s --pass-pipeline='dist-check-schedule' --split-input-file --verify-diagnostics

// Both send first; without a buffer neither gets on.
func.func @main_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 0>} {
  // expected-error@+2 {{the programs would hang: device 0 waits in dist.send to 1 at}}
  // expected-note@+1 {{hint: put sends, receives and collectives of these devices in one order}}
  "dist.send"(%x) {to = 1 : i64} : (tensor<4xf32>) -> ()
  %a = "dist.recv"() {from = 1 : i64} : () -> tensor<4xf32>
  return %a : tensor<4xf32>
}
func.func @main_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 1>} {
  "dist.send"(%x) {to = 0 : i64} : (tensor<4xf32>) -> ()
  %a = "dist.recv"() {from = 0 : i64} : () -> tensor<4xf32>
  return %a : tensor<4xf32>
}

// -----

// A send that nobody receives.
func.func @main_0(%x: tensor<4xf32>) attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 0>} {
  // expected-error-re@+2 {{for device 1; device 1 is done}}
  // expected-note@+1 {{hint}}
  "dist.send"(%x) {to = 1 : i64} : (tensor<4xf32>) -> ()
  return
}
func.func @main_1(%x: tensor<4xf32>) attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 1>} {
  return
}

// -----

// Collectives of different groups, one before the other on one device and behind it on another: a ring of four.
func.func @main_0(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 3>} {
  // expected-error-re@+2 {{would hang: device 0 waits in dist.all_reduce add over dp at {{.+}} for device 2; device 2 waits in dist.all_reduce add over tp}}
  // expected-note@+1 {{hint}}
  %a = "dist.all_reduce"(%x) {axes = ["dp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  %b = "dist.all_reduce"(%a) {axes = ["tp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}
func.func @main_1(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 1, 2>} {
  %a = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  %b = "dist.all_reduce"(%a) {axes = ["dp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}

// -----

// Sender and receiver think of different tensors.
func.func @main_0(%x: tensor<4xf32>) attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 0>} {
  // expected-error@+2 {{device 0 sends tensor<4xf32>, device 1 receives tensor<2x2xf32>}}
  // expected-note@+1 {{hint: the other is dist.recv () -> (tensor<2x2xf32>) at}}
  "dist.send"(%x) {to = 1 : i64} : (tensor<4xf32>) -> ()
  return
}
func.func @main_1() -> tensor<2x2xf32> attributes {dist.mesh = [["pp", 2]], dist.devices = array<i64: 1>} {
  %a = "dist.recv"() {from = 0 : i64} : () -> tensor<2x2xf32>
  return %a : tensor<2x2xf32>
}

// -----

// One member sums, the other takes the maximum.
func.func @main_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0>} {
  // expected-error@+2 {{another combiner: dist.all_reduce add over tp and dist.all_reduce max over tp}}
  // expected-note@+1 {{hint: the other is dist.all_reduce}}
  %a = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
}
func.func @main_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 1>} {
  %a = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "max"} : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
}

// -----

// One member gathers where the other sums.
func.func @main_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0>} {
  // expected-error@+2 {{meets device 1, which is of its group, at a collective with another name}}
  // expected-note@+1 {{hint}}
  %a = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
}
func.func @main_1(%x: tensor<4xf32>) -> tensor<8xf32> attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 1>} {
  %a = "dist.all_gather"(%x) {axes = ["tp"], dim = 0 : i64} : (tensor<4xf32>) -> tensor<8xf32>
  return %a : tensor<8xf32>
}

// -----

// Sums of tensors of different shapes.
func.func @main_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0>} {
  // expected-error@+2 {{at a collective with another type}}
  // expected-note@+1 {{hint: the other is dist.all_reduce (tensor<8xf32>) -> (tensor<8xf32>)}}
  %a = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "add"} : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
}
func.func @main_1(%x: tensor<8xf32>) -> tensor<8xf32> attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 1>} {
  %a = "dist.all_reduce"(%x) {axes = ["tp"], combiner = "add"} : (tensor<8xf32>) -> tensor<8xf32>
  return %a : tensor<8xf32>
}

// -----

func.func @main_0(%x: tensor<4xf32>) attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0>} {
  // expected-error@+2 {{device 0 exchanges a message with itself}}
  // expected-note@+1 {{hint}}
  "dist.send"(%x) {to = 0 : i64} : (tensor<4xf32>) -> ()
  return
}
func.func @main_1() attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 1>} {
  return
}

// -----

// expected-error@+2 {{device 1 has no program}}
// expected-note@+1 {{hint: dist.devices gives each device one}}
func.func @main_0() attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0>} {
  return
}

// -----

func.func @main_0() attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 0, 1>} {
  return
}
// expected-error@+2 {{device 1 runs two programs}}
// expected-note@+1 {{hint: dist.devices gives each device one}}
func.func @main_1() attributes {dist.mesh = [["tp", 2]], dist.devices = array<i64: 1>} {
  return
}

// -----

func.func @main_0() attributes {dist.mesh = [["tp", 1]], dist.devices = array<i64: 0>} {
  return
}
// expected-error@+2 {{is for the mesh {'dp': 1}, @main_0 for {'tp': 1}}}
// expected-note@+1 {{hint: all device programs of a module are for one mesh}}
func.func @main_1() attributes {dist.mesh = [["dp", 1]], dist.devices = array<i64: 0>} {
  return
}
