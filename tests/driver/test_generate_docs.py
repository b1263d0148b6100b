"""The generated documents are current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlirstitch.driver.generate_docs import DOCUMENTS
from mlirstitch.passes.base import registered_passes

ROOT = Path(__file__).parents[2]


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlirstitch.driver.generate_docs", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_checked_in_documents_are_what_the_code_says() -> None:
    done = generate("--check")
    assert done.returncode == 0, f"run `make docs`\n{done.stderr}"


def test_a_stale_or_missing_document_is_found_and_written_anew(tmp_path: Path) -> None:
    assert generate("--check", str(tmp_path)).returncode == 1
    assert generate(str(tmp_path)).returncode == 0
    assert generate("--check", str(tmp_path)).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(DOCUMENTS)
    path = tmp_path / "passes.md"
    path.write_text(path.read_text() + "x")
    done = generate("--check", str(tmp_path))
    assert done.returncode == 1
    assert "passes.md is out of date" in done.stderr


def test_every_pass_is_documented_with_every_option() -> None:
    import mlirstitch.lowering
    import mlirstitch.passes  # noqa: F401  registers the passes
    from mlirstitch.driver.pass_documentation import document_passes

    documented = {entry.name: entry for entry in document_passes()}
    for name, cls in registered_passes().items():
        if not cls.__module__.startswith("mlirstitch."):
            continue  # a pass of another test
        assert documented[name].summary, f"{name} has no docstring"
        assert documented[name].summary != f"{cls.__name__}()", f"{name} has only the text dataclass invents"


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_document_says_how_it_is_made(name: str) -> None:
    assert "generate_docs" in (ROOT / "docs" / name).read_text().splitlines()[1]
