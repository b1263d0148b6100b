"""The JIT engine: kernels of the instruction IR as vector code of the llvm dialect, one warp at a time."""
