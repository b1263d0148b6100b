"""The embedding examples run as their docstrings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "embed"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "own_pass.py",
            [
                "example.count = 2",
                "example.count = 1",
                "refused as it should be: example.mlir:2:1: example-count-ops: func.func @twice: 1 arith.mulf ops",
                "hint: raise the option limit",
            ],
        ),
        (
            "embed.py",
            ['stitch.target = "sm_90"', "func.func private @", "stitch.schedule = {", "math.tanh", "@main", "call @"],
        ),
    ],
)
def test_an_example_prints_what_it_promises(name: str, lines: list[str]) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    at = 0
    for line in lines:
        assert line in done.stdout[at:]
        at = done.stdout.index(line, at)
