"""Co-shard and interlaced pipelines: what they compute, and what the model of the machine says of time and memory."""

from __future__ import annotations

import functools
import itertools

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
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plans.pipeline_parallel import cut_batch, one_f_one_b_order, order_stages
from mlirstitch.passes.partitioning.plans.three_f_one_b import three_f_one_b_order
from mlirstitch.passes.partitioning.recycling import passes_of, recycled_stages
from mlirstitch.passes.pipeline import run_pipeline

CASES.setdefault("wide", functools.partial(models.mlp, batch=64, width=8, hidden=512))
CASES.setdefault(
    "recycled",
    functools.partial(
        models.evoformer_block, batch=4, sequences=4, residues=4, alignment_width=8, pair_width=8, heads=2, forwards=3
    ),
)


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


def alternating(plan: Plan) -> None:
    """1F1B on the stages of 3F1B: all forward passes of a micro-batch are one task."""
    stages = recycled_stages(plan.graph, plan.phases, passes_of(plan.graph, plan.phases, 3), plan.mesh.size)
    micro_batches = cut_batch(plan)
    for stage, ops in enumerate(stages):
        plan.assign(ops, plan.mesh.at(pp=stage))
    tasks = [one_f_one_b_order(len(stages), micro_batches, stage) for stage in range(len(stages))]
    order_stages(plan, stages, tasks)


def test_three_forwards_to_one_backward_train_as_in_torch_no_slower_than_1f1b() -> None:
    case = judged("recycled")
    made = planned(case, "3f1b", "pp=2")
    assert made.timeline.seconds <= planned(case, alternating, "pp=2").timeline.seconds
    assert worst_error(case, made) <= TOLERANCE


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_order_of_three_forwards_to_one_backward_is_superscalers(stages: int) -> None:
    count = 6
    for stage in range(stages):
        tasks = three_f_one_b_order(stages, count, stage)
        place = {task: number for number, task in enumerate(tasks)}
        assert len(place) == len(tasks) == 4 * count
        for m in range(count):
            rules = [("F1", m + 2), ("F2", m + 1), ("F3", m), ("B", m - (stages - (stage + 1)))]
            for first, then in itertools.pairwise(rules):
                if first in place and then in place:
                    assert place[first] < place[then]


def test_three_forwards_to_one_backward_of_a_model_that_runs_once_are_refused() -> None:
    with pytest.raises(PlanError, match="does not run its weights in 3 forward passes"):
        planned(judged("mlp"), "3f1b", "pp=2")
