// RUN: mlirstitch-opt %s --stitch-verify=level=input --split-input-file --verify-diagnostics

// expected-error@+1 {{bandwidth = -1 is not between 1e+06 and 1e+16 bytes a second}}
module attributes {stitch.target_constants = {bandwidth = -1.0 : f64}} {
  func.func @main() {
    return
  }
}

// -----

// expected-error@+1 {{there is no constant 'speed'}}
module attributes {stitch.target_constants = {speed = 1.0 : f64}} {
  func.func @main() {
    return
  }
}

// -----

// expected-error@+1 {{stitch.target_constants must be of type dictionary of f64}}
module attributes {stitch.target_constants = {bandwidth = 3 : i64}} {
  func.func @main() {
    return
  }
}
