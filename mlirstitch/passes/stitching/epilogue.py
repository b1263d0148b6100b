"""Element-wise code as polynomials: what a chain of ops does to one element, whatever way it was written.

A polynomial maps a *monomial*, a sorted tuple of atoms, to its coefficient. An atom is an element of a tensor
(:class:`Leaf`), or a function of a polynomial: ``tanh``, or ``relu``, the larger of it and 0. GELU in its tanh form is
a polynomial of ``x`` and ``tanh`` of another, ``0.5 x + 0.5 x tanh(0.798 (x + 0.0447 x^3))`` (Hendrycks and Gimpel,
arXiv 1606.08415, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from mlir import ir

from mlirstitch.passes.stitching.strided_layout import Layout
from mlirstitch.passes.structured import defining_op

MOST_TERMS = 64
GELU_SCALE, GELU_CUBE = math.sqrt(2 / math.pi), 0.044715
PRODUCT = -1
"""The number of the contraction's result among the sources of leaves."""

SAME_CONSTANT = 1e-5
"""Relative difference below which two constants of an activation are the same one, written with fewer digits."""


class NoEpilogue(Exception):
    """Code that is no polynomial; the message names the op."""


@dataclass(frozen=True, order=True)
class Leaf:
    """An element of tensor number ``source``: where its strides lead from element ``offset``."""

    source: int
    offset: int
    layout: Layout


@dataclass(frozen=True, order=True)
class Applied:
    """A function, "tanh" or "relu", of a polynomial."""

    name: str
    argument: Poly


Atom = Leaf | Applied
Monomial = tuple[Atom, ...]


@dataclass(frozen=True, order=True)
class Poly:
    """Terms (monomial, coefficient), sorted; coefficients are not 0."""

    terms: tuple[tuple[Monomial, float], ...]

    @staticmethod
    def of(terms: dict[Monomial, float]) -> Poly:
        """From a dictionary. Raises :class:`NoEpilogue` for one too long to be an epilogue."""
        if len(terms) > MOST_TERMS:
            raise NoEpilogue("the code after the contraction is longer than any epilogue")
        return Poly(tuple(sorted(((m, c) for m, c in terms.items() if c), key=_order)))

    @staticmethod
    def constant(value: float) -> Poly:
        """A number."""
        return Poly.of({(): value})

    @staticmethod
    def atom(atom: Atom) -> Poly:
        """One atom."""
        return Poly.of({(atom,): 1.0})

    def plus(self, other: Poly, factor: float = 1.0) -> Poly:
        """``self + factor * other``."""
        terms = dict(self.terms)
        for monomial, coefficient in other.terms:
            _collect(terms, monomial, factor * coefficient)
        return Poly.of(terms)

    def times(self, other: Poly) -> Poly:
        """The product."""
        terms: dict[Monomial, float] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                _collect(terms, tuple(sorted((*left, *right), key=_atom_order)), a * b)
        return Poly.of(terms)

    def number(self) -> float | None:
        """Its value, if it is a constant."""
        if not self.terms:
            return 0.0
        return self.terms[0][1] if len(self.terms) == 1 and self.terms[0][0] == () else None

    def single(self) -> Atom | None:
        """The atom, if it is nothing but one."""
        if len(self.terms) == 1 and self.terms[0][1] == 1.0 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def leaves(self) -> Iterator[Leaf]:
        """Every element of a tensor in it, functions' arguments included."""
        for monomial, _ in self.terms:
            for atom in monomial:
                yield from (atom,) if isinstance(atom, Leaf) else atom.argument.leaves()

    def moved(self, where: Callable[[Leaf], Leaf]) -> Poly:
        """The same code with every element taken from another place."""
        terms: dict[Monomial, float] = {}
        for monomial, coefficient in self.terms:
            atoms = (where(a) if isinstance(a, Leaf) else Applied(a.name, a.argument.moved(where)) for a in monomial)
            _collect(terms, tuple(sorted(atoms, key=_atom_order)), coefficient)
        return Poly.of(terms)


def _collect(terms: dict[Monomial, float], monomial: Monomial, coefficient: float) -> None:
    """Add a term. Terms of one value that cancel are no epilogue: infinities, NaN and roundings would be lost."""
    before = terms.get(monomial, 0.0)
    if monomial and before * coefficient < 0:
        raise NoEpilogue("the code after the contraction subtracts a value from itself")
    terms[monomial] = before + coefficient


def _atom_order(atom: Atom) -> str:
    return repr(atom)


def _order(term: tuple[Monomial, float]) -> tuple[str, ...]:
    return tuple(_atom_order(atom) for atom in term[0])


def activation(result: Poly) -> tuple[str, Poly]:
    """The function that is applied last, "relu", "gelu_tanh" or "", and the polynomial that it is applied to."""
    atom = result.single()
    if isinstance(atom, Applied) and atom.name == "relu":
        return "relu", atom.argument
    curves = {a for monomial, _ in result.terms for a in monomial if isinstance(a, Applied) and a.name == "tanh"}
    if len(curves) == 1:
        (curve,) = curves
        plain = Poly.of({m: 2 * c for m, c in result.terms if curve not in m})
        curved = Poly.of({tuple(a for a in m if a != curve): 2 * c for m, c in result.terms if curve in m})
        cube = plain.times(plain).times(plain)
        inside = plain.plus(cube, GELU_CUBE).times(Poly.constant(GELU_SCALE))
        if _is_same(plain, curved) and _is_same(inside, curve.argument):
            return "gelu_tanh", plain
    return "", result


