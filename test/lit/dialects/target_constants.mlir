// RUN: mlirstitch-opt %s --stitch-verify=level=input | FileCheck %s

// Constants of a target file keep all their bits.
// CHECK: stitch.target_constants = {bandwidth = 3.100000e+12 : f64, cycles.float = 0.33333333333333331 : f64}
module attributes {stitch.target = "sm_90", stitch.target_constants = {bandwidth = 3.1e12 : f64, cycles.float = 0.33333333333333331 : f64}} {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}
