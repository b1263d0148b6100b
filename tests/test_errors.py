"""What an error shows: place, op, reason, way out, reproducer, each where it is known."""

from __future__ import annotations

import pytest

from mlirstitch import errors
from mlirstitch.errors import InternalError, MlirstitchError, PassError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MlirstitchError("too large"), "too large"),
        (MlirstitchError("too large", hint="cut it"), "too large\n  hint: cut it"),
        (MlirstitchError("too large", source="m.py:3", reproducer="r"), "m.py:3: too large\n  reproducer: r"),
        (PassError("is odd", op="linalg.exp", source="m.py:3"), "m.py:3: linalg.exp: is odd"),
        (PassError("is odd"), "is odd"),
    ],
)
def test_the_parts_that_are_known_are_shown(error: MlirstitchError, text: str) -> None:
    assert str(error) == text


def test_a_stage_may_add_to_an_error_on_its_way() -> None:
    error = PassError("is odd", op="linalg.exp")
    error.message, error.source = f"kernel of @c: {error.message}", "m.py:3"
    assert str(error) == "m.py:3: kernel of @c: linalg.exp: is odd"


def test_all_errors_can_be_caught_as_one() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    assert all(issubclass(kind, MlirstitchError) and kind.__doc__ for kind in kinds)
    assert issubclass(InternalError, PassError)
