"""Which operands an instruction may have: addresses, predicates and register widths where they belong."""

from __future__ import annotations

from mlirstitch.runtime.emulator.ptx.syntax import TYPE_BYTES, Address, Arguments, Operand, Register, Sink, Vector

_ADDRESSED = {
    "ld": (0,), "st": (0,), "atom": (0,), "red": (0,), "prefetch": (0,), "ldmatrix": (0,), "stmatrix": (0,),
    "ldu": (0,), "prefetchu": (0,), "applypriority": (0,), "mbarrier": (0,), "cp_mbarrier": (0,),
}  # fmt: skip
_PREDICATE_INPUT = {"setp": 2, "set": 2, "selp": 2, "vote": 0}
_PREDICATE_RESULT = frozenset({"bar", "barrier", "vote"})
"""Opcodes whose type is that of the result alone."""
_ONE_WIDTH = frozenset({
    "add", "sub", "mul", "mad", "madc", "fma", "addc", "subc", "div", "rem", "sad", "abs", "neg", "min", "max", "and",
    "or", "xor", "not", "cnot", "lop3", "brev", "prmt", "copysign", "ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt",
    "rsqrt",
})  # fmt: skip
"""Opcodes whose operands all have the width of the type (the results of ``.wide`` have twice that)."""


def operand_mistake(
    op: str,
    modifiers: tuple[str, ...],
    types: tuple[str, ...],
    outputs: tuple[Register | None, ...],
    inputs: tuple[Operand, ...],
) -> str:
    """What is wrong with the operands, or ""."""
    addressed = _ADDRESSED.get(op, ())
    if op == "cp" and "shared" in modifiers:
        addressed = (0, 1)
    if op == "mbarrier" and "pending_count" in modifiers:
        addressed = ()
    for position, operand in enumerate(inputs):
        if isinstance(operand, Sink | Vector | Arguments):
            return f"source operand {position + 1} has no value"
        if isinstance(operand, Address) != (position in addressed):
            wanted = "a value" if isinstance(operand, Address) else "an address"
            return f"source operand {position + 1} must be {wanted}"
        if isinstance(operand, Register):
            wants = _PREDICATE_INPUT.get(op) == position or (
                types == ("pred",) and op not in ("bar", "barrier", "vote")
            )
            if op in ("bar", "barrier") and "red" in modifiers:
                wants = position == len(inputs) - 1
            if op == "cp" and position == 3:
                continue  # Bytes to copy, or a predicate that leaves the copy out.
            if wants != (operand.type == "pred"):
                return f"register {operand.name} is {'no' if wants else 'a'} predicate"
    for position, register in enumerate(outputs):
        if register is None:
            continue
        wants = op in ("setp", "testp", "isspacep") or types == ("pred",)
        wants |= op in ("shfl", "elect", "match") and position == 1
        wants |= op == "mbarrier" and not {"test_wait", "try_wait"}.isdisjoint(modifiers)
        if wants != (register.type == "pred"):
            return f"register {register.name} is {'no' if wants else 'a'} predicate"
    return _width_mistake(op, modifiers, types, outputs, inputs)


def _width_mistake(
    op: str,
    modifiers: tuple[str, ...],
    types: tuple[str, ...],
    outputs: tuple[Register | None, ...],
    inputs: tuple[Operand, ...],
) -> str:
    if op not in _ONE_WIDTH:
        return ""
    narrow = TYPE_BYTES[types[0]]
    wide = 2 * narrow if "wide" in modifiers else narrow
    widths = [(register, wide) for register in outputs]
    widths += [(operand, wide if position == 2 else narrow) for position, operand in enumerate(inputs)]
    for operand, width in widths:
        if isinstance(operand, Register) and operand.bytes != width:
            return f"register {operand.name} has {8 * operand.bytes} bits, not {8 * width}"
    return ""
