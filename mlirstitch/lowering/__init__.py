"""Level-changing conversions: stitched to gpu, gpu to nvvm, nvvm to ptx.

Importing this package registers its passes and the kernel templates.
"""

from mlirstitch.lowering import kernel, plan_buffers, stitch_to_gpu
from mlirstitch.lowering.gpu_to_nvvm import GPU_TO_NVVM
from mlirstitch.lowering.nvvm_to_ptx import NVVM_TO_PTX

STITCHED_TO_GPU = ("plan-buffers", "convert-stitch-to-gpu")
"""Passes of the stage."""

__all__ = ["GPU_TO_NVVM", "NVVM_TO_PTX", "STITCHED_TO_GPU", "kernel", "plan_buffers", "stitch_to_gpu"]
