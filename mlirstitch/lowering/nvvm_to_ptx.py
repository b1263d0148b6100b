"""nvvm level to ptx level, and the PTX text inside a ``gpu.binary``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir
from mlir.dialects.gpu import ObjectAttr  # pyright: ignore[reportAttributeAccessIssue]

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.ptx_target import nvvm_target
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import symbol_name
from mlirstitch.target import Target

NVVM_TO_PTX = ("verify-chip", "gpu-module-to-binary{format=isa}", "drop-timing-properties")
"""Passes of the stage: LLVM's NVPTX back end in process, libdevice linked, no CUDA toolkit needed."""


_CHIP = re.compile(r'chip = "([^"]*)"')


@register_pass
@dataclass(frozen=True)
class VerifyChip(Pass):
    """Refuse a ``gpu.module`` whose target is another chip than the module's ``stitch.target``.

    LLVM compiles for a default chip, or ends the process, where it does not know the name.
    """

    NAME: ClassVar[str] = "verify-chip"

    def run(self, op: ir.Operation) -> None:
        """Check every ``gpu.module`` of the module ``op``; nothing if it does not say what it is compiled for."""
        wanted = stitch.TARGET.get(op)
        if wanted is None:
            return
        chip = _chip(ir.Attribute.parse(nvvm_target(Target.parse(wanted))))
        for container in (child.operation for child in op.regions[0].blocks[0].operations):
            if container.name != "gpu.module" or "targets" not in container.attributes:
                continue
            for target in ir.ArrayAttr(container.attributes["targets"]):
                if _chip(target) != chip:
                    raise refusal(
                        container, f"the kernels are for {target}, the module for {wanted}", "give both the same chip"
                    )


def _chip(target: ir.Attribute) -> str:
    """The chip a ``#nvvm.target`` names; "" for the default, which MLIR does not print."""
    match = _CHIP.search(str(target))
    return match[1] if match else ""


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
