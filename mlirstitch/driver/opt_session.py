"""What ``mlirstitch-opt`` does in its child process: read, split, run the pipeline, print, verify diagnostics."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mlirstitch.driver.diagnostics import Diagnostic, verify_diagnostics
from mlirstitch.driver.opt import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from mlirstitch.errors import InternalError, MlirstitchError, PipelineError

if TYPE_CHECKING:
    from mlirstitch.passes.base import Pass
    from mlirstitch.passes.pipeline import Pipeline

SEPARATOR = "// -----"
_SPLIT = re.compile(r"^// -----.*$", re.MULTILINE)
DESCRIPTION = "Run passes of mlirstitch and of MLIR on IR text. Products on stdout, everything else on stderr."
EPILOG = """examples:
  mlirstitch-opt model.mlir --stitch-cluster=max-ops=64
  mlirstitch-opt model.mlir --pass-pipeline='builtin.module(canonicalize,stitch-cluster{max-ops=64},func.func(cse))'
  mlirstitch-opt invalid.mlir --stitch-cluster --split-input-file --verify-diagnostics
  mlirstitch-opt --list-passes

exit codes: 0 all right; 1 the input was refused, a pass failed, or the compiler broke (then with a reproducer folder);
2 wrong usage of the command line. An abort in native code never ends the command: the work runs in a child process.
"""


@dataclass(frozen=True)
class _Source:
    """One piece of the input. ``text`` starts with blank lines so that its line numbers are those of the file."""

    text: str
    name: str

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


def run_session(arguments: list[str]) -> int:
    """Run one command. Returns 0, 1, 2, or 3 after an internal error that was printed."""
    import mlirstitch.lowering
    import mlirstitch.passes  # noqa: F401  registers the passes
    from mlirstitch.passes.base import registered_passes

    passes = registered_passes()
    parser = _parser(passes)
    # A pass takes options after "=" only: in "--stitch-cluster model.mlir" the file is the input.
    flags = {f"--{name}" for name in passes}
    options, unknown = parser.parse_known_args([f"{text}=" if text in flags else text for text in arguments])
    if unknown:
        _unknown_option(parser, unknown[0], list(passes))
    try:
        if options.list_passes:
            from mlirstitch.driver.pass_documentation import list_passes

            print(list_passes(), flush=True)
            return EXIT_OK
        return _Session(options).run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output, head for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except PipelineError as error:
        print(Diagnostic.of_error(error).render(), file=sys.stderr)
        return EXIT_USAGE
    except MlirstitchError as error:
        print(Diagnostic.of_error(error).render(), file=sys.stderr)
        return EXIT_REFUSED


def _parser(passes: Mapping[str, type[Pass]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mlirstitch-opt",
        usage="mlirstitch-opt [FILE] [--PASS[=OPTIONS] ... | --pass-pipeline TEXT] [other options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", nargs="?", default="-", help="file with IR text, or - for standard input (default)")
    add("-o", dest="output", default="-", metavar="FILE", help="where the result goes, - for standard output (default)")
    add("--pass-pipeline", metavar="TEXT", help="passes to run, builtin.module(...); the outer anchor may be left out")
    add("--split-input-file", action="store_true", help=f"process the pieces between lines {SEPARATOR} one by one")
    add("--verify-diagnostics", action="store_true", help="compare diagnostics with expected-error@+1 {{...}} comments")
    add("--mlir-print-ir-after-all", action="store_true", help="print the module to stderr after every pass")
    add("--dump-tree", default="", metavar="DIR", help="write the module to DIR/NN_<pass>.mlir after every pass")
    add("--timing", action="store_true", help="print the time of every pass to stderr")
    add("--reproducer", default="", metavar="DIR", help="leave a reproducer folder in DIR also when a pass refuses")
    add("--list-passes", action="store_true", help="print the passes of mlirstitch with their options and exit")
    add("--allow-unregistered-dialect", action="store_true", help="accept ops of unknown dialects in generic form")
    add("--mlir-print-op-generic", action="store_true", help="print the generic form")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--no-verify-each", action="store_true", help="do not run the verifier after every pass")
    add("--work-folder", default="", help=argparse.SUPPRESS)
    group = parser.add_argument_group(
        "passes of mlirstitch, run in the order given", "options follow after =: --PASS='NAME=VALUE NAME=VALUE'"
    )
    for name, pass_class in passes.items():
        summary = (pass_class.__doc__ or "").partition("\n")[0].replace("``", "").replace("%", "%%")
        group.add_argument(f"--{name}", action=_PassFlag, nargs="?", metavar="=OPTIONS", dest="flags", help=summary)
    parser.set_defaults(flags=[])
    return parser


class _PassFlag(argparse.Action):
    """``--stitch-cluster[=options]``: appends (name, options)."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        namespace.flags = [*namespace.flags, ((option_string or "").lstrip("-"), values or "")]


def _unknown_option(parser: argparse.ArgumentParser, option: str, passes: Sequence[str]) -> NoReturn:
    from mlirstitch.passes.pipeline_text import close_matches

    name = option.lstrip("-").partition("=")[0]
    close = close_matches(name, passes)
    hint = f"did you mean --{close[0]}? " if close else ""
    parser.error(f"unknown option {option}; {hint}Passes of MLIR go into --pass-pipeline")


