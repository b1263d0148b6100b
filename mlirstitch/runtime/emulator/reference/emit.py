"""IR blocks to Python functions on numpy arrays.

A register is an array of shape [blocks | 1, threads | 1]: values equal for all blocks or all threads of a chunk keep
the short axis, so index arithmetic on ``%ctaid`` or ``%tid`` alone costs next to nothing. Every basic block becomes one
function ``block_n(x, f, m)``: ``x`` executes memory and warp instructions, ``f`` holds the registers that are live
between blocks, ``m`` is the mask of active threads (None: all). It returns the branch predicate or switch selector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.ptx.ir import Block, Instruction, Kernel
from mlirstitch.runtime.emulator.ptx.literals import literal_bits
from mlirstitch.runtime.emulator.ptx.syntax import (
    Address,
    Immediate,
    Operand,
    Register,
    Special,
    Symbol,
)

NUMPY_TYPE = {
    "pred": "?",
    "b8": "u1", "u8": "u1", "s8": "i1",
    "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
    "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "u4", "bf16x2": "u4", "tf32": "u4",
    "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "f32x2": "u8",
}  # fmt: skip
"""numpy type of the values of a PTX type; bfloat16 and the packed types are bit patterns."""


@dataclass
class Site:
    """One instruction as the run-time part sees it: where it stands and how it accesses memory.

    ``width`` is the bytes of one element, ``count`` the elements of a lane, ``dtypes`` the numpy type of each,
    ``offset`` the constant part of the address in bytes.
    """

    instruction: Instruction
    space: str = ""
    width: int = 0
    count: int = 1
    dtypes: tuple[str, ...] = ()
    operation: str = ""
    offset: int = 0

    @property
    def bytes(self) -> int:
        """Bytes a lane accesses."""
        return self.width * self.count


@dataclass(frozen=True)
class Program:
    """A kernel as Python code.

    Attributes:
        code: compiled module that defines ``block_0`` ... ``block_n``.
        constants: names the code uses: literals, sites, functions.
        slots: size of the frame: registers live between blocks, and for each that some path reads unwritten a mask of
            the threads that have written it.
        sites: what the code names when it calls the machine.
        source: the text of ``code``, for debugging.
    """

    kernel: Kernel
    code: CodeType
    constants: dict[str, Any]
    slots: int
    sites: tuple[Site, ...]
    source: str


@dataclass
class _Frame:
    """What all blocks of a kernel share while they are emitted."""

    kernel: Kernel
    functions: dict[str, Any]
    homes: dict[Register, str] = field(default_factory=dict)
    votes: dict[Register, Counter[str]] = field(default_factory=dict)
    slots: dict[Register, int] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    tracked: dict[Register, int] = field(default_factory=dict)


Handler = Callable[["BlockEmitter", Instruction], None]


def emit(kernel: Kernel, handlers: dict[str, Handler], functions: dict[str, Any]) -> Program:
    """Emit all blocks. ``handlers`` maps opcodes to emitters, ``functions`` are names the emitted code may call.

    Two rounds: the first one counts in which numpy type every register is written and read, the second keeps it in the
    most frequent one between blocks.
    """
    frame = _Frame(kernel, functions)
    for block in kernel.blocks:
        for register in (*block.live_in, *block.live_out):
            frame.slots.setdefault(register, len(frame.slots))
    for register in kernel.maybe_uninitialised:
        frame.tracked[register] = len(frame.slots) + len(frame.tracked)
    lines: list[str] = []
    for _ in range(2):
        frame.constants = dict(functions)
        frame.names = {}
        frame.sites = []
        lines = []
        for block in kernel.blocks:
            lines.extend(BlockEmitter(frame, block, handlers).emit())
        frame.homes = {r: votes.most_common(1)[0][0] for r, votes in frame.votes.items()}
    source = "\n".join(lines)
    return Program(
        kernel=kernel,
        code=compile(source, f"<kernel {kernel.name}>", "exec"),
        constants=frame.constants,
        slots=len(frame.slots) + len(frame.tracked),
        sites=tuple(frame.sites),
        source=source,
    )


class BlockEmitter:
    """Emits one basic block; the handlers of the opcodes call its public methods."""

    def __init__(self, frame: _Frame, block: Block, handlers: dict[str, Handler]) -> None:
        self._frame = frame
        self._block = block
        self._handlers = handlers
        self._lines: list[str] = []
        self._values: dict[Register, dict[str, str]] = {}
        self._written: set[Register] = set()
        self._checked: set[Register] = set()
        self._count = 0
        self._guard: str | None = None
        self._site: str = ""
        self.carry: str | None = None

    def emit(self) -> list[str]:
        """Lines of the function."""
        block = self._block
        for instruction in block.instructions:
            self._instruction(instruction)
        result = "None"
        terminator = block.terminator
        if terminator.predicate is not None:
            register, negated = terminator.predicate
            if terminator.instruction is not None:
                self._begin(terminator.instruction)
            result = self.use(register, "?")
            if negated:
                result = f"~{result}"
        elif terminator.kind == "switch" and terminator.instruction is not None:
            self._begin(terminator.instruction)
            result = self.use(terminator.instruction.inputs[0], "u4")
        elif terminator.kind == "barrier_general" and terminator.instruction is not None:
            result = self._barrier(terminator.instruction)
        self._store_live()
        header = f"def block_{block.index}(x, f, m):"
        return [header, *(f"    {line}" for line in self._lines), f"    return {result}"]

    def _barrier(self, instruction: Instruction) -> str:
        """Number, thread count and predicate of a barrier whose operands are not all constant."""
        self._begin(instruction)
        values = list(instruction.inputs)
        predicate = self.use(values.pop(), "?") if "red" in instruction.modifiers else None
        number = self.use(values[0], "u4")
        count = self.use(values[1], "u4") if len(values) > 1 else None
        return f"({number}, {count}, {predicate})"

    def _store_live(self) -> None:
        kept = [r for r in self._block.live_out if r in self._written]
        if not kept and not self._frame.tracked:
            return
        plain: list[str] = []
        masked: list[str] = []
        for register in kept:
            name = self._as(register, self._home(register))
            slot = self._frame.slots[register]
            plain.append(f"    f[{slot}] = {name}")
            masked.append(f"    f[{slot}] = merge(m, {name}, f[{slot}])")
        if plain:
            self.line("if m is None:")
            self._lines.extend(plain)
            self.line("else:")
            self._lines.extend(masked)

    def _begin(self, instruction: Instruction) -> None:
        self._site = self._constant_site(Site(instruction))

    def _instruction(self, instruction: Instruction) -> None:
        self._begin(instruction)
        self._guard = None
        if instruction.guard is not None:
            register, negated = instruction.guard
            name = self.use(register, "?")
            self._guard = self.assign(f"~{name}") if negated else name
        handler = self._handlers.get(instruction.op)
        if handler is None:
            raise self.fail(instruction, "is not implemented by the reference engine")
        handler(self, instruction)
        self._guard = None

    def fail(self, instruction: Instruction, reason: str) -> LaunchError:
        """The refusal of an instruction."""
        where = f"kernel {self._frame.kernel.name!r}, PTX line {instruction.line}: {instruction.mnemonic!r}"
        return LaunchError(f"{where}: {reason}", source=instruction.location)

    # ---- text
    def line(self, text: str) -> None:
        """Append a line."""
        self._lines.append(text)

    def assign(self, expression: str) -> str:
        """Name the value of an expression."""
        name = f"v{self._count}"
        self._count += 1
        self.line(f"{name} = {expression}")
        return name

    def constant(self, bits: int, dtype: str) -> str:
        """A [1, 1] array of the value with these bits."""
        key = (dtype, bits)
        name = self._frame.names.get(key)
        if name is None:
            name = f"c{len(self._frame.names)}"
            if dtype == "?":
                value = np.array([[bool(bits)]])
            else:
                size = np.dtype(dtype).itemsize
                masked = bits & ((1 << (8 * size)) - 1)
                value = np.frombuffer(masked.to_bytes(size, "little"), dtype).reshape(1, 1)
            self._frame.names[key] = name
            self._frame.constants[name] = value
        return name

    def _constant_site(self, site: Site) -> str:
        name = f"s{len(self._frame.sites)}"
        self._frame.sites.append(site)
        self._frame.constants[name] = site
        return name

    def site(self, site: Site) -> str:
        """Name under which the code reaches ``site``."""
        return self._constant_site(site)

    @property
    def mask(self) -> str:
        """Expression of the mask of threads that execute the current instruction."""
        return "m" if self._guard is None else f"both(m, {self._guard})"

    # ---- values
    def _home(self, register: Register) -> str:
        default = "?" if register.type == "pred" else f"u{register.bytes}"
        return self._frame.homes.get(register, default)

    def home(self, register: Register | None, dtype: str) -> str:
        """The numpy type the register is kept in if it is as wide as ``dtype``, else ``dtype``."""
        if register is None or register.type == "pred":
            return dtype
        kept = self._home(register)
        return kept if np.dtype(kept).itemsize == np.dtype(dtype).itemsize else dtype

    def use(self, operand: Operand, dtype: str) -> str:
        """Expression of an operand as ``dtype``; wider registers are truncated, narrower ones zero-extended."""
        if isinstance(operand, Register):
            if np.dtype(dtype).itemsize == operand.bytes:
                self._vote(operand, dtype)
            return self._as(operand, dtype)
        if isinstance(operand, Immediate):
            return self.constant(_bits(operand, dtype), dtype)
        if isinstance(operand, Special):
            return self._special(operand.name, dtype)
        if isinstance(operand, Symbol):
            return self._symbol(operand, dtype)
        raise TypeError(f"operand {operand!r} has no value")

    def _vote(self, register: Register, dtype: str) -> None:
        self._frame.votes.setdefault(register, Counter())[dtype] += 1

    def _as(self, register: Register, dtype: str) -> str:
        values = self._values.get(register)
        if values is None:
            slot = self._frame.slots[register]
            if register in self._frame.tracked and register not in self._checked:
                self._checked.add(register)
                where = f"{slot}, {self._frame.tracked[register]}, {self._home(register)!r}"
                name = self.assign(f"x.defined({self._site}, {register.name!r}, f, {where}, {self.mask})")
            else:
                name = self.assign(f"f[{slot}]")
            values = self._values[register] = {self._home(register): name}
        if dtype in values:
            return values[dtype]
        have, name = next(iter(values.items()))
        size, wanted = np.dtype(have).itemsize, np.dtype(dtype).itemsize
        if size == wanted and dtype != "?" and have != "?":
            result = self.assign(f"{name}.view('{dtype}')")
        elif dtype == "?" or have == "?":
            result = self.assign(f"{name}.astype('{dtype}')")
        else:
            unsigned = self._as(register, f"u{size}") if have[0] != "u" else name
            result = self.assign(f"{unsigned}.astype('u{wanted}')")
            if dtype[0] != "u":
                result = self.assign(f"{result}.view('{dtype}')")
        values[dtype] = result
        return result

    def define(self, register: Register | None, expression: str, dtype: str) -> None:
        """Write a register; a value narrower than it is zero- or sign-extended."""
        if register is None:
            self.line(expression)
            return
        name = self.assign(expression)
        if register.type != "pred" and np.dtype(dtype).itemsize < register.bytes:
            if dtype[0] == "f":
                dtype = f"u{np.dtype(dtype).itemsize}"
                name = self.assign(f"{name}.view('{dtype}')")
            dtype = f"{dtype[0]}{register.bytes}"
            name = self.assign(f"{name}.astype('{dtype}')")
        else:
            self._vote(register, dtype)
        guarded = self._guard
        if guarded is not None:
            old = self._old(register, dtype)
            name = self.assign(f"where({guarded}, {name}, {old})")
        if register in self._frame.tracked:
            kept = self._frame.tracked[register]
            self.line(f"f[{kept}] = x.define({self.mask}, f[{kept}])")
        self._values[register] = {dtype: name}
        self._written.add(register)

    def _old(self, register: Register, dtype: str) -> str:
        """Value before a guarded write; its not being defined is no mistake."""
        if register in self._values:
            return self._as(register, dtype)
        if register not in self._block.live_in:
            return self.constant(0, dtype)
        home = self._home(register)
        name = self.assign(f"x.previous(f[{self._frame.slots[register]}], '{home}')")
        if home == dtype:
            return name
        return self.assign(f"{name}.view('{dtype}')")

    def _special(self, name: str, dtype: str) -> str:
        value = f"x.special({name!r})"
        return self.assign(value if dtype == "u4" else f"{value}.astype('{dtype}')")

    def _symbol(self, symbol: Symbol, dtype: str) -> str:
        placed = self._frame.kernel.offsets.get(symbol.name)
        if placed is not None:
            return self.constant(placed[1] + symbol.offset, dtype)
        return self.assign(f"x.symbol({symbol.name!r}, {symbol.offset}, '{dtype}')")

    def address(self, operand: Operand) -> tuple[str, int]:
        """Expression of the variable part of an address, as int64, and the constant part."""
        if not isinstance(operand, Address):
            return self.use(operand, "i8"), 0
        if operand.base is None:
            return self.constant(operand.offset, "i8"), 0
        return self.use(operand.base, "i8"), operand.offset

    def symbol_space(self, operand: Operand) -> str:
        """Space of the variable an address names, or ""."""
        base = operand.base if isinstance(operand, Address) else operand
        if isinstance(base, Symbol):
            placed = self._frame.kernel.offsets.get(base.name)
            return placed[0] if placed else "global"
        return ""


def _bits(literal: Immediate, dtype: str) -> int:
    if literal.kind == "int":
        return literal.value
    by_size = {"f8": "f64", "u8": "f64", "i8": "f64"}
    return literal_bits(literal, by_size.get(dtype, "f32" if np.dtype(dtype).itemsize == 4 else "b16"))
