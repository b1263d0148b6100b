"""Import a training step, run the imported IR with the reference, and compare with torch's own step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from import_harness import to_numpy

from mlirstitch.driver.import_step import import_step
from mlirstitch.driver.imported import ImportedModel
from mlirstitch.driver.reference import run

import torch  # isort: skip  after import_step, which loads MLIR in the right order
from torch import Tensor, nn  # isort: skip

from mlirstitch.driver.bench.training_models import TrainingCase

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
TOLERANCE = 1e-5
"""Largest error of a tensor against torch in float64, relative to the tensor's largest element."""


def imported(case: TrainingCase, optimizer: torch.optim.Optimizer, **options: Any) -> ImportedModel:
    return import_step(case.model, case.loss, optimizer, case.inputs, targets=case.targets, **options)


def assert_trains_as_torch(
    case: TrainingCase,
    make: MakeOptimizer,
    *,
    steps: int = 2,
    clip_norm: float | None = None,
    warm_up: int = 0,
    tolerance: float = TOLERANCE,
) -> ImportedModel:
    """Several steps of the imported program give torch's losses, weights, buffers and optimizer state.

    Everything that torch changes must be a result of the program. Where torch's own error against float64 is larger
    than ``tolerance``, the program's may be as large. ``warm_up``: steps that torch does before the import.
    """
    optimizer = make(case.model.parameters())
    for _ in range(warm_up):
        _torch_step(case, optimizer, clip_norm)
    exact = _in_float64(case)
    judge = make(exact.model.parameters())
    judge.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    eager = TrainingCase(copy.deepcopy(case.model), case.loss, case.inputs, case.targets)
    eager_optimizer = make(eager.model.parameters())
    eager_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    options = {} if clip_norm is None else {"clip_norm": clip_norm}
    step = imported(case, optimizer, **options)
    values = [to_numpy(step.weights[i]) if i in step.weights else None for i in range(len(step.arguments))]
    for i, value in zip(step.inputs, (*case.inputs, *case.targets), strict=True):
        values[i] = to_numpy(value)
    for number in range(steps):
        before = {name: value.detach().clone() for name, value in _state(exact.model, judge).items()}
        results = run(step.mlir, values)
        loss = _torch_step(exact, judge, clip_norm)
        eager_loss = _torch_step(eager, eager_optimizer, clip_norm)
        (position,) = step.outputs
        _assert_close(results[position], loss, eager_loss, f"loss of step {number}", tolerance)
        after, own = _state(exact.model, judge), _state(eager.model, eager_optimizer)
        changed = {name for name, value in after.items() if name not in before or not torch.equal(value, before[name])}
        updated = {step.arguments[argument].name for argument in step.mutations.values()}
        assert changed <= updated
        for result, argument in step.mutations.items():
            name = step.arguments[argument].name
            _assert_close(results[result], after[name], own[name], f"{name} after step {number}", tolerance)
            values[argument] = results[result]
    return step


def _in_float64(case: TrainingCase) -> TrainingCase:
    def wide(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(v.double() if v.is_floating_point() else v for v in values)

    return TrainingCase(copy.deepcopy(case.model).double(), case.loss, wide(case.inputs), wide(case.targets))


def _torch_step(case: TrainingCase, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> Tensor:
    optimizer.zero_grad()
    loss = case.loss(case.model(*case.inputs), *case.targets)
    loss.backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(case.model.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights, buffers and optimizer state under the names of the imported program."""
    state: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = {id(p): name for name, p in model.named_parameters()}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                name = "optimizer.step" if slot == "step" else f"optimizer.{slot}.{names[id(parameter)]}"
                state[name] = value
    return state


def _assert_close(mine: np.ndarray, truth: Tensor, eager: Tensor, what: str, tolerance: float) -> None:
    expected = truth.detach().numpy()
    assert mine.shape == expected.shape, what
    assert np.isfinite(mine).all(), what
    scale = max(float(np.abs(expected).max()), 1e-30)
    error = float(np.abs(mine.astype(np.float64) - expected).max()) / scale
    allowed = max(tolerance, float(np.abs(eager.detach().double().numpy() - expected).max()) / scale)
    assert error <= allowed, f"{what}: relative error {error:.2e}, {allowed:.2e} is allowed"
