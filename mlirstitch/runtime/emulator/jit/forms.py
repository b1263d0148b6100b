"""Which forms of the instructions the JIT engine has code for; the reference engine runs kernels with others."""

from __future__ import annotations

from mlirstitch.runtime.emulator.jit.emit import LLVM_TYPE
from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import COMPARISONS

_ROUND = "rn rz rm rp "
_INTEGRAL = "rni rzi rmi rpi "
_ORDER = "relaxed acquire release acq_rel sc cta cluster gpu sys volatile weak "
_MEMORY = _ORDER + "ca cg cs lu cv wb wt nc global shared local const "
_COMPARE = " ".join(sorted(COMPARISONS)) + " and or xor ftz"
_APPROXIMATE = "approx ftz"

_MODIFIERS: dict[str, str] = {
    "add": _ROUND + "ftz sat cc", "sub": _ROUND + "ftz sat cc", "mul": _ROUND + "ftz sat lo hi wide",
    "mad": _ROUND + "ftz sat lo hi wide cc", "fma": _ROUND + "ftz sat relu", "addc": "cc", "subc": "cc",
    "madc": "cc lo hi", "div": _ROUND + "ftz approx full", "rem": "", "sad": "", "abs": "ftz", "neg": "ftz",
    "min": "ftz NaN relu", "max": "ftz NaN relu", "and": "", "or": "", "xor": "", "not": "", "cnot": "", "lop3": "",
    "shl": "", "shr": "", "shf": "l r wrap clamp", "bfe": "", "bfi": "", "bfind": "shiftamt", "brev": "", "popc": "",
    "clz": "", "prmt": "f4e b4e rc8 ecl ecr rc16", "set": _COMPARE, "setp": _COMPARE, "selp": "", "slct": "ftz",
    "mov": "", "pack": "", "unpack": "", "cvta": "to global shared local const",
    "cvt": _ROUND + _INTEGRAL + "rna ftz sat relu", "ld": _MEMORY, "st": _MEMORY, "ld_param": _MEMORY,
    "atom": _MEMORY + "add min max and or xor exch cas inc dec noftz",
    "red": _MEMORY + "add min max and or xor inc dec noftz",
    "cp": "async ca cg shared global commit_group wait_group wait_all",
    "prefetch": "global local L1 L2", "shfl": "sync up down bfly idx", "vote": "sync all any uni ballot",
    "redux": "sync add min max and or xor", "activemask": "", "ex2": _APPROXIMATE, "lg2": _APPROXIMATE,
    "rsqrt": _APPROXIMATE, "rcp": _ROUND + _APPROXIMATE, "sqrt": _ROUND + _APPROXIMATE, "copysign": "",
    "testp": "finite infinite number notanumber normal subnormal", "bar": "warp sync", "membar": _ORDER + "gl",
    "fence": _ORDER, "nanosleep": "", "implicit": "",
}  # fmt: skip
_KNOWN = {op: frozenset(words.split()) for op, words in _MODIFIERS.items()}
_INPUTS = {
    "add": 2, "sub": 2, "mul": 2, "mad": 3, "madc": 3, "fma": 3, "div": 2, "rem": 2, "sad": 3, "min": 2, "max": 2,
    "and": 2, "or": 2, "xor": 2, "lop3": 4, "shfl": 4, "vote": 2, "redux": 2, "selp": 3, "slct": 3,
}  # fmt: skip
"""Source operands of the opcodes that might one day take another number of them."""


def unknown_form(i: Instruction) -> str:
    """Why there is no code for this form of an instruction, or ""."""
    known = _KNOWN.get(i.op)
    if known is None:
        return "is left to the reference engine"
    for modifier in i.modifiers:
        if modifier not in known:
            return f"modifier {'.' + modifier!r} is left to the reference engine"
    for name in i.types:
        if name not in LLVM_TYPE:
            return f"type {name!r} is left to the reference engine"
    if i.op in _INPUTS and len(i.inputs) != _INPUTS[i.op]:
        return f"{len(i.inputs)} source operands are left to the reference engine"
    return ""
