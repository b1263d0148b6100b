"""How many PTX instructions, by class, an op of a ``gpu.func`` becomes: a model, fitted once to what LLVM 22 prints.

Functions of libdevice are counted as they are inlined, one element at a time (the likely side of their branches). Where
PTX has one instruction for several elements, those of a vector share it: two halves in arithmetic, a vector of up to 16
bytes in an access. Arithmetic on indices is what LLVM leaves of it: products and sums merge into multiply-adds and into
the offsets of accesses, so that each op counts for less than one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mlir import ir

from mlirstitch.lowering.kernel.redundancy import constant_of, is_constant

Counts = Mapping[str, float]

_FLOAT: Counts = {"float": 1}
_INTEGER: Counts = {"integer": 1}
_NOTHING: Counts = {}

_MATH_32: dict[str, Counts] = {
    "exp": {"float": 7, "integer": 1, "convert": 1, "special": 1},
    "exp2": {"special": 1},
    "expm1": {"float": 18, "move": 6, "convert": 1, "special": 1},
    "tanh": {"float": 11, "integer": 2, "move": 2, "special": 2},
    "erf": {"float": 12, "integer": 2, "move": 10, "control": 1, "special": 1},
    "log": {"float": 16, "integer": 4, "move": 4, "convert": 1},
    "log1p": {"float": 16, "integer": 6, "move": 3, "convert": 1},
    "sin": {"float": 12, "integer": 5, "move": 5.5, "control": 1, "convert": 2},
    "cos": {"float": 12, "integer": 5, "move": 5.5, "control": 1, "convert": 2},
    "powf": {"float": 60, "integer": 9, "move": 7, "control": 6, "convert": 4, "special": 1},
    "sqrt": {"special": 1},
    "rsqrt": {"special": 1},
    "floor": {"convert": 1},
    "ceil": {"convert": 1},
    "trunc": {"convert": 1},
    "round": {"convert": 1, "float": 4, "move": 1},
    "roundeven": {"convert": 1},
    "absf": _FLOAT,
    "copysign": {"integer": 1},
    "fma": _FLOAT,
}
"""Functions of 32-bit floats; halves are computed so."""

_MATH_64: dict[str, Counts] = {
    "exp": {"double": 16, "integer": 2.5, "move": 5.5, "control": 1, "convert": 0.5},
    "exp2": {"double": 17, "integer": 2.5, "move": 6, "control": 1, "convert": 0.5},
    "expm1": {"double": 20, "integer": 7.5, "move": 12, "control": 2, "convert": 0.5},
    "tanh": {"double": 36, "integer": 4.5, "move": 9, "control": 3, "convert": 4.5, "special": 2},
    "erf": {"double": 46, "integer": 2, "move": 5.5, "convert": 4, "special": 1},
    "log": {"double": 29, "integer": 11.5, "move": 13, "control": 3, "convert": 0.5, "special": 1},
    "log1p": {"double": 48, "integer": 12.5, "move": 14, "control": 5, "convert": 0.5, "special": 1},
    "sin": {"double": 15, "integer": 11.5, "move": 6, "control": 2, "convert": 2.5, "load_global": 3},
    "cos": {"double": 15, "integer": 11.5, "move": 6, "control": 2, "convert": 2.5, "load_global": 3},
    "powf": {"double": 94, "integer": 29, "move": 54, "control": 4, "convert": 1.5, "special": 1},
    "absf": {"double": 1},
    "fma": {"double": 1},
}

_CONSTANT_POWER_32: Counts = {"float": 42, "integer": 4, "move": 11, "control": 0.5, "convert": 1.5, "special": 1}
"""A power of a constant: its logarithm is one."""

_OTHER_MATH: Counts = {"float": 20, "integer": 5, "move": 5, "special": 1}
"""A function that stands in no table."""

_APPROXIMATE: dict[str, Counts] = {
    "math.exp": {"float": 1, "special": 1},
    "arith.divf": {"special": 1},
    "llvm.intr.tanh": {"special": 1},
    "llvm.call_intrinsic": {"special": 1},
}
"""What fast-math flags make of an op (numerics contract: only ops that are marked)."""

_REMAINDER: Counts = {"float": 10, "integer": 3.5, "move": 1.5, "control": 4, "convert": 1}

_FLOAT_OPS = frozenset(
    f"arith.{name}" for name in ("addf", "subf", "mulf", "divf", "negf", "maximumf", "minimumf", "maxnumf", "minnumf")
)
_EXTREMA = frozenset(("arith.maximumf", "arith.minimumf"))
_OLD_EXTREMUM: Counts = {"float": 1.7, "integer": 1, "move": 2}

_HALVES_ALONE = frozenset(("arith.divf",))
"""Halves that are widened and rounded one by one."""

_CONVERSIONS = frozenset(
    f"arith.{name}"
    for name in ("extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui", "extsi", "extui", "trunci", "index_cast")
)
_IDS: dict[str, Counts] = {"gpu.thread_id": {"move": 1, "convert": 1}, "gpu.block_id": {"move": 1, "convert": 0.5}}
"""Numbers of thread and block are 32 bits wide and widened to indices."""

_SHUFFLES = frozenset(("gpu.shuffle", "nvvm.vote.sync"))

INDEX_ARITHMETIC = 0.5
"""Of an addition or multiplication of indices."""

INDEX_BITS: Counts = {"integer": 1}
INDEX_DIVISION: Counts = {"integer": 4, "convert": 0.75}
"""Of a division or remainder by a power of two, and by another constant."""

PACKED_LANES = 8
"""Halves of which an access moves two in a word, which they are taken out of."""

WIDE_INTEGER = 1.3
"""Of an operation on integers of a tensor, moves to and from the width it is computed in included."""


@dataclass(frozen=True)
class ValueKind:
    """Element width in bits, whether it is a float, lanes (1 for a scalar), whether it is an index."""

    width: int
    is_float: bool
    lanes: int
    is_index: bool

    @staticmethod
    def of(kind: ir.Type) -> ValueKind:
        """The kind of a type; pointers and memrefs are integers."""
        lanes = 1
        if isinstance(kind, ir.VectorType):
            for extent in kind.shape:
                lanes *= extent
            kind = kind.element_type
        if isinstance(kind, ir.FloatType):
            return ValueKind(kind.width, True, lanes, False)
        if isinstance(kind, ir.IntegerType):
            return ValueKind(kind.width, False, lanes, False)
        return ValueKind(64, False, lanes, True)

    @property
    def bytes(self) -> int:
        """Size of a value."""
        return self.lanes * -(-self.width // 8)


def instructions_of(op: ir.Operation, uniform: bool = False, old: bool = False) -> Counts:
    """PTX instructions that one execution of ``op`` takes, by class; accesses to memory are not counted here.

    ``uniform``: the lanes of its result are all the same, and computed as one; ``old``: for a chip before sm_80, which
    has no minimum and maximum that keep NaN.
    """
    name = op.name
    if name in ("arith.constant", "scf.yield") or not len(op.results):
        return _NOTHING
    if name in _IDS:
        return _IDS[name]
    kind = ValueKind.of(op.results[0].type)
    if uniform:
        kind = replace(kind, lanes=1)
    if name in _SHUFFLES:
        return {"shuffle": max(1, kind.width // 32)}
    if name.startswith("math.") or (name in _APPROXIMATE and (name.startswith("llvm.") or "afn" in _flags(op))):
        return _times(_function(op, kind), kind.lanes)
    if name == "arith.remf":
        return _times(_REMAINDER, kind.lanes)
    if old and name in _EXTREMA and kind.width < 64:
        return _times(_OLD_EXTREMUM, kind.lanes)
    if name in _FLOAT_OPS:
        return _float_arithmetic(name, kind)
    if name == "arith.cmpf":
        operand = ValueKind.of(op.operands[0].type)
        return {"double" if operand.width == 64 else "float": kind.lanes}
    if name in _CONVERSIONS:
        return _conversion(name, ValueKind.of(op.operands[0].type), kind)
    if name == "arith.select":
        return {"move": kind.lanes}
    if name.startswith("arith."):
        return _integer_arithmetic(op, name, kind)
    if name == "vector.from_elements" and kind.width < 32:
        return {"move": kind.lanes / 2}
    return _NOTHING


def _function(op: ir.Operation, kind: ValueKind) -> Counts:
    if op.name in _APPROXIMATE and (op.name.startswith("llvm.") or "afn" in _flags(op)):
        return _APPROXIMATE[op.name]
    name = op.name.removeprefix("math.")
    if not kind.is_float:
        return {"integer": 2}
    if name == "powf" and kind.width <= 32 and is_constant(op.operands[0]):
        return _CONSTANT_POWER_32
    if kind.width == 64 and name in _MATH_64:
        return _MATH_64[name]
    return _MATH_32.get(name, _OTHER_MATH)


def _flags(op: ir.Operation) -> str:
    return str(op.attributes["fastmath"]) if "fastmath" in op.attributes else ""


def _float_arithmetic(name: str, kind: ValueKind) -> Counts:
    if kind.width == 64:
        return {"double": kind.lanes * (3 if name.startswith("arith.m") and name.endswith("mumf") else 1)}
    if kind.width == 16 and name in _HALVES_ALONE:
        return {"float": kind.lanes, "convert": 2 * kind.lanes, "move": kind.lanes}
    return {"float": -(-kind.lanes // 2) if kind.width == 16 else kind.lanes}


def _conversion(name: str, source: ValueKind, kind: ValueKind) -> Counts:
    if source.is_index or kind.is_index or name == "arith.index_cast":
        return {"convert": 0.3 * kind.lanes}
    if not source.is_float and not kind.is_float and min(source.width, kind.width) >= 16:
        return {"convert": 0.5 * kind.lanes}
    if name == "arith.truncf" and kind.width == 16:
        return {"convert": kind.lanes / 2 if kind.lanes > 1 else 1}
    unpacked = source.width == 16 and kind.lanes >= PACKED_LANES
    return {"convert": kind.lanes, "move": 0.5 * kind.lanes if unpacked else 0}


def _integer_arithmetic(op: ir.Operation, name: str, kind: ValueKind) -> Counts:
    divides = any(part in name for part in ("div", "rem"))
    if kind.is_index and divides:
        divisor = constant_of(op.operands[1])
        return INDEX_BITS if divisor is not None and not divisor & (divisor - 1) else INDEX_DIVISION
    if kind.is_index:
        return {"integer": INDEX_ARITHMETIC}
    if kind.width == 1:
        return {"integer": kind.lanes}
    return {"integer": kind.lanes * (1 if not divides else WIDE_INTEGER)}


def access_instructions(kind: ValueKind, space: str, stores: bool, merged: int = 1) -> Counts:
    """Instructions of one access to ``global`` or ``shared`` memory, its address left out.

    ``merged``: neighbouring accesses of later iterations that one instruction does.
    """
    requests = max(1, -(-kind.bytes // 16)) / merged
    return {("store_" if stores else "load_") + space: requests}


def registers_of(kind: ir.Type) -> float:
    """Moves that it takes to set a value."""
    value = ValueKind.of(kind)
    return value.lanes * (0.5 if value.width == 16 and value.lanes > 1 else 1)


def _times(counts: Counts, factor: float) -> Counts:
    return counts if factor == 1 else {name: count * factor for name, count in counts.items()}
