"""Rendering diagnostics, and comparing them with expected-comments."""

from __future__ import annotations

import pytest

from mlirstitch.driver.diagnostics import Diagnostic, verify_diagnostics
from mlirstitch.errors import PassError


def faults(source: str, *diagnostics: Diagnostic) -> list[str]:
    return [f"{d.line}: {d.message}" for d in verify_diagnostics(source.split("\n"), "m.mlir", diagnostics)]


def at(line: int, message: str = "bad thing", severity: str = "error", *notes: Diagnostic) -> Diagnostic:
    return Diagnostic(severity, message, "m.mlir", line, 3, notes)


@pytest.mark.parametrize(
    "source",
    [
        "op // expected-error {{bad}}",
        "op\n// expected-error@-1 {{bad thing}}",
        "// expected-error@+2 {{bad}}\n\nop",
        "// expected-error @below {{bad}}\n// a comment\nop",
        "// expected-error@below {{bad}}\n// expected-note@below {{x}}\nop",
        "op\n// expected-note@above {{x}}\n// expected-error@above {{bad}}",
        "\n\n\nop // expected-error@4 {{bad}}",
        "op // expected-error-re {{b{{[a-z]}}d thing{{$}}}}",
        "op // expected-error{{bad}}",
    ],
)
def test_a_comment_meets_the_diagnostic_it_describes(source: str) -> None:
    line = source.split("\n").index(next(text for text in source.split("\n") if text.startswith("op"))) + 1
    if "a comment" in source:
        line = 2  # @below is the next line that is no expected-comment
    notes = (at(line, "x", "note"),) if "note" in source else ()
    assert faults(source, at(line, "bad thing", "error", *notes)) == []


@pytest.mark.parametrize(
    ("source", "diagnostic"),
    [
        ("op // expected-error {{good}}", at(1)),
        ("op // expected-warning {{bad}}", at(1)),
        ("op\n // expected-error {{bad}}", at(1)),
        ("op // expected-error-re {{b{{[0-9]}}d}}", at(1)),
        ("op // expected-error {{b{{a}}d}}", at(1)),
        ("op // expected-error@unknown {{bad}}", at(1)),
    ],
)
def test_a_comment_that_is_not_met_and_the_diagnostic_it_missed_are_both_faults(
    source: str, diagnostic: Diagnostic
) -> None:
    found = faults(source, diagnostic)
    assert len(found) == 2
    assert found[0] == "1: unexpected error: bad thing"
    assert "was not produced" in found[1]


def test_every_diagnostic_needs_its_own_comment() -> None:
    assert faults("op // expected-error {{bad}}", at(1), at(1)) == ["1: unexpected error: bad thing"]


def test_unexpected_warnings_are_faults_but_notes_and_remarks_are_not() -> None:
    assert faults("op", at(1, "w", "warning")) == ["1: unexpected warning: w"]
    assert faults("op", at(1, "r", "remark"), at(1, "n", "note")) == []


def test_a_diagnostic_without_place_is_expected_at_unknown() -> None:
    assert faults("// expected-error@unknown {{lost}}", Diagnostic("error", "lost")) == []
    assert faults("// expected-error@unknown {{lost}}", Diagnostic("error", "lost", "other.py", 7)) == []


def test_a_rendered_diagnostic_shows_place_line_caret_and_notes() -> None:
    error = PassError("no", op="math.exp", hint="yes", source="m.mlir:2:5", reproducer="folder")
    text = Diagnostic.of_error(error).render(["first", "    second"], "m.mlir")
    assert text == (
        "m.mlir:2:5: error: math.exp: no\n    second\n    ^\nm.mlir:2:5: note: hint: yes\nnote: reproducer: folder"
    )


def test_a_diagnostic_of_another_file_shows_no_line() -> None:
    assert Diagnostic("error", "no", "user.py", 1, 2).render(["x"], "m.mlir") == "user.py:1:2: error: no"
