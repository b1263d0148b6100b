"""PTX of a ``gpu.module`` by its text at the nvvm level: kernels that did not change are not assembled again.

The text counts with its locations, of which PTX carries the lines. They refer to the canonical text of the clusters, so
that a kernel is found again after the model's file was edited.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mlirstitch.dialects.bindings import print_op
from mlirstitch.driver.cache.keys import digest, target_text

if TYPE_CHECKING:
    from mlir import ir

    from mlirstitch.driver.cache.store import Store
    from mlirstitch.target import Target

KIND = "device-code"


def device_code_keys(module: ir.Operation, target: Target) -> list[str]:
    """One key for every ``gpu.module`` of an nvvm-level module, in order."""
    texts = (print_op(op, locations=True) for op in _top_level(module, "gpu.module"))
    return [digest(KIND, {"text": text, "target": target_text(target)}) for text in texts]


def restore_device_code(module: ir.Operation, keys: list[str], store: Store) -> bool:
    """Replace every ``gpu.module`` by the ``gpu.binary`` that was kept; False, and nothing done, if one is missing."""
    from mlir import ir

    containers = _top_level(module, "gpu.module")
    kept = [store.get(KIND, key) for key in keys]
    with module.context:
        parsed = [_parsed(entry) for entry in kept if entry is not None]
        if len(parsed) < len(containers):
            return False
        for container, attributes in zip(containers, parsed, strict=True):
            with ir.InsertionPoint(container):
                ir.Operation.create("gpu.binary", attributes=attributes, loc=container.location)
            container.erase()
    return True


def keep_device_code(module: ir.Operation, keys: list[str], store: Store) -> None:
    """Keep every ``gpu.binary`` of a ptx-level module under the keys that its ``gpu.module`` had."""
    for key, binary in zip(keys, _top_level(module, "gpu.binary"), strict=True):
        texts = {named: str(binary.attributes[named]) for named in binary.attributes}
        store.put(KIND, key, json.dumps(texts, sort_keys=True).encode())


def _parsed(entry: bytes) -> dict[str, ir.Attribute]:
    from mlir import ir

    return {name: ir.Attribute.parse(text) for name, text in json.loads(entry).items()}


def _top_level(module: ir.Operation, name: str) -> list[ir.Operation]:
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    return [op for op in operations if op.name == name]
