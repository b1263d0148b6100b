"""mlirstitch-opt: exit codes, streams, splitting, and that nothing kills it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = "func.func @f(%x: f32) -> f32 {\n  %a = arith.addf %x, %x : f32\n  return %x : f32\n}\n"
MAIN = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"
BAD = "func.func @g() -> f32 {\n  return\n}\n"
PLUGIN = """
import os
from dataclasses import dataclass
from mlir import ir
from mlirstitch import Pass, register_pass

@register_pass
@dataclass(frozen=True)
class Die(Pass):
    '''Dies as native code does.'''
    NAME = "test-die"
    def run(self, op):
        if len(op.regions[0].blocks[0].operations):
            os.abort()

@register_pass
@dataclass(frozen=True)
class Broken(Pass):
    '''Raises what nobody expects.'''
    NAME = "test-broken"
    def run(self, op):
        raise KeyError("lost")
"""


def opt(*arguments: str, text: str | None = None, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlirstitch.driver.opt", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )


def test_products_go_to_stdout_and_the_exit_code_is_zero(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(GOOD)
    done = opt("m.mlir", "--pass-pipeline=canonicalize", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "arith.addf" not in done.stdout
    assert "func.func @f" in done.stdout


def test_standard_input_and_an_output_file(tmp_path: Path) -> None:
    done = opt("-", "-o", str(tmp_path / "out.mlir"), text=GOOD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "arith.addf" in (tmp_path / "out.mlir").read_text()


def test_the_options_for_printing(tmp_path: Path) -> None:
    done = opt("--mlir-print-op-generic", "--mlir-print-debuginfo", text=GOOD)
    assert '"func.func"()' in done.stdout
    assert 'loc("<stdin>":2:8)' in done.stdout


def test_a_pass_is_a_flag_too() -> None:
    done = opt("--stitch-set-module-attributes=target=sm_80 numerics=strict", text=GOOD)
    assert done.returncode == 0, done.stderr
    assert 'stitch.numerics = "strict", stitch.target = "sm_80"' in done.stdout


def test_a_file_may_follow_the_flag_of_a_pass(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(GOOD)
    done = opt("--stitch-set-module-attributes", "m.mlir", "--normalize-classify", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'stitch.target = "sm_90"' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text", "code", "message"),
    [
        ((), BAD, 1, "<stdin>:2:3: error: 'func.return' op has 0 operands"),
        ((), "func.func @f(", 1, "<stdin>:1:13: error: expected non-function type"),
        ((), "%0 = torch.aten.relu %1", 1, "unknown dialect 'torch'"),
        (("nofile.mlir",), "", 1, "error: cannot read nofile.mlir: No such file or directory"),
        (("-o", "/no/such/folder/x"), GOOD, 1, "error: cannot write /no/such/folder/x"),
        (("--pass-pipeline=nope",), GOOD, 2, "<pipeline>:1:1: error: unknown pass 'nope'"),
        (("--pass-pipeline=",), GOOD, 2, "the pipeline is empty"),
        (("--pass-pipeline=cse", "--normalize-classify"), GOOD, 2, "were both given"),
        (("--normalize-clasify",), GOOD, 2, "did you mean --normalize-classify?"),
        (("--canonicalize",), GOOD, 2, "Passes of MLIR go into --pass-pipeline"),
        (("--normalize-classify=x=1",), GOOD, 2, "normalize-classify has no option 'x'"),
        (("--stitch-cluster",), MAIN, 1, "hint: run stitch-set-module-attributes first"),
        (("--dump-tree=/proc/no", "--pass-pipeline=cse"), GOOD, 2, "cannot write the dump folder"),
    ],
)
def test_what_is_wrong_is_said_on_stderr_with_an_exit_code(
    arguments: tuple[str, ...], text: str, code: int, message: str, tmp_path: Path
) -> None:
    done = opt(*arguments, text=text, folder=tmp_path)
    assert message in done.stderr
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "a refusal leaves nothing behind"


def test_split_input_keeps_going_and_keeps_line_numbers() -> None:
    done = opt("--split-input-file", text=f"{GOOD}// -----\n{BAD}// -----\n{GOOD}")
    assert done.returncode == 1
    assert "<stdin>:7:3: error: 'func.return' op" in done.stderr
    assert done.stdout.count("func.func @f") == 2
    assert done.stdout.count("// -----") == 1


def test_expected_diagnostics_decide_the_exit_code() -> None:
    expected = BAD.replace("return\n", "return // expected-error {{has 0 operands}}\n")
    assert opt("--verify-diagnostics", text=expected).returncode == 0
    other = opt("--verify-diagnostics", text=expected.replace("0 operands", "1 operand"))
    assert other.returncode == 1
    assert "unexpected error: 'func.return' op has 0 operands" in other.stderr
    assert 'expected error "has 1 operand' in other.stderr
    missing = opt("--verify-diagnostics", text="// expected-error@+1 {{never}}\n" + GOOD)
    assert missing.returncode == 1
    assert 'expected error "never" was not produced' in missing.stderr


def test_printing_and_dumping_after_every_pass(tmp_path: Path) -> None:
    done = opt(
        "--pass-pipeline=cse,canonicalize",
        "--mlir-print-ir-after-all",
        "--timing",
        f"--dump-tree={tmp_path}",
        text=GOOD,
    )
    assert done.returncode == 0
    assert done.stderr.count("IR Dump After") == 2
    assert done.stderr.count(" ms  ") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00_cse.mlir", "01_canonicalize.mlir"]


def test_the_list_of_passes_is_their_documentation() -> None:
    done = opt("--list-passes")
    assert done.returncode == 0
    assert "stitch-set-module-attributes  (on builtin.module)" in done.stdout
    assert "target=str" in done.stdout


def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text("".join(GOOD.replace("@f", f"@f{number}") for number in range(5000)))
    command = f"{sys.executable} -m mlirstitch.driver.opt m.mlir | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("module {\n", "")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in; passes that die are registered in every Python process started from here."""
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin" / "sitecustomize.py").write_text(
        "import sys\nif any(text.startswith('--work-folder') for text in sys.orig_argv):\n    import dying_passes\n"
    )
    (tmp_path / "plugin" / "dying_passes.py").write_text(PLUGIN)
    paths = [str(tmp_path / "plugin"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_a_death_of_the_compiler_becomes_an_error_with_a_reproducer(plugin: Path) -> None:
    done = opt("--split-input-file", "--pass-pipeline=cse,test-die", text=f"// -----\n{GOOD}", folder=plugin)
    assert done.returncode == 1
    assert "error: the compiler died of SIGABRT while running test-die" in done.stderr
    (folder,) = plugin.iterdir()
    assert folder.name.startswith("mlirstitch-reproducer-")
    assert str(folder) in done.stderr
    assert (folder / "input.mlir").read_text() == GOOD, "the piece that was worked on, not all of the input"
    assert (folder / "pipeline.txt").read_text() == "builtin.module(cse,test-die)\n"


def test_an_internal_error_shows_its_traceback_and_leaves_a_reproducer(plugin: Path) -> None:
    done = opt("--pass-pipeline=test-broken", text=GOOD, folder=plugin)
    assert done.returncode == 1
    assert "error: test-broken: internal error: KeyError: 'lost'" in done.stderr
    assert "Traceback" in done.stderr
    assert (next(plugin.iterdir()) / "run.sh").exists()


def test_an_assertion_in_native_code_is_an_error_that_its_reproducer_repeats(tmp_path: Path) -> None:
    text = """gpu.module @k {
  gpu.func @f(%m: memref<8xi1>, %c: index, %t: i1) kernel {
    memref.store %t, %m[%c] : memref<8xi1>
    gpu.return
  }
}
"""
    done = opt("--pass-pipeline=cse,gpu.module(convert-gpu-to-nvvm)", text=text, folder=tmp_path)
    assert done.returncode == 1
    message = "error: the compiler died of SIGABRT while running gpu.module(convert-gpu-to-nvvm)"
    assert message in done.stderr
    (folder,) = tmp_path.iterdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    again = subprocess.run(
        [str(folder / "run.sh")], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert again.returncode == 1
    assert message in again.stderr


def test_start_up_takes_less_than_half_a_second() -> None:
    """Processor time, so that a busy machine does not fail the test; wall time is no longer than that when idle."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert opt("--pass-pipeline=cse", text=GOOD).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(8)) < 0.5
