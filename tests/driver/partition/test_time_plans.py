"""Co-shard and interlaced pipelines: what they compute, and what the model of the machine says of time and memory."""

from __future__ import annotations

import functools

import pytest
from mlir import ir
from plan_harness import CASES, TOLERANCE, Judged, judged, optimizer_of, planned, worst_error

import mlirstitch
from mlirstitch.dialects import parse_module
from mlirstitch.driver.bench import training_models as models
from mlirstitch.driver.bench.training_models import TrainingCase
from mlirstitch.driver.partition import partition
from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.normalize import normalize_pipeline
from mlirstitch.passes.pipeline import run_pipeline

CASES.setdefault("wide", functools.partial(models.mlp, batch=64, width=8, hidden=512))


def imported(case: TrainingCase) -> ir.Module:
    """A step without values, as plans take it."""
    step = mlirstitch.import_step(case.model, case.loss, optimizer_of(case, "sgd"), case.inputs, targets=case.targets)
    module = parse_module(step.mlir)
    run_pipeline(module, "builtin.module(stitch-set-module-attributes)")
    run_pipeline(module, normalize_pipeline())
    run_pipeline(module, "builtin.module(dist-expand-dims)")
    return module


@pytest.fixture(scope="module")
def wide() -> Judged:
    return judged("wide")


def test_co_shard_in_16_parts_takes_at_most_two_fifths_of_the_memory(wide: Judged) -> None:
    whole = planned(wide, "dp", "dp=1").timeline.peak_bytes[0]
    parts = planned(wide, "co-shard", "dp=1", micro_batches=16)
    assert parts.timeline.peak_bytes[0] <= 0.4 * whole
    assert worst_error(wide, parts) <= TOLERANCE


@pytest.mark.parametrize("name", ["mlp", "block"])
def test_co_shard_trains_as_in_torch(name: str) -> None:
    case = judged(name)
    assert worst_error(case, planned(case, "co-shard", "dp=1")) <= TOLERANCE


def test_co_shard_joins_data_parallelism() -> None:
    case = judged("mlp")
    assert worst_error(case, planned(case, "dp+co-shard", "dp=2")) <= TOLERANCE


def test_co_shard_without_an_inner_width_is_refused() -> None:
    with pytest.raises(PlanError, match="no heads and no hidden width"):
        planned(judged("tied"), "co-shard", "dp=1")


@pytest.mark.parametrize("name", ["gpt", "tied"])
def test_an_interlaced_pipeline_trains_as_in_torch(name: str) -> None:
    case = judged(name)
    assert worst_error(case, planned(case, "interlaced", "pp=2")) <= TOLERANCE


def test_an_interlaced_pipeline_is_faster_where_the_vocabulary_dominates() -> None:
    case = models.gpt(2, batch=16, sequence=512, hidden=1024, heads=16, vocabulary=51200, device="meta")
    module = imported(case)
    mesh = Mesh.parse("pp=4")
    plain = partition(module, "pp-1f1b", mesh, micro_batches=4).timeline
    shared = partition(module, "interlaced", mesh, micro_batches=4).timeline
    assert shared.seconds < plain.seconds
    assert max(shared.peak_bytes) < 0.6 * max(plain.peak_bytes)


def test_an_interlaced_pipeline_without_a_vocabulary_is_refused() -> None:
    with pytest.raises(PlanError, match="no vocabulary to cut"):
        planned(judged("mlp"), "interlaced", "pp=2")
