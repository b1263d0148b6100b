"""``docs/cli.md``, made from the commands themselves (not from click's layout, which differs between its versions)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from mlirstitch.driver.cli import EXIT_CODES, cli
from mlirstitch.driver.console import DEBUG_VARIABLE

NO_WRAP = "\b"
"""Click's mark of a paragraph whose lines stay as they are; here such a paragraph becomes a code block."""


def cli_markdown(notice: str) -> str:
    """The document: streams and exit codes, then one section per command. ``notice`` says that it is generated."""
    lines = [
        "# The command line",
        notice,
        "",
        "Products (PTX, tables, reports) go to stdout, everything else to stderr; progress is shown when stderr is a",
        "terminal. An error is a line that starts with `error:`, with a hint where there is one;",
        f"`{DEBUG_VARIABLE}=1` in the environment adds the traceback.",
        "",
        "Compilation runs in a child process: if native code dies there, the command ends with exit code 3 and names a",
        "folder that reproduces the failure (`sh FOLDER/run.sh`).",
        "",
        *_paragraphs(EXIT_CODES),
    ]
    for name in sorted(cli.commands):
        lines += ["", *_section(name, cli.commands[name])]
    return "\n".join(lines) + "\n"


def _section(name: str, command: click.Command) -> Iterator[str]:
    yield f"## mlirstitch {name}"
    usage = [f"mlirstitch {name}", "[OPTIONS]"]
    usage += [parameter.human_readable_name for parameter in command.params if isinstance(parameter, click.Argument)]
    yield f"`{' '.join(usage)}`"
    yield ""
    yield from _paragraphs(command.help or "")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        yield from ["", "| option | meaning |", "|---|---|"]
        yield from map(_row, options)


def _paragraphs(text: str) -> Iterator[str]:
    """Markdown of a help text, without a blank line at its end."""
    for i, paragraph in enumerate(inspect.cleandoc(text.replace(NO_WRAP + "\n", NO_WRAP)).split("\n\n")):
        if i:
            yield ""
        if not paragraph.startswith(NO_WRAP):
            yield from paragraph.splitlines()
            continue
        title, *lines = paragraph.removeprefix(NO_WRAP).splitlines()
        yield from [title.strip(), "```", *(line.removeprefix("  ") for line in lines), "```"]


def _row(option: click.Option) -> str:
    names = ", ".join(option.opts)
    kind = option.type
    if option.metavar:
        names += f" {option.metavar}"
    elif isinstance(kind, click.Choice):
        names += f" {'|'.join(map(str, kind.choices))}"
    elif not option.is_flag:
        names += f" {kind.name.upper()}"
    meaning = option.help or ""
    if option.show_default:
        meaning += f" Default: {option.default}."
    return "| `{}` | {} |".format(*(text.strip().replace("|", "\\|") for text in (names, meaning)))
