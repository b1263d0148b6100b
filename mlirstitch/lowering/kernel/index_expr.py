"""Symbolic integer index expressions, kept in a canonical form.

An expression is ``constant + sum(coefficient * atom)``; an atom is a symbol with a known inclusive range, a floor
division or a modulo by a positive constant, or a clamp. The constructors simplify by range, so that the index of a
value that passes through reshapes, slices and transposes comes out short:

- ``k * (x // k) + x % k`` is ``x``, also in the chained form that row-major delinearisation and linearisation leave;
- ``(k * a + b) // k`` is ``a + b // k`` and ``(k * a + b) % k`` is ``b % k``;
- divisions and modulos disappear when the range of the operand fits.

Expressions are immutable, hashable and free of IR, so they serve as memo keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

_UNBOUNDED = 2**63


class Symbol:
    """A named integer in ``[low, high]``: a loop variable, a thread coordinate, the lane, or a loaded index."""

    __slots__ = ("_hash", "high", "low", "name", "symbols", "text")

    def __init__(self, name: str, low: int, high: int) -> None:
        self.name = name
        self.text = f"{name}:{high}" if low == 0 else f"{name}:{low}:{high}"  # the range is part of the identity
        self.low = low
        self.high = high
        self._hash = hash(self.text)
        self.symbols: frozenset[Symbol] = frozenset((self,))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Symbol) and self.text == other.text)

    def __repr__(self) -> str:
        return self.text

    @property
    def expr(self) -> Expr:
        """The expression that is just this symbol (a constant if the range holds one value)."""
        return _build(0, {self: 1})


class _Compound:
    """Common part of the atoms that have an operand."""

    __slots__ = ("_hash", "high", "low", "operand", "symbols", "text")

    def __init__(self, operand: Expr, text: str, low: int, high: int) -> None:
        self.operand = operand
        self.text = text
        self.low = low
        self.high = high
        self.symbols = operand.symbols
        self._hash = hash(text)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self.text == getattr(other, "text", None))

    def __repr__(self) -> str:
        return self.text


class FloorDiv(_Compound):
    """``operand // divisor``, rounding towards minus infinity."""

    __slots__ = ("divisor",)

    def __init__(self, operand: Expr, divisor: int) -> None:
        super().__init__(operand, f"({operand.text})//{divisor}", operand.low // divisor, operand.high // divisor)
        self.divisor = divisor


class Mod(_Compound):
    """``operand % divisor``, in ``[0, divisor)``."""

    __slots__ = ("divisor",)

    def __init__(self, operand: Expr, divisor: int) -> None:
        high = divisor - 1 if operand.low < 0 else min(divisor - 1, operand.high)
        super().__init__(operand, f"({operand.text})%{divisor}", 0, high)
        self.divisor = divisor


class Clamp(_Compound):
    """``min(max(operand, least), most)``."""

    __slots__ = ("least", "most")

    def __init__(self, operand: Expr, least: int, most: int) -> None:
        text = f"clamp({operand.text},{least},{most})"
        super().__init__(operand, text, max(least, min(operand.low, most)), min(most, max(operand.high, least)))
        self.least = least
        self.most = most


Atom = Symbol | FloorDiv | Mod | Clamp


class Expr:
    """``const + sum(coefficient * atom)``. Build with :func:`constant`, ``Symbol.expr`` and the functions below.

    Attributes:
        const: the constant part.
        terms: (atom, coefficient) pairs in a fixed order; no coefficient is 0, no atom appears twice.
        low, high: inclusive bounds of the value.
        symbols: every symbol that occurs, however deep.
        text: canonical spelling; equal text means equal expression.
    """

    __slots__ = ("_hash", "const", "high", "low", "symbols", "terms", "text")

    def __init__(self, const: int, terms: tuple[tuple[Atom, int], ...]) -> None:
        self.const = const
        self.terms = terms
        low = high = const
        parts = [str(const)] if const or not terms else []
        for atom, coefficient in terms:
            low += coefficient * (atom.low if coefficient > 0 else atom.high)
            high += coefficient * (atom.high if coefficient > 0 else atom.low)
            parts.append(atom.text if coefficient == 1 else f"{coefficient}*{atom.text}")
        self.low = low
        self.high = high
        self.text = " + ".join(parts)
        if len(terms) == 1:
            self.symbols = terms[0][0].symbols
        else:
            self.symbols = frozenset().union(*(atom.symbols for atom, _ in terms))
        self._hash = hash(self.text)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.text == other.text)

    def __repr__(self) -> str:
        return self.text

    @property
    def is_constant(self) -> bool:
        """Whether the value is known now (then it is ``const``)."""
        return not self.terms

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return Expr(self.const + other, self.terms) if other else self
        if not other.terms:
            return Expr(self.const + other.const, self.terms) if other.const else self
        if not self.terms:
            return Expr(self.const + other.const, other.terms) if self.const else other
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
        return _build(self.const + other.const, terms)

    def __sub__(self, other: Expr | int) -> Expr:
        return self + (other * -1)

    def __mul__(self, factor: int) -> Expr:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Expr(self.const * factor, tuple((atom, c * factor) for atom, c in self.terms))

    def within(self, low: int, high: int) -> bool | None:
        """True if every value lies in ``[low, high]``, False if none does, None if it depends."""
        if low <= self.low and self.high <= high:
            return True
        if self.high < low or high < self.low:
            return False
        return None


