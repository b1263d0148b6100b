"""One index space for outputs that lie in memory in different orders: digits.

The elements of all outputs are numbered by the same *digits*, symbols whose extents multiply to the number of elements.
They start as the dims of the first output and are split where an index of another tensor divides one of them, until
every offset is a sum of multiples of digits. A head merge ``[B, T, H * D] <- [B, H, T, D]`` so gets the digits of B, T,
H and D, and a transpose those of its two dims.

Where another output stands follows from a value that both depend on: the element of it that the first output reads at
some digits is read by exactly one element of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlirstitch.lowering.kernel.index_expr import (
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    delinearize,
    floordiv,
    linearize,
    mod,
    substitute,
    symbol,
)
from mlirstitch.lowering.kernel.reach import Point, Reach
from mlirstitch.lowering.kernel.tensor_program import Indices, Node, TensorProgram

MOST_ROUNDS = 16
"""Rounds of splitting; every digit of a tensor of 2**31 elements is split at most so often in practice."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the elements of the outputs lie.

    Attributes:
        digits: the symbols, those of the first output's outermost dim first; extents of 1 left out.
        places: indices of every output in terms of the digits.
        reach: what the outputs need at these indices.
    """

    digits: tuple[Symbol, ...]
    places: tuple[Indices, ...]
    reach: Reach

    def offsets(self, program: TensorProgram) -> list[Expr]:
        """The row-major position of every output's element."""
        return [linearize(place, node.shape) for place, node in zip(self.places, program.outputs, strict=True)]


def place_outputs(program: TensorProgram) -> Placement:
    """Digits for outputs that have one size."""

    def placement(digits: Digits) -> Placement:
        places = tuple(_places(program, digits.place))
        reach = Reach([Point(node, place) for node, place in zip(program.outputs, places, strict=True)])
        return Placement(digits.symbols, places, reach)

    def offsets(digits: Digits) -> list[Expr]:
        placed = placement(digits)
        return [*load_offsets(placed.reach), *placed.offsets(program)]

    return placement(Digits.of(program.outputs[0].shape, "i").cut(offsets))


def load_offsets(reach: Reach) -> list[Expr]:
    """The row-major position of every element of an argument that is read."""
    return [linearize(indices, node.shape) for node, indices in reach.loads()]


@dataclass(frozen=True)
class Digits:
    """Indices of a tensor, ``place``, in terms of digits, ``symbols``; digits of one value are left out."""

    symbols: tuple[Symbol, ...]
    place: Indices

    @staticmethod
    def of(shape: Sequence[int], name: str) -> Digits:
        """One digit a dim."""
        symbols = [symbol(f"{name}{dim}", extent) for dim, extent in enumerate(shape)]
        return Digits(tuple(s for s in symbols if s.high), tuple(s.expr for s in symbols))

    def cut(self, offsets: Callable[[Digits], Sequence[Expr]]) -> Digits:
        """Digits so fine that ``offsets``, which depend on them, are sums of multiples of digits, if that can be."""
        digits = self
        for _ in range(MOST_ROUNDS):
            finer = digits._cut_at(_divisors(offsets(digits)))
            if finer is None:
                break
            digits = finer
        return digits

    def _cut_at(self, divisors: Mapping[Symbol, int]) -> Digits | None:
        """The finer digits if each symbol is cut by its divisor; None if there is nothing to cut."""
        digits: list[Symbol] = []
        binding: dict[Symbol, Expr] = {}
        for name in self.symbols:
            by = divisors.get(name)
            if by is None:
                digits.append(name)
                continue
            high, low = symbol(f"{name.name}h", (name.high + 1) // by), symbol(f"{name.name}l", by)
            binding[name] = high.expr * by + low.expr
            digits += [high, low]
        if not binding:
            return None
        return Digits(tuple(digits), tuple(substitute(index, binding) for index in self.place))


def _divisors(offsets: Sequence[Expr]) -> dict[Symbol, int]:
    """By what the first quotient or remainder of each symbol divides it, where that goes without remainder."""
    found: dict[Symbol, int] = {}
    for offset in offsets:
        for atom, _ in offset.terms:
            while isinstance(atom, FloorDiv | Mod) and len(atom.operand.terms) == 1:
                inner, factor = atom.operand.terms[0]
                if isinstance(inner, Symbol):
                    extent = inner.high + 1
                    if factor == 1 and not atom.operand.const and extent % atom.divisor == 0:
                        found.setdefault(inner, atom.divisor)
                    break
                atom = inner
    return found


def strides_of(offset: Expr) -> dict[Symbol, int] | None:
    """The stride of every digit if the offset is a sum of multiples of digits, else None."""
    if not all(isinstance(atom, Symbol) for atom, _ in offset.terms):
        return None
    return {atom: stride for atom, stride in offset.terms if isinstance(atom, Symbol)}


def _is_numbering(offset: Expr, elements: int) -> bool:
    """Whether the offset takes every value below ``elements`` once."""
    strides = strides_of(offset)
    if strides is None or offset.const:
        return False
    expected = 1
    for name, stride in sorted(strides.items(), key=lambda item: item[1]):
        if stride != expected:
            return False
        expected *= name.high + 1
    return expected == elements


def _places(program: TensorProgram, first: Indices) -> list[Indices]:
    """Indices of every output, from those of the first."""
    head = program.outputs[0]
    places = {head.uid: first}
    known = Reach([Point(head, first)])
    for node in program.outputs[1:]:
        if node.uid not in places:
            places[node.uid] = _place(node, known) or delinearize(linearize(first, head.shape), node.shape)
            known = Reach([Point(other, places[other.uid]) for other in program.outputs if other.uid in places])
    return [places[node.uid] for node in program.outputs]


def _place(node: Node, known: Reach) -> Indices | None:
    """Where ``node`` stands, by a value of its size that it and what is placed depend on."""
    for found in known.of(node):
        if _is_numbering(linearize(found.indices, node.shape), node.elements):
            return found.indices
    own = Digits.of(node.shape, "o").cut(lambda digits: load_offsets(Reach([Point(node, digits.place)])))
    for point in Reach([Point(node, own.place)]).points.values():
        offset = linearize(point.indices, point.node.shape)
        strides = strides_of(offset)
        if strides is None or not _is_numbering(offset, node.elements):
            continue
        for shared in known.of(point.node):
            position = linearize(shared.indices, point.node.shape)
            if _is_numbering(position, node.elements):
                binding = {name: mod(floordiv(position, stride), name.high + 1) for name, stride in strides.items()}
                return tuple(substitute(index, binding) for index in own.place)
    return None
