"""Syntax tree of a PTX module: what the parser reads, before calls are inlined and instructions are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register, unique within its function (scoped registers are renamed).

    ``type`` is the declared one without sign: "pred", "b8", "b16", "b32" or "b64".
    """

    name: str
    type: str

    @property
    def bytes(self) -> int:
        """Size in bytes; predicates count as one."""
        return TYPE_BYTES[self.type]


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. ``kind`` is "int" (``value`` the integer), "f32" or "f64" (``value`` the bit pattern), or "decimal"
    (``text`` a decimal floating-point number whose format the instruction decides)."""

    kind: str
    value: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable plus a byte offset; also a label or a function where an instruction expects one."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """``[base+offset]`` with a byte offset; ``base`` is None for an absolute address."""

    base: Register | Symbol | None
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b}`` (``bar`` False) or the pair ``a|b`` (``bar`` True)."""

    elements: tuple[Operand, ...]
    bar: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """``(a, b)`` of a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result nobody wants, or a value that does not matter."""


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``: a predicate negated where an instruction takes it as an operand."""

    register: Register


Operand: TypeAlias = Register | Immediate | Special | Symbol | Address | Vector | Arguments | Sink | Negated


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction as written.

    ``location`` is ``file:line`` of the last ``.loc``, or "". ``guard`` is the predicate with True where negated.
    """

    mnemonic: str
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    line: int
    location: str


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in memory. ``space`` is "global", "const", "shared" or "local"; ``initial`` its bytes, or None."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes | None
    external: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal parameter. ``kind`` is "pointer", "integer", "float" or "bytes"; ``offset`` its byte offset."""

    name: str
    kind: str
    type: str
    size: int
    offset: int


@dataclass
class Function:
    """A kernel (``entry``) or a device function; ``body`` is None for a declaration."""

    name: str
    entry: bool
    line: int
    parameters: tuple[Parameter, ...] = ()
    results: tuple[Parameter, ...] = ()
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    body: list[Statement | Label] | None = None
    variables: dict[str, Variable] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class Module:
    """A whole PTX module."""

    version: str = ""
    target: str = ""
    files: dict[int, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)


TYPE_BYTES: dict[str, int] = {
    "pred": 1,
    "b8": 1, "u8": 1, "s8": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8,
}  # fmt: skip
"""Size of every type in bytes."""
