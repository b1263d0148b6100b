"""Code of atomic updates: threads one after the other, in order; blocks of such kernels run in order as well."""

from __future__ import annotations

from collections.abc import Sequence

from mlirstitch.runtime.emulator.jit import rounding
from mlirstitch.runtime.emulator.jit.builder import WARP, Expression
from mlirstitch.runtime.emulator.jit.emit import INTEGER_TYPE, Handler, KernelEmitter, MemorySite
from mlirstitch.runtime.emulator.jit.layout import SPACES, Warp
from mlirstitch.runtime.emulator.jit.memory import FAULT, space_of
from mlirstitch.runtime.emulator.jit.support import function_offset
from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import ATOMIC_OPERATIONS
from mlirstitch.runtime.emulator.ptx.syntax import TYPE_BYTES


def _atomic(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    operation = next(m for m in i.modifiers if m in ATOMIC_OPERATIONS)
    if kind in ("f16x2", "bf16x2") or i.vector != 1:
        raise e.unsupported("packed atomics are left to the reference engine")
    if kind in ("f16", "bf16", "f32", "f64") and operation not in ("add", "exch", "cas"):
        raise e.unsupported("this atomic operation on floating-point numbers is left to the reference engine")
    if len(i.inputs) != (3 if operation == "cas" else 2):
        raise e.unsupported("has a wrong number of operands")
    space = space_of(e, i, i.inputs[0])
    if space not in ("global", "shared"):
        raise e.unsupported(f"atomics on {space} addresses are left to the reference engine")
    b = e.builder
    width = TYPE_BYTES[kind]
    element = INTEGER_TYPE[8 * width]
    variable, offset = e.address(i.inputs[0])
    addresses = e.vector(variable)
    operands = [e.vector(e.integer(operand, f"b{8 * width}")) for operand in i.inputs[1:]]
    active = e.active
    e.pure = False
    number = len(e.sites)
    e.sites.append(MemorySite(i, space, width, 1, 2))
    b.store(addresses + offset if offset else addresses, b.at(e.warp, Warp.ADDRESSES))
    places = [b.at(e.warp, offset) for offset in (Warp.VALUES, Warp.SECOND)[: len(operands)]]
    for operand, place in zip(operands, places, strict=True):
        b.store(operand, place)
    site, where = b.constant(number, "i64"), b.constant(SPACES[space], "i64")
    resolve = b.field(e.context, function_offset("resolve"), "ptr")
    with b.loop(0, b.constant(WARP, "i64")) as lane, b.when(((active >> lane.resize("i32")) & 1).ne(0)):
        address = b.load(b.at(b.at(e.warp, Warp.ADDRESSES), lane * 8), "i64")
        host = b.call_pointer(resolve, [e.context, e.warp, site, lane, address, where], "ptr")
        onward = b.label("ok")
        b.branch(b.define(f"llvm.ptrtoint {host.name} : !llvm.ptr to i64", "i64").eq(0), FAULT, onward)
        b.start(onward)
        given = [b.load(b.at(place, lane * width), element) for place in places]
        old = b.load(host, element)
        b.store(_combine(operation, kind, old, given), host)
        b.store(old, b.at(places[0], lane * width))
    if e.special.counting:
        count = b.field(e.context, function_offset("count"), "ptr")
        b.line(
            f"llvm.call {count.name}({e.context.name}, {e.warp.name}, {site.name}, {where.name}, {active.name}) "
            ": !llvm.ptr, (!llvm.ptr, !llvm.ptr, i64, i64, i32) -> ()"
        )
    if i.outputs and i.outputs[0] is not None:
        e.result(i.outputs[0], b.load(places[0], element, True))


def _combine(operation: str, kind: str, old: Expression, given: Sequence[Expression]) -> Expression:
    """The new contents, as bits."""
    value = given[0]
    if operation == "exch":
        return value
    if operation == "cas":
        return old.eq(value).where(given[1], old)
    if operation == "inc":
        return old.ge(value).where(old.other(0), old + 1)
    if operation == "dec":
        return (old.eq(0) | old.gt(value)).where(value, old - 1)
    if kind in ("f32", "f64"):
        return (old.as_type(kind) + value.as_type(kind)).as_type(old.type)
    if kind == "f16":
        return rounding.encode_half(rounding.decode_half(old) + rounding.decode_half(value))
    if kind == "bf16":
        return rounding.encode_bf16(rounding.decode_bf16(old) + rounding.decode_bf16(value))
    if operation in ("min", "max"):
        return old.call(("s" if kind[0] == "s" else "u") + operation, value)
    return {"add": old.__add__, "and": old.__and__, "or": old.__or__, "xor": old.__xor__}[operation](value)


HANDLERS: dict[str, Handler] = {"atom": _atomic, "red": _atomic}
"""Code of every opcode of this file."""
