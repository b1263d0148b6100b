"""Plan ``auto``: its integer program, and that nothing named beats it in simulation."""

from __future__ import annotations

import math

import pytest
from plan_harness import judged, planned, worst_error

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.layout import Layout, split
from mlirstitch.passes.partitioning.linalg_graph import graph_of
from mlirstitch.passes.partitioning.materialize import materialize
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plans import NAMED_PLANS, named_plan
from mlirstitch.passes.partitioning.plans.auto import OWN, Tried, auto, cut_by_program
from mlirstitch.passes.partitioning.plans.auto_program import Flow, Option, solve
from mlirstitch.passes.partitioning.simulate import simulate
from mlirstitch.passes.structured import main_function
from mlirstitch.target import Links, Target

MACHINE = Target.parse("sm_90"), Links.parse("dgx-h100")
WHOLE, CUT = Layout((split((), 8),)), Layout((split(("tp",), 8),))


def plan_of(model: str, mesh: str) -> Plan:
    function = main_function(judged(model).module.operation)
    assert function is not None
    return Plan(graph_of(function), Mesh.parse(mesh))


def tried(plan: Plan, memory: int | None = None) -> tuple[Tried, ...]:
    named = {name: named_plan(name) for name, found in NAMED_PLANS.items() if found.axis in plan.mesh.sizes}
    return auto(plan, *MACHINE, named, memory)


def test_a_conversion_that_two_readers_share_is_paid_once() -> None:
    """Two readers gain 3 each by a layout whose conversion costs 4: paid twice, it would not be worth it."""
    nodes = [[Option(0.0)], [Option(3.0), Option(0.0)], [Option(3.0), Option(0.0)]]
    flows = [Flow(0, reader, 7, (WHOLE, CUT), ((0.0, 4.0),)) for reader in (1, 2)]
    assert solve(nodes, flows) == (0, 1, 1)
    apart = [Flow(0, 1, 7, (WHOLE, CUT), ((0.0, 4.0),)), Flow(0, 2, 8, (WHOLE, CUT), ((0.0, 4.0),))]
    assert solve(nodes, apart) == (0, 0, 0)


def test_the_memory_row_forces_the_dearer_choice_and_refuses_the_impossible() -> None:
    nodes = [[Option(0.0, 100), Option(1.0, 25)], [Option(0.0, 100), Option(2.0, 25)]]
    assert solve(nodes, []) == (0, 0)
    assert solve(nodes, [], memory=125) == (1, 0)
    assert solve(nodes, [], memory=50) == (1, 1)
    with pytest.raises(PlanError, match="no plan keeps the memory limit"):
        solve(nodes, [], memory=49)


def test_an_impossible_conversion_is_never_chosen() -> None:
    nodes = [[Option(0.0)], [Option(5.0), Option(0.0)]]
    assert solve(nodes, [Flow(0, 1, 7, (WHOLE, CUT), ((0.0, math.inf),))]) == (0, 0)


@pytest.mark.parametrize("mesh", ["tp=4", "dp=2,tp=2"])
@pytest.mark.parametrize("model", ["mlp", "block", "moe"])
def test_no_named_plan_is_faster_than_the_chosen_one(model: str, mesh: str) -> None:
    plan = plan_of(model, mesh)
    found = tried(plan)
    again = plan_of(model, mesh)
    applied = simulate(materialize(plan.place(), *MACHINE)).seconds
    assert applied <= min(candidate.seconds for candidate in found if candidate.name != OWN)
    assert tried(again) == found
    assert again.decisions() == plan.decisions()


def test_cuts_made_beforehand_are_kept() -> None:
    plan = plan_of("mlp", "tp=4")
    plan.trans("hidden", space="tp")
    before = plan.decisions().cuts
    assert any(before)
    cut_by_program(plan, "tp", *MACHINE)
    after = plan.decisions().cuts
    assert all(now == old for old, now in zip(before, after, strict=True) if old)


def test_a_memory_limit_that_nothing_keeps_is_refused_with_the_least() -> None:
    with pytest.raises(PlanError, match=r"no plan keeps 1000 bytes a device; the least is \d+ bytes"):
        tried(plan_of("mlp", "dp=4"), memory=1000)


def test_the_programs_own_cuts_compute_what_torch_does() -> None:
    """Under a memory limit, so that it has to cut something."""
    case = judged("mlp")

    def own(plan: Plan) -> None:
        whole = sum(plan.graph.values[value].bytes for value in plan.graph.arguments)
        cut_by_program(plan, "tp", *MACHINE, memory=whole // 3)
        assert any(plan.decisions().stored)

    assert worst_error(case, planned(case, own, "tp=4")) < 1e-5


def test_partition_takes_auto_by_name() -> None:
    case = judged("mlp")
    made = planned(case, "auto", "dp=2,tp=2")
    assert made.timeline.seconds <= planned(case, "dp+tp", "dp=2,tp=2").timeline.seconds
    assert worst_error(case, made) < 1e-5