def _is_same(one: Poly, other: Poly) -> bool:
    left, right = dict(one.terms), dict(other.terms)
    return left.keys() == right.keys() and all(
        math.isclose(left[monomial], right[monomial], rel_tol=SAME_CONSTANT) for monomial in left
    )


def scalar_code(body: ir.Block, arguments: list[Poly]) -> Poly:
    """What a body of one result yields for the given arguments. Raises :class:`NoEpilogue`."""
    known: dict[ir.Value, Poly] = dict(zip(body.arguments, arguments, strict=False))
    ops = [op.operation for op in body.operations]
    for op in ops[:-1]:
        if op.name != "arith.cmpf":
            known[op.results[0]] = _evaluate(op, known)
    return _value(ops[-1].operands[0], known)


def _value(value: ir.Value, known: dict[ir.Value, Poly]) -> Poly:
    if value in known:
        return known[value]
    op = defining_op(value)
    if op is not None and op.name == "arith.constant" and isinstance(op.attributes["value"], ir.FloatAttr):
        return Poly.constant(ir.FloatAttr(op.attributes["value"]).value)
    raise NoEpilogue(f"no epilogue reads {op.name if op is not None else 'an argument of its own'}")


def _evaluate(op: ir.Operation, known: dict[ir.Value, Poly]) -> Poly:
    if op.name == "arith.constant":
        return _value(op.results[0], known)
    if op.name == "arith.select":
        return _select(op, known)
    if op.name not in _RULES:
        raise NoEpilogue(f"no epilogue computes {op.name}")
    if op.name in ("math.powf", "math.fpowi"):
        return _power(op, known)
    operands = [_value(value, known) for value in op.operands]
    return _RULES[op.name](op, operands)


def _divide(op: ir.Operation, operands: list[Poly]) -> Poly:
    number = operands[1].number()
    if not number:
        raise NoEpilogue("no epilogue divides by a tensor")
    return operands[0].times(Poly.constant(1 / number))


def _larger(op: ir.Operation, operands: list[Poly]) -> Poly:
    for value, other in (operands, operands[::-1]):
        if other.number() == 0:
            return Poly.atom(Applied("relu", value))
    raise NoEpilogue(f"no epilogue computes {op.name} with anything but 0")


def _cast(op: ir.Operation, operands: list[Poly]) -> Poly:
    number = operands[0].number()
    if number is not None:
        return Poly.constant(float(np.float32(number)) if str(op.results[0].type) == "f32" else number)
    before, after = str(op.operands[0].type), str(op.results[0].type)
    if "f64" in (before, after):
        raise NoEpilogue("no epilogue converts to or from f64")
    if op.name == "arith.extf" and any(leaf.source == PRODUCT for leaf in operands[0].leaves()):
        raise NoEpilogue(f"the product is rounded to {before} before the code goes on in {after}; an epilogue is not")
    return operands[0]


def _power(op: ir.Operation, known: dict[ir.Value, Poly]) -> Poly:
    source = defining_op(op.operands[1])
    attribute = source.attributes["value"] if source is not None and source.name == "arith.constant" else None
    exponent = float(attribute.value) if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr) else None
    if exponent is None or exponent not in (1, 2, 3):
        raise NoEpilogue(f"no epilogue computes {op.name}")
    base = result = _value(op.operands[0], known)
    for _ in range(int(exponent) - 1):
        result = result.times(base)
    return result


def _select(op: ir.Operation, known: dict[ir.Value, Poly]) -> Poly:
    """``x > 0 ? x : 0``, by a comparison that NaN passes: an epilogue's ReLU keeps NaN."""
    compare = defining_op(op.operands[0])
    if compare is not None and compare.name == "arith.cmpf":
        left, right = (_value(value, known) for value in compare.operands)
        yes, no = (_value(value, known) for value in list(op.operands)[1:])
        greater = ir.IntegerAttr(compare.attributes["predicate"]).value in _GREATER
        if greater and left == yes and right.number() == 0 and no.number() == 0:
            return Poly.atom(Applied("relu", yes))
    raise NoEpilogue("no epilogue selects by this condition")


_GREATER = (9, 10)  # arith.cmpf: ugt, uge
_RULES: dict[str, Callable[[ir.Operation, list[Poly]], Poly]] = {
    "arith.addf": lambda _, x: x[0].plus(x[1]),
    "arith.subf": lambda _, x: x[0].plus(x[1], -1.0),
    "arith.mulf": lambda _, x: x[0].times(x[1]),
    "arith.negf": lambda _, x: x[0].times(Poly.constant(-1.0)),
    "math.fma": lambda _, x: x[0].times(x[1]).plus(x[2]),
    "math.tanh": lambda _, x: Poly.atom(Applied("tanh", x[0])),
    "arith.divf": _divide,
    "arith.maximumf": _larger,
    "arith.extf": _cast,
    "arith.truncf": _cast,
    "math.powf": _divide,
    "math.fpowi": _divide,
}
