"""The text of a pass pipeline: parsing, options of Python passes, and the flat list of steps it stands for.

The syntax is MLIR's: ``builtin.module(canonicalize,stitch-cluster{max-ops=64},func.func(cse,stitch-mark))``; the outer
``builtin.module(...)`` may be left out. Names of registered Python passes mean those passes, every other name is
left to MLIR. Nested anchors only say on which ops a step runs, so that a pipeline is a flat list of steps.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from mlirstitch.errors import PipelineError
from mlirstitch.passes.base import Pass, registered_passes

MODULE = "builtin.module"
ANY = "any"
MAX_DEPTH = 50
"""How deep anchors may nest; real IR has two or three levels of anchors."""
_NAME = re.compile(r"\s*([\w.\-]+)\s*")
_KEY = re.compile(r"\s*([\w.\-]+)")
_CLOSING = {"{": "}", "(": ")", "[": "]"}
_BOOLS = {"true": True, "1": True, "": True, "false": False, "0": False}
_COMMON_NATIVE = (
    "canonicalize",
    "convert-elementwise-to-linalg",
    "convert-gpu-to-nvvm",
    "cse",
    "eliminate-empty-tensors",
    "finalize-memref-to-llvm",
    "gpu-module-to-binary",
    "inline",
    "linalg-fold-unit-extent-dims",
    "linalg-generalize-named-ops",
    "nvvm-attach-target",
    "one-shot-bufferize",
    "reconcile-unrealized-casts",
    "symbol-dce",
)


@dataclass(frozen=True)
class Element:
    """One element as written: ``name``, ``name{options}`` or ``name(children)``; ``column`` counts from 1."""

    name: str
    column: int
    options: str | None = None
    options_column: int = 0
    children: tuple[Element, ...] | None = None


@dataclass(frozen=True)
class Step:
    """One pass on one kind of op.

    Attributes:
        anchors: ops to step into from the module, outermost first; empty: the module itself.
        text: the element as MLIR writes it, without anchors.
        column: where it stands in the pipeline text, from 1.
        python: the Python pass with its options, or None for a pass of MLIR.
    """

    anchors: tuple[str, ...]
    text: str
    column: int
    python: Pass | None = None

    @property
    def name(self) -> str:
        """The pass's name without options."""
        return self.text.partition("{")[0]

    @property
    def nested_text(self) -> str:
        """The step with its anchors, as it stands inside ``builtin.module(...)``."""
        return "(".join((*self.anchors, self.text)) + ")" * len(self.anchors)


@dataclass(frozen=True)
class Pipeline:
    """A parsed pipeline text."""

    text: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"{MODULE}({','.join(step.nested_text for step in self.steps)})"


def parse_pipeline(text: str) -> Pipeline:
    """Parse a pipeline text and the options of its Python passes.

    Raises :class:`PipelineError`, whose ``source`` is ``<pipeline>:1:column``, for malformed text, an empty pipeline or
    anchor, an unknown or ill-typed option of a Python pass, and a Python pass on an op it is not made for. Names of
    MLIR's passes are checked when the pipeline runs.
    """
    elements = _Parser(text).parse()
    if len(elements) == 1 and elements[0].name == MODULE and elements[0].children is not None:
        elements = elements[0].children
    steps = [step for element in elements for step in _steps(text, element, ())]
    return Pipeline(text, tuple(steps))


def pipeline_error(text: str, column: int, message: str, hint: str = "") -> PipelineError:
    """The error for the place ``column`` (from 1) of a pipeline text, which it shows with a caret below the place."""
    shown = " ".join(text[max(0, column - 41) : column + 39].split("\n"))
    caret = " " * (min(column, 41) - 1) + "^"
    return PipelineError(f"{message}\n  {shown}\n  {caret}", hint=hint, source=f"<pipeline>:1:{column}")


def close_matches(name: str, candidates: typing.Iterable[str]) -> list[str]:
    """Up to three candidates that look like ``name``, best first."""
    import difflib  # only errors need it

    return difflib.get_close_matches(name, sorted(candidates), n=3, cutoff=0.75)


