"""The command line as a user meets it: streams, exit codes, messages. What compiles stands in test_cli_compile.py."""

import json
import os
import subprocess
import sys

import click
import numpy as np
import pytest

from mlirstitch.driver.cli import cli, main
from mlirstitch.options import CompileOptions
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.program import Argument, Buffer, Launch, Program, Signature, Value

PTX = """//
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(
	.param .u64 .ptr .align 1 add_param_0,
	.param .u64 .ptr .align 1 add_param_1
)
{
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<8>;

	ld.param.b64 	%rd1, [add_param_0];
	ld.param.b64 	%rd2, [add_param_1];
	cvta.to.global.u64 	%rd3, %rd1;
	cvta.to.global.u64 	%rd4, %rd2;
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd5, %r1, 4;
	add.s64 	%rd6, %rd3, %rd5;
	add.s64 	%rd7, %rd4, %rd5;
	ld.global.b32 	%r2, [%rd6];
	add.rn.f32 	%r3, %r2, %r2;
	st.global.b32 	[%rd7], %r3;
	ret;
}
"""


@pytest.fixture
def bundle(tmp_path):
    """A bundle on disk that doubles ``x``, float32 [4]."""
    buffers = (
        Buffer(0, "input", "x", (4,), "float32", 16),
        Buffer(1, "output", "y", (4,), "float32", 16),
    )
    arguments = (Argument(0, "read", 16, 16), Argument(1, "write", 16, 16))
    step = Launch("kernels", "add", (1, 1, 1), (4, 1, 1), arguments, template="elementwise", source=("model.py:7",))
    signature = Signature((Value("x", (4,), "float32", 0),), (Value("y", (4,), "float32", 1),))
    program = Program("main", (0,), signature, 0, 0, buffers, (step,))
    path = tmp_path / "double.bundle"
    Bundle({"chip": "sm_80", "ptx": "7.0"}, (program,), {"kernels": PTX}).write(path)
    return path


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from mlirstitch.driver.cli import main; main(['compile', '--help'])\n"
        "print(sorted({'torch', 'mlir', 'numpy', 'rich', 'jsonschema'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", sorted(set(cli.commands) - {"opt"}))
def test_every_command_documents_examples_and_exit_codes(call, name):
    code, out, _ = call(name, "--help")
    assert code == 0
    assert f"mlirstitch {name}" in out.partition("Examples:")[2]
    assert "Exit codes:" in out


def test_every_compile_option_is_a_flag():
    command = cli.commands["compile"]
    flags = {parameter.name for parameter in command.params if isinstance(parameter, click.Option)}
    assert set(CompileOptions.__dataclass_fields__) <= flags


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile"], "Missing argument"),
        (["compile", "a.mlir"], "nothing to produce"),
        (["compile", "a.mlir", "--emit", "wasm"], "wasm"),
        (["compile", "a.mlir", "--to", "gpu", "--emit", "ptx"], "lies outside"),
        (["compile", "a.mlir", "--to", "gpu", "-o", "b"], "a bundle needs all levels"),
        (["compile", "a.mlir", "--numerics", "sloppy", "-o", "b"], "sloppy"),
        (["nonsense"], "No such command"),
        (["compile", "a.mlir", "-o", ""], "the path is empty"),
        (["compile", "", "-o", "b"], "the path is empty"),
        (["run", "b", "-o", ""], "the path is empty"),
        (["run", "", "-o", "y.npz"], "the path is empty"),
        (["run", "b", "--inputs", ""], "the path is empty"),
        (["bench", "--json", ""], "the path is empty"),
        (["bench", "--size", "huge"], "huge"),
        (["bench", "--check"], "--size real"),
        (["bench", "--check", "--size", "real", "--dtype", "bf16"], "f32"),
        (["run", "b", "--device", "tpu"], "tpu"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_misuse_of_the_command_line_exits_with_2(call, arguments, message):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    command = arguments[0] if arguments[0] != "nonsense" else ""
    assert f"hint: {f'mlirstitch {command}'.strip()} --help" in err


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_missing_bundle_is_an_error_with_a_hint(call, tmp_path, command):
    code, out, err = call(command, tmp_path / "none.bundle")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "hint: a bundle is written by: mlirstitch compile" in err


def test_a_damaged_bundle_is_an_error(call, bundle):
    (bundle / "kernels" / "kernels.ptx").write_text("nothing")
    code, out, err = call("run", bundle)
    assert (code, out) == (1, "")
    assert "checksum mismatch" in err


def test_debug_variable_shows_the_traceback(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MLIRSTITCH_DEBUG", "1")
    assert main(["explain", str(tmp_path / "none")]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_explain_tells_kernels_bytes_and_source_lines(call, bundle):
    code, out, err = call("explain", bundle)
    assert (code, err) == (0, "")
    signature, figures = ("x: float32 [4]", "y: float32 [4]"), ("1 memory-bound", "32 B touched")
    for fact in ("sm_80", *signature, *figures, "elementwise", "model.py:7"):
        assert fact in out


def test_explain_as_json_holds_the_figures(call, bundle):
    code, out, err = call("explain", bundle, "--json")
    assert (code, err) == (0, "")
    (program,) = json.loads(out)["programs"]
    assert program["summary"]["launches"] == {"memory_bound": 1, "compute_bound": 0, "copies": 0}
    assert program["kernels"][0]["name"] == "add"


def test_run_writes_outputs_by_name(call, bundle, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.arange(4, dtype=np.float32))
    code, out, _ = call("run", bundle, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert (code, out) == (0, "")
    with np.load(tmp_path / "out.npz") as file:
        assert file["y"].tolist() == [0, 2, 4, 6]


def test_run_without_files_describes_the_outputs_on_stdout(call, bundle):
    code, out, err = call("run", bundle)
    assert code == 0
    assert out.startswith("y: float32 [4], min ")
    assert "random" in err


def test_profile_and_trace_tell_the_time_of_every_step(call, bundle, tmp_path):
    code, _, err = call("run", bundle, "--profile", "--trace", tmp_path / "trace.json")
    assert code == 0
    assert "32 B  add" in err
    assert "total, 1 step on emulator" in err
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["add"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(4)}, "expected float32 [4], got float64 [4]"),
        ({"x": np.zeros(5, np.float32)}, "expected float32 [4], got float32 [5]"),
        ({}, "has no input 'x'"),
        ({"x": np.zeros(4, np.float32), "z": np.zeros(1)}, "has an array 'z' that is no input"),
    ],
    ids=["dtype", "shape", "missing", "extra"],
)
def test_inputs_that_do_not_fit_are_refused(call, bundle, tmp_path, arrays, message):
    np.savez(tmp_path / "in.npz", **arrays)
    code, out, err = call("run", bundle, "--inputs", tmp_path / "in.npz")
    assert (code, out) == (1, "")
    assert message in err


def test_a_reader_that_goes_away_is_no_error(bundle):
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "mlirstitch", "explain", str(bundle), "--json"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_finds_what_the_tests_run_with(call):
    code, out, err = call("doctor", "--json")
    assert (code, err) == (0, "")
    findings = {finding["name"]: finding for finding in json.loads(out)}
    for name in ("python", "numpy", "torch", "torch-mlir", "MLIR bindings", "load order", "ptxas", "FileCheck"):
        assert findings[name]["status"] == "ok"
