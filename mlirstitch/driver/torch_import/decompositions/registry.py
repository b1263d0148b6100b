"""The table of own decompositions: aten overload to rule.

A rule is called while a graph is traced and answers with other torch calls, which are decomposed in turn. It returns
``NotImplemented`` to leave the op to the rule below it (torch's core table) or, if there is none, to the importer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)

LOW_PRECISION = (torch.float16, torch.bfloat16)
"""Types whose sums and composite functions are evaluated in float32 and rounded once."""

_RULES: dict[OpOverload, Rule] = {}
_FINAL: list[OpOverload] = []


def decompose(*overloads: OpOverload, final: bool = False) -> Callable[[R], R]:
    """Register a rule for the overloads. Two rules for one overload are a programming error.

    ``final``: what the rule leaves goes to the importer as it is, torch's own decomposition is not wanted.
    """

    def register(rule: R) -> R:
        for overload in overloads:
            if overload in _RULES:
                raise ValueError(f"{overload} has two decompositions")
            _RULES[overload] = rule
            if final:
                _FINAL.append(overload)
        return rule

    return register


def _in_order(overload: OpOverload, rule: Rule, below: Rule | None) -> Rule:
    def apply(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        return below(*args, **kwargs) if result is NotImplemented and below is not None else result

    apply.__name__ = f"decompose_{overload.name().replace('::', '_').replace('.', '_')}"
    return apply


def table_over(base: Mapping[OpOverload, Rule]) -> dict[OpOverload, Rule]:
    """``base`` with the own rules on top."""
    table = dict(base)
    for overload, rule in _RULES.items():
        table[overload] = _in_order(overload, rule, None if overload in _FINAL else table.get(overload))
    return table


def computing(x: Tensor) -> Tensor:
    """The tensor in the type its statistics and sums are computed in: float32 for half types, else its own."""
    return x.to(torch.float32) if x.dtype in LOW_PRECISION else x


def dims_of(x: Tensor, dim: Any) -> list[int]:
    """Reduced dims as sorted non-negative numbers; None and [] mean all of them."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted(d % max(x.ndim, 1) for d in dims)


def count(x: Tensor, dims: list[int]) -> int:
    """Elements that one result of a reduction over ``dims`` sums up."""
    n = 1
    for d in dims:
        n *= x.shape[d] if x.ndim else 1
    return n
