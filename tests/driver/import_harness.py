"""Import a program, run the imported IR with the reference, and compare with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from torch.utils._pytree import tree_leaves, tree_map

from mlirstitch.driver.import_torch import ImportedModel, import_model
from mlirstitch.driver.reference import run

import torch  # isort: skip  after import_torch, which loads MLIR in the right order
from torch import Tensor  # isort: skip

ROUNDING = {torch.float64: 2e-15, torch.float32: 6e-8, torch.float16: 5e-4, torch.bfloat16: 4e-3}
"""Half a unit in the last place, relative; for float64, where eager is its own yardstick, some more."""


def to_numpy(value: Tensor) -> np.ndarray:
    """The tensor's contents; bfloat16 as ml_dtypes.bfloat16."""
    value = value.detach().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def evaluate(model: ImportedModel, inputs: Sequence[Tensor]) -> list[np.ndarray]:
    """All results of ``@main``, updated arguments first, for the user's inputs."""
    given = iter(inputs)
    values = [model.weights[i] if i in model.weights else next(given) for i in range(len(model.arguments))]
    return run(model.mlir, [to_numpy(v) for v in values])


def user_results(model: ImportedModel, inputs: Sequence[Tensor]) -> list[np.ndarray]:
    """The results that the caller gets back."""
    results = evaluate(model, inputs)
    return [results[i] for i in model.outputs]


def assert_equals_eager(function: Callable[..., Any], *inputs: Tensor) -> ImportedModel:
    """The imported IR gives eager's results: integers exactly, floats as accurately as eager does.

    NaN and infinities must stand in the same places. An error against float64 may be four times eager's own plus four
    roundings of the result's scale.
    """
    model = import_model(function, inputs)
    names = [result.name for i, result in enumerate(model.results) if i in model.outputs]
    _assert_results(function, inputs, user_results(model, inputs), names)
    return model


def assert_results_equal_eager(function: Callable[..., Any], inputs: Sequence[Tensor], results: Any) -> None:
    """``results``, tensors in any nest, are eager's by the rule of :func:`assert_equals_eager`."""
    leaves = tree_leaves(results)
    _assert_results(function, inputs, [to_numpy(v) for v in leaves], [f"result {i}" for i in range(len(leaves))])


def _assert_results(
    function: Callable[..., Any], inputs: Sequence[Tensor], got: Sequence[np.ndarray], names: Sequence[str]
) -> None:
    eager = tree_leaves(function(*inputs))
    exact = tree_leaves(function(*tree_map(lambda v: v.double() if v.is_floating_point() else v, inputs)))
    assert len(got) == len(eager)
    for name, mine, theirs, truth in zip(names, got, eager, exact, strict=True):
        expected = to_numpy(theirs)
        assert mine.shape == expected.shape, name
        assert mine.dtype == expected.dtype, name
        if theirs.is_floating_point():
            _assert_as_accurate(
                mine.astype(np.float64), theirs.double().numpy(), truth.double().numpy(), theirs.dtype, name
            )
        else:
            np.testing.assert_array_equal(mine, expected, name)


def assert_all_equal_eager(table: Mapping[str, Callable[..., Any]], *inputs: Tensor) -> ImportedModel:
    """:func:`assert_equals_eager` of several functions of the same inputs, imported as one program."""

    def together(*values: Tensor) -> dict[str, Any]:
        return {name: function(*values) for name, function in table.items()}

    return assert_equals_eager(together, *inputs)


def _assert_as_accurate(mine: np.ndarray, eager: np.ndarray, truth: np.ndarray, dtype: torch.dtype, name: str) -> None:
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(eager), name)
    infinite = np.isinf(eager)
    np.testing.assert_array_equal(mine[infinite], eager[infinite], name)
    finite = np.isfinite(eager)
    if not finite.any():
        return
    np.testing.assert_array_equal(np.isfinite(mine[finite]), True, name)
    scale = max(float(np.abs(truth[finite]).max()), 1e-30)
    error = float(np.abs(mine[finite] - truth[finite]).max())
    allowed = 4 * float(np.abs(eager[finite] - truth[finite]).max()) + 4 * ROUNDING[dtype] * scale
    assert error <= allowed, f"{name}: error {error:.3e} against float64, {allowed:.3e} is allowed"
