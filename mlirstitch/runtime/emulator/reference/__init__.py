"""Reference engine: executes the instruction IR with numpy, one generated function per basic block, and checks it."""
