"""Emitters of memory, warp and synchronisation instructions: calls of the machine's methods."""

from __future__ import annotations

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import ATOMIC_OPERATIONS, SPACES
from mlirstitch.runtime.emulator.ptx.syntax import TYPE_BYTES, Immediate, Operand, Register
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


_PACKED_ADD = {"bf16": "add_bf16", "f16x2": "add_f16x2", "bf16x2": "add_bf16x2"}


def _atomic(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    dtype = NUMPY_TYPE[kind]
    operation = next(m for m in i.modifiers if m in ATOMIC_OPERATIONS)
    if kind in _PACKED_ADD and operation == "add":
        operation = _PACKED_ADD[kind]
    elif kind in (*_PACKED_ADD, "f16", "f32", "f64") and operation not in ("add", "exch"):
        raise e.fail(i, f"has no {operation} of {kind}")
    address, offset = e.address(i.inputs[0])
    space = _space(e, i, i.inputs[0])
    expected = 3 if operation == "cas" else 1 + i.vector
    if len(i.inputs) != expected:
        raise e.fail(i, f"needs {expected} source operands")
    for part in range(i.vector):
        site = Site(i, space, TYPE_BYTES[kind], 1, (dtype,), operation, offset + part * TYPE_BYTES[kind])
        operands = i.inputs[1:] if i.vector == 1 else i.inputs[1 + part : 2 + part]
        values = ", ".join(e.use(operand, dtype) for operand in operands)
        register = list(i.outputs)[part] if i.outputs else None
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
    operation = next(m for m in i.modifiers if m not in ("sync", "abs", "NaN"))
    if i.types[0] == "f32":
        if operation not in ("min", "max"):
            raise e.fail(i, f"has no {operation} of f32")
        operation = f"{operation}_{'nan' if 'NaN' in i.modifiers else 'number'}"
    site = e.site(Site(i, operation=operation))
    value, members = e.use(i.inputs[0], dtype), e.use(i.inputs[1], "u4")
    if "abs" in i.modifiers:
        value = e.assign(f"np.abs({value})")
    e.define(i.outputs[0], f"x.reduce_warp({site}, {value}, {members}, {e.mask})", dtype)


def _active(e: BlockEmitter, i: Instruction) -> None:
    e.define(i.outputs[0], f"x.active_mask({e.mask})", "u4")


def _copy_async(e: BlockEmitter, i: Instruction) -> None:
    """``cp.async`` and the instructions that group its copies and wait for them."""
    if "commit_group" in i.modifiers:
        return e.line(f"x.commit_async({e.mask})")
    if "shared" not in i.modifiers:
        groups = next((operand.value for operand in i.inputs if isinstance(operand, Immediate)), 0)
        return e.line(f"x.wait_async({groups}, {'wait_all' in i.modifiers}, {e.mask})")
    destination, origin, amount, *given_amount = (*i.inputs, None, None, None)[: max(len(i.inputs), 3)]
    if not isinstance(amount, Immediate) or amount.value not in (4, 8, 16) or destination is None or origin is None:
        raise e.fail(i, "needs destination, source and a constant size of 4, 8 or 16 bytes")
    count = amount.value // 4
    kinds = ("u4",) * count
    source, source_offset = e.address(origin)
    target, target_offset = e.address(destination)
    load = e.site(Site(i, "global", 4, count, kinds, offset=source_offset))
    store = e.site(Site(i, "shared", 4, count, kinds, offset=target_offset))
    given = "None"
    for last in given_amount:
        assert last is not None
        given = e.use(last, "u4")
        if isinstance(last, Register) and last.type == "pred":
            given = e.assign(f"where({e.use(last, '?')}, np.uint32(0), np.uint32({amount.value}))")
    return e.line(f"x.copy_async({load}, {store}, {source}, {target}, {given}, {e.mask})")


def _barrier_object(e: BlockEmitter, i: Instruction) -> None:
    words = set(i.modifiers)
    if "pending_count" in words:
        return e.define(i.outputs[0], f"({e.use(i.inputs[0], 'u8')} & np.uint64(0xFFFFF)).astype('u4')", "u4")
    address, offset = e.address(i.inputs[0])
    operation = next((m for m in i.modifiers if m in _OBJECT_OPERATIONS), "")
    if operation == "arrive" and "expect_tx" in words:
        operation = "arrive_expect_tx"
    if operation == "try_wait":
        operation = "test_wait"
    if operation == "test_wait" and "parity" in words:
        operation = "test_wait_parity"
    site = e.site(Site(i, _space(e, i, i.inputs[0]), 8, 1, ("u8",), operation, offset))
    operand = e.use(i.inputs[1], "u8") if len(i.inputs) > 1 else e.constant(1, "u8")
    call = f"x.barrier_object({site}, {address}, {operand}, {e.mask})"
    register = i.outputs[0] if i.outputs else None
    if register is None:
        return e.line(call)
    return e.define(register, call, "?" if register.type == "pred" else "u8")


_OBJECT_OPERATIONS = (
    "init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx",
)  # fmt: skip


def _arrive_behind_copies(e: BlockEmitter, i: Instruction) -> None:
    """``cp.async.mbarrier.arrive``: copies are done here, so the arrival it announces happens now.

    Without ``.noinc`` the barrier expects one arrival more, which is this one.
    """
    if "noinc" in i.modifiers:
        address, offset = e.address(i.inputs[0])
        site = e.site(Site(i, _space(e, i, i.inputs[0]), 8, 1, ("u8",), "arrive", offset))
        e.line(f"x.wait_async(0, True, {e.mask})")
        e.line(f"x.barrier_object({site}, {address}, {e.constant(1, 'u8')}, {e.mask})")


def _elect(e: BlockEmitter, i: Instruction) -> None:
    site = e.site(Site(i))
    result = e.assign(f"x.elect({site}, {e.use(i.inputs[0], 'u4')}, {e.mask})")
    _two_results(e, i, result)


def _two_results(e: BlockEmitter, i: Instruction, result: str) -> None:
    if i.outputs[0] is not None:
        e.define(i.outputs[0], f"{result}[0]", "u4")
    second = next(iter(i.outputs[1:]), None)
    if second is not None:
        e.define(second, f"{result}[1]", "?")


def _match(e: BlockEmitter, i: Instruction) -> None:
    value, members = e.use(i.inputs[0], NUMPY_TYPE[i.types[0]]), e.use(i.inputs[1], "u4")
    call = f"({e.site(Site(i))}, {value}, {members}, {e.mask})"
    if "any" in i.modifiers:
        return e.define(i.outputs[0], f"x.match_any{call}", "u4")
    return _two_results(e, i, e.assign(f"x.match_all{call}"))


def _map_address(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    value, rank = e.use(i.inputs[0], dtype), e.use(i.inputs[1], "u4")
    e.define(i.outputs[0], f"x.map_address({e.site(Site(i))}, {value}, {rank})", dtype)


def _cluster_rank(e: BlockEmitter, i: Instruction) -> None:
    value = e.use(i.inputs[0], NUMPY_TYPE[i.types[0]])
    e.define(i.outputs[0], f"x.cluster_rank({value})", "u4")


def _is_space(e: BlockEmitter, i: Instruction) -> None:
    e.define(i.outputs[0], f"x.is_space({e.use(i.inputs[0], 'i8')}, {i.modifiers[0]!r})", "?")


def _policy(e: BlockEmitter, i: Instruction) -> None:
    e.define(i.outputs[0], e.constant(0, "u8"), "u8")


def _cluster_arrive(e: BlockEmitter, i: Instruction) -> None:
    e.line(f"x.cluster_arrive({e.site(Site(i))}, {e.mask})")


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
        if isinstance(operand, Register) and operand.type != "pred":
            e.use(operand, f"u{operand.bytes}")


HANDLERS: dict[str, Handler] = {
    "ld": _load, "ld_param": _load_parameter, "st": _store, "atom": _atomic, "red": _atomic, "shfl": _shuffle,
    "vote": _vote, "redux": _reduce, "activemask": _active, "cp": _copy_async, "prefetch": _nothing,
    "membar": _fence, "fence": _fence, "nanosleep": _nothing, "bar": _warp_barrier, "bar_arrive": _arrive,
    "barrier_result": _barrier_result, "mbarrier": _barrier_object, "cp_mbarrier": _arrive_behind_copies,
    "elect": _elect, "match": _match,
    "mapa": _map_address, "getctarank": _cluster_rank, "isspacep": _is_space, "createpolicy": _policy,
    "cluster_arrive": _cluster_arrive, "prefetchu": _nothing, "applypriority": _nothing, "setmaxnreg": _nothing,
    "griddepcontrol": _nothing, "pmevent": _nothing, "ldu": _load,
}  # fmt: skip
"""Emitter of every opcode of this file."""
