"""The command line. Products go to stdout, everything else to stderr; bodies import what they need when they run.

Exit codes: 0 success; 1 the input is at fault (a model, a bundle, a tensor, a benchmark row that is not ok); 2 the
command line is at fault; 3 the compiler is at fault (it died or met an internal error; a reproducer folder is named);
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mlirstitch.driver.command_options import EXIT_CODES, FilePath, compile_options, flag_of
from mlirstitch.driver.console import MISUSED, note, progress, report_error
from mlirstitch.driver.partition_commands import explain_plan, plan_command, planning_options, simulate_command
from mlirstitch.errors import MlirstitchError
from mlirstitch.options import LEVELS


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.version_option(package_name="mlirstitch", message="%(prog)s %(version)s")
def cli() -> None:
    """Stitch the memory-bound ops of a PyTorch model into few GPU kernels: linalg in, PTX out.

    \b
    Examples:
      mlirstitch compile model.py:factory -o model.bundle
      mlirstitch run model.bundle --inputs x.npz -o y.npz
      mlirstitch explain model.bundle
      mlirstitch doctor

    Set MLIRSTITCH_DEBUG=1 to see tracebacks.
    """


@cli.command("compile", epilog=EXIT_CODES)
@click.argument("spec", type=FilePath(allow_dash=True))
@click.option(
    "-o",
    "--output",
    type=FilePath(),
    metavar="BUNDLE",
    help="Bundle to write: a folder, or one file if the name ends in .zip.",
)
@click.option(
    "--emit",
    type=click.Choice(LEVELS),
    multiple=True,
    help="Print the text of this level on stdout; ptx prints PTX. May be given more than once.",
)
@compile_options()
def compile_command(spec: str, output: str | None, emit: tuple[str, ...], **values: str | None) -> None:
    """Compile SPEC to a bundle, or print the form it has at a level.

    SPEC is an .mlir file, "-" for MLIR on stdin, or a factory, file.py:name or package.module:name: a function
    without arguments that returns (model, example inputs), or a training step (mlirstitch.import_step).

    \b
    Examples:
      mlirstitch compile model.py:factory -o model.bundle
      mlirstitch compile layernorm.mlir --emit ptx > layernorm.ptx
      mlirstitch compile layernorm.mlir --to stitched
      mlirstitch compile model.py:factory -o model.bundle --dump levels/
      mlirstitch compile stitched.mlir --from stitched --emit ptx
    """
    from mlirstitch.driver.worker import CompileRequest, run_in_child
    from mlirstitch.options import CompileOptions

    if output is None and not emit and values["to_level"] is not None:
        emit = (values["to_level"],)
    if output is None and not emit:
        raise click.UsageError("nothing to produce: give -o BUNDLE, --emit LEVEL or --to LEVEL")
    if output is None and values["to_level"] is None:
        values["to_level"] = max(emit, key=LEVELS.index)
    options = CompileOptions.from_environment(None, **values)
    reached = LEVELS.index(options.to_level)
    if output is not None and options.to_level != LEVELS[-1]:
        raise click.UsageError(f"a bundle needs all levels, but --to {options.to_level} stops before {LEVELS[-1]}")
    for level in emit:
        if not LEVELS.index(options.from_level) <= LEVELS.index(level) <= reached:
            raise click.UsageError(f"--emit {level} lies outside of {options.from_level} .. {options.to_level}")

    text = _read_stdin() if spec == "-" else None
    request = CompileRequest(
        spec=spec,
        text=text,
        options={name: str(value) for name, value in vars(options).items()},
        bundle=str(Path(output).absolute()) if output else "",
        emit=emit,
    )
    with progress(f"compiling {spec}") as show:
        result = run_in_child(request, show)
    for level in emit:
        if not result.emitted[level]:
            note("there is no PTX: the program launches no kernel")
        else:
            click.echo(result.emitted[level], nl=not result.emitted[level].endswith("\n"))
    if output:
        seconds = sum(result.timings.values())
        note(f"wrote {output} ({seconds:.1f} s); see: mlirstitch explain {output}")


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise MlirstitchError(f"stdin is not UTF-8 text: {error}") from error


@cli.command("run", epilog=EXIT_CODES)
@click.argument("bundle", type=FilePath())
@click.option(
    "--inputs",
    "inputs_path",
    type=FilePath(),
    metavar="FILE.npz",
    help="Inputs by name (mlirstitch explain lists the names). Without it, random inputs from a fixed seed.",
)
@click.option("-o", "--output", type=FilePath(), metavar="FILE.npz", help="Write the outputs by name.")
@click.option("--device", type=click.Choice(["emulator"]), default="emulator", show_default=True, help="Where to run.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "jit", "reference"]),
    default=None,
    help="How the emulator runs kernels: as machine code (jit), with numpy (reference), or as it can (auto, the "
    "default); MLIRSTITCH_EMULATOR_ENGINE sets it too.",
)
@click.option(
    "--sanitize",
    is_flag=True,
    help="Look for uninitialised memory and races too, whatever the order of execution; slow.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --sanitize: the order in which blocks and warps run.",
)
@click.option(
    "--profile", is_flag=True, help="Print time and counters of every step and kernel on stderr, slowest first."
)
@click.option(
    "--report", type=FilePath(), metavar="FILE.json", help="Write time and counters of every step and kernel."
)
@click.option("--trace", type=FilePath(), metavar="FILE.json", help="Write a trace for chrome://tracing or Perfetto.")
def run_command(bundle: str, inputs_path: str | None, output: str | None, trace: str | None, **settings: Any) -> None:
    """Run BUNDLE on a device and write or describe its outputs.

    Inputs are found by name, or by position (arr_0, arr_1, ...). numpy's files have no bfloat16: an output y of that
    type is stored as y.bfloat16, its bits as uint16, and inputs are taken in the same form. Without -o one line per
    output is printed.

    \b
    Examples:
      mlirstitch run model.bundle --inputs x.npz -o y.npz
      mlirstitch run model.bundle --profile --report counters.json
      mlirstitch run model.bundle --sanitize
    """
    from mlirstitch.driver.run_bundle import run_bundle

    lines = run_bundle(bundle, inputs_path=inputs_path, output_path=output, trace_path=trace, **settings)
    for line in lines:
        click.echo(line)


@cli.command("emulate", epilog=EXIT_CODES)
@click.argument("ptx", type=FilePath())
@click.option("--entry", metavar="NAME", help="Kernel to run; may be left out if there is one.")
@click.option("--grid", default="1", show_default=True, metavar="X[,Y[,Z]]", help="Thread blocks.")
@click.option("--block", required=True, metavar="X[,Y[,Z]]", help="Threads of a block.")
@click.option("--cluster", metavar="X[,Y[,Z]]", help="Thread blocks of a cluster.")
@click.option(
    "--arg",
    "args",
    multiple=True,
    metavar="ARG",
    help="One for every parameter: FILE.npz:NAME, FILE.npy, zeros:DTYPE:4x8, empty:DTYPE:4x8, int:5, f32:1.5.",
)
@click.option("--shared", "shared_bytes", type=int, default=0, metavar="BYTES", help="Dynamic shared memory.")
@click.option("-o", "--output", type=FilePath(), metavar="FILE.npz", help="Write all arrays as they are afterwards.")
@click.option("--counters", is_flag=True, help="Print what the launch did as JSON, see docs/counters.md.")
@click.option("--sanitize", is_flag=True, help="Look for uninitialised memory and races too; slow.")
@click.option("--seed", type=click.IntRange(min=0), help="Run blocks and warps in an order drawn from it.")
@click.option("--cooperative", is_flag=True, help="All blocks are resident and take turns.")
@click.option("--budget", type=click.IntRange(min=1), metavar="N", help="Instructions before a loop counts as endless.")
@click.option(
    "--engine", type=click.Choice(["auto", "jit", "reference"]), default="auto", show_default=True, help="Who runs it."
)
def emulate_command(ptx: str, **settings: Any) -> None:
    """Run one kernel of the file PTX on the emulated device, whatever compiler made it.

    Arrays are passed as pointers and written in place; without -o one line for each is printed. int takes the width of
    the parameter; DTYPE is numpy's name, empty is memory that nobody has written, which --sanitize watches.
    The same command is python -m mlirstitch.runtime.emulator, which needs numpy alone.

    \b
    Examples:
      mlirstitch emulate k.ptx --grid 4 --block 256 --arg x.npz:a --arg zeros:float32:1024 -o y.npz
      mlirstitch emulate k.ptx --block 128 --arg x.npy --arg int:128 --sanitize --counters
    """
    from mlirstitch.runtime.emulator.command import Request, run

    for line in run(Request(ptx=ptx, **settings)):
        click.echo(line)


@cli.command("explain", epilog=EXIT_CODES)
@click.argument("bundle", type=FilePath())
@click.option("--cluster", type=click.IntRange(min=0), metavar="N", help="Tell about cluster N alone.")
@click.option(
    "--why",
    nargs=2,
    metavar="OP OP",
    help="Tell whether two ops share a kernel, where the value between them lives, and why not. An OP is 3.1 (op 1 of "
    "cluster 3), 3, model.py:42, :42, or a pattern of labels (sum, 'exp*').",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report, or the answer, as JSON.")
@click.option(
    "--html",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[FILE|-]",
    help="Write one page for a browser, which needs no other file and no network: FILE, by default the bundle's name "
    "with .html in the working folder; - is stdout.",
)
@click.option("--plan", metavar="NAME|FILE", help="Tell of a function (SPEC, not BUNDLE) what a plan makes of its ops.")
@click.option("--op", type=click.IntRange(min=0), metavar="N", help="With --plan: of one op, and what may split it.")
@planning_options
def explain_command(
    bundle: str,
    cluster: int | None,
    why: tuple[str, str] | None,
    as_json: bool,
    html: str | None,
    plan: str | None,
    op: int | None,
    **settings: Any,
) -> None:
    """Tell what BUNDLE launches: kernels with their ops, source lines and bytes, and what was left apart and why.

    With --plan, tell of a function what a plan for several devices makes of it: for every op its devices, the loops
    that are cut, the layouts of what it reads and makes, and the communication that follows. SPEC, in the place of
    BUNDLE, is as for plan.

    \b
    Examples:
      mlirstitch explain model.bundle
      mlirstitch explain model.bundle --cluster 3
      mlirstitch explain model.bundle --why exp sum
      mlirstitch explain model.bundle --why model.py:12 model.py:14
      mlirstitch explain model.bundle --json | python -m json.tool
      mlirstitch explain model.bundle --html model.html
      mlirstitch explain model.py:step --mesh dp=2,tp=2 --plan dp+tp --op 12
    """
    if plan is not None:
        if cluster is not None or why or html is not None:
            raise click.UsageError("--plan tells of a function before it is compiled: leave out what tells of a bundle")
        return explain_plan(bundle, plan, op, as_json, settings)
    if op is not None or settings["mesh"] or settings["micro_batches"] is not None or settings["other_shapes"]:
        raise click.UsageError("without --plan there is a bundle, which has no mesh and no plan")
    from mlirstitch.driver.report.explain import explain_text_or_json

    if cluster is not None and why:
        raise click.UsageError("--cluster and --why are two questions: ask one")
    if html is not None:
        if cluster is not None or why or as_json:
            raise click.UsageError("--html writes the whole report: it stands alone")
        return _write_page(bundle, html)
    click.echo(explain_text_or_json(bundle, cluster, why, as_json))


def _write_page(bundle: str, file: str) -> None:
    """The page of a bundle, to ``file``, to stdout for "-", to a file named after the bundle for ""."""
    from mlirstitch.driver.report.page.render import explain_html

    text = explain_html(bundle)
    if file == "-":
        return click.echo(text)
    path = Path(file or Path(bundle).resolve().with_suffix(".html").name)
    path.write_text(text, encoding="utf-8", newline="\n")
    note(f"wrote {path}")


@cli.command("cache", epilog=EXIT_CODES)
@click.option("--info", is_flag=True, help="Tell where it is and what it holds; the default.")
@click.option("--clear", is_flag=True, help="Remove what it holds.")
@click.option(
    "--cache",
    type=FilePath(),
    default=None,
    metavar="DIR",
    help="The folder; as in compile, MLIRSTITCH_CACHE and then the platform's folder stand in.",
)
def cache_command(info: bool, clear: bool, cache: str | None) -> None:
    """Show or clear what compilations keep on disk (docs/cache.md).

    \b
    Examples:
      mlirstitch cache
      mlirstitch cache --clear
    """
    from mlirstitch.driver.cache.command import clear_text, info_text
    from mlirstitch.options import CompileOptions

    if info and clear:
        raise click.UsageError("--info and --clear are two requests: give one")
    options = CompileOptions.from_environment(None, cache=cache)
    click.echo(clear_text(options) if clear else info_text(options))


@cli.command("bench", epilog=EXIT_CODES)
@click.option("--workloads", default="all", show_default=True, metavar="all|NAME,...", help="What to measure.")
@click.option("--size", type=click.Choice(["small", "real"]), default="small", show_default=True)
@click.option("--dtype", type=click.Choice(["f32", "f16", "bf16"]), default="f32", show_default=True)
@click.option(
    "--compile-only", is_flag=True, help="Do not run; no weight is allocated, so real sizes fit into any memory."
)
@click.option("--target", default="sm_90", show_default=True, help="Chip to compile for.")
@click.option(
    "--library",
    type=click.Choice(["none", "auto"]),
    default="none",
    show_default=True,
    help="none: contractions are generated kernels too; auto: contractions are library calls.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Fail if a row needs more launches or bytes than the plan by stages, XLA or Inductor; needs --size real.",
)
@click.option("--ptxas", is_flag=True, help="Let ptxas judge every kernel for sm_80 and sm_90: registers and spills.")
@click.option(
    "--kernels", is_flag=True, help="Measure the PTX of well-known kernels instead; stands alone or with --json."
)
@click.option(
    "--compile-time", is_flag=True, help="Measure instead how long linalg to PTX takes: without cache, with it, edited."
)
@click.option(
    "--cost-models",
    is_flag=True,
    help="Compare instead how the latency evaluator and the emulated device rank schedules; takes --target and --json.",
)
@click.option(
    "--json", "json_path", type=FilePath(), metavar="FILE|-", help="Write the rows as JSON; to stdout, if it is -."
)
@click.option("--timeout", type=float, default=900.0, show_default=True, metavar="SECONDS", help="Limit per workload.")
@click.pass_context
def bench_command(
    context: click.Context,
    workloads: str,
    kernels: bool,
    compile_time: bool,
    cost_models: bool,
    check: bool,
    json_path: str | None,
    **settings: Any,
) -> None:
    """Measure the benchmark workloads: launches, bytes, times and errors against eager PyTorch.

    With --kernels, measure generated PTX instead: registers, statements, shuffles, barriers, memory; with
    --compile-time, how long compiling takes, on a machine that does nothing else. The columns are
    defined in docs/bench.md and docs/kernels.md. Exit code 1 if a row is not ok, a kernel is over its bar, or with
    --check a row does not keep a bound. With --cost-models, see docs/cost-models.md.

    \b
    Examples:
      mlirstitch bench
      mlirstitch bench --workloads softmax,bert_layer --dtype bf16 --json rows.json
      mlirstitch bench --size real --compile-only --check
      mlirstitch bench --kernels --json kernels.json
      mlirstitch bench --compile-time --workloads bert_base --size real
      mlirstitch bench --cost-models
    """

    def refuse_others(reason: str, *names: str) -> None:
        for name in names:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{reason}: leave out {flag_of(name)}")

    if cost_models:
        others = (name for name in settings if name != "target")
        refuse_others(
            "--cost-models measures a fixed set of clusters", "workloads", "kernels", "compile_time", "check", *others
        )
        from mlirstitch.driver.bench.cost_models import run_cost_model_benchmark

        if not all(row.holds for row in run_cost_model_benchmark(settings["target"], json_path)):
            sys.exit(1)
        return
    if kernels:
        refuse_others("--kernels measures a fixed set of kernels", "workloads", "compile_time", "check", *settings)
        from mlirstitch.driver.bench.kernels import run_kernel_benchmark

        if not all(row["ok"] for row in run_kernel_benchmark(json_path)):
            sys.exit(1)
        return
    from mlirstitch.driver.bench.comparison import all_kept
    from mlirstitch.driver.bench.rows import BenchRequest
    from mlirstitch.driver.bench.runner import run_benchmark
    from mlirstitch.driver.bench.workloads import select

    request = BenchRequest(tuple(select(workloads)), **settings)
    if check and (compile_time or not request.is_compared):
        raise click.UsageError("--check needs what figures of others are recorded for: --size real, f32, sm_90")
    if compile_time:
        from mlirstitch.driver.bench.compile_time import run_compile_time_benchmark

        if not all(all(row["verdicts"].values()) for row in run_compile_time_benchmark(request, json_path)):
            sys.exit(1)
        return
    rows = run_benchmark(request, json_path)
    if any(row["status"] != "ok" for row in rows) or (check and not all_kept(rows)):
        sys.exit(1)


@cli.command("calibrate", epilog=EXIT_CODES)
@click.option("-o", "--output", type=FilePath(), metavar="FILE.json", required=True, help="Target file to write.")
@click.option(
    "--device",
    type=click.Choice(["emulator", "cuda"]),
    default="emulator",
    show_default=True,
    help="Where kernels are measured: the emulated device counts and applies the documented model of the machine, "
    "which checks the fit; a CUDA device is timed.",
)
@click.option("--target", default="sm_90", show_default=True, help="Chip whose constants are fitted.")
def calibrate_command(output: str, device: str, target: str) -> None:
    """Measure the constants of a chip that the cost models read, and write them to a target file.

    Some twenty kernels are compiled, counted and measured; the constants that they determine are fitted by non-negative
    least squares (docs/calibration.md). mlirstitch compile --target-constants FILE.json uses them.

    \b
    Examples:
      mlirstitch calibrate --device emulator -o sm_90.json
      mlirstitch calibrate --device cuda --target sm_80 -o a100.json
      mlirstitch compile model.py:factory -o model.bundle --target sm_80 --target-constants a100.json
    """
    from mlirstitch.driver.calibration.command import calibrate_to_file

    for line in calibrate_to_file(target, device, output):
        click.echo(line)
    note(f"wrote {output}; see: mlirstitch compile --target-constants {output}")


@cli.command("doctor", epilog=EXIT_CODES)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(as_json: bool) -> None:
    """Check the installation: versions, what is missing, and how to get it.

    Exit code 1 if something that compiling needs is missing or of another version than was tested.

    \b
    Examples:
      mlirstitch doctor
      mlirstitch doctor --json
    """
    from mlirstitch.driver.doctor import examine, findings_json, findings_text

    findings = examine()
    click.echo(findings_json(findings) if as_json else findings_text(findings))
    if any(finding.blocks for finding in findings):
        sys.exit(1)


@cli.command(
    "opt",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def opt_command(arguments: tuple[str, ...]) -> None:
    """Run passes on MLIR text; also installed as mlirstitch-opt, see mlirstitch opt --help."""
    from mlirstitch.driver.opt import main as opt_main

    sys.exit(opt_main(list(arguments)))


cli.add_command(plan_command)
cli.add_command(simulate_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code; no exception leaves it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Not cli.main(): it turns a closed pipe and Ctrl-C into exit codes of its own.
        with cli.make_context("mlirstitch", given) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "mlirstitch"
        print(f"  hint: {command} --help shows the usage", file=sys.stderr)
        return MISUSED
    except BrokenPipeError:
        # The reader of stdout went away (| head): not an error of ours; keep the interpreter from flushing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        return report_error(error)


if __name__ == "__main__":
    sys.exit(main())
