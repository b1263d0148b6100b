// RUN: mlirstitch-opt %s --pass-pipeline='canonicalize,func.func(cse)' | FileCheck %s
// RUN: mlirstitch-opt --pass-pipeline='builtin.module(func.func(cse,canonicalize))' < %s | FileCheck %s

// CHECK-LABEL: func.func @twice
// CHECK: %[[SUM:.+]] = arith.addf
// CHECK-NOT: arith.addf
// CHECK: arith.mulf %[[SUM]], %[[SUM]]
func.func @twice(%x: f32, %y: f32) -> f32 {
  %a = arith.addf %x, %y : f32
  %b = arith.addf %x, %y : f32
  %c = arith.mulf %a, %b : f32
  return %c : f32
}
