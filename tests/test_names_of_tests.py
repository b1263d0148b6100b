"""Files of tests are imported by their bare names, so that two of one name hide each other in a run of all tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent


def test_no_two_files_of_tests_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("*.py")):
        if path.name not in ("conftest.py", "__init__.py"):
            places[path.name].append(str(path.relative_to(TESTS)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
