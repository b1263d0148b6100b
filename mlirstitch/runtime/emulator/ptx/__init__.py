"""PTX text to a typed instruction IR with a control-flow graph. Knows nothing about how it is executed."""
