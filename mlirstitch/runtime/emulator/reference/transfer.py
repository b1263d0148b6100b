"""Emitters of memory, warp and synchronisation instructions: calls of the machine's methods."""

from __future__ import annotations

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import ATOMIC_OPERATIONS, SPACES
from mlirstitch.runtime.emulator.ptx.syntax import TYPE_BYTES, Immediate, Operand, Register, Special, Symbol
from mlirstitch.runtime.emulator.reference.emit import NUMPY_TYPE, BlockEmitter, Handler, Site


def _space(e: BlockEmitter, i: Instruction, address: Operand) -> str:
    named = next((m for m in i.modifiers if m in SPACES), "")
    if named == "param":
        raise e.fail(i, "accesses parameter space through a register")
    if named == "const":
        return "global"
    # Without a space the address is generic, unless it names a variable.
    return named or e.symbol_space(address) or "generic"


def _load(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    dtype = NUMPY_TYPE[kind]
    dtypes = tuple(e.home(r, dtype) if kind[0] == "b" and kind != "bf16" else dtype for r in i.outputs)
    address, offset = e.address(i.inputs[0])
    site = Site(i, _space(e, i, i.inputs[0]), TYPE_BYTES[kind], i.vector, dtypes, offset=offset)
    values = e.assign(f"x.load_{site.space}({e.site(site)}, {address}, {e.mask})")
    for position, register in enumerate(i.outputs):
        if register is not None:
            e.define(register, f"{values}[{position}]", dtypes[position])


def _load_parameter(e: BlockEmitter, i: Instruction) -> None:
    offset = i.inputs[0]
    assert isinstance(offset, Immediate)
    dtype = NUMPY_TYPE[i.types[0]]
    for position, register in enumerate(i.outputs):
        if register is not None:
            e.define(register, f"x.parameter({offset.value + position * TYPE_BYTES[i.types[0]]}, '{dtype}')", dtype)


def _natural(e: BlockEmitter, operand: Operand, dtype: str) -> str:
    """The type in which a value is at hand: bits are stored, so any type of the width will do."""
    return e.home(operand, dtype) if isinstance(operand, Register) else dtype


def _store(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    dtypes = tuple(_natural(e, operand, dtype) for operand in i.inputs[1:])
    address, offset = e.address(i.inputs[0])
    site = Site(i, _space(e, i, i.inputs[0]), TYPE_BYTES[i.types[0]], i.vector, dtypes, offset=offset)
    values = ", ".join(e.use(operand, kind) for operand, kind in zip(i.inputs[1:], dtypes, strict=True))
    e.line(f"x.store_{site.space}({e.site(site)}, {address}, ({values},), {e.mask})")


def _atomic(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    operation = next(m for m in i.modifiers if m in ATOMIC_OPERATIONS)
    if i.types[0] == "bf16":
        operation += "_bf16"
    address, offset = e.address(i.inputs[0])
    site = Site(i, _space(e, i, i.inputs[0]), TYPE_BYTES[i.types[0]], 1, (dtype,), operation, offset)
    expected = 3 if operation == "cas" else 2
    if len(i.inputs) != expected:
        raise e.fail(i, f"needs {expected} source operands")
    values = ", ".join(e.use(operand, dtype) for operand in i.inputs[1:])
    register = i.outputs[0] if i.outputs else None
    call = f"x.atomic({e.site(site)}, {address}, ({values},), {e.mask}, {register is not None})"
    if register is None:
        e.line(call)
    else:
        e.define(register, call, dtype)


def _shuffle(e: BlockEmitter, i: Instruction) -> None:
    if len(i.inputs) != 4 or "sync" not in i.modifiers:
        raise e.fail(i, "needs a member mask (.sync)")
    mode = next(m for m in i.modifiers if m != "sync")
    predicate = next(iter(i.outputs[1:]), None)
    value, lane, clamp, members = (e.use(operand, "u4") for operand in i.inputs)
    site = e.site(Site(i, operation=mode))
    result = e.assign(f"x.shuffle({site}, {value}, {lane}, {clamp}, {members}, {e.mask})")
    if i.outputs[0] is not None:
        e.define(i.outputs[0], f"{result}[0]", "u4")
    if predicate is not None:
        e.define(predicate, f"{result}[1]", "?")


def _vote(e: BlockEmitter, i: Instruction) -> None:
    if len(i.inputs) != 2 or "sync" not in i.modifiers:
        raise e.fail(i, "needs a member mask (.sync)")
    mode = next(m for m in i.modifiers if m != "sync")
    site = e.site(Site(i, operation=mode))
    value, members = e.use(i.inputs[0], "?"), e.use(i.inputs[1], "u4")
    e.define(i.outputs[0], f"x.vote({site}, {value}, {members}, {e.mask})", NUMPY_TYPE[i.types[0]])


def _reduce(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    site = e.site(Site(i, operation=next(m for m in i.modifiers if m != "sync")))
    value, members = e.use(i.inputs[0], dtype), e.use(i.inputs[1], "u4")
    e.define(i.outputs[0], f"x.reduce_warp({site}, {value}, {members}, {e.mask})", dtype)


def _active(e: BlockEmitter, i: Instruction) -> None:
    e.define(i.outputs[0], f"x.active_mask({e.mask})", "u4")


def _copy_async(e: BlockEmitter, i: Instruction) -> None:
    """``cp.async``: copied at once, so its completion need not be tracked."""
    if "shared" not in i.modifiers:
        return
    amount = i.inputs[2] if len(i.inputs) == 3 else None
    if not isinstance(amount, Immediate) or amount.value not in (4, 8, 16):
        raise e.fail(i, "needs destination, source and a constant size of 4, 8 or 16 bytes")
    count = amount.value // 4
    kinds = ("u4",) * count
    source, source_offset = e.address(i.inputs[1])
    target, target_offset = e.address(i.inputs[0])
    load = e.site(Site(i, "global", 4, count, kinds, offset=source_offset))
    store = e.site(Site(i, "shared", 4, count, kinds, offset=target_offset))
    values = e.assign(f"x.load_global({load}, {source}, {e.mask})")
    e.line(f"x.store_shared({store}, {target}, tuple({values}), {e.mask})")


def _fence(e: BlockEmitter, i: Instruction) -> None:
    e.line(f"x.fence({e.site(Site(i))}, {e.mask})")


def _warp_barrier(e: BlockEmitter, i: Instruction) -> None:
    e.line(f"x.warp_barrier({e.site(Site(i))}, {e.use(i.inputs[0], 'u4')}, {e.mask})")


def _arrive(e: BlockEmitter, i: Instruction) -> None:
    number, count = (e.use(operand, "u4") for operand in i.inputs)
    e.line(f"x.arrive({e.site(Site(i))}, {number}, {count}, {e.mask})")


def _barrier_result(e: BlockEmitter, i: Instruction) -> None:
    value = "x.barrier_result()"
    if i.types == ("pred",):
        return e.define(i.outputs[0], f"{value} != 0", "?")
    return e.define(i.outputs[0], f"{value}.copy()", "u4")


def _nothing(e: BlockEmitter, i: Instruction) -> None:
    """A prefetch or a nap changes no value."""
    for operand in i.inputs:
        if isinstance(operand, Register | Special | Symbol):
            e.use(operand, "u4" if i.op != "prefetch" else "i8")


HANDLERS: dict[str, Handler] = {
    "ld": _load, "ld_param": _load_parameter, "st": _store, "atom": _atomic, "red": _atomic, "shfl": _shuffle,
    "vote": _vote, "redux": _reduce, "activemask": _active, "cp": _copy_async, "prefetch": _nothing,
    "membar": _fence, "fence": _fence, "nanosleep": _nothing, "bar": _warp_barrier, "bar_arrive": _arrive,
    "barrier_result": _barrier_result,
}  # fmt: skip
"""Emitter of every opcode of this file."""
