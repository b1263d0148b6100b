"""Level-changing conversions: stitched to gpu, gpu to nvvm, nvvm to ptx."""
