"""In which operands a body is linear: the sums of products that its results are.

Every scalar of a body is written as a sum of terms; a term is a product that is linear in some operands and depends on
others in any way. A partial sum may pass through the op where every term has exactly one partial operand, and is linear
in it: so ``x + y`` needs both, ``x * y`` one of them, and nothing passes through ``x + 1`` or ``exp(x)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.structured import defining_op

MOST_TERMS = 16
"""A scalar of more terms is taken to depend on its operands in any way."""


@dataclass(frozen=True)
class Term:
    """A product: linear in the operands ``factors``, dependent in any way on the operands ``others`` (positions)."""

    factors: frozenset[int] = frozenset()
    others: frozenset[int] = frozenset()

    def times(self, other: Term) -> Term:
        """The product; an operand that occurs on both sides is no linear factor of it."""
        both = self.operands & other.operands
        return Term((self.factors | other.factors) - both, self.others | other.others | both)

    @property
    def operands(self) -> frozenset[int]:
        """All operands that the term depends on."""
        return self.factors | self.others


Sum = tuple[Term, ...]
"""A sum of terms; the empty sum is zero."""


def sum_of(terms: Iterable[Term]) -> Sum:
    """A sum with each term once; terms of a like form need not be told apart."""
    found = tuple(dict.fromkeys(terms))
    return found if len(found) <= MOST_TERMS else function_of([found])


def function_of(arguments: Iterable[Sum]) -> Sum:
    """A scalar that depends on others in any way."""
    return (Term(others=frozenset(o for terms in arguments for term in terms for o in term.operands)),)


def product(left: Sum, right: Sum) -> Sum:
    """The product of two sums."""
    return sum_of(a.times(b) for a in left for b in right)


class BodyTerms:
    """The terms of the scalars of one body.

    Args:
        known: terms of the body's arguments (of those that are operands).
        captured: terms of the element a ``tensor.extract`` reads, without its indices; by tensor.
    """

    def __init__(self, known: Mapping[ir.Value, Sum], captured: Mapping[ir.Value, int]) -> None:
        self._terms: dict[ir.Value, Sum] = dict(known)
        self._captured = captured

    def of(self, value: ir.Value) -> Sum:
        """The terms of a scalar."""
        stack = [value]
        while stack:
            current = stack[-1]
            if current in self._terms:
                stack.pop()
                continue
            op = defining_op(current)
            if op is None or op.name in ("arith.constant", "linalg.index"):
                self._terms[current] = () if op is not None and is_zero(op) else (Term(),)
                continue
            scalars = [v for v in op.operands if not isinstance(v.type, ir.ShapedType)]
            missing = [v for v in scalars if v not in self._terms]
            if missing:
                stack.extend(missing)
                continue
            self._terms[current] = self._combine(op, [self._terms[v] for v in scalars])
        return self._terms[value]

    def _combine(self, op: ir.Operation, arguments: Sequence[Sum]) -> Sum:
        if op.name == "tensor.extract":
            table = self._captured.get(op.operands[0])
            if table is None:
                return function_of(arguments)
            return product((Term(frozenset((table,))),), function_of(arguments))
        if op.name == "arith.truncf":
            narrow = op.result.type
            exact_enough = isinstance(narrow, ir.F32Type | ir.F64Type)
            return arguments[0] if exact_enough else function_of(arguments)
        rule = _RULES.get(op.name)
        return rule(arguments) if rule is not None else function_of(arguments)


def _selected(arguments: Sequence[Sum]) -> Sum:
    condition = function_of(arguments[:1])
    return sum_of((*product(condition, arguments[1]), *product(condition, arguments[2])))


_RULES: dict[str, Callable[[Sequence[Sum]], Sum]] = {
    **dict.fromkeys(("arith.addf", "arith.addi", "arith.subf", "arith.subi"), lambda a: sum_of((*a[0], *a[1]))),
    **dict.fromkeys(("arith.mulf", "arith.muli"), lambda a: product(a[0], a[1])),
    **dict.fromkeys(("arith.negf", "arith.extf"), lambda a: a[0]),
    "arith.divf": lambda a: product(a[0], function_of(a[1:])),
    "arith.select": _selected,
    "math.fma": lambda a: sum_of((*product(a[0], a[1]), *a[2])),
}
"""Ops that keep linearity. Integers are linear too (modulo their width); a cast that rounds to 16 bits is not."""


def is_zero(op: ir.Operation) -> bool:
    """``op`` is the constant zero, of either sign."""
    if op.name != "arith.constant":
        return False
    value = op.attributes["value"]
    return isinstance(value, ir.FloatAttr | ir.IntegerAttr) and value.value == 0


def linear_sets(terms: Sequence[Term]) -> tuple[tuple[int, ...], ...]:
    """The sets of operands of which every term has exactly one, as a linear factor; in a fixed order."""
    if not terms or any(not term.factors for term in terms):
        return ()
    found: dict[tuple[int, ...], None] = {}

    def choose(chosen: frozenset[int]) -> None:
        open_terms = [term for term in terms if not term.operands & chosen]
        if not open_terms:
            found[tuple(sorted(chosen))] = None
            return
        for factor in sorted(open_terms[0].factors):
            grown = chosen | {factor}
            if all(len(term.operands & grown) < 2 and not term.others & grown for term in terms):
                choose(grown)

    choose(frozenset())
    return tuple(found)
