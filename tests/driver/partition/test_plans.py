"""Named plans on small models: every plan that applies computes torch's training step; others say why not."""

from __future__ import annotations

import pytest
from plan_harness import CASES, TOLERANCE, judged, planned, worst_error

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.plans import NAMED_PLANS

ON_MLP = [
    ("dp", "dp=4"),
    ("dp", "dp=3"),
    ("zero1", "dp=4"),
    ("zero2", "dp=2"),
    ("zero3", "dp=6"),
    ("tp", "tp=4"),
    ("tp", "tp=5"),
    ("sp", "tp=4"),
    ("pp-gpipe", "pp=2"),
    ("pp-1f1b", "pp=4"),
    ("pp-interleaved", "pp=2"),
    ("dp+tp", "dp=2,tp=2"),
    ("zero1+tp+pp-1f1b", "pp=2,dp=2,tp=2"),
    ("zero2+pp-gpipe", "pp=2,dp=2"),
    ("zero3+pp-1f1b", "pp=2,dp=2"),
]
SAMPLE = [
    ("gpt", "dp+tp", "dp=2,tp=2"),
    ("gpt", "sp", "tp=4"),
    ("gpt", "pp-1f1b", "pp=2"),
    ("cnn", "spatial", "sp=4"),
    ("cnn", "dp", "dp=2"),
    ("moe", "expert", "ep=2"),
    ("swin", "tp", "tp=2"),
    ("block", "zero3", "dp=4"),
    ("tied", "zero1", "dp=4"),
]
AXIS_MESHES = {2: "{0}=2", 4: "{0}=4", 6: "{0}=6", 8: "{0}=8"}


@pytest.mark.parametrize(("plan", "mesh"), ON_MLP)
def test_a_perceptron_trains_as_in_torch_under_every_plan(plan: str, mesh: str) -> None:
    case = judged("mlp")
    assert worst_error(case, planned(case, plan, mesh)) <= TOLERANCE


@pytest.mark.parametrize(("model", "plan", "mesh"), SAMPLE)
def test_models_train_as_in_torch_under_plans_made_for_them(model: str, plan: str, mesh: str) -> None:
    case = judged(model)
    assert worst_error(case, planned(case, plan, mesh)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("devices", AXIS_MESHES)
@pytest.mark.parametrize("plan", NAMED_PLANS)
@pytest.mark.parametrize("model", CASES)
def test_every_plan_on_every_model_computes_torchs_step_or_says_why_not(model: str, plan: str, devices: int) -> None:
    case = judged(model)
    mesh = AXIS_MESHES[devices].format(NAMED_PLANS[plan].axis)
    try:
        made = planned(case, plan, mesh)
    except PlanError as error:
        assert error.message  # noqa: PT017  a refusal is a legal outcome; it must have a reason
        print(f"{model:10} {plan:15} {mesh:6} refused: {error.message[:90]}")
        return
    error = worst_error(case, made)
    print(f"{model:10} {plan:15} {mesh:6} passed: {error:.1e}")
    assert error <= TOLERANCE


def test_a_pipeline_of_a_model_with_batch_norm_is_refused_naming_the_ops() -> None:
    """Statistics over the whole batch need all micro-batches before any goes on."""
    with pytest.raises(PlanError, match=r"contradict each other or the data: .*\(op \d+\) at micro=.* before"):
        planned(judged("cnn"), "pp-1f1b", "pp=2")


def test_an_unknown_plan_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(PlanError, match="unknown plan 'zero9'") as caught:
        planned(judged("mlp"), "zero9", "dp=2")
    assert "zero3" in caught.value.hint


def test_a_plan_on_a_mesh_without_its_axis_is_refused() -> None:
    with pytest.raises(PlanError, match="axis tp, which the mesh dp=2 lacks"):
        planned(judged("mlp"), "tp", "dp=2")


def test_two_plans_on_one_axis_are_refused() -> None:
    with pytest.raises(PlanError, match="by axis dp twice"):
        planned(judged("mlp"), "dp+zero1", "dp=2")
