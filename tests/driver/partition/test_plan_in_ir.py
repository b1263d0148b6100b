"""A plan in attributes is the plan: printed and read again, it places every op as the rules did."""

from __future__ import annotations

import pytest
from mlir import ir
from plan_harness import judged

from mlirstitch.dialects import parse_module, plan_attributes
from mlirstitch.dialects.bindings import print_op
from mlirstitch.driver.partition import partition
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.linalg_graph import graph_of
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plan_ir import planned_function, read_plan, write_plan
from mlirstitch.passes.partitioning.plans import named_plan
from mlirstitch.passes.pipeline import run_pipeline


def copy_of(module: ir.Module) -> ir.Module:
    return parse_module(print_op(module.operation))


@pytest.mark.parametrize(
    ("case", "name", "mesh"),
    [
        ("mlp", "dp+tp", "dp=2,tp=2"),
        ("mlp", "zero2", "dp=4"),
        ("mlp", "zero3", "dp=4"),
        ("mlp", "dp+pp-1f1b", "dp=2,pp=2"),
        ("gpt", "dp+tp", "dp=2,tp=2"),
        ("gpt", "tp+pp-interleaved", "tp=2,pp=2"),
    ],
)
def test_attributes_place_every_op_as_rules_do(case: str, name: str, mesh: str) -> None:
    module = copy_of(judged(case).module)
    plan = Plan(graph_of(planned_function(module.operation)), Mesh.parse(mesh))
    named_plan(name)(plan)
    write_plan(plan, module.operation)
    assert read_plan(copy_of(module).operation).place() == plan.place()


@pytest.mark.parametrize(
    ("case", "name", "mesh"),
    [("mlp", "dp+tp", "dp=2,tp=2"), ("gpt", "dp+tp", "dp=2,tp=2"), ("mlp", "co-shard+dp", "dp=2")],
)
def test_passes_and_python_make_the_same_device_programs(case: str, name: str, mesh: str) -> None:
    module = judged(case).module
    by_rules = partition(module, name, Mesh.parse(mesh))
    planned = copy_of(module)
    run_pipeline(planned, f"dist-plan{{plan={name} mesh={mesh}}}")
    again = copy_of(planned)
    run_pipeline(again, "dist-insert-communication")
    assert print_op(again.operation) == print_op(by_rules.module.operation)


def test_a_plan_replaces_the_one_before_without_a_trace() -> None:
    first, both = copy_of(judged("mlp").module), copy_of(judged("mlp").module)
    run_pipeline(first, "dist-plan{plan=tp mesh=tp=2}")
    run_pipeline(both, "dist-plan{plan=dp+pp-1f1b mesh=dp=2,pp=2},dist-plan{plan=tp mesh=tp=2}")
    assert print_op(first.operation) == print_op(both.operation)


def test_attributes_that_a_plan_leaves_are_all_known() -> None:
    module = copy_of(judged("mlp").module)
    run_pipeline(module, "dist-plan{plan=dp+pp-1f1b mesh=dp=2,pp=2},stitch-verify,stitch-verify{level=linalg}")
    plan_attributes.verify(module.operation)


@pytest.mark.parametrize(("name", "mesh"), [("dp+tp", "dp=2,tp=2"), ("dp+pp-1f1b", "dp=2,pp=2")])
def test_training_steps_are_exported_to_shard(name: str, mesh: str) -> None:
    module = copy_of(judged("mlp").module)
    run_pipeline(
        module,
        f"dist-plan{{plan={name} mesh={mesh}}},dist-insert-communication,dist-check-schedule,convert-dist-to-shard",
    )
    text = print_op(module.operation)
    assert "shard.all_reduce" in text
    assert '"dist.' not in text
    assert ("shard.send" in text) == ("pp" in name)
    assert print_op(copy_of(module).operation) == text