def _build(const: int, terms: dict[Atom, int]) -> Expr:
    """Drop zeros, fold atoms of a single value, recombine quotients with remainders, sort."""
    clean: dict[Atom, int] = {}
    divisions = False
    for atom, coefficient in terms.items():
        if not coefficient:
            continue
        if atom.low == atom.high:
            const += coefficient * atom.low
            continue
        clean[atom] = coefficient
        divisions = divisions or isinstance(atom, Mod)
    if divisions and len(clean) > 1:
        merged = _recombine(clean)
        if merged is not None:
            extra, clean = merged
            return _build(const + extra, clean)
    return Expr(const, tuple(sorted(clean.items(), key=_term_order)))


def _term_order(term: tuple[Atom, int]) -> tuple[int, str]:
    return -abs(term[1]), term[0].text


def _recombine(terms: dict[Atom, int]) -> tuple[int, dict[Atom, int]] | None:
    """One step of ``c*k*(x // k) + c*(x % k) -> c*x`` or ``c*k*((x // k) % m) + c*(x % k) -> c*(x % (k*m))``.

    Returns the constant to add and the new terms, or None if nothing matches.
    """
    for atom, c in terms.items():
        if not isinstance(atom, Mod):
            continue
        x, k = atom.operand, atom.divisor
        quotient = floordiv(x, k)
        if quotient.terms and all(terms.get(part) == c * k * d for part, d in quotient.terms):
            rest = dict(terms)
            del rest[atom]
            for part, _ in quotient.terms:
                rest.pop(part, None)
            for part, d in x.terms:
                rest[part] = rest.get(part, 0) + c * d
            return c * x.const - c * k * quotient.const, rest
        for other, coefficient in terms.items():
            if isinstance(other, Mod) and other is not atom and coefficient == c * k and other.operand == quotient:
                rest = dict(terms)
                del rest[atom], rest[other]
                joined = mod(x, k * other.divisor)
                for part, d in joined.terms:
                    rest[part] = rest.get(part, 0) + c * d
                return c * joined.const, rest
    return None


def constant(value: int) -> Expr:
    """The expression of a known integer."""
    return Expr(value, ())


ZERO = constant(0)


def symbol(name: str, extent: int) -> Symbol:
    """A variable in ``[0, extent)``."""
    return Symbol(name, 0, extent - 1)


def unbounded(name: str) -> Symbol:
    """A symbol of unknown value (any signed 64-bit integer)."""
    return Symbol(name, -_UNBOUNDED, _UNBOUNDED - 1)


def add(items: Iterable[Expr]) -> Expr:
    """Sum of expressions."""
    const = 0
    terms: dict[Atom, int] = {}
    for item in items:
        const += item.const
        for atom, coefficient in item.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
    return _build(const, terms)


