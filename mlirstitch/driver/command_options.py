"""What commands have in common: flags of :class:`CompileOptions`, made from its fields, and how a help text ends."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import Field, fields
from typing import Any, TypeVar

import click

from mlirstitch.options import CompileOptions

EXIT_CODES = """\b
Exit codes:
  0    success
  1    the input is at fault
  2    the command line is at fault
  3    the compiler is at fault; a reproducer folder is named
  130  stopped by Ctrl-C
"""
"""End of the help of every command."""

Command = TypeVar("Command", bound=Callable[..., Any])


class FilePath(click.Path):
    """A path on the command line. An empty text, as an unset shell variable leaves it, is misuse, not "no path"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises ``click.BadParameter`` for an empty text."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def flag_of(name: str) -> str:
    """The flag of a field: ``to_level`` is ``--to``, ``numerics`` is ``--numerics``."""
    return "--" + name.removesuffix("_level").replace("_", "-")


def compile_options(*, leave_out: Collection[str] = ()) -> Callable[[Command], Command]:
    """Decorator adding one flag per field of CompileOptions except those named; absent flags arrive as None."""

    def decorate(command: Command) -> Command:
        for field in reversed(fields(CompileOptions)):
            if field.name not in leave_out:
                command = _flag(field)(command)
        return command

    return decorate


def _flag(field: Field[Any]) -> Callable[[Command], Command]:
    choices = field.metadata["choices"]
    shown = f" Default: {field.default}." if field.default != "" else ""
    if field.metadata["repeated"]:
        return _repeated_flag(field)
    return click.option(
        flag_of(field.name),
        field.name,
        type=click.Choice(choices) if choices else type(field.default),
        default=None,
        metavar=None if choices else field.name.upper(),
        help=f"{_sentence(field.metadata['doc'])}{shown} Variable: MLIRSTITCH_{field.name.upper()}.",
    )


def _repeated_flag(field: Field[Any]) -> Callable[[Command], Command]:
    return click.option(
        flag_of(field.name),
        field.name,
        multiple=True,
        metavar="PATTERNS",
        callback=lambda context, parameter, given: ";".join(given) if given else None,
        help=f"{_sentence(field.metadata['doc'])} May be given more than once. "
        f"Variable: MLIRSTITCH_{field.name.upper()}, with semicolons between.",
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
