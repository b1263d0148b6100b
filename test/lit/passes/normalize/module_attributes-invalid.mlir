// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{target=sm_1})' 2>&1 | FileCheck %s --check-prefix=TARGET
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{numerics=sloppy})' 2>&1 | FileCheck %s --check-prefix=NUMERICS
// RUN: not mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{grid-composition=always})' 2>&1 | FileCheck %s --check-prefix=GRID

// GRID: grid-composition = 'always' is not one of off, on
// TARGET: sm_1
// TARGET: known targets: sm_100
// NUMERICS: stitch.numerics = 'sloppy' is not one of default, strict
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
