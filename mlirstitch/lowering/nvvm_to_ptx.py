"""nvvm level to ptx level, and the PTX text inside a ``gpu.binary``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlir import ir
from mlir.dialects.gpu import ObjectAttr  # pyright: ignore[reportAttributeAccessIssue]

from mlirstitch.errors import PassError
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import symbol_name

NVVM_TO_PTX = ("gpu-module-to-binary{format=isa}", "drop-timing-properties")
"""Passes of the stage: LLVM's NVPTX back end in process, libdevice linked, no CUDA toolkit needed."""


@register_pass
@dataclass(frozen=True)
class DropTimingProperties(Pass):
    """Remove the compile time that MLIR stores in every ``gpu.binary``, so that equal input gives equal text."""

    NAME: ClassVar[str] = "drop-timing-properties"

    def run(self, op: ir.Operation) -> None:
        """Rewrite the ``gpu.binary`` ops of the module ``op``."""
        for binary in _binaries(op):
            kept = [
                ObjectAttr.get(entry.target, entry.format, entry.object, None, entry.kernels)
                for entry in _objects(binary)
            ]
            binary.attributes["objects"] = ir.ArrayAttr.get(kept)


def extract_ptx(module: ir.Operation) -> dict[str, str]:
    """PTX text of each ``gpu.binary`` of a ptx-level module, by name.

    Raises :class:`PassError` if a binary holds something else than one PTX text.
    """
    found: dict[str, str] = {}
    for binary in _binaries(module):
        name = symbol_name(binary)
        objects = _objects(binary)
        if len(objects) != 1:
            raise PassError(f"gpu.binary @{name} holds {len(objects)} objects", hint="compile for one target")
        text = bytes(objects[0].object).rstrip(b"\0")
        if b".version" not in text or b".target" not in text:
            raise PassError(f"gpu.binary @{name} does not hold PTX", hint="use gpu-module-to-binary{format=isa}")
        found[name] = text.decode("ascii")
    return found


def _binaries(module: ir.Operation) -> list[ir.Operation]:
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    return [op for op in operations if op.name == "gpu.binary"]


def _objects(binary: ir.Operation) -> list[ObjectAttr]:
    return [ObjectAttr(entry) for entry in ir.ArrayAttr(binary.attributes["objects"])]
