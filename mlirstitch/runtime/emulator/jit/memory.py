"""Code of memory and warp instructions.

An access whose addresses are one for the whole warp, or a ramp as dense as the elements, is checked against the
allocation its site accessed last with one comparison and then becomes scalar or vector loads and stores. Everything
else goes through the support library: other addresses, diverged warps, another allocation, and every finding.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirstitch.runtime.emulator.jit.builder import BITS, WARP, Expression
from mlirstitch.runtime.emulator.jit.emit import INTEGER_TYPE, LLVM_TYPE, Handler, KernelEmitter, MemorySite
from mlirstitch.runtime.emulator.jit.layout import SITE_BYTES, Context, Site, Warp
from mlirstitch.runtime.emulator.jit.values import Value
from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import SPACES
from mlirstitch.runtime.emulator.ptx.syntax import TYPE_BYTES, Address, Immediate, Operand, Register, Symbol

FAULT = "^fault"
"""Block of a kernel that returns after a finding."""


def space_of(e: KernelEmitter, i: Instruction, address: Operand) -> str:
    """Space of an access: named, that of the variable the address names, or "generic"."""
    named = next((m for m in i.modifiers if m in SPACES), "")
    if named == "param":
        raise e.unsupported("accesses parameter space through a register")
    if named:
        return "global" if named == "const" else named
    base = address.base if isinstance(address, Address) else address
    if isinstance(base, Symbol):
        placed = e.kernel.offsets.get(base.name)
        return placed[0] if placed else "global"
    return "generic"


class _Access:
    """One memory instruction while its code is written."""

    def __init__(
        self, e: KernelEmitter, i: Instruction, kind: int, width: int, count: int, operand: Operand, space: str = ""
    ) -> None:
        self.e = e
        self.b = e.builder
        self.width, self.count, self.kind = width, count, kind
        self.bytes = width * count
        self.space = space or space_of(e, i, operand)
        variable, offset = e.address(operand)
        self.address = variable
        self.offset = offset
        dense = variable.step == self.bytes and not variable.first.vector
        direct = not e.guarded and self.space in ("global", "shared")
        self.fast = direct and (dense or (variable.uniform and kind == 0))
        self.uniform = variable.uniform
        reach = self.bytes * (WARP if dense else 1)
        self.reach = reach
        self.number = len(e.sites)
        e.sites.append(
            MemorySite(i, self.space, width, count, kind, reach if self.fast and self.space == "global" else 0)
        )

    def first(self) -> Expression:
        """Address of the first thread, or of every thread."""
        start = self.address.first
        return start + self.offset if self.offset else start

    def fast_pointer(self, address: Expression) -> tuple[Expression, Expression]:
        """Whether the fast path may be taken, and the host address there."""
        e, b = self.e, self.b
        aligned = (address & (self.bytes - 1)).eq(0) if self.bytes > 1 else None
        if self.space == "shared":
            size = b.field(e.context, Context.SHARED_SIZE, "i64")
            good = address.lt(size) & (size - address).ge(self.reach)
            pointer = b.at(b.field(e.context, Context.SHARED, "ptr"), address)
        else:
            record = b.at(e.site_table, self.number * SITE_BYTES)
            distance = address - b.field(record, Site.BASE, "i64")
            good = distance.le(b.field(record, Site.LIMIT, "i64"))
            host = address + b.field(record, Site.DELTA, "i64")
            pointer = b.define(f"llvm.inttoptr {host.name} : i64 to !llvm.ptr", "ptr")
        if aligned is not None:
            good = good & aligned
        if not self.uniform:
            good = good & e.mask.eq(-1)
        return good, pointer

    def count_fast(self, address: Expression) -> None:
        """Counters of an access on the fast path."""
        e, b = self.e, self.b
        if not e.special.counting:
            return
        phases = max(self.bytes // 4, 1)
        if self.space == "shared":
            b.add_field(e.context, Context.SHARED_REQUESTS, 1)
            if not self.uniform or phases == 1:
                b.add_field(e.context, Context.SHARED_WAVEFRONTS, phases)
                return
            lanes = WARP // phases
            for phase in range(phases):
                part = e.mask & (((1 << lanes) - 1) << (phase * lanes))
                b.add_field(e.context, Context.SHARED_WAVEFRONTS, part.ne(0).resize("i64"))
            return
        record = b.at(e.site_table, self.number * SITE_BYTES)
        b.add_field(record, Site.HITS, 1)
        if self.uniform:
            b.add_field(record, Site.LANES, e.mask.call("ctpop").resize("i64"))
            b.add_field(record, Site.SECTORS, 1)
            return
        b.add_field(record, Site.LANES, WARP)
        b.add_field(record, Site.SECTORS, (((address & 31) + (self.reach - 1)) >> 5) + 1)

    def slow(self, active: Expression, vector: Expression | None, values: Sequence[Expression]) -> None:
        """Let the support library do it. ``vector`` holds the addresses if they are no ramp."""
        e, b = self.e, self.b
        if vector is not None:
            b.store(vector, b.at(e.warp, Warp.ADDRESSES))
        else:
            e.support("spread", [e.warp, self.first(), b.constant(self.address.step, "i64")])
        for position, value in enumerate(values):
            b.store(value, b.at(e.warp, Warp.VALUES + 256 * position))
        name = f"{'store' if self.kind else 'load'}_{self.width}"
        site = b.constant(self.number, "i64")
        status = e.support(name, [e.context, e.warp, site, active])
        onward = b.label("ok")
        b.branch(status.ne(0), FAULT, onward)
        b.start(onward)

    def addresses(self) -> Expression | None:
        """The address of every thread if they are no ramp, else None."""
        if not self.address.first.vector:
            return None
        return self.address.first + self.offset if self.offset else self.address.first


def _load(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    access = _Access(e, i, 0, TYPE_BYTES[kind], i.vector, i.inputs[0])
    results = _load_elements(access)
    e.pure = False
    signed = kind[0] == "s"
    for register, value in zip(i.outputs, results, strict=True):
        if register is not None:
            target = LLVM_TYPE[register.type]
            e.define(register, Value(value if value.type == target else value.resize(target, signed)))


def _load_elements(access: _Access) -> list[Expression]:
    """What the threads read: scalars where all read the same on the fast path, else vectors."""
    e, b, width, count = access.e, access.b, access.width, access.count
    element = INTEGER_TYPE[8 * width]
    shape = "s" if access.fast and access.uniform else "v"
    active = e.active
    addresses = access.addresses()

    def slow_results() -> list[Expression]:
        places = [b.at(e.warp, Warp.VALUES + 256 * k) for k in range(count)]
        if shape == "v":
            return [b.load(place, element, True) for place in places]
        lane = active.call("cttz", attributes="<{is_zero_poison = false}> ").resize("i64") & 31
        return [b.load(b.at(place, lane * width), element) for place in places]

    if not access.fast:
        access.slow(active, addresses, ())
        return slow_results()
    address = access.first()
    good, pointer = access.fast_pointer(address)
    fast, slow, join = b.label("fast"), b.label("slow"), b.label("join")
    b.branch(good, fast, slow)
    b.start(fast)
    access.count_fast(address)
    b.jump(join, *_read(access, pointer, element, shape == "v"))
    b.start(slow)
    access.slow(active, addresses, ())
    b.jump(join, *slow_results())
    return list(b.start(join, [(element, shape)] * count))


def _read(access: _Access, pointer: Expression, element: str, vector: bool) -> list[Expression]:
    """Elements on the fast path."""
    b, count, width = access.b, access.count, access.width
    if not vector:
        return [b.load(b.at(pointer, k * width), element) for k in range(count)]
    if count == 1:
        return [b.load(pointer, element, True, width)]
    # Thread t has elements count*t and on: pick every count-th one from each pair of vectors, repeatedly.
    parts = [b.load(b.at(pointer, k * width * WARP), element, True, width) for k in range(count)]
    return _deinterleave(access, parts)


def _deinterleave(access: _Access, parts: list[Expression]) -> list[Expression]:
    if len(parts) == 1:
        return parts
    even, odd = list(range(0, 2 * WARP, 2)), list(range(1, 2 * WARP, 2))
    b = access.b
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    evens = _deinterleave(access, [b.shuffle(x, even, y) for x, y in pairs])
    odds = _deinterleave(access, [b.shuffle(x, odd, y) for x, y in pairs])
    return [value for pair in zip(evens, odds, strict=True) for value in pair]


def _interleave(access: _Access, values: list[Expression]) -> list[Expression]:
    """The inverse of :func:`_deinterleave`."""
    if len(values) == 1:
        return values
    b = access.b
    evens, odds = _interleave(access, values[::2]), _interleave(access, values[1::2])
    low = [lane // 2 + WARP * (lane % 2) for lane in range(WARP)]
    high = [lane + WARP // 2 for lane in low]
    return [part for x, y in zip(evens, odds, strict=True) for part in (b.shuffle(x, low, y), b.shuffle(x, high, y))]


def _store(e: KernelEmitter, i: Instruction) -> None:
    width = TYPE_BYTES[i.types[0]]
    access = _Access(e, i, 1, width, i.vector, i.inputs[0])
    _store_elements(access, [e.vector(e.integer(operand, f"b{8 * width}")) for operand in i.inputs[1:]])


def _store_elements(access: _Access, values: list[Expression]) -> None:
    """Write vectors."""
    e, b, width = access.e, access.b, access.width
    active = e.active
    addresses = access.addresses()
    if not access.fast:
        access.slow(active, addresses, values)
        return
    address = access.first()
    good, pointer = access.fast_pointer(address)
    fast, slow, join = b.label("fast"), b.label("slow"), b.label("join")
    b.branch(good, fast, slow)
    b.start(fast)
    access.count_fast(address)
    for position, part in enumerate(_interleave(access, values)):
        b.store(part, b.at(pointer, position * width * WARP), width)
    b.jump(join)
    b.start(slow)
    access.slow(active, addresses, values)
    b.jump(join)
    b.start(join)


def _load_parameter(e: KernelEmitter, i: Instruction) -> None:
    offset = i.inputs[0]
    assert isinstance(offset, Immediate)
    for position, register in enumerate(i.outputs):
        if register is None:
            continue
        value = e.parameter(offset.value + position * TYPE_BYTES[i.types[0]], i.types[0])
        kind = LLVM_TYPE[register.type]
        if BITS[kind] > value.first.bits:
            value = Value(value.first.resize(kind, i.types[0][0] == "s"), invariant=True)
        e.define(register, value)


def _copy_async(e: KernelEmitter, i: Instruction) -> None:
    """``cp.async``: copied at once, so its completion need not be tracked."""
    if "shared" not in i.modifiers:
        return
    amount = i.inputs[2] if len(i.inputs) == 3 else None
    if not isinstance(amount, Immediate) or amount.value not in (4, 8, 16):
        raise e.unsupported("needs destination, source and a constant size of 4, 8 or 16 bytes")
    origin = _Access(e, i, 0, 4, amount.value // 4, i.inputs[1], "global")
    values = _load_elements(origin)
    target = _Access(e, i, 1, 4, amount.value // 4, i.inputs[0], "shared")
    _store_elements(target, [value if value.vector else e.builder.splat(value) for value in values])


# ---- warps
def _shuffle(e: KernelEmitter, i: Instruction) -> None:
    if len(i.inputs) != 4 or "sync" not in i.modifiers:
        raise e.unsupported("needs a member mask (.sync)")
    mode = next(m for m in i.modifiers if m != "sync")
    value, lane, clamp, _ = (e.integer(operand, "b32") for operand in i.inputs)
    e.pure = False
    predicate = next(iter(i.outputs[1:]), None)
    b = e.builder
    if lane.constant is not None and clamp.constant is not None:
        source, valid = _sources(mode, lane.constant, clamp.constant)
        shuffled = value if value.uniform else Value(b.shuffle(e.vector(value), source))
        held = sum(1 << t for t in range(WARP) if valid[t])
        inside = e.truth(b.constant(held, "i32"))
    else:
        own = b.ramp(1, "i32")
        other, bound = e.vector(lane) & 31, e.vector(clamp)
        segment, limit = (bound >> 8) & 31, bound & 31
        last = (own & segment) | (limit & ~segment)
        chosen = {
            "up": lambda: own - other, "down": lambda: own + other, "bfly": lambda: own ^ other,
            "idx": lambda: (own & segment) | (other & ~segment),
        }[mode]()  # fmt: skip
        inside = chosen.ge(last, signed=True) if mode == "up" else chosen.le(last, signed=True)
        place = b.at(e.warp, Warp.VALUES)
        b.store(e.vector(value), place)
        b.store(inside.where(chosen, own), b.at(e.warp, Warp.SECOND))
        e.support("shuffle", [e.warp])
        shuffled = Value(b.load(place, "i32", True))
    e.define(i.outputs[0], Value(shuffled.first, shuffled.step))
    if predicate is not None:
        e.define(predicate, Value(inside))


def _sources(mode: str, lane: int, clamp: int) -> tuple[list[int], list[bool]]:
    """Source lane of every thread and whether it is in range (PTX ISA, ``shfl.sync``)."""
    other, bound, segment = lane & 31, clamp & 31, (clamp >> 8) & 31
    sources: list[int] = []
    valid: list[bool] = []
    for own in range(WARP):
        last = (own & segment) | (bound & ~segment)
        source = {
            "up": own - other, "down": own + other, "bfly": own ^ other, "idx": (own & segment) | (other & ~segment),
        }[mode]  # fmt: skip
        good = source >= last if mode == "up" else source <= last
        valid.append(good)
        sources.append(source if good else own)
    return sources, valid


def _vote(e: KernelEmitter, i: Instruction) -> None:
    if len(i.inputs) != 2 or "sync" not in i.modifiers:
        raise e.unsupported("needs a member mask (.sync)")
    mode = next(m for m in i.modifiers if m != "sync")
    value = e.integer(i.inputs[0], "pred")
    active = e.active
    e.pure = False
    held = e.bits(e.vector(value)) & active
    if mode == "ballot":
        return e.define(i.outputs[0], Value(held))
    every = held.eq(active)
    found = {"any": lambda: held.ne(0), "all": lambda: every, "uni": lambda: every | held.eq(0)}[mode]()
    e.define(i.outputs[0], Value(found))
    return None


_NEUTRAL = {"add": 0, "or": 0, "xor": 0, "and": -1}


def _reduce(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    mode = next(m for m in i.modifiers if m != "sync")
    value = e.vector(e.integer(i.inputs[0], kind))
    e.pure = False
    signed = kind == "s32"
    if mode in ("min", "max"):
        extreme = {("min", True): 0x7FFFFFFF, ("max", True): 0x80000000, ("min", False): 0xFFFFFFFF, ("max", False): 0}
        neutral, name = extreme[(mode, signed)], ("s" if signed else "u") + mode
    else:
        neutral, name = _NEUTRAL[mode], mode
    held = e.truth(e.active).where(value, value.other(neutral))
    text = f'"llvm.intr.vector.reduce.{name}"({held.name}) : ({held.text}) -> i32'
    e.define(i.outputs[0], Value(e.builder.define(text, "i32")))


def _active(e: KernelEmitter, i: Instruction) -> None:
    e.define(i.outputs[0], Value(e.active))


def _nothing(e: KernelEmitter, i: Instruction) -> None:
    """Fences order memory accesses, which happen in order here; a prefetch or a nap changes no value."""
    for operand in i.inputs:
        if isinstance(operand, Register):
            e.value(operand)


HANDLERS: dict[str, Handler] = {
    "ld": _load, "ld_param": _load_parameter, "st": _store, "shfl": _shuffle, "vote": _vote, "redux": _reduce,
    "activemask": _active, "cp": _copy_async, "prefetch": _nothing, "membar": _nothing, "fence": _nothing,
    "nanosleep": _nothing, "bar": _nothing,
}  # fmt: skip
"""Code of every opcode of this file."""