def unknown_pass_hint(name: str) -> str:
    """What to say about a name that neither we nor MLIR know."""
    close = close_matches(name, [*registered_passes(), *_COMMON_NATIVE])
    listing = "mlirstitch-opt --list-passes lists the passes of mlirstitch, mlir-opt --help those of MLIR"
    return f"did you mean {' or '.join(close)}? {listing}" if close else listing


class _Parser:
    """Recursive descent over the pipeline text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def parse(self) -> tuple[Element, ...]:
        if not self.text.strip():
            self.fail(1, "the pipeline is empty", "name at least one pass, for example canonicalize")
        elements = self.elements()
        if self.at < len(self.text):
            self.fail(self.at + 1, f"unexpected {self.text[self.at :]!r}", "elements are separated by commas")
        return elements

    def elements(self) -> tuple[Element, ...]:
        found = [self.element()]
        while self.skip(","):
            found.append(self.element())
        return tuple(found)

    def element(self) -> Element:
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.fail(self.at + 1, "expected the name of a pass")
        column = match.start(1) + 1
        self.at = match.end()
        if self.skip("("):
            if self.skip(")"):
                if match[1] == MODULE:
                    return Element(match[1], column, children=())
                self.fail(column, f"{match[1]}() holds no pass", "put at least one pass between the parentheses")
            self.depth += 1
            if self.depth > MAX_DEPTH:
                self.fail(column, f"more than {MAX_DEPTH} anchors are nested")
            children = self.elements()
            self.depth -= 1
            if not self.skip(")"):
                self.fail(self.at + 1, f"missing ) of {match[1]}(")
            return Element(match[1], column, children=children)
        if self.at < len(self.text) and self.text[self.at] == "{":
            start = self.at
            self.at = _end_of_group(self.text, start)
            if self.at < 0:
                self.at = start
                self.fail(start + 1, f"missing }} of the options of {match[1]}")
            return Element(match[1], column, self.text[start + 1 : self.at - 1], start + 2)
        return Element(match[1], column)

    def skip(self, mark: str) -> bool:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        if self.text.startswith(mark, self.at):
            self.at += 1
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            return True
        return False

    def fail(self, column: int, message: str, hint: str = "") -> NoReturn:
        raise pipeline_error(self.text, column, message, hint)


def _end_of_group(text: str, start: int) -> int:
    """Index behind the bracket that closes the one at ``start``, or -1. Quoted text is skipped."""
    closing: list[str] = []
    quote = ""
    for at in range(start, len(text)):
        char = text[at]
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _CLOSING:
            closing.append(_CLOSING[char])
        elif char in _CLOSING.values():
            if char != closing.pop():
                return -1
            if not closing:
                return at + 1
    return -1


def _steps(text: str, element: Element, anchors: tuple[str, ...]) -> Iterator[Step]:
    passes = registered_passes()
    if element.children is not None:
        if element.name in passes:
            hint = f"options are written {element.name}{{name=value}}"
            raise pipeline_error(text, element.column, f"{element.name} is a pass, not an op to nest in", hint)
        if element.name != ANY and "." not in element.name:
            hint = "write the op with its dialect, for example func.func(...)"
            raise pipeline_error(text, element.column, f"{element.name!r} is not the name of an op", hint)
        for child in element.children:
            yield from _steps(text, child, (*anchors, element.name))
    elif element.name in passes:
        cls = passes[element.name]
        here = anchors[-1] if anchors else MODULE
        if cls.ANCHOR not in (here, ANY):
            nest = f"{cls.ANCHOR}({element.name})" if not anchors else f"{element.name} outside of {here}(...)"
            raise pipeline_error(
                text, element.column, f"{element.name} runs on {cls.ANCHOR}, not on {here}", f"write {nest}"
            )
        instance = _instantiate(text, element, cls)
        yield Step(anchors, pass_text(instance), element.column, instance)
    else:
        options = "" if element.options is None else f"{{{element.options}}}"
        yield Step(anchors, element.name + options, element.column)


def option_name(field_name: str) -> str:
    """How a dataclass field is spelled in pipeline texts: ``max_ops`` is ``max-ops``."""
    return field_name.replace("_", "-")


def pass_text(instance: Pass) -> str:
    """A pass with the options that differ from their defaults, as pipeline text that parses back to it."""
    options = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value != field.default:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            quoted = f'"{text}"' if isinstance(value, str) and not re.fullmatch(r"[\w.:/+\-]+", text) else text
            options.append(f"{option_name(field.name)}={quoted}")
    return instance.NAME + (f"{{{' '.join(options)}}}" if options else "")


def _instantiate(text: str, element: Element, cls: type[Pass]) -> Pass:
    types = typing.get_type_hints(cls)
    fields = {option_name(field.name): field for field in dataclasses.fields(cls)}
    legal = (
        f"{cls.NAME} has the options " + ", ".join(f"{name} ({types[f.name].__name__})" for name, f in fields.items())
        if fields
        else f"{cls.NAME} has no options"
    )
    values: dict[str, Any] = {}
    for name, value, offset in _split_options(text, element):
        column = element.options_column + offset
        if name not in fields:
            close = close_matches(name, fields)
            hint = (f"did you mean {' or '.join(close)}? " if close else "") + legal
            raise pipeline_error(text, column, f"{cls.NAME} has no option {name!r}", hint)
        field = fields[name]
        if field.name in values:
            raise pipeline_error(text, column, f"option {name!r} of {cls.NAME} is given twice", legal)
        converted = _convert(value, types[field.name])
        if converted is None:
            wanted = types[field.name].__name__
            shown = "nothing" if value is None else repr(value)
            raise pipeline_error(text, column, f"option {name!r} of {cls.NAME} takes {wanted}, not {shown}", legal)
        choices = field.metadata.get("choices", ())
        if choices and converted not in choices:
            listed = ", ".join(map(str, choices))
            message = f"option {name!r} of {cls.NAME} is {converted!r}, which is not one of {listed}"
            raise pipeline_error(text, column, message, f"choose one of {listed}")
        values[field.name] = converted
    missing = [n for n, f in fields.items() if f.name not in values and f.default is dataclasses.MISSING]
    if missing:
        raise pipeline_error(text, element.column, f"{cls.NAME} needs the option {missing[0]!r}", legal)
    try:
        return cls(**values)
    except (ValueError, PipelineError) as error:
        message = error.message if isinstance(error, PipelineError) else str(error)
        raise pipeline_error(text, element.options_column or element.column, f"{cls.NAME}: {message}", legal) from None


def _split_options(text: str, element: Element) -> Iterator[tuple[str, str | None, int]]:
    """``(name, value or None, offset)`` for every option; values may be quoted or stand in braces."""
    options = element.options or ""
    at = 0
    while options[at:].strip():
        match = _KEY.match(options, at)
        if match is None:
            raise pipeline_error(text, element.options_column + at, f"expected an option, found {options[at:]!r}")
        name, at = match[1], match.end()
        value: str | None = None
        if options.startswith("=", at):
            value, at = _value(text, element, options, at + 1)
        yield name, value, match.start(1)


def _value(text: str, element: Element, options: str, at: int) -> tuple[str, int]:
    """The option value starting at ``at``, unquoted, and the index behind it."""
    start = at
    opening = options[at : at + 1]
    if opening in ("'", '"'):
        end = options.find(opening, at + 1)
        if end < 0:
            raise pipeline_error(text, element.options_column + start, "the quoted value does not end")
        return options[start + 1 : end], end + 1
    if opening == "{":
        end = _end_of_group(options, at)
        return options[start + 1 : end - 1], end
    while at < len(options) and not options[at].isspace():
        at += 1
    return options[start:at], at


def _convert(value: str | None, kind: type) -> int | bool | str | None:
    """The value as ``kind``, or None if it is not one. A bare bool option is true."""
    if kind is bool:
        return _BOOLS.get((value or "").lower()) if value != "" else None
    if kind is int:
        return int(value) if value is not None and re.fullmatch(r"[+-]?\d+", value) else None
    return value
