"""Training steps under a plan: the judge of all plans is one step of torch itself."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from mlir import ir

import mlirstitch
from mlirstitch.dialects import parse_module
from mlirstitch.driver.bench import training_models as models
from mlirstitch.driver.bench.training_models import TrainingCase
from mlirstitch.driver.partition import Partitioned, partition
from mlirstitch.mesh import Mesh
from mlirstitch.passes.normalize import normalize_pipeline
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.pipeline import run_pipeline

CASES: dict[str, Callable[[], TrainingCase]] = {
    "mlp": models.mlp,
    "block": models.transformer_block,
    "gpt": models.gpt,
    "cnn": models.cnn,
    "moe": models.moe,
    "swin": models.swin_block,
    "evoformer": models.evoformer_block,
    "tied": models.tied,
}
TOLERANCE = 1e-5
"""Of the largest element of a tensor; updates of weights likewise, which shows gradients."""


@dataclass(frozen=True)
class Judged:
    """A training step as linalg, its arguments, and what torch makes of them.

    Attributes:
        module: normalized, dims expanded.
        arguments: of the function.
        expected: of torch, by the name of the result: new contents of arguments and the loss.
        before: old contents, by the name of the argument.
    """

    module: ir.Module
    arguments: tuple[np.ndarray, ...]
    expected: dict[str, np.ndarray]
    before: dict[str, np.ndarray]


def optimizer_of(case: TrainingCase, name: str) -> torch.optim.Optimizer:
    """An optimizer whose steps show gradients."""
    if name == "adamw":
        return torch.optim.AdamW(case.model.parameters(), lr=0.01)
    return torch.optim.SGD(case.model.parameters(), lr=1.0)


def judged(name: str, optimizer: str = "sgd") -> Judged:
    """One of the cases."""
    return _judged(CASES[name], optimizer)


@functools.cache
def _judged(build: Callable[[], TrainingCase], optimizer: str) -> Judged:
    """Kept by what is built: a test may give a name of its own to a case."""
    case = build()
    step = mlirstitch.import_step(
        case.model, case.loss, optimizer_of(case, optimizer), case.inputs, targets=case.targets
    )
    module = parse_module(step.mlir)
    run_pipeline(module, "builtin.module(stitch-set-module-attributes)")
    run_pipeline(module, normalize_pipeline())
    run_pipeline(module, "builtin.module(dist-expand-dims)")
    given = {**dict(zip(step.inputs, (*case.inputs, *case.targets), strict=True)), **step.weights}
    arguments = tuple(given[position].detach().numpy().copy() for position in range(len(step.arguments)))
    before = {argument.name: array for argument, array in zip(step.arguments, arguments, strict=True)}
    return Judged(module, arguments, _torch_step(case, optimizer), before)


def _torch_step(case: TrainingCase, optimizer: str) -> dict[str, np.ndarray]:
    """The loss, and weights and buffers afterwards, by name."""
    model = copy.deepcopy(case.model)
    made = optimizer_of(TrainingCase(model, case.loss, case.inputs, case.targets), optimizer)
    loss = case.loss(model(*case.inputs), *case.targets)
    loss.backward()
    made.step()
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {"loss": loss.detach().numpy(), **{name: tensor.detach().numpy() for name, tensor in after.items()}}


def planned(
    case: Judged, plan: str | Callable[[Plan], None], mesh: str, micro_batches: int | None = None
) -> Partitioned:
    """The case under a plan, on the devices of a mesh."""
    return partition(case.module, plan, Mesh.parse(mesh), micro_batches=micro_batches)


def worst_error(case: Judged, made: Partitioned) -> float:
    """The largest deviation from torch of loss, weights, and updates, relative to the largest element of each."""
    results = made.whole_by_name(made.run(case.arguments))
    worst = 0.0
    for name, expected in case.expected.items():
        if not np.issubdtype(expected.dtype, np.floating):
            continue
        if name not in results:
            assert np.array_equal(expected, case.before[name])  # a buffer that no step changes
            continue
        got = results[name]
        worst = max(worst, _error(got, expected))
        if name in case.before:  # a difference of float32 numbers is no better than their last bit
            old = case.before[name].astype(np.float64)
            worst = max(worst, _error(got - old, expected - old, at_least=0.03 * float(np.abs(expected).max())))
    return worst


def _error(got: np.ndarray, expected: np.ndarray, at_least: float = 1e-30) -> float:
    if not np.isfinite(got).all():
        return float("inf")
    scale = max(float(np.abs(expected).max()), at_least)
    return float(np.abs(got.astype(np.float64) - expected.astype(np.float64)).max()) / scale
