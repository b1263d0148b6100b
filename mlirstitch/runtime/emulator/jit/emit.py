"""Registers, operands and results while the code of a kernel is generated.

Registers live between basic blocks are kept in the *frame*, a part of the warp's structure: as a scalar where they are
uniform or a ramp and a function of block, thread and parameters alone, else as 32 elements (predicates as 32 bits).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.jit.builder import BITS, WARP, Builder, Expression
from mlirstitch.runtime.emulator.jit.layout import Context, Warp
from mlirstitch.runtime.emulator.jit.support import function_offset
from mlirstitch.runtime.emulator.jit.values import Value, spread, trailing_zeros, truncate, widen
from mlirstitch.runtime.emulator.ptx.ir import Block, Instruction, Kernel
from mlirstitch.runtime.emulator.ptx.literals import literal_bits
from mlirstitch.runtime.emulator.ptx.syntax import Address, Immediate, Operand, Register, Special, Symbol

LLVM_TYPE = {
    "pred": "i1", "b8": "i8", "u8": "i8", "s8": "i8",
    "b16": "i16", "u16": "i16", "s16": "i16", "f16": "i16", "bf16": "i16",
    "b32": "i32", "u32": "i32", "s32": "i32", "f32": "f32", "f16x2": "i32", "bf16x2": "i32", "tf32": "i32",
    "b64": "i64", "u64": "i64", "s64": "i64", "f64": "f64",
}  # fmt: skip
"""Element type of the values of a PTX type; half precision and packed types are bit patterns."""

INTEGER_TYPE = {1: "i1", 8: "i8", 16: "i16", 32: "i32", 64: "i64"}


class Unsupported(LaunchError):
    """The JIT engine has no code for an instruction; the reference engine runs the kernel."""


@dataclass(frozen=True)
class Specialisation:
    """What a compiled kernel depends on besides its text.

    Attributes:
        block: threads of a block along x, y, z.
        grid: upper bounds of the blocks along x, y, z (powers of two, so that few variants are compiled).
        counting: whether counters are kept.
    """

    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    counting: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class MemorySite:
    """A memory instruction of the generated code: how it accesses memory, for the support library and for findings."""

    instruction: Instruction
    space: str
    width: int
    count: int
    kind: int
    fast_bytes: int = 0


@dataclass(frozen=True)
class _Home:
    """How a register is kept between blocks: ``known`` is None for a vector, else a scalar with these properties."""

    slot: int
    known: Value | None


class KernelEmitter:
    """State while one kernel is generated; the handlers of the opcodes call its public methods."""

    def __init__(
        self, kernel: Kernel, special: Specialisation, cyclic: frozenset[int], scalars: frozenset[Register]
    ) -> None:
        """``scalars`` are registers assumed to be scalars wherever they are written; those that turn out not to be are
        collected in ``disproved``, and the code is of no use if there are any."""
        self.kernel = kernel
        self.scalars = scalars
        self.disproved: set[Register] = set()
        self.special = special
        self.sites: list[MemorySite] = []
        self.builder = Builder("run_warp", ["ptr", "ptr"], "i32")
        self.context, self.warp = self.builder.parameters
        self.cyclic = cyclic
        barriers = sum(1 for block in kernel.blocks if block.terminator.kind == "barrier")
        self.pending_at = Warp.MASKS + 4 * barriers
        self.frame_at = -(-(self.pending_at + 4 * len(kernel.blocks)) // 64) * 64
        self._size = self.frame_at
        self._slots: dict[Register, int] = {}
        for register in kernel.maybe_uninitialised:
            self._slot(register)
        self.uninitialised_bytes = self._size - self.frame_at
        self._homes: dict[Register, _Home] = {r: _Home(self._slots[r], None) for r in kernel.maybe_uninitialised}
        self._definitions = _definitions(kernel)
        self._symbols = {name: position for position, name in enumerate(sorted(kernel.variables))}
        end = max((p.offset + p.size for p in kernel.parameters), default=0)
        self.symbols_at = -(-end // 8) * 8
        self._parameters = self._prologue_field(Context.PARAMETERS, "ptr")
        self.site_table = self._prologue_field(Context.SITES, "ptr")
        self.executed_table = self._prologue_field(Context.EXECUTED, "ptr") if special.counting else self.context
        self.pure = True
        self.carry: Expression | None = None
        self.carry_pure = True

    def _prologue_field(self, offset: int, kind: str) -> Expression:
        b = self.builder
        place = b.prologue(f"llvm.getelementptr {self.context.name}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8", "ptr")
        text = "!llvm.ptr" if kind == "ptr" else kind
        return b.prologue(f"llvm.load {place.name} : !llvm.ptr -> {text}", kind)

    @property
    def warp_bytes(self) -> int:
        """Size of the structure of a warp."""
        return -(-self._size // 64) * 64

    @property
    def symbols(self) -> Sequence[str]:
        """Module variables in the order in which their addresses follow the parameters."""
        return list(self._symbols)

    # ---- blocks and instructions
    def begin_block(self, block: Block, mask: Expression) -> None:
        """Start a basic block that the threads of ``mask`` (32-bit) execute."""
        self._block = block
        self.mask = mask
        self._values: dict[Register, Value] = {}
        self._written: dict[Register, None] = {}
        self._casts: dict[tuple[str, str], Expression] = {}
        self._spreads: dict[str, Expression] = {}
        self._mask_vector: Expression | None = None
        self._full: Expression | None = None
        self._guard: Value | None = None
        self._active: Expression | None = None
        self.carry = None

    def begin_instruction(self, instruction: Instruction) -> None:
        """Start an instruction: its operands decide whether the result is invariant."""
        self.instruction = instruction
        self.pure = True
        self._guard = None
        self._active = None
        if instruction.guard is not None:
            register, negated = instruction.guard
            guard = self.value(register)
            self._guard = replace(guard, first=~guard.first, low=0, high=-1) if negated else guard

    def unsupported(self, reason: str) -> Unsupported:
        """The refusal of the current instruction."""
        i = self.instruction
        return Unsupported(
            f"kernel {self.kernel.name!r}, PTX line {i.line}: {i.mnemonic!r}: {reason}", source=i.location
        )

    # ---- masks
    @property
    def mask_vector(self) -> Expression:
        """The threads that execute the block, as truth values."""
        if self._mask_vector is None:
            text = f"llvm.bitcast {self.mask.name} : i32 to vector<{WARP}xi1>"
            self._mask_vector = self.builder.define(text, "i1", True)
        return self._mask_vector

    @property
    def guarded(self) -> bool:
        """Whether the current instruction has a guard."""
        return self._guard is not None

    @property
    def active(self) -> Expression:
        """The threads that execute the current instruction, 32-bit mask."""
        if self._guard is None:
            return self.mask
        if self._active is None:
            guard = self._guard.first
            held = self.bits(guard) if guard.vector else guard.where(self.builder.constant(-1, "i32"), 0)
            self._active = held & self.mask
        return self._active

    def bits(self, condition: Expression) -> Expression:
        """Truth values of the threads as a 32-bit mask."""
        return self.builder.define(f"llvm.bitcast {condition.name} : vector<{WARP}xi1> to i32", "i32")

    def truth(self, mask: Expression) -> Expression:
        """A 32-bit mask as truth values of the threads."""
        return self.builder.define(f"llvm.bitcast {mask.name} : i32 to vector<{WARP}xi1>", "i1", True)

    # ---- values
    def value(self, operand: Operand) -> Value:
        """A register, special register or symbol in its own integer type."""
        if isinstance(operand, Register):
            found = self._values.get(operand)
            if found is None:
                found = self._values[operand] = self._load(operand)
            self.pure = self.pure and found.invariant
            return found
        if isinstance(operand, Special):
            return self._special(operand.name)
        if isinstance(operand, Symbol):
            return self._symbol(operand)
        raise TypeError(f"operand {operand!r} has no value")

    def integer(self, operand: Operand, ptx_type: str) -> Value:
        """An operand in the integer type as wide as ``ptx_type``: wider registers are cut, narrower zero-extended."""
        kind = INTEGER_TYPE[BITS[LLVM_TYPE[ptx_type]]]
        if isinstance(operand, Immediate):
            return self.number(_bits(operand, ptx_type), kind)
        value = self.value(operand)
        have = value.first.type
        if have == kind:
            return value
        if kind == "i1" or have == "i1":
            changed = value.first.ne(0) if kind == "i1" else value.first.resize(kind)
            return Value(changed, invariant=value.invariant)
        narrow = BITS[kind] < BITS[have]
        known = truncate(value, kind) if narrow else widen(value, kind, False)
        if known is not None:
            return known
        return Value(self._cast(self.vector(value), kind, narrow), invariant=value.invariant)

    def _cast(self, value: Expression, kind: str, narrow: bool) -> Expression:
        key = (value.name, kind)
        found = self._casts.get(key)
        if found is None:
            found = self._casts[key] = value.cast("trunc" if narrow else "zext", kind)
        return found

    def number(self, bits: int, kind: str) -> Value:
        """A known integer."""
        low = bits & ((1 << BITS[kind]) - 1)
        first = self.builder.constant(low, kind)
        return Value(first, 0, low, low, trailing_zeros(low, BITS[kind]), True)

    def vector(self, value: Value) -> Expression:
        """The value of every thread."""
        if value.first.vector:
            return value.first
        key = f"{value.first.name} {value.step}"
        found = self._spreads.get(key)
        if found is None:
            found = self._spreads[key] = spread(value)
        return found

    def together(self, values: Sequence[Value]) -> list[Expression]:
        """All as scalars if all are uniform, else all as vectors."""
        if all(value.uniform for value in values):
            return [value.first for value in values]
        return [self.vector(value) for value in values]

    def operands(self, operands: Sequence[Operand], ptx_types: Sequence[str]) -> list[Expression]:
        """Operands as expressions of one shape, in the element types of their PTX types."""
        values = [self.integer(operand, kind) for operand, kind in zip(operands, ptx_types, strict=True)]
        return [
            self.reinterpret(expression, LLVM_TYPE[kind])
            for expression, kind in zip(self.together(values), ptx_types, strict=True)
        ]

    def reinterpret(self, value: Expression, kind: str) -> Expression:
        """The same bits as another type; remembered."""
        if value.type == kind:
            return value
        key = (value.name, f"={kind}")
        found = self._casts.get(key)
        if found is None:
            found = self._casts[key] = value.as_type(kind)
        return found

    def _special(self, name: str) -> Value:
        b = self.builder
        base, _, axis = name.partition(".")
        if base in ("%tid", "%ntid", "%ctaid", "%nctaid") and axis in ("x", "y", "z"):
            return self._position(base, "xyz".index(axis))
        if base == "%laneid":
            return Value(b.constant(0, "i32"), 1, 0, WARP - 1, 32, True)
        warps = -(-self.special.threads // WARP)
        if base == "%warpid":
            return Value(b.field(self.warp, Warp.NUMBER, "i64").resize("i32"), 0, 0, warps - 1, 0, True)
        if base in ("%nwarpid", "%smid", "%nsmid", "%gridid"):
            return self.number({"%nwarpid": warps, "%nsmid": 1}.get(base, 0), "i32")
        if base.startswith("%lanemask_"):
            masks = {
                "eq": [1 << t for t in range(WARP)],
                "lt": [(1 << t) - 1 for t in range(WARP)],
                "le": [(2 << t) - 1 for t in range(WARP)],
                "gt": [0xFFFFFFFF & ~((2 << t) - 1) for t in range(WARP)],
                "ge": [0xFFFFFFFF & ~((1 << t) - 1) for t in range(WARP)],
            }[base[10:]]
            signed = [m - (1 << 32) if m >> 31 else m for m in masks]
            text = f"llvm.mlir.constant(dense<{signed}> : vector<{WARP}xi32>) : vector<{WARP}xi32>"
            return Value(b.prologue(text, "i32", True), invariant=True)
        raise self.unsupported(f"special register {name} is left to the reference engine")

    def _position(self, base: str, axis: int) -> Value:
        b, (x, y, z) = self.builder, self.special.block
        if base == "%ntid":
            return self.number(self.special.block[axis], "i32")
        if base in ("%ctaid", "%nctaid"):
            start = Context.BLOCK_ID_X if base == "%ctaid" else Context.GRID_X
            high = self.special.grid[axis] - (base == "%ctaid")
            return Value(b.field(self.context, start + 4 * axis, "i32"), 0, 0, high, 0, True)
        extent = self.special.block[axis]
        if extent == 1:
            return self.number(0, "i32")
        place = Warp.THREAD_IDS + 128 * axis
        if axis == 0 and (x % WARP == 0 or y * z == 1):
            high = -(-x // WARP) * WARP - 1
            return Value(b.field(self.warp, place, "i32"), 1, 0, high, trailing_zeros(WARP, 32), True)
        if x % WARP == 0:
            return Value(b.field(self.warp, place, "i32"), 0, 0, extent - 1, 0, True)
        return Value(b.load(b.at(self.warp, place), "i32", True), invariant=True)

    def _symbol(self, symbol: Symbol) -> Value:
        placed = self.kernel.offsets.get(symbol.name)
        if placed is not None:
            return self.number(placed[1] + symbol.offset, "i64")
        at = self.symbols_at + 8 * self._symbols[symbol.name]
        return Value(self.builder.field(self._parameters, at, "i64") + symbol.offset, invariant=True)

    def parameter(self, offset: int, ptx_type: str) -> Value:
        """A kernel parameter."""
        kind = INTEGER_TYPE[BITS[LLVM_TYPE[ptx_type]]]
        return Value(self.builder.field(self._parameters, offset, kind), invariant=True)

    def address(self, operand: Operand) -> tuple[Value, int]:
        """Variable part of an address as a 64-bit value, and the constant part in bytes."""
        if not isinstance(operand, Address):
            return self.integer(operand, "b64"), 0
        if operand.base is None:
            return self.number(operand.offset, "i64"), 0
        return self.integer(operand.base, "b64"), operand.offset

    # ---- results
    def define(self, register: Register | None, value: Value) -> None:
        """Write a register; the value has an integer type no wider than it is."""
        if register is None:
            return
        kind = LLVM_TYPE[register.type]
        if value.first.type != kind:
            value = widen(value, kind, False) or Value(self.vector(value).resize(kind), invariant=value.invariant)
        if value.constant is not None and kind != "i1":
            value = self.number(value.constant, kind)
        if self._guard is not None:
            guard, new, old = self.together([self._guard, value, self._old(register)])
            value = Value(guard.where(new, old))
        self._values[register] = value
        self._written[register] = None

    def result(self, register: Register | None, expression: Expression, signed: bool = False) -> None:
        """Write what was computed from the operands; narrower results are zero- or sign-extended."""
        if register is None:
            return
        if expression.is_float:
            bits = expression.as_type(INTEGER_TYPE[expression.bits])
            self._casts[(bits.name, f"={expression.type}")] = expression
            expression = bits
        kind = LLVM_TYPE[register.type]
        if expression.type != kind:
            expression = expression.resize(kind, signed)
        self.define(register, Value(expression, invariant=self.pure))

    def _old(self, register: Register) -> Value:
        """Value before a guarded write."""
        if register in self._values:
            return self._values[register]
        if register in self._block.live_in:
            return self.value(register)
        return self.number(0, LLVM_TYPE[register.type])

    # ---- frame
    def _slot(self, register: Register) -> int:
        found = self._slots.get(register)
        if found is None:
            size = 4 if register.type == "pred" else register.bytes * WARP
            align = min(size, 64)
            found = self._slots[register] = -(-self._size // align) * align
            self._size = found + size
        return found

    def _load(self, register: Register) -> Value:
        """A register that was written in another block."""
        b = self.builder
        kind = LLVM_TYPE[register.type]
        home = self._homes.get(register)
        if home is None:
            # Read before it is written in the order of the code: nothing is known about it.
            if register in self.scalars:
                self.disproved.add(register)
            home = self._homes[register] = _Home(self._slot(register), None)
        place = b.at(self.warp, home.slot)
        if home.known is not None:
            if home.known.constant is not None:
                return home.known
            if kind == "i1":
                return replace(home.known, first=b.load(place, "i8").ne(0))
            return replace(home.known, first=b.load(place, kind))
        invariant = register in self._invariants
        if register.type == "pred":
            return Value(self.truth(b.load(place, "i32")), invariant=invariant)
        return Value(b.load(place, kind, True, 4 if home.slot % 64 else 64), invariant=invariant)

    _invariants: frozenset[Register] = frozenset()

    def end_block(self) -> None:
        """Put the registers that later blocks read into the frame."""
        b = self.builder
        for register in self._block.live_out:
            if register not in self._written:
                continue
            value = self._values[register]
            once = len(self._definitions[register]) == 1
            home = self._homes.get(register)
            invariant = once and value.invariant and home is None
            if home is None:
                known = value if invariant and not value.first.vector and register.type != "pred" else None
                if known is None and register in self.scalars and not value.first.vector:
                    known = Value(value.first, value.step)
                home = self._homes[register] = _Home(self._slot(register), known)
                if invariant:
                    self._invariants = self._invariants | {register}
            if register in self.scalars and not _fits(home, value):
                self.disproved.add(register)
            place = b.at(self.warp, home.slot)
            if home.known is not None:
                if home.known.constant is None and not value.first.vector:
                    b.store(value.first.resize("i8") if register.type == "pred" else value.first, place)
                continue
            vector = self.vector(value)
            blend = not invariant and not (once and self._block.index not in self.cyclic)
            if register.type == "pred":
                bits = self.bits(vector)
                if blend:
                    old = b.load(place, "i32")
                    bits = old ^ ((old ^ bits) & self.mask)
                b.store(bits, place)
                continue
            align = 4 if home.slot % 64 else 64
            if blend:
                vector = self.mask_vector.where(vector, b.load(place, vector.type, True, align))
            b.store(vector, place, align)

    # ---- calls
    def mathematics(self, name: str, values: Sequence[Expression]) -> Expression:
        """Call a function of the support library on vectors of single precision."""
        function = self.builder.field(self.context, function_offset(name), "ptr")
        return self.builder.call_pointer(function, values, "f32", True)

    def support(self, name: str, values: Sequence[Expression]) -> Expression:
        """Call a function of the support library."""
        function = self.builder.field(self.context, function_offset(name), "ptr")
        return self.builder.call_pointer(function, values, "i32")


def _fits(home: _Home, value: Value) -> bool:
    """Whether a scalar register can hold the value."""
    return home.known is not None and not value.first.vector and value.step == home.known.step


Handler = Callable[[KernelEmitter, Instruction], None]


def _definitions(kernel: Kernel) -> dict[Register, list[int]]:
    """Blocks in which each register is written, once for every write."""
    found: dict[Register, list[int]] = {}
    for block in kernel.blocks:
        for instruction in block.instructions:
            for register in instruction.defined():
                found.setdefault(register, []).append(block.index)
    return found


def _bits(literal: Immediate, ptx_type: str) -> int:
    """Bit pattern of a literal, as the reference engine reads it."""
    if literal.kind == "int":
        return literal.value
    width = BITS[LLVM_TYPE[ptx_type]]
    return literal_bits(literal, {64: "f64", 32: "f32"}.get(width, "b16"))
