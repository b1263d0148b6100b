"""Pipelines that mix passes of MLIR and of Python: text, options, errors, reproducers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlir import ir

from mlirstitch.dialects import parse_module
from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import InternalError, PassError, PipelineError, TargetError
from mlirstitch.options import option
from mlirstitch.passes import base
from mlirstitch.passes.pipeline import Pipeline, parse_pipeline, run_pipeline
from mlirstitch.passes.pipeline_text import pass_text

SOURCE = """func.func @f(%x: f32, %y: f32) -> f32 {
  %a = arith.addf %x, %y : f32
  %b = arith.addf %x, %y : f32
  %c = arith.mulf %a, %b : f32
  return %c : f32
}
func.func @g() {
  return
}
"""


@dataclass(frozen=True)
class Mark(base.Pass):
    """Write an attribute."""

    NAME = "test-mark"

    value: int = option(1, "what to write")
    name: str = option("test.mark", "under which name")
    twice: bool = option(False, "add one")
    mode: str = option("plain", "how", ("plain", "fancy"))

    def run(self, op: ir.Operation) -> None:
        number = self.value + int(self.twice)
        op.attributes[self.name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


@dataclass(frozen=True)
class CountAdds(base.Pass):
    """Write how many additions a function has."""

    NAME = "test-count"
    ANCHOR = "func.func"

    def run(self, op: ir.Operation) -> None:
        count = sum(child.operation.name == "arith.addf" for child in op.regions[0].blocks[0].operations)
        op.attributes["test.adds"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)


@dataclass(frozen=True)
class Refuse(base.Pass):
    """Refuse the multiplication."""

    NAME = "test-refuse"
    ANCHOR = "func.func"

    def run(self, op: ir.Operation) -> None:
        for child in op.regions[0].blocks[0].operations:
            if child.operation.name == "arith.mulf":
                raise refusal(child.operation, "products are not allowed", "write a sum")


@dataclass(frozen=True)
class Break(base.Pass):
    """Fail in the way the option says."""

    NAME = "test-break"

    how: str = "exception"

    def run(self, op: ir.Operation) -> None:
        if self.how == "exception":
            raise KeyError("lost")
        if self.how == "error":
            raise TargetError("no such chip", hint="buy one")
        if self.how == "plain":
            raise PassError("the whole module is bad")
        function = op.regions[0].blocks[0].operations[0]
        list(function.operation.regions[0].blocks[0].operations)[-1].operation.erase()


@dataclass(frozen=True)
class Needy(base.Pass):
    """Needs an option and checks it."""

    NAME = "test-needy"

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size is {self.size}, below zero")


@pytest.fixture(autouse=True)
def registered_test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    for cls in (Mark, CountAdds, Refuse, Break, Needy):
        base.register_pass(cls)


def run(text: str, **options: object) -> str:
    module = parse_module(SOURCE, "input.mlir")
    run_pipeline(module, text, **options)  # type: ignore[arg-type]
    return str(module)


def test_native_and_python_passes_run_in_the_order_of_the_text() -> None:
    text = run("builtin.module(func.func(test-count),func.func(cse),test-mark{value=3})")
    assert "test.adds = 2" in text
    assert text.count("arith.addf") == 1
    assert "test.mark = 3" in text
    assert "test.adds = 1" in run("func.func(cse,test-count)")


def test_a_nested_python_pass_runs_on_every_matching_op() -> None:
    assert run("func.func(test-count)").count("test.adds") == 2


def test_the_outer_anchor_may_be_left_out_and_spaces_do_not_matter() -> None:
    assert run(" canonicalize , func.func( cse , test-count ) ") == run(
        "builtin.module(canonicalize,func.func(cse,test-count))"
    )


def test_the_empty_anchor_runs_nothing() -> None:
    assert run("builtin.module()") == run("test-mark{name=test.x},strip-debuginfo").replace(
        "attributes {test.x = 1 : i64} ", ""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("test-mark", Mark()),
        ("test-mark{}", Mark()),
        ("test-mark{value=-7}", Mark(value=-7)),
        ("test-mark{twice}", Mark(twice=True)),
        ("test-mark{twice=true value=2}", Mark(value=2, twice=True)),
        ("test-mark{twice=0}", Mark(twice=False)),
        ('test-mark{name="a b,c}" value=2}', Mark(value=2, name="a b,c}")),
        ("test-mark{name={a b} mode=fancy}", Mark(name="a b", mode="fancy")),
        ("test-mark{name=}", Mark(name="")),
    ],
)
def test_options_come_from_the_fields_of_the_pass(text: str, expected: Mark) -> None:
    step = parse_pipeline(text).steps[0]
    assert step.python == expected
    assert parse_pipeline(pass_text(expected)).steps[0].python == expected


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("", 1, "the pipeline is empty", "name at least one pass"),
        ("cse,", 5, "expected the name of a pass", ""),
        ("cse,,cse", 5, "expected the name of a pass", ""),
        ("cse)", 4, "unexpected ')'", ""),
        ("func.func(cse", 14, "missing ) of func.func(", ""),
        ("func.func()", 1, "func.func() holds no pass", ""),
        ("cse{a=b", 4, "missing } of the options of cse", ""),
        ("cse{a=(}", 4, "missing } of the options of cse", ""),
        ("canonicalise", 1, "unknown pass 'canonicalise'", "did you mean canonicalize?"),
        ("cse,test-marc", 5, "unknown pass 'test-marc'", "did you mean test-mark"),
        ("test-mark{valeu=3}", 11, "no option 'valeu'", "did you mean value?"),
        ("test-mark{x=3}", 11, "no option 'x'", "value (int), name (str), twice (bool), mode (str)"),
        ("test-mark{value=3.5}", 11, "takes int, not '3.5'", ""),
        ("test-mark{value}", 11, "takes int, not nothing", ""),
        ("test-mark{name}", 11, "takes str, not nothing", ""),
        ("test-mark{twice=maybe}", 11, "takes bool, not 'maybe'", ""),
        ("test-mark{value=1 value=2}", 19, "given twice", ""),
        ("test-mark{mode=odd}", 11, "not one of plain, fancy", "choose one of plain, fancy"),
        ('test-mark{name="a}', 10, "missing }", ""),
        ("test-mark{=3}", 11, "expected an option", ""),
        ("test-count{x=1}", 1, "test-count runs on func.func, not on builtin.module", "write func.func(test-count)"),
        ("func.func(test-count{x=1})", 22, "no option 'x'", "test-count has no options"),
        ("test-needy", 1, "needs the option 'size'", "size (int)"),
        ("test-needy{size=-1}", 12, "size is -1, below zero", ""),
        ("func.func(test-mark)", 11, "test-mark runs on builtin.module, not on func.func", ""),
        ("test-mark(cse)", 1, "test-mark is a pass, not an op", ""),
        ("cse(cse)", 1, "'cse' is not the name of an op", ""),
        ("func.fun(cse)", 10, "no op 'func.fun' is known", ""),
        (
            "func.func(convert-gpu-to-nvvm)",
            11,
            "runs on gpu.module, not on func.func",
            "gpu.module(convert-gpu-to-nvvm)",
        ),
        ("canonicalize{bad=1}", 1, "no such option bad", ""),
        ("canonicalize{max-iterations=x}", 1, "MLIR refuses 'canonicalize{max-iterations=x}'", ""),
    ],
)
def test_a_bad_pipeline_is_refused_at_its_place_before_anything_runs(
    text: str, column: int, message: str, hint: str
) -> None:
    module = parse_module(SOURCE)
    before = str(module)
    with pytest.raises(PipelineError) as caught:
        run_pipeline(module, text)
    assert caught.value.source == f"<pipeline>:1:{column}"
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert str(module) == before


def test_a_refusal_names_pass_op_types_reason_place_and_hint() -> None:
    with pytest.raises(PassError) as caught:
        run("func.func(cse,test-refuse)")
    assert str(caught.value) == (
        "input.mlir:4:8: test-refuse: arith.mulf (f32, f32) -> (f32): products are not allowed\n  hint: write a sum"
    )


def test_a_refusal_without_a_place_gets_that_of_the_anchor() -> None:
    with pytest.raises(PassError) as caught:
        run("test-break{how=plain}")
    assert caught.value.source.startswith("input.mlir:")


def test_other_errors_raised_on_purpose_keep_their_class() -> None:
    with pytest.raises(TargetError) as caught:
        run("test-break{how=error}")
    assert caught.value.message == "test-break: no such chip"
    assert caught.value.hint == "buy one"


def test_an_unforeseen_exception_becomes_an_internal_error_with_its_cause() -> None:
    with pytest.raises(InternalError) as caught:
        run("test-break")
    assert caught.value.message == "test-break: internal error: KeyError: 'lost'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_invalid_ir_left_by_a_pass_is_blamed_on_the_pass() -> None:
    with pytest.raises(InternalError, match="test-break: the pass left invalid IR: block with no terminator"):
        run("test-break{how=corrupt}")


def test_invalid_ir_is_tolerated_without_verifier() -> None:
    assert "func" in run("test-break{how=corrupt}", verify_each=False)


def test_a_failing_native_pass_is_named_with_its_diagnostic() -> None:
    with pytest.raises(PassError) as caught:
        run("canonicalize,func.func(arith.addf(cse))")
    assert caught.value.message.startswith("cse: 'arith.addf' op trying to schedule a pass on an operation not marked")
    assert caught.value.source == "input.mlir:2:8"


def test_a_process_goes_on_after_every_kind_of_failure() -> None:
    for text in ("test-break", "test-break{how=corrupt}", "func.func(test-refuse)", "func.func(arith.addf(cse))") * 3:
        with pytest.raises(PassError):
            run(text)
    assert "test.mark" in run("test-mark")


def test_a_failing_step_leaves_a_folder_that_repeats_it(tmp_path: Path) -> None:
    with pytest.raises(PassError) as caught:
        run("func.func(cse),func.func(arith.addf(cse)),canonicalize", reproducer_dir=str(tmp_path))
    folder = Path(caught.value.reproducer)
    assert folder.parent == tmp_path
    assert sorted(path.name for path in folder.iterdir()) == ["input.mlir", "pipeline.txt", "reason.txt", "run.sh"]
    text = (folder / "input.mlir").read_text()
    assert text.count("arith.addf") == 2, "the input is the module before the first step"
    done = subprocess.run([str(folder / "run.sh")], capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 1
    assert "trying to schedule a pass on an operation not marked as 'IsolatedFromAbove'" in done.stderr
    with pytest.raises(PassError) as again:
        run("func.func(cse),func.func(arith.addf(cse)),canonicalize", reproducer_dir=str(tmp_path))
    assert again.value.reproducer == str(folder), "the same failure does not pile up folders"


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_a_reproducer_that_cannot_be_written_is_an_error_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="cannot write the reproducer"):
        run("func.func(test-refuse)", reproducer_dir=str(tmp_path / "file"))


def test_the_module_is_written_after_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("func.func(cse),test-mark", dump_tree=str(tmp_path / "tree"), print_after_all=True)
    assert [path.name for path in sorted((tmp_path / "tree").iterdir())] == ["00_cse.mlir", "01_test-mark.mlir"]
    assert "test.mark" in (tmp_path / "tree" / "01_test-mark.mlir").read_text()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("// -----// IR Dump After ") == 2
    assert "IR Dump After func.func(cse) //" in printed.err


def test_steps_are_announced_and_timed() -> None:
    module = parse_module(SOURCE)
    announced: list[str] = []
    times = run_pipeline(module, "cse,func.func(test-count)", on_step=announced.append)
    assert announced == [entry.text for entry in times] == ["cse", "func.func(test-count)"]
    assert all(entry.seconds >= 0 for entry in times)


def test_the_text_of_a_pipeline_parses_back_to_it() -> None:
    pipeline = parse_pipeline("func.func(cse,gpu.module(test-never)),test-mark{mode=fancy value=2}")
    assert (
        str(pipeline)
        == "builtin.module(func.func(cse),func.func(gpu.module(test-never)),test-mark{value=2 mode=fancy})"
    )
    assert str(parse_pipeline(str(pipeline))) == str(pipeline)


def test_a_name_registers_once() -> None:
    @dataclass(frozen=True)
    class Other(base.Pass):
        """Takes a used name."""

        NAME = "test-mark"

    with pytest.raises(PipelineError, match="already registered"):
        base.register_pass(Other)
    base.register_pass(Mark)


def test_a_pass_that_is_not_well_formed_is_refused() -> None:
    @dataclass(frozen=True)
    class Nameless(base.Pass):
        """Has no name."""

    with pytest.raises(PipelineError, match="has no NAME"):
        base.register_pass(Nameless)

    class Plain(base.Pass):
        """Is no dataclass."""

        NAME = "test-plain"

    with pytest.raises(PipelineError, match="Plain is not a dataclass"):
        base.register_pass(Plain)

    @dataclass(frozen=True)
    class Listed(base.Pass):
        """Has an option no pipeline text can give."""

        NAME = "test-listed"
        sizes: tuple[int, ...] = ()

    with pytest.raises(PipelineError, match="option sizes of Listed is"):
        base.register_pass(Listed)
    with pytest.raises(InternalError, match="does not define run"):
        run("test-needy{size=1}")


@given(st.text(alphabet="cse,(){}= \"'test-mark.func.funcvalue3", max_size=40))
def test_any_text_is_a_pipeline_or_refused(text: str) -> None:
    for cls in (Mark, CountAdds):  # the fixture runs once for all examples
        base.register_pass(cls)
    pipeline, error = parsed_or_refused(text)
    if error is not None:
        assert error.source.startswith("<pipeline>:1:")
        assert 1 <= int(error.source.rpartition(":")[2]) <= len(text) + 1
    if pipeline is not None:
        again = parse_pipeline(str(pipeline))
        assert [(s.anchors, s.text, s.python) for s in again.steps] == [
            (s.anchors, s.text, s.python) for s in pipeline.steps
        ]


def parsed_or_refused(text: str) -> tuple[Pipeline | None, PipelineError | None]:
    try:
        return parse_pipeline(text), None
    except PipelineError as error:
        return None, error


def test_anchors_cannot_nest_without_bound() -> None:
    with pytest.raises(PipelineError, match="more than 50 anchors are nested"):
        parse_pipeline("func.func(" * 5000 + "cse" + ")" * 5000)
