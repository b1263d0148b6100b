"""Writes functions of the llvm dialect as text.

An :class:`Expression` names an SSA value and its type; Python operators append the operation that computes their
result. A value is a scalar, or a vector with one element for each of the 32 threads of a warp; an algorithm written on
expressions works for both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

WARP = 32
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "f32": 32, "f64": 64}
"""Width of every scalar type."""

Operand: TypeAlias = "Expression | int | float"


def type_text(kind: str, vector: bool) -> str:
    """The type as the llvm dialect writes it."""
    if kind == "ptr":
        return "!llvm.ptr"
    return f"vector<{WARP}x{kind}>" if vector else kind


@dataclass(frozen=True, slots=True)
class Expression:
    """An SSA value of element type ``type``; ``vector`` tells whether it has an element for each thread.

    Shifts are logical; comparisons ``<`` and the like are unsigned for integers and ordered for floats.
    """

    builder: Builder
    name: str
    type: str
    vector: bool

    @property
    def text(self) -> str:
        """Its type as text."""
        return type_text(self.type, self.vector)

    @property
    def bits(self) -> int:
        """Width of an element."""
        return BITS[self.type]

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.type[0] == "f"

    def other(self, value: Operand) -> Expression:
        """``value`` as an expression of the same type."""
        return value if isinstance(value, Expression) else self.builder.constant(value, self.type, self.vector)

    def _binary(self, integer: str, floating: str, value: Operand) -> Expression:
        op = floating if self.is_float else integer
        return self.builder.same(f"llvm.{op} {self.name}, {self.other(value).name}", self)

    def __add__(self, value: Operand) -> Expression:
        return self._binary("add", "fadd", value)

    def __sub__(self, value: Operand) -> Expression:
        return self._binary("sub", "fsub", value)

    def __mul__(self, value: Operand) -> Expression:
        return self._binary("mul", "fmul", value)

    def __truediv__(self, value: Operand) -> Expression:
        return self._binary("udiv", "fdiv", value)

    def __and__(self, value: Operand) -> Expression:
        return self._binary("and", "", value)

    def __or__(self, value: Operand) -> Expression:
        return self._binary("or", "", value)

    def __xor__(self, value: Operand) -> Expression:
        return self._binary("xor", "", value)

    def __lshift__(self, value: Operand) -> Expression:
        return self._binary("shl", "", value)

    def __rshift__(self, value: Operand) -> Expression:
        return self._binary("lshr", "", value)

    def arithmetic_shift(self, value: Operand) -> Expression:
        """Shift right that keeps the sign."""
        return self._binary("ashr", "", value)

    def divide(self, value: Operand, signed: bool) -> Expression:
        """Integer quotient; undefined for a divisor of 0 and for the one overflow of signed division."""
        return self._binary("sdiv" if signed else "udiv", "", value)

    def remainder(self, value: Operand, signed: bool) -> Expression:
        """Integer remainder, see :meth:`divide`."""
        return self._binary("srem" if signed else "urem", "", value)

    def __neg__(self) -> Expression:
        if self.is_float:
            return self.builder.same(f"llvm.fneg {self.name}", self)
        return self.other(0) - self

    def __invert__(self) -> Expression:
        return self ^ -1

    def compare(self, predicate: str, value: Operand) -> Expression:
        """``icmp`` or ``fcmp`` with this predicate."""
        op = "fcmp" if self.is_float else "icmp"
        text = f'llvm.{op} "{predicate}" {self.name}, {self.other(value).name} : {self.text}'
        return self.builder.define(text, "i1", self.vector)

    def eq(self, value: Operand) -> Expression:
        """Equal."""
        return self.compare("oeq" if self.is_float else "eq", value)

    def ne(self, value: Operand) -> Expression:
        """Different (unordered floats are)."""
        return self.compare("une" if self.is_float else "ne", value)

    def lt(self, value: Operand, signed: bool = False) -> Expression:
        """Less."""
        return self.compare("olt" if self.is_float else "slt" if signed else "ult", value)

    def le(self, value: Operand, signed: bool = False) -> Expression:
        """Less or equal."""
        return self.compare("ole" if self.is_float else "sle" if signed else "ule", value)

    def gt(self, value: Operand, signed: bool = False) -> Expression:
        """Greater."""
        return self.compare("ogt" if self.is_float else "sgt" if signed else "ugt", value)

    def ge(self, value: Operand, signed: bool = False) -> Expression:
        """Greater or equal."""
        return self.compare("oge" if self.is_float else "sge" if signed else "uge", value)

    def is_nan(self) -> Expression:
        """Not a number."""
        return self.compare("uno", self)

    def where(self, yes: Operand, no: Operand) -> Expression:
        """``yes`` where this holds, else ``no``; one of them must be an expression."""
        model = yes if isinstance(yes, Expression) else no
        assert isinstance(model, Expression)
        a, b = model.other(yes), model.other(no)
        condition = self
        if model.vector and not self.vector:
            condition = self.builder.splat(self)
        text = f"llvm.select {condition.name}, {a.name}, {b.name} : {condition.text}, {a.text}"
        return self.builder.define(text, model.type, model.vector)

    def cast(self, op: str, kind: str) -> Expression:
        """Apply a conversion operation."""
        if kind == self.type:
            return self
        text = f"llvm.{op} {self.name} : {self.text} to {type_text(kind, self.vector)}"
        return self.builder.define(text, kind, self.vector)

    def as_type(self, kind: str) -> Expression:
        """The same bits as another type of the same width."""
        return self.cast("bitcast", kind)

    def resize(self, kind: str, signed: bool = False) -> Expression:
        """Truncate or extend an integer."""
        if BITS[kind] < self.bits:
            return self.cast("trunc", kind)
        return self.cast("sext" if signed else "zext", kind)

    def call(self, intrinsic: str, *others: Operand, attributes: str = "") -> Expression:
        """An intrinsic whose operands and result have this type."""
        values = [self, *(self.other(value) for value in others)]
        names, types = ", ".join(v.name for v in values), ", ".join(v.text for v in values)
        text = f'"llvm.intr.{intrinsic}"({names}) {attributes}: ({types}) -> {self.text}'
        return self.builder.define(text, self.type, self.vector)

    def fabs(self) -> Expression:
        """Absolute value of a float."""
        return self.call("fabs")

    def smin(self, value: Operand) -> Expression:
        """Signed minimum."""
        return self.call("smin", value)

    def smax(self, value: Operand) -> Expression:
        """Signed maximum."""
        return self.call("smax", value)

    def umin(self, value: Operand) -> Expression:
        """Unsigned minimum."""
        return self.call("umin", value)

    def umax(self, value: Operand) -> Expression:
        """Unsigned maximum."""
        return self.call("umax", value)


class Builder:
    """One function under construction: ``text`` ends up in a module."""

    def __init__(
        self, name: str, parameters: Sequence[str], result: str, inline: bool = True, vectors: bool = False
    ) -> None:
        """``vectors``: parameters and result have an element for each thread."""
        self._name = name
        self._vectors = vectors
        self._inline = inline
        self._result = result
        self._count = 0
        self._labels = 0
        self._lines: list[str] = []
        self._constants: dict[tuple[str, bool, int], Expression] = {}
        self._prologue: list[str] = []
        self.parameters = tuple(Expression(self, f"%p{n}", kind, vectors) for n, kind in enumerate(parameters))

    # ---- text
    def line(self, text: str) -> None:
        """Append an operation without result."""
        self._lines.append(text)

    def define(self, text: str, kind: str, vector: bool = False) -> Expression:
        """Append an operation with a result."""
        name = f"%{self._count}"
        self._count += 1
        self._lines.append(f"{name} = {text}")
        return Expression(self, name, kind, vector)

    def same(self, text: str, model: Expression) -> Expression:
        """Append an operation whose type is that of ``model``."""
        return self.define(f"{text} : {model.text}", model.type, model.vector)

    def prologue(self, text: str, kind: str, vector: bool = False) -> Expression:
        """An operation at the start of the function, whose result all code may use."""
        name = f"%{self._count}"
        self._count += 1
        self._prologue.append(f"{name} = {text}")
        return Expression(self, name, kind, vector)

    def finish(self) -> str:
        """The function."""
        parameters = ", ".join(f"{p.name}: {p.text}" for p in self.parameters)
        result = f" -> {type_text(self._result, self._vectors)}" if self._result else ""
        body = "\n".join([*self._prologue, *self._lines])
        attributes = "" if self._inline else ' attributes {passthrough = ["noinline"]}'
        return f"llvm.func @{self._name}({parameters}){result}{attributes} {{\n{body}\n}}\n"

    # ---- values
    def constant(self, value: int | float, kind: str, vector: bool = False) -> Expression:
        """A constant; an integer for a float type is its bit pattern."""
        if isinstance(value, float):
            codes = {"f16": "<eH", "f32": "<fI", "f64": "<dQ"}[kind]
            pattern: int = struct.unpack("<" + codes[2], struct.pack("<" + codes[1], value))[0]
        else:
            pattern = value
        bits = pattern & ((1 << BITS[kind]) - 1)
        key = (kind, vector, bits)
        found = self._constants.get(key)
        if found is None:
            if kind == "i1":
                literal = "true" if bits else "false"
            elif kind[0] == "f":
                literal = f"0x{bits:0{BITS[kind] // 4}X}"
            else:
                literal = str(bits - (1 << BITS[kind]) if bits >> (BITS[kind] - 1) else bits)
            text = type_text(kind, vector)
            if vector:
                found = self.prologue(f"llvm.mlir.constant(dense<{literal}> : {text}) : {text}", kind, True)
            elif kind == "i1":
                found = self.prologue(f"llvm.mlir.constant({literal}) : i1", kind)
            else:
                found = self.prologue(f"llvm.mlir.constant({literal} : {text}) : {text}", kind)
            self._constants[key] = found
        return found

    def ramp(self, stride: int, kind: str) -> Expression:
        """The vector 0, stride, 2 stride, ..."""
        half = 1 << (BITS[kind] - 1)
        numbers = [((lane * stride + half) & (2 * half - 1)) - half for lane in range(WARP)]
        key = (f"ramp {kind}", True, stride)
        found = self._constants.get(key)
        if found is None:
            text = type_text(kind, True)
            found = self.prologue(f"llvm.mlir.constant(dense<{numbers}> : {text}) : {text}", kind, True)
            self._constants[key] = found
        return found

    def splat(self, value: Expression) -> Expression:
        """The scalar for every thread."""
        text = type_text(value.type, True)
        empty = self._constants.get((f"poison {value.type}", True, 0))
        if empty is None:
            empty = self.prologue(f"llvm.mlir.poison : {text}", value.type, True)
            self._constants[(f"poison {value.type}", True, 0)] = empty
        zero = self.constant(0, "i64")
        one = self.define(
            f"llvm.insertelement {value.name}, {empty.name}[{zero.name} : i64] : {text}", value.type, True
        )
        return self.shuffle(one, [0] * WARP)

    def shuffle(self, value: Expression, lanes: Sequence[int], other: Expression | None = None) -> Expression:
        """The elements with these numbers."""
        second = other or value
        text = f"llvm.shufflevector {value.name}, {second.name} {list(lanes)} : {value.text}"
        return self.define(text, value.type, True)

    # ---- memory
    def at(self, pointer: Expression, offset: int | Expression) -> Expression:
        """``pointer`` plus bytes."""
        if isinstance(offset, int):
            if offset == 0:
                return pointer
            return self.define(f"llvm.getelementptr {pointer.name}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8", "ptr")
        kind = offset.text
        text = f"llvm.getelementptr {pointer.name}[{offset.name}] : (!llvm.ptr, {kind}) -> !llvm.ptr, i8"
        return self.define(text, "ptr")

    def load(self, pointer: Expression, kind: str, vector: bool = False, align: int = 0) -> Expression:
        """Load; ``align`` 0 is the natural alignment of an element."""
        align = align or max(BITS.get(kind, 64) // 8, 1)
        text = f"llvm.load {pointer.name} {{alignment = {align} : i64}} : !llvm.ptr -> {type_text(kind, vector)}"
        return self.define(text, kind, vector)

    def store(self, value: Expression, pointer: Expression, align: int = 0) -> None:
        """Store, see :meth:`load`."""
        align = align or max(BITS.get(value.type, 64) // 8, 1)
        self.line(f"llvm.store {value.name}, {pointer.name} {{alignment = {align} : i64}} : {value.text}, !llvm.ptr")

    def field(self, pointer: Expression, offset: int, kind: str) -> Expression:
        """The field of a structure in memory."""
        return self.load(self.at(pointer, offset), kind)

    def set_field(self, pointer: Expression, offset: int, value: Expression) -> None:
        """Write the field of a structure in memory."""
        self.store(value, self.at(pointer, offset))

    def add_field(self, pointer: Expression, offset: int, amount: Operand, kind: str = "i64") -> None:
        """Increase the field of a structure in memory."""
        place = self.at(pointer, offset)
        self.store(self.load(place, kind) + amount, place)

    def variable(self, value: Expression) -> Expression:
        """A place on the stack that holds ``value``."""
        one = self.constant(1, "i32")
        place = self.prologue(f"llvm.alloca {one.name} x {value.text} : (i32) -> !llvm.ptr", "ptr")
        self.store(value, place)
        return place

    # ---- control
    def label(self, hint: str = "l") -> str:
        """A fresh block name."""
        self._labels += 1
        return f"^{hint}_{self._labels}"

    def start(self, label: str, parameters: Sequence[tuple[str, str]] = ()) -> tuple[Expression, ...]:
        """Begin a block; its parameters are (element type, or "v" + element type for a vector)."""
        values: list[Expression] = []
        for kind, shape in parameters:
            values.append(Expression(self, f"%{self._count}", kind, shape == "v"))
            self._count += 1
        listed = ", ".join(f"{v.name}: {v.text}" for v in values)
        self.line(f"{label}({listed}):" if values else f"{label}:")
        return tuple(values)

    def jump(self, label: str, *values: Expression) -> None:
        """Go on at another block."""
        self.line(f"llvm.br {target(label, values)}")

    def branch(
        self, condition: Expression, yes: str, no: str, yes_values: Sequence[Any] = (), no_values: Sequence[Any] = ()
    ) -> None:
        """Go on at one of two blocks."""
        self.line(f"llvm.cond_br {condition.name}, {target(yes, yes_values)}, {target(no, no_values)}")

    def give_back(self, value: Operand | None = None) -> None:
        """Return."""
        if value is None:
            self.line("llvm.return")
            return
        if not isinstance(value, Expression):
            value = self.constant(value, self._result)
        self.line(f"llvm.return {value.name} : {value.text}")

    @contextmanager
    def when(self, condition: Expression) -> Iterator[None]:
        """The body runs if the condition holds. It may not end with a return, see :meth:`leave_when`."""
        inside, after = self.label("then"), self.label("after")
        self.branch(condition, inside, after)
        self.start(inside)
        yield
        self.jump(after)
        self.start(after)

    @contextmanager
    def leave_when(self, condition: Expression) -> Iterator[None]:
        """The body, which ends by itself, runs if the condition holds."""
        inside, after = self.label("leave"), self.label("stay")
        self.branch(condition, inside, after)
        self.start(inside)
        yield
        self.start(after)

    @contextmanager
    def loop(self, first: Operand, end: Expression) -> Iterator[Expression]:
        """Counts from ``first`` up to below ``end`` (signed)."""
        head, body, after = self.label("head"), self.label("body"), self.label("done")
        self.jump(head, end.other(first))
        (index,) = self.start(head, [(end.type, "s")])
        self.branch(index.lt(end, signed=True), body, after)
        self.start(body)
        yield index
        self.jump(head, index + 1)
        self.start(after)

    def call_pointer(
        self, function: Expression, values: Sequence[Expression], result: str, vector: bool = False
    ) -> Expression:
        """Call a function through a pointer."""
        names, types = ", ".join(v.name for v in values), ", ".join(v.text for v in values)
        signature = f"({types}) -> {type_text(result, vector)}"
        return self.define(f"llvm.call {function.name}({names}) : !llvm.ptr, {signature}", result, vector)

    def call(self, function: str, values: Sequence[Expression], result: str) -> Expression:
        """Call a function of the module."""
        names, types = ", ".join(v.name for v in values), ", ".join(v.text for v in values)
        return self.define(f"llvm.call @{function}({names}) : ({types}) -> {type_text(result, False)}", result)


def target(label: str, values: Sequence[Expression]) -> str:
    """A successor with its arguments."""
    if not values:
        return label
    return f"{label}({', '.join(v.name for v in values)} : {', '.join(v.text for v in values)})"
