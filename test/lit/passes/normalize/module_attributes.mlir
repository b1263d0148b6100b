// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{target=sm_80 library=auto})' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{grid-composition=on})' | FileCheck %s --check-prefix=GRID
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{grid-composition=on},stitch-set-module-attributes)' | FileCheck %s --check-prefix=GRID
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{grid-composition=on},stitch-set-module-attributes{grid-composition=off})' | FileCheck %s --check-prefix=OFF

// Cooperative launches are allowed by an attribute that is there or not.
// GRID: module attributes {stitch.grid_composition, stitch.library = "none"
// OFF: module attributes {stitch.library = "none"

// An option overrides what the module says, an empty one keeps it; names and dtypes that are there stay.
// CHECK: module attributes {stitch.library = "auto", stitch.numerics = "strict", stitch.target = "sm_80"}
module attributes {stitch.numerics = "strict", stitch.target = "sm_90"} {
  // CHECK: func.func @main(%{{.*}}: tensor<4xi8> {stitch.dtype = "uint8", stitch.name = "image", stitch.role = "input"},
  // CHECK-SAME: %{{.*}}: tensor<2x3xbf16> {stitch.dtype = "bfloat16", stitch.name = "arg1", stitch.role = "weight"})
  // CHECK-SAME: -> (tensor<2x3xbf16> {stitch.dtype = "bfloat16", stitch.name = "result0"})
  func.func @main(%a: tensor<4xi8> {stitch.dtype = "uint8", stitch.name = "image"},
                  %b: tensor<2x3xbf16> {stitch.role = "weight"}) -> tensor<2x3xbf16> {
    return %b : tensor<2x3xbf16>
  }
}
