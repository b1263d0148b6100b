"""Integers of a kernel, computed for a few warps: which sectors an access touches, which threads pass a condition.

Blocks of the launch are sampled at even distances, and the last one, which may have less to do; of each, all warps. A
value is an array ``[warps, 32]`` (or one that broadcasts to it); what comes from memory, from other threads or out of a
loop is not known. Counters of loops stand at their first iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mlir import ir

WARP = 32
SECTOR = 32
"""Bytes of a sector."""

LEAST_BLOCKS, MOST_BLOCKS = 4, 64
MOST_WARPS = 128
"""Sampled blocks; more than the least only as long as they have few warps."""

Array = np.ndarray[Any, Any]

_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    **dict.fromkeys(("slt", "ult"), np.less),
    **dict.fromkeys(("sle", "ule"), np.less_equal),
    **dict.fromkeys(("sgt", "ugt"), np.greater),
    **dict.fromkeys(("sge", "uge"), np.greater_equal),
}
_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    **dict.fromkeys(("arith.divui", "arith.divsi", "arith.floordivsi"), lambda a, b: a // np.maximum(b, 1)),
    **dict.fromkeys(("arith.remui", "arith.remsi"), lambda a, b: a % np.maximum(b, 1)),
    **dict.fromkeys(("arith.ceildivui", "arith.ceildivsi"), lambda a, b: -(-a // np.maximum(b, 1))),
    **dict.fromkeys(("arith.maxsi", "arith.maxui"), np.maximum),
    **dict.fromkeys(("arith.minsi", "arith.minui"), np.minimum),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrui": np.right_shift,
}
_SAME = frozenset(f"arith.{name}" for name in ("index_cast", "index_castui", "extui", "extsi", "trunci"))


class WarpSample:
    """Sampled warps of a launch along x and what is known of their values."""

    def __init__(self, blocks: int, threads: int) -> None:
        warps = -(-threads // WARP)
        count = min(blocks, max(LEAST_BLOCKS, min(MOST_BLOCKS, MOST_WARPS // warps)))
        if count < blocks:
            others = count - 1
            chosen = np.append(np.arange(others, dtype=np.int64) * (blocks - 1) // others, blocks - 1)
            weights = np.append(np.full(others, (blocks - 1) / others), 1.0)
        else:
            chosen, weights = np.arange(blocks, dtype=np.int64), np.ones(blocks)
        thread = np.arange(warps * WARP, dtype=np.int64).reshape(1, warps, WARP)
        self.warps = count * warps
        self.weights: Array = np.repeat(weights, warps)
        """Warps of the launch that each sampled one stands for."""
        self._block = np.broadcast_to(chosen[:, None, None], (count, warps, WARP)).reshape(-1, WARP)
        self._thread = np.broadcast_to(thread, (count, warps, WARP)).reshape(-1, WARP)
        self.launched: Array = self._thread < threads
        self._values: dict[ir.Value, Array] = {}

    def get(self, value: ir.Value) -> Array | None:
        """What is known of a value."""
        return self._values.get(value)

    def set(self, value: ir.Value, known: Array | None) -> None:
        """Remember a value."""
        if known is not None:
            self._values[value] = known

    def evaluate(self, op: ir.Operation) -> None:
        """Compute the result of an op on integers, if it is one and its operands are known."""
        name = op.name
        if name == "arith.constant":
            attribute = op.attributes["value"]
            if isinstance(attribute, ir.IntegerAttr | ir.BoolAttr):
                self._values[op.results[0]] = np.full((1, 1), int(attribute.value), np.int64)
        elif name == "gpu.thread_id":
            self._values[op.results[0]] = self._thread
        elif name == "gpu.block_id":
            self._values[op.results[0]] = self._block
        elif name in _BINARY or name in _SAME or name in ("arith.cmpi", "arith.select"):
            known = [self._values.get(operand) for operand in op.operands]
            operands = [array for array in known if array is not None]
            if len(operands) == len(known):
                self._values[op.results[0]] = _compute(op, operands)

    def sectors(self, element: Array | None, size: int, width: int, mask: Array) -> Array:
        """Sectors ``[warps]`` that requests touch: ``width`` bytes from element number ``element``, of ``size`` bytes.

        An element that is not known lies anywhere.
        """
        if element is None:
            return mask.sum(axis=1) * -(-width // SECTOR)
        first = np.broadcast_to(element, mask.shape) * size
        ends = np.concatenate((first, first + width - 1), axis=1) // SECTOR
        active = np.concatenate((mask, mask), axis=1)
        ends = np.sort(np.where(active, ends, np.iinfo(np.int64).max), axis=1)
        fresh = np.concatenate((np.ones((len(ends), 1), np.bool_), ends[:, 1:] != ends[:, :-1]), axis=1)
        return (fresh & (ends != np.iinfo(np.int64).max)).sum(axis=1)


def _compute(op: ir.Operation, operands: list[Array]) -> Array:
    if op.name == "arith.cmpi":
        predicate = _PREDICATES[ir.IntegerAttr(op.attributes["predicate"]).value]
        return _COMPARE[predicate](*operands)
    if op.name == "arith.select":
        return np.where(*operands)
    if op.name in _SAME:
        return operands[0].astype(np.int64)
    return _BINARY[op.name](*operands)
