// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(verify-kernels,gpu.module(convert-gpu-to-nvvm{index-bitwidth=64 use-bare-ptr-memref-call-conv=true}),verify-lowered-kernels)' | FileCheck %s --check-prefix=NVVM
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(verify-kernels,gpu.module(convert-gpu-to-nvvm{index-bitwidth=64 use-bare-ptr-memref-call-conv=true}),gpu-module-to-binary{format=isa},drop-timing-properties)' | FileCheck %s --check-prefix=PTX

// NVVM: llvm.func @k(%arg0: !llvm.ptr {llvm.noalias}, %arg1: !llvm.ptr {llvm.noalias})
// NVVM: llvm.load %{{.*}} : !llvm.ptr -> i64

// The object attribute has no properties: the compile time would make the text differ from run to run.
// PTX: gpu.binary @kernels
// PTX-SAME: #gpu.object<#nvvm.target<O = 3, chip = "sm_90">, {{(assembly = )?}}"
// PTX-NOT: TimeInMs
module {
  gpu.module @kernels [#nvvm.target<O = 3, chip = "sm_90">] {
    gpu.func @k(%a: memref<64xi64> {llvm.noalias}, %b: memref<64xi64> {llvm.noalias}) kernel {
      %tx = gpu.thread_id x
      %v = memref.load %a[%tx] : memref<64xi64>
      memref.store %v, %b[%tx] : memref<64xi64>
      gpu.return
    }
  }
}
