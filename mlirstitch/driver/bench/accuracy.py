"""How far results lie from eager PyTorch in float64.

The rule of the benchmark: an output's error is the largest absolute difference to the float64 result, divided by the
output's scale, the largest absolute value of that result. Eager in the workload's own type is judged in the same way,
and compiled results may be off by at most 4 times as much, plus 1e-6. Integers and bools must be equal, NaN and
infinities must stand in the same places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

EAGER_FACTOR = 4.0
ABSOLUTE_SLACK = 1e-6


def worst_error(results: Any, reference: Any) -> float:
    """Largest error over all outputs; inf where an output has another count, shape, integer or non-finite value.

    Both are what a model returns: any nest of tensors. ``reference`` holds float64 where ``results`` holds floats.
    """
    got, wanted = _tensors(results), _tensors(reference)
    if len(got) != len(wanted):
        return math.inf
    return max((output_error(a, b) for a, b in zip(got, wanted, strict=True)), default=0.0)


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


def within_bound(error: float, eager_error: float) -> bool:
    """Whether compiled results are as good as the benchmark asks."""
    return math.isfinite(error) and error <= EAGER_FACTOR * eager_error + ABSOLUTE_SLACK


def _tensors(tree: Any) -> Sequence[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
