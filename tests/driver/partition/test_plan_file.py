"""Plan files: what is written says the whole plan, and what does not fit is refused with the reason."""

from __future__ import annotations

import copy
import inspect
import json
from typing import Any

import pytest
from plan_harness import judged, planned

from mlirstitch.driver.bench import training_models as models
from mlirstitch.driver.partition.figures import figures
from mlirstitch.driver.partition.partitioned import Partitioned, partition
from mlirstitch.driver.partition.plan_file import decode_plan, plan_data, plan_text, read_plan_file
from mlirstitch.errors import InternalError, PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plan_record import RecordedPlan, read_numbers, written
from mlirstitch.passes.partitioning.plans import NAMED_PLANS

QUESTIONS = {
    "place", "is_cut", "may_cut", "reading_weights", "gradients", "using", "stages", "moment", "steps_of_time", "order",
    "decisions", "cut_loops", "copy",
}  # fmt: skip
"""Public methods of Plan that change nothing, or whose effect is written from the plan itself (order)."""
JOINED = ("dp+tp", "zero3+pp-1f1b", "zero2+pp-gpipe")


ON_SEQUENCES = [name for name in NAMED_PLANS if name not in ("expert", "spatial", "interlaced", "3f1b")]


def mesh_for(plan: str) -> str:
    return ",".join(f"{NAMED_PLANS[part].axis or 'dp'}=2" for part in plan.split("+"))


def data_of(made: Partitioned, name: str = "dp") -> dict[str, Any]:
    return plan_data(made, name, figures(made, name))


@pytest.mark.parametrize("plan", [*ON_SEQUENCES, *JOINED])
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_a_plan_that_is_written_and_read_places_everything_as_before(model: str, plan: str, tmp_path: Any) -> None:
    made = planned(judged(model), plan, mesh_for(plan))
    path = tmp_path / "plan.json"
    path.write_text(plan_text(data_of(made, plan)))
    again = read_plan_file(path)
    other = Plan(made.program.placed.graph, again.mesh, micro_batches=again.micro_batches)
    again.apply(other)
    assert other.place() == made.program.placed


def test_ops_that_are_computed_again_are_read_as_written() -> None:
    case = judged("gpt")
    made = partition(case.module, "co-shard", Mesh.of(dp=1))
    file = decode_plan(json.loads(plan_text(data_of(made, "co-shard"))), "p.json")
    assert file.recomputed
    again = partition(
        case.module, file.apply, Mesh.of(dp=1), micro_batches=file.micro_batches, recompute=file.recompute
    )
    assert again.program.placed == made.program.placed
    with pytest.raises(PlanError, match="another function"):
        partition(case.module, file.apply, Mesh.of(dp=1))


@pytest.mark.parametrize(("model", "plan"), [("moe", "expert"), ("cnn", "spatial"), ("gpt", "interlaced")])
def test_plans_for_some_models_alone_are_read_as_written(model: str, plan: str) -> None:
    made = planned(judged(model), plan, mesh_for(plan))
    other = Plan(made.program.placed.graph, made.program.placed.mesh)
    decode_plan(json.loads(plan_text(data_of(made, plan))), "p.json").apply(other)
    assert other.place() == made.program.placed


def test_every_method_of_a_plan_that_changes_it_is_kept() -> None:
    public = {name for name, _ in inspect.getmembers(Plan) if not name.startswith("_")}
    assert {name for name in public - QUESTIONS if name not in vars(RecordedPlan)} == set()


def test_a_plan_whose_rules_do_not_say_all_is_not_written() -> None:
    made = planned(judged("mlp"), "dp", "dp=2")
    made.plan.rules.pop()
    with pytest.raises(InternalError, match="rules as data do not say"):
        data_of(made)


def test_a_hand_written_rule_by_stage_and_class_is_followed() -> None:
    made = planned(judged("mlp"), "dp", "dp=2,tp=2")
    data = data_of(made)
    data["rules"] = [{"rule": "trans", "dims": "hidden", "space": ["tp"]},
                     {"rule": "assign", "ops": "stage 1 of 2", "mesh": {"axes": [["tp", 2]], "devices": [2, 3]}},
                     {"rule": "assign", "ops": "stage 0 of 2", "mesh": {"axes": [["tp", 2]]}}]  # fmt: skip
    plan = Plan(made.program.placed.graph, Mesh.of(dp=2, tp=2))
    decode_plan(data, "p.json").apply(plan)
    places = plan.place().placements
    assert all(places[op].mesh.devices == (2, 3) for op in plan.stages(2)[1])
    assert any("tp" in placement.axes for placement in places)


