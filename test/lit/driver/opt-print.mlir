// RUN: mlirstitch-opt %s --pass-pipeline='func.func(cse),stitch-set-module-attributes{target=sm_80}' \
// RUN:   --mlir-print-ir-after-all 2>&1 >/dev/null | FileCheck %s --check-prefix=AFTER
// RUN: mlirstitch-opt %s --stitch-set-module-attributes=target=sm_80 --mlir-print-debuginfo | FileCheck %s

// AFTER: IR Dump After func.func(cse)
// AFTER-NOT: stitch.target
// AFTER: IR Dump After stitch-set-module-attributes{target=sm_80}
// AFTER: stitch.target = "sm_80"

// CHECK: stitch.target = "sm_80"
// CHECK: loc("{{.*}}opt-print.mlir":[[#@LINE+1]]:1)
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
