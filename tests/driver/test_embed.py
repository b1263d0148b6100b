"""Our passes on a context, module and pass manager that are not ours."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from mlir import ir
from mlir.passmanager import PassManager

import mlirstitch
from mlirstitch.dialects.bindings import MLIRError, error_diagnostics
from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PipelineError
from mlirstitch.passes import base

SOURCE = "func.func @f(%x: f32) -> f32 {\n  %0 = math.exp %x : f32\n  %1 = math.exp %x : f32\n  return %0 : f32\n}"


@dataclass(frozen=True)
class Picky(mlirstitch.Pass):
    """Refuse, break or count, as told."""

    NAME = "test-picky"
    ANCHOR = "func.func"

    how: str = "count"

    def run(self, op: ir.Operation) -> None:
        ops = [child.operation for child in op.regions[0].blocks[0].operations]
        if self.how == "refuse":
            raise refusal(ops[0], "no exp", "use a table")
        if self.how == "break":
            raise KeyError("lost")
        if self.how == "interrupt":
            raise KeyboardInterrupt
        op.attributes["test.ops"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(ops))


@pytest.fixture(autouse=True)
def registered_test_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    mlirstitch.register_pass(Picky)


def run(pipeline: str) -> str:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(SOURCE)
        manager = PassManager("builtin.module")
        assert mlirstitch.add_passes(manager, pipeline) is manager
        manager.run(module.operation)
        return str(module)


def test_passes_run_in_the_callers_pass_manager_in_order() -> None:
    assert "test.ops = 3" in run("func.func(test-picky)")
    assert "test.ops = 2" in run("builtin.module(func.func(canonicalize,test-picky))")
    assert "stitch.target" in run("stitch-set-module-attributes,canonicalize")


def test_a_refusal_arrives_as_a_located_diagnostic_of_mlir() -> None:
    with pytest.raises(MLIRError) as caught:
        run("func.func(canonicalize,test-picky{how=refuse})")
    (diagnostic,) = error_diagnostics(caught.value)
    assert str(diagnostic.location) == 'loc("-":2:8)'
    assert diagnostic.message == "test-picky: math.exp (f32) -> (f32): no exp\n  hint: use a table"


def test_a_broken_pass_does_not_break_the_process() -> None:
    for _ in range(3):
        with pytest.raises(MLIRError, match="test-picky: internal error: KeyError: 'lost'"):
            run("func.func(test-picky{how=break})")
    assert "test.ops" in run("func.func(test-picky)")


def test_an_interrupt_ends_the_run_and_not_the_process() -> None:
    with pytest.raises(MLIRError, match="test-picky: interrupted by KeyboardInterrupt"):
        run("func.func(test-picky{how=interrupt})")
    assert "test.ops" in run("func.func(test-picky)")


@pytest.mark.parametrize(
    ("anchor", "pipeline", "message"),
    [
        ("builtin.module", "nope", "unknown pass 'nope'"),
        ("builtin.module", "test-picky", "test-picky runs on func.func"),
        ("builtin.module", "func.func(test-picky{x=1})", "no option 'x'"),
        ("func.func", "canonicalize", "the pass manager runs on func.func"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_when_it_is_added(anchor: str, pipeline: str, message: str) -> None:
    with ir.Context(), pytest.raises(PipelineError, match=message):
        mlirstitch.add_passes(PassManager(anchor), pipeline)


def test_the_kernel_templates_are_there_once_passes_were_added() -> None:
    from mlirstitch.passes.stitching.template import templates

    run("canonicalize")
    assert templates()
