"""Options: defaults, then the environment, then what the caller gives; closed ones take no other value."""

from __future__ import annotations

import dataclasses

import pytest

from mlirstitch.errors import MlirstitchError
from mlirstitch.options import CompileOptions


def test_the_environment_stands_between_defaults_and_what_is_given() -> None:
    environment = {"MLIRSTITCH_TARGET": "sm_80", "MLIRSTITCH_LIBRARY": "auto", "OTHER": "x"}
    chosen = CompileOptions.from_environment(environment, target=None, library="none")
    assert (chosen.target, chosen.library, chosen.numerics) == ("sm_80", "none", "default")


@pytest.mark.parametrize(
    ("environment", "given", "message"),
    [
        ({}, {"numerics": "sloppy"}, r"option numerics: 'sloppy' .*\n.*choose one of default, strict"),
        ({"MLIRSTITCH_FROM_LEVEL": "wasm"}, {}, "option from_level: 'wasm' is not one of linalg"),
        ({}, {"tarket": "sm_80"}, r"unknown option 'tarket'\n  hint: options: target, "),
    ],
)
def test_wrong_options_are_refused_with_the_legal_ones(
    environment: dict[str, str], given: dict[str, str], message: str
) -> None:
    with pytest.raises(MlirstitchError, match=message):
        CompileOptions.from_environment(environment, **given)


def test_every_option_is_documented() -> None:
    assert all(field.metadata["doc"] for field in dataclasses.fields(CompileOptions))
