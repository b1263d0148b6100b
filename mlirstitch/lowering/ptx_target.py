"""What LLVM must know about the device that is compiled for."""

from __future__ import annotations

from mlirstitch.target import Target

DATA_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""LLVM's layout of nvptx64, for ``llvm.data_layout``. Without it MLIR splits 64-bit loads in two."""


def nvvm_target(target: Target) -> str:
    """The ``#nvvm.target`` attribute's text. LLVM picks the lowest PTX version of the chip (``Target.ptx_version``)."""
    return f'#nvvm.target<O = 3, chip = "{target.chip}">'