def _split(expr: Expr, k: int) -> tuple[Expr, Expr]:
    """``expr = k * quotient + remainder`` with every coefficient of the remainder smaller than ``k``."""
    quotient: dict[Atom, int] = {}
    remainder: dict[Atom, int] = {}
    for atom, coefficient in expr.terms:
        q = coefficient // k if coefficient > 0 else -(-coefficient // k)
        if q:
            quotient[atom] = q
        if coefficient - q * k:
            remainder[atom] = coefficient - q * k
    return _build(expr.const // k, quotient), _build(expr.const % k, remainder)


def _common_factor(expr: Expr, k: int) -> tuple[int, Expr, Expr] | None:
    """``expr = g * big + small`` with ``g`` dividing ``k`` and ``0 <= small < g``, for the largest such ``g > 1``."""
    factors = sorted({math.gcd(c, k) for _, c in expr.terms}, reverse=True)
    for g in factors:
        if g <= 1:
            return None
        big = tuple((atom, c // g) for atom, c in expr.terms if c % g == 0)
        small = Expr(expr.const % g, tuple((atom, c) for atom, c in expr.terms if c % g))
        if small.within(0, g - 1):
            return g, _build(expr.const // g, dict(big)), small
    return None


@lru_cache(maxsize=1 << 16)
def floordiv(expr: Expr, k: int) -> Expr:
    """``expr // k`` for ``k >= 1``, rounding towards minus infinity."""
    if k == 1:
        return expr
    quotient, rest = _split(expr, k)
    if rest.low // k == rest.high // k:
        return quotient + rest.low // k
    factored = _common_factor(rest, k)
    if factored is not None:
        g, big, _ = factored
        return quotient + floordiv(big, k // g)
    if len(rest.terms) == 1 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, FloorDiv):
            return quotient + floordiv(atom.operand + rest.const * atom.divisor, atom.divisor * k)
        if isinstance(atom, Mod) and rest.const == 0 and atom.divisor % k == 0:
            return quotient + mod(floordiv(atom.operand, k), atom.divisor // k)
    return quotient + _build(0, {FloorDiv(rest, k): 1})


@lru_cache(maxsize=1 << 16)
def mod(expr: Expr, k: int) -> Expr:
    """``expr % k`` for ``k >= 1``, in ``[0, k)``."""
    if k == 1:
        return ZERO
    if expr.within(0, k - 1):
        return expr
    _, rest = _split(expr, k)
    if rest.low // k == rest.high // k:
        return rest - (rest.low // k) * k
    for atom, c in rest.terms:
        if isinstance(atom, Mod) and (c * atom.divisor) % k == 0:
            others = tuple(term for term in rest.terms if term[0] is not atom)
            return mod(Expr(rest.const, others) + atom.operand * c, k)
    factored = _common_factor(rest, k)
    if factored is not None:
        g, big, small = factored
        return mod(big, k // g) * g + small
    return _build(0, {Mod(rest, k): 1})


def clamp(expr: Expr, low: int, high: int) -> Expr:
    """``min(max(expr, low), high)``; nothing is added when the range already fits."""
    if expr.within(low, high):
        return expr
    if expr.high <= low:
        return constant(low)
    if expr.low >= high:
        return constant(high)
    return _build(0, {Clamp(expr, low, high): 1})


def linearize(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Row-major position of ``indices`` in ``shape``."""
    scaled: list[Expr] = []
    stride = 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        scaled.append(index * stride)
        stride *= extent
    return add(scaled)


def delinearize(position: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    """Indices of the row-major ``position`` in ``shape``. The position must lie inside."""
    indices: list[Expr] = []
    rest = position
    for k, extent in enumerate(reversed(shape)):
        if extent <= 1:
            indices.append(ZERO)
        elif k == len(shape) - 1:
            indices.append(rest)
        else:
            indices.append(mod(rest, extent))
            rest = floordiv(rest, extent)
    return tuple(reversed(indices))


def substitute(expr: Expr, binding: Mapping[Symbol, Expr]) -> Expr:
    """``expr`` with symbols replaced, simplified anew."""
    if not any(name in expr.symbols for name in binding):
        return expr
    return constant(expr.const) + add(_substitute_atom(atom, binding) * c for atom, c in expr.terms)


def _substitute_atom(atom: Atom, binding: Mapping[Symbol, Expr]) -> Expr:
    if isinstance(atom, Symbol):
        return binding.get(atom) or atom.expr
    operand = substitute(atom.operand, binding)
    if isinstance(atom, FloorDiv):
        return floordiv(operand, atom.divisor)
    if isinstance(atom, Mod):
        return mod(operand, atom.divisor)
    return clamp(operand, atom.least, atom.most)


def stride_of(expr: Expr, name: Symbol) -> int | None:
    """The coefficient of ``name`` if ``expr`` is linear in it (0 if absent), else None."""
    stride = 0
    for atom, c in expr.terms:
        if atom == name:
            stride = c
        elif name in atom.symbols:
            return None
    return stride


def divisor_of(expr: Expr, limit: int) -> int:
    """The largest power of two up to ``limit`` that divides every value of ``expr``."""
    g = math.gcd(expr.const, limit)
    for _, c in expr.terms:
        g = math.gcd(g, c)
    return g & -g


def share_within(conditions: Sequence[tuple[Expr, int, int]], limit: int = 1 << 16) -> Fraction | None:
    """How often ``0 <= expr < bound`` and ``expr % stride == 0`` hold for all conditions ``(expr, bound, stride)``.

    Every atom is taken as uniform over its range and independent of the others, which digits of an index are. None if
    an atom occurs in two conditions or there are more than ``limit`` cases.
    """
    seen: set[Atom] = set()
    share = Fraction(1)
    for expr, bound, stride in conditions:
        atoms = {atom for atom, _ in expr.terms}
        if atoms & seen or math.prod(atom.high - atom.low + 1 for atom in atoms) > limit:
            return None
        seen |= atoms
        values = [expr.const]
        for atom, c in expr.terms:
            values = [value + c * x for value in values for x in range(atom.low, atom.high + 1)]
        share *= Fraction(sum(0 <= value < bound and value % stride == 0 for value in values), len(values))
    return share


def evaluate(expr: Expr, values: Mapping[Symbol, int]) -> int:
    """The value of ``expr`` under ``values``."""
    total = expr.const
    for atom, c in expr.terms:
        if isinstance(atom, Symbol):
            total += c * values[atom]
            continue
        inner = evaluate(atom.operand, values)
        if isinstance(atom, FloorDiv):
            total += c * (inner // atom.divisor)
        elif isinstance(atom, Mod):
            total += c * (inner % atom.divisor)
        else:
            total += c * min(max(inner, atom.least), atom.most)
    return total
