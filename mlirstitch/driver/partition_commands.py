"""The commands for several devices: ``plan`` and ``simulate``, and ``explain --plan``. Loads nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mlirstitch.driver.command_options import EXIT_CODES, FilePath
from mlirstitch.driver.console import note

Command = TypeVar("Command", bound=Callable[..., Any])
STDOUT = "-"


def planning_options(command: Command) -> Command:
    """Decorator adding what says how a function is planned."""
    for option in reversed(_PLANNING):
        command = option(command)
    return command


_PLANNING = (
    click.option("--mesh", default="", metavar="AXIS=N,...", help="Devices, as dp=2,tp=2; a plan file has its own."),
    click.option("--micro-batches", type=click.IntRange(min=1), metavar="N", help="How many a pipeline makes."),
    click.option("--target", default="sm_90", show_default=True, help="Chip of the simulated devices."),
    click.option("--links", default="dgx-h100", show_default=True, help="What connects the simulated devices."),
    click.option(
        "--other-shapes", is_flag=True, help="Apply a plan file to the same function of other shapes, costed anew."
    ),
)
_PLAN_HELP = "Name of a plan, several joined by + (docs/partitioning.md), or a plan file (*.json)."


@click.command("plan", epilog=EXIT_CODES)
@click.argument("spec", nargs=-1, required=True, metavar="SPEC", type=FilePath())
@click.option("--plan", "plan", metavar="NAME|FILE", help=_PLAN_HELP)
@click.option("-o", "--output", type=FilePath(), metavar="FILE.json", help="Write the plan as a file.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures, or the difference, as JSON.")
@planning_options
def plan_command(spec: tuple[str, ...], plan: str | None, output: str | None, as_json: bool, **settings: Any) -> None:
    """Partition SPEC by a plan and tell what a step takes on several devices; or compare two plan files.

    SPEC is an .mlir file or a factory, as for compile; a training step is what mlirstitch.import_step returns. Times
    and bytes are those of a simulation (docs/partitioning.md). In place of SPEC, "diff A.json B.json" tells which
    rules, orders and costs of two plan files differ.

    \b
    Examples:
      mlirstitch plan model.py:step --mesh dp=2,tp=2 --plan dp+tp
      mlirstitch plan model.py:step --mesh pp=4 --plan pp-1f1b --micro-batches 8 -o plan.json
      mlirstitch plan model.py:step --plan plan.json
      mlirstitch plan diff old.json new.json
    """
    if spec[0] == "diff" and len(spec) == 3:
        if plan is not None or output is not None or settings["mesh"]:
            raise click.UsageError("plan diff takes two plan files and --json alone")
        return _difference(spec[1], spec[2], as_json)
    if len(spec) != 1:
        raise click.UsageError("give one SPEC, or: plan diff A.json B.json")
    if plan is None:
        raise click.UsageError("name a plan: --plan dp, --plan tp+pp-1f1b, or a plan file")

    from mlirstitch.driver.partition.figures import figures
    from mlirstitch.driver.partition.figures_text import figures_text
    from mlirstitch.driver.partition.plan_file import SUFFIX, plan_data, plan_text
    from mlirstitch.driver.partition.reading import PlanRequest, plan_name, read_partitioned

    if output is not None and not output.endswith(SUFFIX):
        raise click.UsageError(f"a plan file is named *{SUFFIX}, not {output}")
    made = read_partitioned(PlanRequest(spec[0], plan, **settings))
    name = plan_name(plan)
    found = figures(made, name)
    if output is not None:
        _write(output, plan_text(plan_data(made, name, found)))
        note(f"wrote {output}; see: mlirstitch simulate {spec[0]} --plan {output}")
    click.echo(json.dumps(found.json(), indent=2) if as_json else figures_text(found))


@click.command("simulate", epilog=EXIT_CODES)
@click.argument("spec", type=FilePath())
@click.option("--plan", "plan", metavar="NAME|FILE", required=True, help=_PLAN_HELP)
@click.option("--trace", type=FilePath(), metavar="FILE.json", help="Write a trace for chrome://tracing or Perfetto.")
@click.option("--dot", "dot_path", type=FilePath(), metavar="FILE.dot", help="Write the program as a Graphviz graph.")
@click.option(
    "--html",
    type=FilePath(),
    metavar="FILE.html",
    help="Write one page for a browser, which needs no other file and no network: timeline, memory, figures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@planning_options
def simulate_command(
    spec: str, plan: str, trace: str | None, dot_path: str | None, html: str | None, as_json: bool, **settings: Any
) -> None:
    """Run SPEC under a plan on a model of the machine: timeline, memory and bytes per link of every device.

    SPEC is as for plan. A path "-" is stdout, which then holds nothing else.

    \b
    Examples:
      mlirstitch simulate model.py:step --mesh pp=4 --plan pp-1f1b --html step.html
      mlirstitch simulate model.py:step --plan plan.json --trace step.json
      mlirstitch simulate model.py:step --mesh dp=2 --plan dp --dot - | dot -Tsvg > step.svg
    """
    outputs = [path for path in (trace, dot_path, html) if path is not None]
    if outputs.count(STDOUT) + as_json > 1:
        raise click.UsageError("stdout holds one product: give the others a file")

    from mlirstitch.driver.partition.figures import figures
    from mlirstitch.driver.partition.figures_text import figures_text
    from mlirstitch.driver.partition.page.render import simulate_html
    from mlirstitch.driver.partition.reading import PlanRequest, plan_name, read_partitioned
    from mlirstitch.driver.partition.trace import chrome_trace, dot

    made = read_partitioned(PlanRequest(spec, plan, **settings))
    found = figures(made, plan_name(plan))
    makers = ((trace, chrome_trace), (dot_path, dot), (html, lambda made: simulate_html(made, found)))
    products = [(path, make(made)) for path, make in makers if path is not None]
    for path, text in products:
        _write(path, text)
        if path != STDOUT:
            note(f"wrote {path}")
    if STDOUT not in outputs:
        click.echo(json.dumps(found.json(), indent=2) if as_json else figures_text(found))


def explain_plan(spec: str, plan: str, op: int | None, as_json: bool, settings: dict[str, Any]) -> None:
    """``explain --plan``: print what a plan made of every op of a function, or of one."""
    from mlirstitch.driver.partition.explain import explain_data, explain_text
    from mlirstitch.driver.partition.reading import PlanRequest, read_partitioned

    entries = explain_data(read_partitioned(PlanRequest(spec, plan, **settings)), op)
    click.echo(json.dumps(entries, indent=2) if as_json else explain_text(entries))


def _difference(first: str, second: str, as_json: bool) -> None:
    from mlirstitch.driver.partition.difference import difference, difference_text
    from mlirstitch.driver.partition.plan_file import read_plan_file

    found = difference(read_plan_file(first), read_plan_file(second))
    click.echo(json.dumps(found, indent=2) if as_json else difference_text(found, first, second))


def _write(path: str, text: str) -> None:
    if path == STDOUT:
        return click.echo(text, nl=False)
    Path(path).write_text(text, encoding="utf-8", newline="\n")
