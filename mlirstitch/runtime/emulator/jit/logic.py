"""Code of bit, shift, selection, move, comparison and conversion instructions."""

from __future__ import annotations

from mlirstitch.runtime.emulator.jit import rounding, values
from mlirstitch.runtime.emulator.jit.arithmetic import FLOATS, float_operands, is_signed, rounding_mode
from mlirstitch.runtime.emulator.jit.builder import BITS, Expression
from mlirstitch.runtime.emulator.jit.emit import INTEGER_TYPE, LLVM_TYPE, Handler, KernelEmitter
from mlirstitch.runtime.emulator.jit.support import LOCAL_WINDOW, SHARED_WINDOW
from mlirstitch.runtime.emulator.jit.values import Value
from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import COMPARISONS
from mlirstitch.runtime.emulator.ptx.syntax import Immediate


def _logic(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    a, b = e.integer(i.inputs[0], kind), e.integer(i.inputs[1], kind)
    known = None
    if i.op == "or" and kind != "pred":
        known = values.combine_disjoint(a, b, a.first.bits)
    elif i.op == "and" and kind != "pred":
        for one, other in ((a, b), (b, a)):
            if known is None and other.constant is not None:
                known = values.mask(one, other.constant, one.first.bits)
    if known is not None:
        return e.define(i.outputs[0], known)
    x, y = e.together([a, b])
    value = {"and": x.__and__, "or": x.__or__, "xor": x.__xor__}[i.op](y)
    e.result(i.outputs[0], value)
    return None


def _not(e: KernelEmitter, i: Instruction) -> None:
    (a,) = e.operands(i.inputs, i.types)
    e.result(i.outputs[0], ~a if i.op == "not" else a.eq(0).resize(a.type))


def _shift(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    a = e.integer(i.inputs[0], kind)
    width = a.first.bits
    signed = is_signed(kind)
    amount = i.inputs[1]
    if isinstance(amount, Immediate) and 0 <= amount.value < width:
        if i.op == "shl":
            known = values.shift_left(a, amount.value, width)
            if known is not None:
                return e.define(i.outputs[0], known)
        elif not signed or (a.bounded and not a.high >> (width - 1)):
            known = values.shift_right(a, amount.value)
            if known is not None:
                return e.define(i.outputs[0], known)
        (x,) = e.together([a])
        return e.result(i.outputs[0], shift(x, x.other(amount.value), i.op == "shl", signed))
    x, count = e.together([a, e.integer(amount, "u32")])
    last = count.umin(width - 1).resize(x.type)
    shifted = shift(x, last, i.op == "shl", signed)
    e.result(i.outputs[0], shifted if signed and i.op == "shr" else count.lt(width).where(shifted, x.other(0)))
    return None


def shift(a: Expression, amount: Expression, left: bool, signed: bool) -> Expression:
    """Shift by an amount below the width."""
    if left:
        return a << amount
    return a.arithmetic_shift(amount) if signed else a >> amount


def _clamped_shift(a: Expression, amount: Expression, left: bool) -> Expression:
    """Shift without sign by any amount (same type), 0 past the width."""
    shifted = shift(a, amount.umin(a.bits - 1), left, False)
    return amount.lt(a.bits).where(shifted, a.other(0))


def _funnel(e: KernelEmitter, i: Instruction) -> None:
    a, b, c = e.operands(i.inputs, ["u32"] * 3)
    joined = (b.resize("i64") << 32) | a.resize("i64")
    count = (c.umin(32) if "clamp" in i.modifiers else c & 31).resize("i64")
    value = (joined << count) >> 32 if "l" in i.modifiers else joined >> count
    e.result(i.outputs[0], value.resize("i32"))


def _ones(count: Expression) -> Expression:
    """A number with that many low bits set."""
    return _clamped_shift(count.other(1), count, True) - 1


def _extract(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    a, start, count = e.operands(i.inputs, [kind, "u32", "u32"])
    start, count = (start & 255).resize(a.type), (count & 255).resize(a.type)
    field = _clamped_shift(a, start, False) & _ones(count)
    if is_signed(kind):
        bits = a.bits
        last = (start + count - 1).smin(bits - 1).smax(0)
        negative = ((a >> last) & 1).ne(0) & count.ne(0)
        available = (a.other(bits) - start).smin(count).smax(0)
        field = negative.where(field | ~_ones(available), field)
    e.result(i.outputs[0], field)


def _insert(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    a, b, start, count = e.operands(i.inputs, [kind, kind, "u32", "u32"])
    start, count = (start & 255).resize(a.type), (count & 255).resize(a.type)
    mask = _clamped_shift(_ones(count), start, True)
    e.result(i.outputs[0], (b & ~mask) | (_clamped_shift(a, start, True) & mask))


_ZEROS = "<{is_zero_poison = false}> "


def _bit_count(e: KernelEmitter, i: Instruction) -> None:
    (a,) = e.operands(i.inputs, i.types)
    if i.op == "brev":
        return e.result(i.outputs[0], a.call("bitreverse"))
    if i.op == "popc":
        return e.result(i.outputs[0], a.call("ctpop").resize("i32"))
    if i.op == "clz":
        return e.result(i.outputs[0], a.call("ctlz", attributes=_ZEROS).resize("i32"))
    positive = a.lt(0, signed=True).where(~a, a) if is_signed(i.types[0]) else a
    zeros = positive.call("ctlz", attributes=_ZEROS).resize("i32")
    found = zeros if "shiftamt" in i.modifiers else zeros.other(a.bits - 1) - zeros
    e.result(i.outputs[0], zeros.eq(a.bits).where(zeros.other(-1), found))
    return None


def _permute(e: KernelEmitter, i: Instruction) -> None:
    mode = i.modifiers[0] if i.modifiers else ""
    a, b, c = e.operands(i.inputs, ["u32"] * 3)
    joined = (b.resize("i64") << 32) | a.resize("i64")
    selector = c.resize("i64")
    result = joined.other(0)
    for place in range(4):
        if mode == "":
            control = (selector >> (4 * place)) & 15
            byte = (joined >> ((control & 7) << 3)) & 255
            byte = (control & 8).ne(0).where((byte >> 7) * 255, byte)
        else:
            byte = (joined >> (_permute_position(mode, place, selector & 3) << 3)) & 255
        result = result | (byte << (8 * place))
    e.result(i.outputs[0], result.resize("i32"))


def _permute_position(mode: str, place: int, control: Expression) -> Expression:
    if mode == "f4e":
        return (control + place) & 7
    if mode == "b4e":
        return (control - place) & 7
    if mode == "rc8":
        return control
    if mode == "ecl":
        return control.umax(place)
    if mode == "ecr":
        return control.umin(place)
    return ((control & 1) << 1) + (place & 1)


def _logic3(e: KernelEmitter, i: Instruction) -> None:
    table = i.inputs[3]
    if not isinstance(table, Immediate):
        raise e.unsupported("a truth table that is no constant is left to the reference engine")
    a, b, c = e.operands(i.inputs[:3], ["u32"] * 3)
    result = a.other(0)
    for index in range(8):
        if table.value >> index & 1:
            term = (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
            result = result | term
    e.result(i.outputs[0], result)


def _selp(e: KernelEmitter, i: Instruction) -> None:
    bits = f"b{BITS[LLVM_TYPE[i.types[0]]]}"
    a, b, c = (e.integer(operand, kind) for operand, kind in zip(i.inputs, (bits, bits, "pred"), strict=True))
    x, y, condition = e.together([a, b, c])
    e.result(i.outputs[0], condition.where(x, y))


def _slct(e: KernelEmitter, i: Instruction) -> None:
    bits = f"b{BITS[LLVM_TYPE[i.types[0]]]}"
    a, b, c = e.operands(i.inputs, [bits, bits, i.types[1]])
    e.result(i.outputs[0], c.ge(0.0 if c.is_float else 0, signed=True).where(a, b))


def _mov(e: KernelEmitter, i: Instruction) -> None:
    e.define(i.outputs[0], e.integer(i.inputs[0], i.types[0]))


def _pack(e: KernelEmitter, i: Instruction) -> None:
    width = BITS[LLVM_TYPE[i.types[0]]]
    part = width // len(i.inputs)
    if part < 8:
        raise e.unsupported(f"packs {len(i.inputs)} elements")
    parts = e.operands(i.inputs, [f"b{part}"] * len(i.inputs))
    kind = INTEGER_TYPE[width]
    result = parts[0].resize(kind)
    for position, value in enumerate(parts[1:], 1):
        result = result | (value.resize(kind) << (position * part))
    e.result(i.outputs[0], result)


def _unpack(e: KernelEmitter, i: Instruction) -> None:
    (source,) = e.operands(i.inputs, i.types)
    part = source.bits // len(i.outputs)
    if part < 8:
        raise e.unsupported(f"unpacks {len(i.outputs)} elements")
    for position, register in enumerate(i.outputs):
        if register is not None:
            shifted = source >> (position * part) if position else source
            e.result(register, shifted.resize(INTEGER_TYPE[part]))


def _cvta(e: KernelEmitter, i: Instruction) -> None:
    space = next((m for m in i.modifiers if m != "to"), "global")
    value = e.integer(i.inputs[0], "u64")
    if space in ("shared", "local"):
        window = e.number(SHARED_WINDOW if space == "shared" else LOCAL_WINDOW, "i64")
        moved = (values.subtract if "to" in i.modifiers else values.add)(value, window, 64)
        if moved is None:
            x, y = e.together([value, window])
            return e.result(i.outputs[0], x - y if "to" in i.modifiers else x + y)
        value = moved
    if value.first.type != LLVM_TYPE[i.types[0]]:
        raise e.unsupported("32-bit addresses are left to the reference engine")
    e.define(i.outputs[0], value)
    return None


def _implicit(e: KernelEmitter, i: Instruction) -> None:
    register = i.outputs[0]
    if register is not None:
        e.define(register, e.number(0, LLVM_TYPE[register.type]))


# ---- comparisons
_ORDERED = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "equ": "ueq", "neu": "une",
            "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "num": "ord", "nan": "uno"}  # fmt: skip
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _comparison(e: KernelEmitter, i: Instruction, a: Expression, b: Expression, kind: str) -> Expression:
    name = next(m for m in i.modifiers if m in COMPARISONS)
    if a.is_float:
        name = _UNSIGNED.get(name, name)
        return a.compare(_ORDERED[name], b)
    if name in ("eq", "ne"):
        return a.compare(name, b)
    if name not in _UNSIGNED and name not in ("lt", "le", "gt", "ge"):
        raise e.unsupported("compares integers as floating-point numbers")
    return a.compare(("s" if is_signed(kind) else "u") + _UNSIGNED.get(name, name), b)


def _compare(e: KernelEmitter, i: Instruction) -> tuple[Expression, Expression]:
    """Result of the comparison of ``setp`` and ``set``, and its negation, combined with the third operand."""
    kind = i.types[-1]
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
    else:
        a, b = e.operands(i.inputs[:2], [kind, kind])
    value = _comparison(e, i, a, b, kind)
    other = ~value
    if len(i.inputs) == 3:
        pure = e.pure
        value, other, c = e.together([Value(value), Value(other), e.integer(i.inputs[2], "pred")])
        e.pure = e.pure and pure
        name = next((m for m in i.modifiers if m in ("and", "or", "xor")), "and")
        value, other = ({"and": v.__and__, "or": v.__or__, "xor": v.__xor__}[name](c) for v in (value, other))
    return value, other


def _setp(e: KernelEmitter, i: Instruction) -> None:
    second = next(iter(i.outputs[1:]), None)
    kind = i.types[0]
    if kind in ("f16x2", "bf16x2"):
        decode = rounding.decode_bf16 if kind == "bf16x2" else rounding.decode_half
        words = e.operands(i.inputs[:2], ["b32", "b32"])
        for register, amount in ((i.outputs[0], 0), (second, 16)):
            a, b = (decode((w >> amount).resize("i16")) for w in words)
            e.result(register, _comparison(e, i, a, b, kind))
        return
    value, other = _compare(e, i)
    e.result(i.outputs[0], value)
    e.result(second, other)


def _set(e: KernelEmitter, i: Instruction) -> None:
    value, _ = _compare(e, i)
    if i.types[0] == "f32":
        return e.result(i.outputs[0], value.resize("i32") * 0x3F800000)
    return e.result(i.outputs[0], value.resize("i32", signed=True))


def _testp(e: KernelEmitter, i: Instruction) -> None:
    (a,) = e.operands(i.inputs, i.types)
    tiny = 2.0**-126 if a.type == "f32" else 2.0**-1022
    test = i.modifiers[0]
    if test == "number":
        value = a.compare("ord", a)
    elif test == "notanumber":
        value = a.is_nan()
    elif test == "finite":
        value = rounding.is_finite(a)
    elif test == "infinite":
        value = a.fabs().eq(float("inf"))
    elif test == "normal":
        value = rounding.is_finite(a) & a.fabs().ge(tiny)
    else:
        value = a.ne(0.0) & a.fabs().lt(tiny)
    e.result(i.outputs[0], value)


# ---- conversions
def _cvt(e: KernelEmitter, i: Instruction) -> None:
    target, source = i.types
    if target in ("f16x2", "bf16x2"):
        return _pair(e, i, target[:-2])
    if target == "tf32":
        (a,) = e.operands(i.inputs, ["b32"])
        return e.result(i.outputs[0], _tf32(a, "rna" in i.modifiers))
    if source in FLOATS:
        (value,) = float_operands(e, i, source, 1)
        if target in FLOATS:
            return _float_to_float(e, i, value)
        mode = next((m for m in i.modifiers if m in (*rounding.INTEGRAL, "rn", "rz", "rm", "rp")), "rzi")
        signed = is_signed(target)
        return e.result(i.outputs[0], rounding.to_integer(value, mode, LLVM_TYPE[target], signed), signed)
    if target in FLOATS:
        (value,) = e.operands(i.inputs, [source])
        result = rounding.from_integer(value, target, rounding_mode(i), is_signed(source))
        if "sat" in i.modifiers and target == "f16":
            result = rounding.encode_half(rounding.saturate(rounding.decode_half(result)))
        elif "sat" in i.modifiers and target != "bf16":
            result = rounding.saturate(result)
        return e.result(i.outputs[0], result)
    return _integer_to_integer(e, i)


def _integer_to_integer(e: KernelEmitter, i: Instruction) -> None:
    target, source = i.types
    value = e.integer(i.inputs[0], source)
    kind = LLVM_TYPE[target]
    if "sat" in i.modifiers:
        (x,) = e.together([value])
        return e.result(i.outputs[0], _clamp(x, source, target), is_signed(target))
    if BITS[kind] > value.first.bits:
        known = values.widen(value, kind, is_signed(source))
    else:
        known = values.truncate(value, kind)
    register = i.outputs[0]
    if known is not None and register is not None and LLVM_TYPE[register.type] == kind:
        return e.define(register, known)
    (x,) = e.together([value])
    e.result(register, x.resize(kind, is_signed(source)), is_signed(target))
    return None


def _clamp(a: Expression, source: str, target: str) -> Expression:
    wide = BITS[LLVM_TYPE[target]]
    low_to = -(1 << (wide - 1)) if is_signed(target) else 0
    high_to = (1 << (wide - is_signed(target))) - 1
    low_from = -(1 << (a.bits - 1)) if is_signed(source) else 0
    high_from = (1 << (a.bits - is_signed(source))) - 1
    low, high = max(low_to, low_from), min(high_to, high_from)
    a = a.smax(low).smin(high) if is_signed(source) else a.umax(low).umin(high)
    return a.resize(LLVM_TYPE[target], is_signed(source))


def _tf32(bits: Expression, away: bool) -> Expression:
    """Single precision rounded to 10 explicit mantissa bits."""
    tie = bits.other(0x1000) if away else ((bits >> 13) & 1) + 0xFFF
    finite = (bits & 0x7F800000).ne(0x7F800000)
    return finite.where((bits + tie) & 0xFFFFE000, bits)


def _float_to_float(e: KernelEmitter, i: Instruction, value: Expression) -> None:
    target, source = i.types
    mode = next((m for m in i.modifiers if m in (*rounding.INTEGRAL, "rn", "rz", "rm", "rp")), "rn")
    if mode in rounding.INTEGRAL:
        value = value.call(rounding.INTEGRAL[mode])
        mode = "rn"
    if "sat" in i.modifiers:
        value = rounding.saturate(value)
    if "relu" in i.modifiers:
        value = rounding.maximum(value, value.other(0.0))
    order = {"f16": 0, "bf16": 0, "f32": 1, "f64": 2}
    if target == source:
        if target in ("f16", "bf16"):
            value = rounding.encode_half(value) if target == "f16" else rounding.encode_bf16(value)
    elif order[target] > order[source]:
        value = value.cast("fpext", target)
    elif mode == "rn" and source == "f32":
        value = rounding.encode_half(value) if target == "f16" else rounding.encode_bf16(value)
    else:
        value = rounding.narrow(value.cast("fpext", "f64"), target, mode)
    if "ftz" in i.modifiers and target == "f32":
        value = rounding.flush(value)
    e.result(i.outputs[0], value)


def _pair(e: KernelEmitter, i: Instruction, scalar: str) -> None:
    """Two f32 values to one packed word, the first operand in the upper half."""
    high, low = e.operands(i.inputs, ["f32", "f32"])
    parts: list[Expression] = []
    mode = rounding_mode(i)
    for value in (low, high):
        if "relu" in i.modifiers:
            value = rounding.maximum(value, value.other(0.0))
        if mode == "rn":
            part = rounding.encode_half(value) if scalar == "f16" else rounding.encode_bf16(value)
        else:
            part = rounding.narrow(value.cast("fpext", "f64"), scalar, mode)
        parts.append(part.resize("i32"))
    e.result(i.outputs[0], parts[0] | (parts[1] << 16))


HANDLERS: dict[str, Handler] = {
    "and": _logic, "or": _logic, "xor": _logic, "not": _not, "cnot": _not, "lop3": _logic3, "shl": _shift,
    "shr": _shift, "shf": _funnel, "bfe": _extract, "bfi": _insert, "bfind": _bit_count, "brev": _bit_count,
    "popc": _bit_count, "clz": _bit_count, "prmt": _permute, "selp": _selp, "slct": _slct, "mov": _mov, "pack": _pack,
    "unpack": _unpack, "cvta": _cvta, "implicit": _implicit, "set": _set, "setp": _setp, "testp": _testp, "cvt": _cvt,
}  # fmt: skip
"""Code of every opcode of this file."""