class _Session:
    """One command on one input."""

    def __init__(self, options: argparse.Namespace) -> None:
        from mlirstitch.passes.pipeline import parse_pipeline

        self.options = options
        if options.pass_pipeline is not None and options.flags:
            raise PipelineError(
                "--pass-pipeline and pass flags were both given",
                hint=f"move --{options.flags[0][0]} into the pipeline text",
            )
        text = _pipeline_of_flags(options.flags) if options.flags else options.pass_pipeline
        self.pipeline: Pipeline | None = None if text is None else parse_pipeline(text)
        self.work = Path(options.work_folder) if options.work_folder else None
        self.note("pipeline.txt", str(self.pipeline or "builtin.module()"))
        self.note("parent.txt", options.reproducer)
        self.internal = False

    def note(self, name: str, text: str) -> None:
        """Leave something for the supervising process."""
        if self.work is not None:
            (self.work / name).write_text(text)

    def run(self) -> int:
        """Process every piece; returns the exit code."""
        products: list[str] = []
        refused = False
        for source in _read(self.options.input, self.options.split_input_file):
            product, diagnostics = self.process(source)
            if self.options.verify_diagnostics:
                diagnostics = verify_diagnostics(source.lines, source.name, diagnostics)
            for diagnostic in diagnostics:
                print(diagnostic.render(source.lines, source.name), file=sys.stderr)
            refused = refused or any(diagnostic.severity == "error" for diagnostic in diagnostics)
            if product is not None:
                products.append(product)
            if self.internal:
                return EXIT_INTERNAL
        if not self.options.verify_diagnostics:
            _write(self.options.output, f"{SEPARATOR}\n".join(products))
        return EXIT_REFUSED if refused else EXIT_OK

    def process(self, source: _Source) -> tuple[str | None, list[Diagnostic]]:
        """Parse one piece and run the pipeline. Returns the printed module, unless refused, and all diagnostics."""
        from mlirstitch.dialects import new_context, parse_module
        from mlirstitch.dialects.bindings import MLIRError, print_op
        from mlirstitch.passes.pipeline import run_pipeline

        context = new_context(allow_unregistered=self.options.allow_unregistered_dialect)
        native: list[Diagnostic] = []

        def collect(diagnostic: Any) -> bool:
            native.append(Diagnostic.of_native(diagnostic, source.name))
            return True

        handler: Any = context.attach_diagnostic_handler(collect)
        self.note("step.txt", "")
        self.note("input.mlir", source.text.strip("\n"))
        try:
            module = parse_module(source.text, source.name, context)
            if self.pipeline is not None:
                times = run_pipeline(
                    module,
                    self.pipeline,
                    print_after_all=self.options.mlir_print_ir_after_all,
                    dump_tree=self.options.dump_tree,
                    reproducer_dir=self.options.reproducer,
                    verify_each=not self.options.no_verify_each,
                    on_step=lambda step: self.note("step.txt", step),
                )
                if self.options.timing:
                    for entry in times:
                        print(f"{entry.seconds * 1e3:10.2f} ms  {entry.text}", file=sys.stderr)
            product = print_op(
                module.operation,
                locations=self.options.mlir_print_debuginfo,
                generic=self.options.mlir_print_op_generic,
            )
            return product, native
        except PipelineError:
            raise
        except InternalError as error:
            self.internal = not error.reproducer
            if error.__cause__ is not None and not isinstance(error.__cause__, MLIRError):
                import traceback

                traceback.print_exception(error.__cause__)
            return None, [*native, *_diagnostics_of(error, source.name)]
        except MlirstitchError as error:
            return None, [*native, *_diagnostics_of(error, source.name)]
        finally:
            handler.detach()


def _diagnostics_of(error: MlirstitchError, source_name: str) -> list[Diagnostic]:
    """An error with all that MLIR had to say about it: further errors, and notes."""
    from mlirstitch.dialects.bindings import error_diagnostics

    first = Diagnostic.of_error(error)
    said = [Diagnostic.of_native(diagnostic, source_name) for diagnostic in error_diagnostics(error.__cause__)]
    if not said:
        return [first]
    return [replace(first, notes=(*said[0].notes, *first.notes)), *said[1:]]


def _pipeline_of_flags(flags: Sequence[tuple[str, str]]) -> str:
    """The pipeline text for pass flags: each pass nested in the op it runs on."""
    from mlirstitch.passes.base import registered_passes
    from mlirstitch.passes.pipeline_text import ANY, MODULE

    elements = []
    for name, options in flags:
        text = f"{name}{{{options}}}" if options else name
        anchor = registered_passes()[name].ANCHOR
        elements.append(text if anchor in (MODULE, ANY) else f"{anchor}({text})")
    return ",".join(elements)


def _read(path: str, split: bool) -> list[_Source]:
    try:
        text = sys.stdin.buffer.read().decode() if path == "-" else Path(path).read_text()
    except OSError as error:
        raise MlirstitchError(f"cannot read {path}: {error.strerror}", hint="check the path") from error
    except UnicodeDecodeError:
        raise MlirstitchError(f"{path} is not UTF-8 text", hint="MLIR bytecode is not read; print it as text") from None
    name = "<stdin>" if path == "-" else path
    if not split:
        return [_Source(text, name)]
    sources, start = [], 0
    for match in [*_SPLIT.finditer(text), None]:
        end = match.start() if match else len(text)
        sources.append(_Source("\n" * text.count("\n", 0, start) + text[start:end], name))
        start = match.end() if match else end
    return sources


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise MlirstitchError(f"cannot write {path}: {error.strerror}", hint="check the folder") from error
