"""Documentation of the Python passes, drawn from their classes."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from dataclasses import dataclass

from mlirstitch.passes.base import Pass, registered_passes
from mlirstitch.passes.pipeline_text import option_name


@dataclass(frozen=True)
class OptionDocumentation:
    """One option of a pass as a user writes it."""

    name: str
    type: str
    default: str
    doc: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class PassDocumentation:
    """One pass: its name, the op it runs on, the first paragraph and the rest of its docstring, its options."""

    name: str
    anchor: str
    module: str
    summary: str
    description: str
    options: tuple[OptionDocumentation, ...]


def document_pass(cls: type[Pass]) -> PassDocumentation:
    """The documentation of one pass class."""
    text = inspect.cleandoc(cls.__doc__ or "")
    summary, _, description = text.partition("\n\n")
    types = typing.get_type_hints(cls)
    options = tuple(
        OptionDocumentation(
            option_name(field.name),
            types[field.name].__name__,
            "required" if field.default is dataclasses.MISSING else _shown(field.default),
            field.metadata.get("doc", ""),
            tuple(map(str, field.metadata.get("choices", ()))),
        )
        for field in dataclasses.fields(cls)
    )
    return PassDocumentation(cls.NAME, cls.ANCHOR, cls.__module__, " ".join(summary.split()), description, options)


def document_passes() -> tuple[PassDocumentation, ...]:
    """The documentation of every registered pass, by name."""
    return tuple(document_pass(cls) for cls in registered_passes().values())


def list_passes() -> str:
    """All passes as plain text for a terminal."""
    lines: list[str] = []
    for entry in document_passes():
        lines.append(f"{entry.name}  (on {entry.anchor})")
        lines += [f"    {line}".rstrip() for line in [entry.summary, *_paragraph(entry.description)]]
        lines += [f"    {option.name}={option.type}  {_option_text(option)}" for option in entry.options]
        lines.append("")
    return "\n".join(lines).rstrip()


def _paragraph(text: str) -> list[str]:
    return ["", *text.splitlines()] if text else []


def _option_text(option: OptionDocumentation) -> str:
    choices = f" one of {', '.join(option.choices)};" if option.choices else ""
    return f"{option.doc or 'see above'};{choices} default {option.default}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else "empty"
