"""Graphs of whole training steps: what the passes before planning keep, and what plans can rely on."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from graph_harness import main_of
from mlir import ir

from mlirstitch.driver.bench.training_models import TrainingCase, gpt, mlp
from mlirstitch.driver.import_step import import_step
from mlirstitch.driver.reference.interpreter import run
from mlirstitch.passes.normalize import NORMALIZE_PASSES
from mlirstitch.passes.partitioning import PREPARE_PASSES
from mlirstitch.passes.partitioning.dims import DimClasses
from mlirstitch.passes.partitioning.linalg_graph import graph_of
from mlirstitch.passes.partitioning.splits import refusal_of_split
from mlirstitch.passes.structured import element_type, shape_of

CASES = {
    "mlp": lambda: mlp(batch=4, width=6, hidden=8),
    "gpt": lambda: gpt(1, batch=2, sequence=4, hidden=8, heads=2, vocabulary=12),
}
LEVEL = ("stitch-set-module-attributes", *NORMALIZE_PASSES)


@cache
def _text(name: str) -> str:
    case: TrainingCase = CASES[name]()
    optimizer = torch.optim.Adam(case.model.parameters())
    return import_step(case.model, case.loss, optimizer, case.inputs, targets=case.targets).mlir


@cache
def _classes(name: str) -> DimClasses:
    return DimClasses.of(graph_of(main_of(_text(name), *LEVEL, *PREPARE_PASSES)))


def _arguments(main: ir.Operation) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    found = []
    for argument in main.regions[0].blocks[0].arguments:
        shape = shape_of(argument)
        floats = isinstance(element_type(argument), ir.F32Type)
        values = random.uniform(0.1, 1.0, shape) if floats else random.integers(0, 4, shape)
        found.append(np.asarray(values).astype(np.float32 if floats else np.int64))
    return found


@pytest.mark.parametrize("name", sorted(CASES))
def test_preparing_a_step_for_planning_does_not_change_what_it_computes(name: str) -> None:
    before, after = main_of(_text(name), *LEVEL), main_of(_text(name), *LEVEL, *PREPARE_PASSES)
    arguments = _arguments(before)
    assert before.parent is not None
    assert after.parent is not None
    for want, got in zip(run(before.parent, arguments), run(after.parent, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_dims_of_a_transformer_have_names_with_their_weights() -> None:
    classes = _classes("gpt")
    expected = {
        "batch": "tokens/0",
        "sequence": "positions/0",
        "heads": "blocks.0.attention.query.weight/0",
        "hidden": "blocks.0.expand.weight/0",
        "model": "blocks.0.contract.weight/0",
        "vocabulary": "words.weight/0",
    }
    for name, member in expected.items():
        (found,) = classes.select(name)
        assert member in found.names, name
    assert classes.select("heads")[0].size == 2
    assert "blocks.0.attention.output.weight/1" in classes.select("heads")[0].names


@pytest.mark.parametrize(
    ("name", "dims"), [("mlp", ("batch", "hidden")), ("gpt", ("batch", "heads", "hidden", "model", "vocabulary"))]
)
def test_named_dims_can_be_split_in_every_op_of_a_step(name: str, dims: tuple[str, ...]) -> None:
    classes = _classes(name)
    for dim in dims:
        for found in classes.select(dim):
            refused = {
                f"{classes.graph.ops[op].name} d{loop}: {reason}"
                for op, loop in found.loops
                if (reason := refusal_of_split(classes.graph.ops[op], loop)) is not None
            }
            assert not refused, dim


def test_a_sequence_is_split_in_every_op_but_the_gradient_of_the_embedding() -> None:
    classes = _classes("gpt")
    (found,) = classes.select("sequence")
    refused = [op for op, loop in found.loops if refusal_of_split(classes.graph.ops[op], loop) is not None]
    readers = {
        reader
        for op in refused
        for use in classes.graph.ops[op].results
        for reader in classes.graph.values[use.value].users
    }
    assert {classes.graph.ops[op].kind for op in readers} == {"scatter"}


@pytest.mark.parametrize("name", sorted(CASES))
def test_results_know_the_argument_that_they_update(name: str) -> None:
    graph = _classes(name).graph
    updated = [argument for argument in graph.mutated if argument >= 0]
    assert len(updated) == len(set(updated)) == len(graph.returned) - 1  # all but the loss
    for value, argument in zip(graph.returned, graph.mutated, strict=True):
        assert argument < 0 or graph.values[value].shape == graph.values[argument].shape
