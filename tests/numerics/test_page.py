"""docs/numerics.md says which test guards which kind of fault: those tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "numerics.md").read_text().split("## How each kind of fault is guarded")[1]
ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE))
del ROWS["kind"]


@pytest.mark.parametrize("kind", ROWS)
def test_every_kind_has_tests_that_exist(kind: str) -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", ROWS[kind])
    assert named
    for path, name in named:
        text = (TESTS / path).read_text()
        assert re.search(rf"^def {name}\(" if name else "^def test_", text, re.MULTILINE), f"{path}::{name}"
