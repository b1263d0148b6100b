"""How far results lie from eager PyTorch in float64.

The rule of the benchmark: an output's error is the largest absolute difference to the float64 result, divided by the
output's scale, the largest absolute value of that result. Eager in the workload's own type is judged in the same way,
and each compiled output may be off by at most 4 times as much, plus 1e-6. Integers and bools must be equal, NaN and
infinities must stand in the same places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

EAGER_FACTOR = 4.0
ABSOLUTE_SLACK = 1e-6


@dataclass(frozen=True)
class Errors:
    """Error of one output: of the compiled program and of eager PyTorch in the same type."""

    compiled: float
    eager: float

    @property
    def share(self) -> float:
        """The compiled error as a share of what is allowed; above 1 is wrong."""
        return self.compiled / (EAGER_FACTOR * self.eager + ABSOLUTE_SLACK)

    @property
    def allowed(self) -> bool:
        """Whether the compiled result is as good as the benchmark asks."""
        return math.isfinite(self.compiled) and self.share <= 1


def worst_output(results: Any, eager: Any, reference: Any) -> Errors:
    """The errors of the output that comes closest to its bound, or exceeds it most.

    All three are what a model returns: any nest of tensors; ``reference`` holds float64 where the others hold floats.
    Every output has a bound of its own: a gradient that is zero but for rounding has a large relative error, in eager
    too, and must not hide a fault of another output.
    """
    got, usual, wanted = _tensors(results), _tensors(eager), _tensors(reference)
    if len(got) != len(wanted):
        return Errors(math.inf, math.inf)
    errors = [Errors(output_error(a, r), output_error(e, r)) for a, e, r in zip(got, usual, wanted, strict=True)]
    return max(errors, key=lambda error: (not error.allowed, error.share), default=Errors(0.0, 0.0))


def output_error(result: Tensor, reference: Tensor) -> float:
    """Error of one output relative to its scale; absolute where the reference is zero everywhere."""
    if result.shape != reference.shape:
        return math.inf
    if not reference.is_floating_point():
        same = result.dtype == reference.dtype and torch.equal(result, reference)
        return 0.0 if same else math.inf
    result, reference = result.double(), reference.double()
    finite = reference.isfinite()
    if not torch.equal(result.isfinite(), finite):
        return math.inf
    if not torch.equal(result[~finite].nan_to_num(0.0), reference[~finite].nan_to_num(0.0)):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    scale = reference[finite].abs().max().item()
    return (result[finite] - reference[finite]).abs().max().item() / (scale or 1.0)


def _tensors(tree: Any) -> Sequence[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
