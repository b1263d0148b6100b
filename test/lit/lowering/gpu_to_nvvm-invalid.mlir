// RUN: mlirstitch-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(verify-kernels,verify-lowered-kernels)'

// Native lowering aborts the process on bools in memory.
gpu.module @kernels {
  // expected-error @below {{elements of type i1 cannot be stored}}
  gpu.func @k(%a: memref<64xi1>) kernel {
    gpu.return
  }
}

// -----

gpu.module @kernels {
  gpu.func @k(%a: memref<64xf32>) kernel {
    // expected-error @below {{has no lowering to NVVM}}
    %e = tensor.empty() : tensor<4xf32>
    gpu.return
  }
}

// -----

gpu.module @kernels {
  // expected-error @below {{cannot be lowered to NVVM}}
  gpu.func @k(%a: memref<64xf32>) kernel {
    gpu.return
  }
}
