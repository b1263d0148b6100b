// RUN: mlirstitch-opt %s --split-input-file --verify-diagnostics
// RUN: not mlirstitch-opt %s --split-input-file > /dev/null 2>&1

// expected-error@+1 {{custom op 'x' is unknown}}
func.func @parse_error(%x: f32) -> f32 { return x : f32 }

// -----

func.func @operands() -> f32 {
  // expected-error-re @below {{'func.return' op has {{[0-9]+}} operands, but enclosing function}}
  // expected-note @below {{see current operation}}
  return
}

// -----

func.func @accepted() {
  return
}

// -----

// expected-error@+1 {{unknown dialect 'torch'}}
%0 = torch.aten.relu %1

// -----

func.func @elided() -> tensor<4xf32> {
  // expected-error@+1 {{the data of a constant was elided}}
  %0 = arith.constant dense<__elided__> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
