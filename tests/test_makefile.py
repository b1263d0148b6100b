"""`make test` runs the lit tests, and a failing one fails it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = (Path(__file__).parents[1] / "Makefile").read_text()
CONFIG = (
    'import lit.formats\nconfig.name = "x"\nconfig.test_format = lit.formats.ShTest()\nconfig.suffixes = [".test"]\n'
)


@pytest.mark.parametrize(("command", "fails"), [("true", False), ("false", True)])
def test_the_recipe_of_test_lit_fails_with_a_failing_test(tmp_path: Path, command: str, fails: bool) -> None:
    (recipe,) = re.findall(r"^test-lit:.*\n\t(.*test/lit)$", MAKEFILE, re.MULTILINE)
    (tmp_path / "lit.cfg.py").write_text(CONFIG)
    (tmp_path / "a.test").write_text(f"RUN: {command}\n")
    arguments = recipe.replace("$(BIN)", str(Path(sys.executable).parent)).replace("test/lit", str(tmp_path)).split()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == fails
    assert "Total Discovered Tests: 1" in done.stdout


def test_make_test_includes_the_lit_tests() -> None:
    assert re.search(r"^test:.* test-lit$", MAKEFILE, re.MULTILINE)