def _without(data: dict[str, Any], key: str) -> None:
    del data[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(version=2), "version 2"),
        (lambda data: data.update(format="other"), "no plan file"),
        (lambda data: data.update(extra=1), "'extra' was unexpected"),
        (lambda data: _without(data, "rules"), "'rules' is a required"),
        (lambda data: data["rules"][0].update(spice="dp"), "'spice' was unexpected"),
        (lambda data: data["rules"].append({"rule": "__init__"}), "__init__"),
        (lambda data: data["rules"].append({"rule": "trans", "dims": "no", "space": ["dp"]}), r"rules\[1\].*'no'"),
        (lambda data: data["rules"].append({"rule": "trans", "dims": "batch", "space": ["tp"]}), "no axis 'tp'"),
        (lambda data: data["rules"].append({"rule": "replicate", "ops": "0-9999"}), "no op 0-9999"),
        (lambda data: data["rules"].append({"rule": "replicate", "ops": "stage 2 of 2"}), "no stage 2 of 2"),
        (lambda data: data["rules"].append({"rule": "assign", "ops": "0", "mesh": {"axes": [["dp", 4]]}}), "device 2"),
        (lambda data: data["order"].append({"first": {"ops": "0", "at": {"m": 1}}, "then": {"ops": "1"}}), "time m=1"),
        (lambda data: data["mesh"].update(axes=[["dp", 0]]), "minimum of 1"),
        (lambda data: data["mesh"].update(axes=[["dp", 1 << 40]]), "more than"),
        (lambda data: data["mesh"].update(axes=[["dp", 4]]), "for the mesh dp=4, not for dp=2"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_right_is_refused_with_the_reason(change: Any, message: str) -> None:
    made = planned(judged("mlp"), "dp", "dp=2")
    data = copy.deepcopy(data_of(made))
    change(data)
    with pytest.raises(PlanError, match=message):
        decode_plan(data, "p.json").apply(Plan(made.program.placed.graph, Mesh.of(dp=2)))


def test_a_plan_of_another_function_is_refused() -> None:
    file = decode_plan(data_of(planned(judged("mlp"), "dp", "dp=2")), "p.json")
    with pytest.raises(PlanError, match=r"another function: it has no argument attention_norm\.weight"):
        file.apply(Plan(planned(judged("block"), "dp", "dp=2").program.placed.graph, Mesh.of(dp=2)))


def test_other_shapes_are_refused_unless_they_are_asked_for_and_then_cost_something_else(monkeypatch: Any) -> None:
    made = planned(judged("mlp"), "tp", "tp=2")
    file = decode_plan(data_of(made), "p.json")
    monkeypatch.setitem(__import__("plan_harness").CASES, "wide", lambda: models.mlp(hidden=96))
    wide = judged("wide")
    with pytest.raises(PlanError, match=r"shape \[48, 24\] \(f32\), not \[96, 24\]"):
        partition(wide.module, file.apply, Mesh.of(tp=2))
    other = partition(wide.module, lambda plan: file.apply(plan, other_shapes=True), Mesh.of(tp=2))
    assert max(other.timeline.peak_bytes) > max(made.timeline.peak_bytes)


def test_what_a_plan_cost_is_a_record_and_never_a_source() -> None:
    made = planned(judged("mlp"), "dp", "dp=2")
    data = data_of(made)
    data["cost"], data["costed_with"] = {"seconds": 1e9}, {"target": "nonsense"}
    file = decode_plan(json.loads(plan_text(data)), "p.json")
    assert partition(judged("mlp").module, file.apply, file.mesh).timeline.seconds == made.timeline.seconds


@pytest.mark.parametrize("numbers", [(), (0,), (0, 1, 2, 8), (3, 5, 6, 7, 9)])
def test_sets_of_numbers_are_read_as_written(numbers: tuple[int, ...]) -> None:
    assert read_numbers(written(numbers), 10, "op") == numbers
