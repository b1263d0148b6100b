"""``mlirstitch compile``: products, levels, options, determinism, interruption."""

import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

LAYERNORM_LIKE = """
#rows = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<6x40xf32>) -> tensor<6x40xf32> {
  %zero = arith.constant 0.0 : f32
  %count = arith.constant 40.0 : f32
  %sums = tensor.empty() : tensor<6xf32>
  %init = linalg.fill ins(%zero : f32) outs(%sums : tensor<6xf32>) -> tensor<6xf32>
  %sum = linalg.generic {indexing_maps = [#rows, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<6x40xf32>) outs(%init : tensor<6xf32>) {
    ^bb0(%a: f32, %o: f32):
      %s = arith.addf %a, %o : f32
      linalg.yield %s : f32
    } -> tensor<6xf32>
  %empty = tensor.empty() : tensor<6x40xf32>
  %y = linalg.generic {indexing_maps = [#rows, #row, #rows], iterator_types = ["parallel", "parallel"]}
      ins(%x, %sum : tensor<6x40xf32>, tensor<6xf32>) outs(%empty : tensor<6x40xf32>) {
    ^bb0(%a: f32, %s: f32, %o: f32):
      %mean = arith.divf %s, %count : f32
      %c = arith.subf %a, %mean : f32
      linalg.yield %c : f32
    } -> tensor<6x40xf32>
  return %y : tensor<6x40xf32>
}
"""

MODEL = """
import time
from pathlib import Path

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)

    def forward(self, x, y):
        z = self.norm(torch.relu(self.linear(x)) + y)
        return z, torch.softmax(z, -1), (x * y).sum(0)


def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 16), torch.randn(4, 16))


def sleeping():
    Path("started").write_text("")
    time.sleep(600)
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    """An .mlir file in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "centre.mlir").write_text(LAYERNORM_LIKE)
    return "centre.mlir"


def test_ptx_goes_to_stdout_and_nothing_else(call, source):
    code, out, err = call("compile", source, "--emit", "ptx", "--target", "sm_80")
    assert (code, err) == (0, "")
    assert ".target sm_80" in out
    assert ".visible .entry" in out


def test_stdin_is_a_source(call, source, monkeypatch):
    _, from_file, _ = call("compile", source, "--emit", "ptx")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LAYERNORM_LIKE.encode())))
    code, out, _ = call("compile", "-", "--emit", "ptx")
    assert code == 0
    assert _kernels(out) == _kernels(from_file)


def test_stdin_that_is_no_text_is_refused(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00")))
    code, out, err = call("compile", "-", "--emit", "ptx")
    assert (code, out) == (1, "")
    assert "not UTF-8" in err


@pytest.mark.parametrize("level", ["linalg", "stitched", "gpu", "nvvm"])
def test_a_level_that_was_printed_can_be_fed_back(call, source, tmp_path, level):
    _, whole, _ = call("compile", source, "--emit", "ptx")
    code, text, err = call("compile", source, "--to", level)
    assert (code, err) == (0, "")
    (tmp_path / "level.mlir").write_text(text)
    code, out, err = call("compile", "level.mlir", "--from", level, "--emit", "ptx")
    assert (code, err) == (0, "")
    assert _kernels(out) == _kernels(whole)


def test_several_levels_come_in_the_order_asked_for(call, source):
    code, out, _ = call("compile", source, "--emit", "ptx", "--emit", "stitched")
    assert code == 0
    assert 0 < out.index(".visible .entry") < out.index("stitch.schedule")


@pytest.mark.parametrize("name", ["out.bundle", "out.zip"])
def test_a_bundle_runs(call, source, tmp_path, name):
    code, out, err = call("compile", source, "-o", name)
    assert (code, out) == (0, "")
    assert f"wrote {name}" in err
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    np.savez("in.npz", x)
    assert call("run", name, "--inputs", "in.npz", "-o", "out.npz")[0] == 0
    with np.load("out.npz") as file:
        (result,) = (file[key] for key in file.files)
    np.testing.assert_allclose(result, x - x.mean(1, keepdims=True), atol=1e-6)


def test_dump_leaves_one_file_per_level(call, source, tmp_path):
    assert call("compile", source, "-o", "out.bundle", "--dump", "levels")[0] == 0
    names = sorted(path.name for path in (tmp_path / "levels").glob("*.mlir"))
    assert [name for name in names if name.endswith("_stitched.mlir")]
    assert names[0] == "00_linalg.mlir"


def test_options_come_from_the_environment_and_flags_win(call, source, monkeypatch):
    monkeypatch.setenv("MLIRSTITCH_TARGET", "sm_75")
    assert ".target sm_75" in call("compile", source, "--emit", "ptx")[1]
    assert ".target sm_80" in call("compile", source, "--emit", "ptx", "--target", "sm_80")[1]


def test_the_same_input_gives_the_same_bytes_in_every_process(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (linalg,) = _outputs(tmp_path, "model.py:make", "linalg", seeds=("0", "1"))
    (tmp_path / "model.mlir").write_bytes(linalg)
    (ptx,) = _outputs(tmp_path, "model.mlir", "ptx", seeds=("0", "1", "2", "3", "random"))
    assert b".visible .entry" in ptx


def _outputs(folder, spec, level, seeds):
    """The different texts that fresh processes with these hash seeds print."""
    command = [sys.executable, "-m", "mlirstitch", "compile", spec, "--emit", level]
    outputs = set()
    for seed in seeds:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        outputs.add(subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True).stdout)
    return outputs


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "parent only"])
def test_interrupting_ends_the_child_too(tmp_path, whole_group):
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "mlirstitch", "compile", "model.py:sleeping", "--emit", "ptx"]
    parent = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests started in the background by a shell inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if whole_group:
            os.killpg(parent.pid, signal.SIGINT)
        else:
            os.kill(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=30)  # ends only when no process holds the pipes any more
    finally:
        parent.kill()
    assert (parent.returncode, out, err) == (130, "", "interrupted\n")


def _kernels(ptx):
    """The instructions alone: source positions differ with the file that was read."""
    lines = (line.strip() for line in ptx.splitlines())
    return [line for line in lines if line and not line.startswith((".loc", ".file", "//"))]
