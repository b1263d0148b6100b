"""Named plans on small models: every plan that applies computes torch's training step; others say why not."""

from __future__ import annotations

import itertools

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
PAIRS = [
    (one, other)
    for one, other in itertools.combinations(NAMED_PLANS, 2)
    if NAMED_PLANS[one].axis != NAMED_PLANS[other].axis
]
_BATCH_NORM = ({"cnn"}, "contradict each other or the data")  # statistics over the whole batch
NOT_FOR: dict[str, tuple[tuple[set[str], str], ...]] = {
    "expert": ((set(CASES) - {"moe"}, "no experts"),),
    "spatial": ((set(CASES) - {"cnn"}, "no window walks"),),
    "pp-gpipe": (_BATCH_NORM,),
    "pp-1f1b": (_BATCH_NORM,),
    "pp-interleaved": (_BATCH_NORM,),
    "co-shard": (({"tied"}, "no heads and no hidden width"),),
    "interlaced": ((set(CASES) - {"gpt", "tied", "swin"}, "no vocabulary"),),  # swin: a table of relative positions
    "3f1b": ((set(CASES), "does not run its weights in 3 forward passes"),),
}
"""The models that a plan does not fit, and what it says of them; it fits all others."""
DEVICES = (2, 4, 6, 8)


def mesh_for(devices: int, *plans: str) -> str:
    """That many devices along the axis of every plan; one device for a plan that cuts in time alone."""
    axes = [NAMED_PLANS[plan].axis for plan in plans if NAMED_PLANS[plan].axis]
    return ",".join(f"{axis}={devices}" for axis in axes) or "dp=1"


@pytest.mark.parametrize(("plan", "mesh"), ON_MLP)
def test_a_perceptron_trains_as_in_torch_under_every_plan(plan: str, mesh: str) -> None:
    case = judged("mlp")
    assert worst_error(case, planned(case, plan, mesh)) <= TOLERANCE


@pytest.mark.parametrize(("model", "plan", "mesh"), SAMPLE)
def test_models_train_as_in_torch_under_plans_made_for_them(model: str, plan: str, mesh: str) -> None:
    case = judged(model)
    assert worst_error(case, planned(case, plan, mesh)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("plan", NAMED_PLANS)
@pytest.mark.parametrize("model", CASES)
def test_every_plan_on_every_model_computes_torchs_step_or_says_why_not(model: str, plan: str, devices: int) -> None:
    check(model, plan, mesh_for(devices, plan))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "gpt"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_every_pair_of_plans_computes_torchs_step_or_says_why_not(model: str, one: str, other: str) -> None:
    check(model, f"{one}+{other}", mesh_for(2, one, other))


def check(model: str, plan: str, mesh: str) -> None:
    """The plan gives torch's step, or is refused with a reason; either way a line of the table is printed."""
    case = judged(model)
    label = f"{model:10} {plan:25} {mesh:12}"
    try:
        made = planned(case, plan, mesh)
    except PlanError as error:
        refused = error.message
    else:
        deviation = worst_error(case, made)
        print(f"{label} passed: {deviation:.1e}")
        assert deviation <= TOLERANCE
        assert not any(model in models for part in plan.split("+") for models, _ in NOT_FOR.get(part, ()))
        return
    print(f"{label} refused: {refused[:110]}")
    assert any(
        model in models and reason in refused for part in plan.split("+") for models, reason in NOT_FOR.get(part, ())
    ), refused


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
