"""The example for several devices runs as its docstring says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlirstitch.driver.cli import main

ROOT = Path(__file__).parents[2]


def test_it_tells_time_and_memory_and_agrees_with_torch() -> None:
    example = ROOT / "examples" / "several_devices.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "us a step" in done.stdout
    assert done.stdout.splitlines()[-1] == "as torch"


def test_the_commands_of_the_readme_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    lines = [
        line for line in (ROOT / "README.md").read_text().splitlines() if "examples/several_devices.py:step" in line
    ]
    assert len(lines) == 2
    for line in lines:
        arguments = line.partition("#")[0].split()[1:]
        code = main([str(tmp_path / word) if word == "step.html" else word for word in arguments])
        out, err = capsys.readouterr()
        assert code == 0, err
        assert "us a step" in out
