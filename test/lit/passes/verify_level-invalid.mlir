// RUN: mlirstitch-opt %s --stitch-verify=level=input --split-input-file --verify-diagnostics

// expected-error@+1 {{stitch-verify: builtin.module () -> (): the module has no func.func @main}}
module {}

// -----

// expected-error@+2 {{argument 0 is tensor<?xf32>, not a ranked tensor of static shape}}
// expected-note@+1 {{hint: export the model with fixed sizes}}
func.func @main(%x: tensor<?xf32>) {
  return
}

// -----

// expected-error@+1 {{stitch.role = 'bias' is not one of input, weight, constant}}
func.func @main(%x: tensor<4xf32> {stitch.role = "bias"}) {
  return
}

// -----

func.func @main(%x: tensor<4xf32>) {
  // expected-error@+1 {{the attribute stitch.kidn is unknown}}
  %0 = tensor.empty() {stitch.kidn = "light"} : tensor<4xf32>
  return
}

// -----

// expected-error@+1 {{the attribute stitch.target may not stand on func.func}}
func.func @main(%x: tensor<4xf32>) attributes {stitch.target = "sm_90"} {
  return
}
