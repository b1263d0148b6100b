"""A small program as a value, what PyTorch computes for it, and how far a kernel may be off.

A program is a list of steps on numbered tensors. It is written as linalg on tensors (``linalg_text``), and computed in
float64 (integers and bools in their own type) together with a bound of the rounding error of every element. The bound
is derived step by step: a step passes on the errors of its operands and adds its own roundings, each of half a unit in
the last place. Where nothing was rounded it is zero. So sums of small multiples of a power of two must be exact, and
what jumps (comparisons, casts to integers, positions of a maximum) is asked only of values without an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Dtype:
    """An element type.

    Attributes:
        name: numpy-like name, that of the attribute ``stitch.dtype``.
        element: type in the IR; int8 and uint8 are both i8.
        torch: type in PyTorch.
    """

    name: str
    element: str
    torch: torch.dtype

    @property
    def is_float(self) -> bool:
        return self.torch.is_floating_point

    @property
    def is_bool(self) -> bool:
        return self.name == "bool"

    @property
    def is_integer(self) -> bool:
        return not self.is_float and not self.is_bool

    @property
    def is_signed(self) -> bool:
        return self.is_integer and self.name != "uint8"

    @property
    def bits(self) -> int:
        return int(self.element.lstrip("bfi"))

    @property
    def unit(self) -> float:
        """Unit roundoff: the largest relative error of rounding to nearest."""
        return torch.finfo(self.torch).eps / 2

    @property
    def tiny(self) -> float:
        """The smallest positive number."""
        return torch.finfo(self.torch).smallest_normal * torch.finfo(self.torch).eps

    @property
    def function_units(self) -> float:
        """Roundings that a function may be off by: 4 ulp in float32 and float64; narrower ones round that once."""
        return 8.0 if self.bits >= 32 else 1.1

    @property
    def accumulator(self) -> Dtype:
        """The type in which sums and products accumulate."""
        return DTYPES["float32"] if self.bits == 16 else self

    @property
    def most(self) -> float:
        """Largest magnitude of a value of a random program."""
        return 2.0**15 if self.name == "float16" else 2.0**20


DTYPES = {
    name: Dtype(name, element, kind)
    for name, element, kind in (
        ("float32", "f32", torch.float32),
        ("float16", "f16", torch.float16),
        ("bfloat16", "bf16", torch.bfloat16),
        ("float64", "f64", torch.float64),
        ("int64", "i64", torch.int64),
        ("int32", "i32", torch.int32),
        ("int16", "i16", torch.int16),
        ("int8", "i8", torch.int8),
        ("uint8", "i8", torch.uint8),
        ("bool", "i1", torch.bool),
    )
}
FLOATS = tuple(dtype for dtype in DTYPES.values() if dtype.is_float)
INTEGERS = tuple(dtype for dtype in DTYPES.values() if dtype.is_integer)
BOOL = DTYPES["bool"]


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def text(self) -> str:
        """The type in the IR."""
        return f"tensor<{''.join(f'{n}x' for n in self.shape)}{self.dtype.element}>"


@dataclass(frozen=True)
class Input:
    """An argument of a program.

    Attributes:
        fill: "quarters" (multiples of 1/4 from -4 to 4; integers from -9 to 9), or "special" (NaN, infinities, zeros
            and extreme integers among them).
        layout: "contiguous", "transposed" or "sliced" in the memory of the caller.
        seed: draws the values.
    """

    type: TensorType
    fill: str
    layout: str
    seed: int


@dataclass(frozen=True)
class Step:
    """One op.

    Attributes:
        op: its name in ``random_ops.OPS``.
        operands: numbers of the values it reads.
        details: whatever else the op wants to know, plain data.
    """

    op: str
    operands: tuple[int, ...]
    details: tuple[object, ...] = ()


@dataclass(frozen=True)
class Program:
    """Values are numbered: inputs first, then the results of the steps. ``outputs`` may repeat and may be inputs."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a value.

    Attributes:
        type: shape and element type.
        truth: its elements, floats in float64 without any rounding of the program's.
        error: bound of the absolute error per element (float64); a scalar zero for integers and bools.
    """

    type: TensorType
    truth: Tensor
    error: Tensor

    @cached_property
    def is_exact(self) -> bool:
        """Nothing was rounded."""
        return not bool(self.error.any())

    @cached_property
    def is_tame(self) -> bool:
        """Finite elements are of moderate size, and known well enough to find a fault."""
        if not self.type.dtype.is_float or not self.truth.numel():
            return True
        finite = torch.nan_to_num(self.truth, 0.0, 0.0, 0.0).abs().max().item()
        return finite <= self.type.dtype.most and self.error.max().item() <= 0.1 * max(1.0, finite)


NO_ERROR = torch.zeros((), dtype=torch.float64)


def rounded(truth: Tensor, carried: Tensor, dtype: Dtype, units: float = 1.0, scale: Tensor | None = None) -> Known:
    """A float result whose operands' errors amount to ``carried``.

    One unit is a correctly rounded operation: what the type can hold stays without error. Several units are
    roundings relative to ``scale``, the larger of ``truth`` and what is rounded on the way.
    """
    size = truth.abs() if scale is None else torch.maximum(truth.abs(), scale)
    loose = carried + units * dtype.unit * (size + carried) + dtype.tiny
    if units == 1.0:
        # Float64 judges float64: what fits into float32 was not rounded.
        judge = torch.float32 if dtype.name == "float64" else dtype.torch
        is_exact = (carried == 0) & (truth.to(judge).double() == truth)
        loose = torch.where(is_exact, 0.0, loose * (2.0 if dtype.name == "float64" else 1.0))
    error = torch.where(truth.isfinite(), torch.nan_to_num(loose, 0.0, torch.inf), 0.0)
    return Known(TensorType(tuple(truth.shape), dtype), truth, error)


def exactly(truth: Tensor, dtype: Dtype) -> Known:
    """An integer or bool result, or a float one without error."""
    error = torch.zeros_like(truth) if dtype.is_float else NO_ERROR
    return Known(TensorType(tuple(truth.shape), dtype), truth, error)


@dataclass
class Text:
    """Lines of a function that is being written. Values of bodies are called ``%b``, others ``%t``."""

    lines: list[str] = field(default_factory=list)
    count: int = 0

    def emit(self, right: str, results: int = 1) -> str:
        """Append an op; returns the name of its (first) result."""
        self.count += 1
        self.lines.append(f"  %t{self.count}{f':{results}' if results > 1 else ''} = {right}")
        return f"%t{self.count}"

    def empty(self, kind: TensorType) -> str:
        return self.emit(f"tensor.empty() : {kind.text}")

    def constant(self, value: float | int | bool, dtype: Dtype) -> str:
        return self.emit(f"arith.constant {literal(value, dtype)}")

    def filled(self, value: float | int | bool, kind: TensorType) -> str:
        """A tensor of one value."""
        scalar, empty = self.constant(value, kind.dtype), self.empty(kind)
        return self.emit(f"linalg.fill ins({scalar} : {kind.dtype.element}) outs({empty} : {kind.text}) -> {kind.text}")

    def generic(
        self,
        maps: Sequence[str],
        reduced: Sequence[bool],
        inputs: Sequence[tuple[str, TensorType]],
        inits: Sequence[tuple[str, TensorType]],
        body: Body,
        yields: Sequence[str],
    ) -> list[str]:
        """A ``linalg.generic``; ``maps`` are results of affine maps, ``reduced`` tells its reduction loops."""
        dims = ", ".join(f"d{d}" for d in range(len(reduced)))
        texts = ", ".join(f"affine_map<({dims}) -> ({m})>" for m in maps)
        kinds = ", ".join('"reduction"' if r else '"parallel"' for r in reduced)
        types = [kind for _, kind in (*inputs, *inits)]
        block = ", ".join(f"%a{n}: {kind.dtype.element}" for n, kind in enumerate(types))
        read = f"ins({_typed(inputs)}) " if inputs else ""
        results = ", ".join(kind.text for _, kind in inits)
        results = f"({results})" if len(inits) > 1 else results
        yielded = f"{', '.join(yields)} : {', '.join(kind.dtype.element for _, kind in inits)}"
        name = self.emit(
            f"linalg.generic {{indexing_maps = [{texts}], iterator_types = [{kinds}]}}\n"
            f"      {read}outs({_typed(inits)}) {{\n  ^bb0({block}):\n"
            + "".join(f"    {line}\n" for line in body.lines)
            + f"    linalg.yield {yielded}\n  }} -> {results}",
            len(inits),
        )
        return [name] if len(inits) == 1 else [f"{name}#{n}" for n in range(len(inits))]


@dataclass
class Body:
    """Lines of the body of a ``linalg.generic``; its arguments are ``%a0``, ``%a1`` ..."""

    lines: list[str] = field(default_factory=list)

    def emit(self, right: str) -> str:
        self.lines.append(f"%b{len(self.lines)} = {right}")
        return f"%b{len(self.lines) - 1}"

    def op(self, name: str, dtype: Dtype, *operands: str) -> str:
        """An op whose operands and result have one type."""
        return self.emit(f"{name} {', '.join(operands)} : {dtype.element}")

    def constant(self, value: float | int | bool, dtype: Dtype) -> str:
        return self.emit(f"arith.constant {literal(value, dtype)}")

    def compare(self, predicate: str, dtype: Dtype, left: str, right: str) -> str:
        return self.emit(f"arith.cmp{'f' if dtype.is_float else 'i'} {predicate}, {left}, {right} : {dtype.element}")

    def select(self, condition: str, dtype: Dtype, left: str, right: str) -> str:
        return self.emit(f"arith.select {condition}, {left}, {right} : {dtype.element}")

    def convert(self, name: str, value: str, source: str, target: str) -> str:
        return self.emit(f"{name} {value} : {source} to {target}")

    def index(self, loop: int) -> str:
        return self.emit(f"linalg.index {loop} : index")


_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


def literal(value: float | int | bool, dtype: Dtype) -> str:
    """A constant with its type."""
    if dtype.is_bool:
        return "true" if value else "false"
    if not dtype.is_float:
        return f"{int(value)} : {dtype.element}"
    if math.isinf(value):
        bits = _INFINITY[dtype.element] | (1 << (dtype.bits - 1) if value < 0 else 0)
        return f"0x{bits:0{dtype.bits // 4}X} : {dtype.element}"
    return f"{float(value):.6e} : {dtype.element}"


def _typed(values: Sequence[tuple[str, TensorType]]) -> str:
    return f"{', '.join(name for name, _ in values)} : {', '.join(kind.text for _, kind in values)}"


def input_values(given: Input) -> Tensor:
    """The values of an input, in its own type."""
    source = np.random.default_rng(given.seed)
    shape, dtype = given.type.shape, given.type.dtype
    if dtype.is_bool:
        return torch.from_numpy(np.asarray(source.integers(0, 2, shape))).to(torch.bool)
    special = given.fill == "special"
    if dtype.is_float:
        values = np.asarray(source.integers(-16, 17, shape) / 4.0)
        if special:
            odd = source.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
            values = np.where(source.random(shape) < 0.1, odd, values)
        return torch.from_numpy(values).to(dtype.torch)
    values = np.asarray(source.integers(-9 if dtype.is_signed else 0, 10, shape))
    if special:
        bounds = torch.iinfo(dtype.torch)
        odd = source.choice([bounds.min, bounds.max, bounds.max - 1], shape)
        values = np.where(source.random(shape) < 0.1, odd, values)
    return torch.from_numpy(np.asarray(values)).to(dtype.torch)


def known_input(given: Input) -> Known:
    """An input as it is judged."""
    values = input_values(given)
    return exactly(values.double() if given.type.dtype.is_float else values, given.type.dtype)
