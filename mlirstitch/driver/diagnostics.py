"""Diagnostics as a user reads them, and the ``expected-error`` comments that test them.

Comments follow mlir-opt: ``// expected-error@+1 {{text}}`` with severities error, warning, note, remark; designators
``@LINE``, ``@+N``, ``@-N``, ``@above``, ``@below``, ``@unknown``; in ``expected-error-re`` the ``{{...}}`` parts of the
text are regular expressions. A comment matches a diagnostic that contains its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlirstitch.errors import MlirstitchError

if TYPE_CHECKING:
    from mlirstitch.dialects.bindings import NativeDiagnostic

_SOURCE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")
_EXPECTED = re.compile(
    r"expected-(?P<severity>error|warning|note|remark)(?P<regex>-re)?"
    r"\s*(?:@(?P<where>[+-]?\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}"
)


@dataclass(frozen=True)
class Diagnostic:
    """One message at one place. ``line`` and ``column`` count from 1; 0 means unknown."""

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    notes: tuple[Diagnostic, ...] = field(default=())

    @staticmethod
    def of_error(error: MlirstitchError) -> Diagnostic:
        """An error raised on purpose; its hint becomes a note."""
        file, line, column = _place(error.source)
        notes = [Diagnostic("note", f"hint: {error.hint}", file, line, column)] if error.hint else []
        if error.reproducer:
            notes.append(Diagnostic("note", f"reproducer: {error.reproducer}"))
        return Diagnostic("error", error.message, file, line, column, tuple(notes))

    @staticmethod
    def of_native(diagnostic: NativeDiagnostic, source_name: str) -> Diagnostic:
        """A diagnostic of MLIR; ``-``, MLIR's name for text from memory, becomes ``source_name``."""
        from mlirstitch.dialects.locations import source_line

        file, line, column = _place(source_line(diagnostic.location))
        return Diagnostic(
            diagnostic.severity.name.lower(),
            diagnostic.message.strip(),
            source_name if file == "-" else file,
            line,
            column,
            tuple(Diagnostic.of_native(note, source_name) for note in diagnostic.notes),
        )

    def render(self, source: Sequence[str] = (), source_name: str = "") -> str:
        """``file:line:column: severity: message`` with the source line and a caret where the place is in ``source``."""
        place = ":".join([self.file, *(str(number) for number in (self.line, self.column) if number)])
        text = f"{place}: " if self.file else ""
        text += f"{self.severity}: {self.message}"
        if self.file == source_name and self.column and 0 < self.line <= len(source):
            text += f"\n{source[self.line - 1]}\n{' ' * (self.column - 1)}^"
        return "\n".join([text, *(note.render() for note in self.notes)])

    def flatten(self) -> tuple[Diagnostic, ...]:
        """The diagnostic and its notes."""
        return (self, *(inner for note in self.notes for inner in note.flatten()))


def _place(source: str) -> tuple[str, int, int]:
    match = _SOURCE.fullmatch(source)
    if match is None:
        return source, 0, 0
    return match["file"], int(match["line"]), int(match["column"] or 0)


@dataclass(frozen=True)
class _Expectation:
    severity: str
    text: str
    regex: bool
    at: int  # line of the comment, from 1
    line: int  # line expected of the diagnostic; 0: no known line

    def matches(self, diagnostic: Diagnostic, source_name: str) -> bool:
        line = diagnostic.line if diagnostic.file == source_name else 0
        if self.severity != diagnostic.severity or self.line != line:
            return False
        if not self.regex:
            return self.text in diagnostic.message
        parts = re.split(r"\{\{(.*?)\}\}", self.text)
        pattern = "".join(part if number % 2 else re.escape(part) for number, part in enumerate(parts))
        return re.search(pattern, diagnostic.message) is not None


def verify_diagnostics(source: Sequence[str], source_name: str, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What differs from the comments in ``source``: errors and warnings nobody expected, comments not met.

    As in mlir-opt, notes and remarks that no comment asks for are no fault.
    """
    pending = _expectations(source)
    faults: list[Diagnostic] = []
    for diagnostic in (inner for outer in diagnostics for inner in outer.flatten()):
        found = next((e for e in pending if e.matches(diagnostic, source_name)), None)
        if found is not None:
            pending.remove(found)
        elif diagnostic.severity in ("error", "warning"):
            message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
            faults.append(Diagnostic("error", message, diagnostic.file, diagnostic.line, diagnostic.column))
    for expectation in pending:
        message = f'expected {expectation.severity} "{expectation.text}" was not produced'
        faults.append(Diagnostic("error", message, source_name, expectation.at))
    return faults


def _expectations(source: Sequence[str]) -> list[_Expectation]:
    found: list[_Expectation] = []
    code_line = 0  # the last line that is not an expected-comment: what @above means
    waiting: list[tuple[re.Match[str], int]] = []
    for number, text in enumerate(source, start=1):
        matches = list(_EXPECTED.finditer(text))
        alone = text.lstrip().startswith("//") and bool(matches)
        if not alone:
            code_line = number
            found += [_expectation(match, at, number) for match, at in waiting]
            waiting = []
        for match in matches:
            if match["where"] == "below":
                waiting.append((match, number))
            elif match["where"] == "above":
                found.append(_expectation(match, number, code_line))
            else:
                found.append(_expectation(match, number, _target_line(match["where"], number)))
    found += [_expectation(match, at, len(source) + 1) for match, at in waiting]
    return found


def _expectation(match: re.Match[str], at: int, line: int) -> _Expectation:
    return _Expectation(match["severity"], match["text"], match["regex"] is not None, at, line)


def _target_line(where: str | None, number: int) -> int:
    if where is None:
        return number
    if where == "unknown":
        return 0
    return number + int(where) if where[0] in "+-" else int(where)
