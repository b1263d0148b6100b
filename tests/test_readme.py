"""The README's claims that a command can check."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mlirstitch.driver.cli import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ".version" in done.stdout
    assert done.stdout.splitlines()[-1] == "(8, 64)"
    (error,) = re.findall(r"tensor\(([^,)]*)", done.stdout)
    assert float(error) < 1e-5


@pytest.mark.parametrize("name", sorted(set(re.findall(r"^mlirstitch (\w+)", README, re.MULTILINE))))
def test_commands_it_shows_exist(name):
    assert name in cli.commands


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE))))
def test_make_targets_it_shows_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:docs|examples)/[\w/.-]+|[A-Z]+\.md)`", README))))
def test_files_it_points_to_exist(path):
    assert (ROOT / path).exists()


MODULE = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %0 = linalg.exp ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.mark.parametrize("command", re.findall(r"^(mlirstitch[\w-]* .*layernorm\.mlir.*?) +#", README, re.MULTILINE))
def test_commands_on_a_file_run_as_shown(tmp_path, command):
    (tmp_path / "layernorm.mlir").write_text(MODULE)
    program, *arguments = command.split()
    module = {"mlirstitch": "mlirstitch", "mlirstitch-opt": "mlirstitch.driver.opt"}[program]
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (".entry" if "ptx" in arguments else "linalg.generic") in done.stdout


def test_a_folder_of_the_packages_name_does_not_hide_an_editable_install():
    """The clone seen from its parent is such a folder; with setuptools' import hook it would win."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["package-dir"] == {"": "."}
