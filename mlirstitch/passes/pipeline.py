"""Running pass pipelines that mix passes of MLIR and passes written in Python.

Every step runs by itself: a pass of MLIR through a pass manager of its own, a Python pass as a plain call on each op
its anchors name, followed by the verifier. So a failure always names its step, no Python exception ever crosses C++
(one that does kills the process later), and no handle into the IR outlives a native pass.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlir import ir
from mlir.passmanager import PassManager

from mlirstitch.dialects.bindings import MLIRError, error_diagnostics, print_op
from mlirstitch.dialects.locations import source_line
from mlirstitch.dialects.walk import nested
from mlirstitch.errors import InternalError, MlirstitchError, PassError, PipelineError
from mlirstitch.passes.base import Pass
from mlirstitch.passes.pipeline_text import (
    ANY,
    MODULE,
    Pipeline,
    Step,
    parse_pipeline,
    pipeline_error,
    unknown_pass_hint,
)
from mlirstitch.passes.reproducer import write_reproducer

__all__ = ["Pipeline", "Step", "StepTime", "add_native", "check_pipeline", "parse_pipeline", "run_pass", "run_pipeline"]


@dataclass(frozen=True)
class StepTime:
    """Wall-clock time of one step, verifier included."""

    text: str
    seconds: float


def run_pipeline(
    module: ir.Module,
    text: str | Pipeline,
    *,
    print_after_all: bool = False,
    dump_tree: str = "",
    reproducer_dir: str = "",
    verify_each: bool = True,
    on_step: Callable[[str], None] | None = None,
) -> tuple[StepTime, ...]:
    """Run a pipeline on ``module`` in place and return the time of every step.

    Args:
        module: the module; on an error it is left as the failing step left it.
        text: a pipeline text (see :mod:`mlirstitch.passes.pipeline_text`) or a parsed one.
        print_after_all: print the module to stderr after every step, as ``--mlir-print-ir-after-all`` does.
        dump_tree: folder that receives ``NN_<pass>.mlir`` after every step.
        reproducer_dir: folder in which a failing step leaves ``mlirstitch-reproducer-<digest>`` (``input.mlir``,
            ``pipeline.txt``, ``run.sh``); none is written if empty.
        verify_each: run MLIR's verifier after every step.
        on_step: called with the text of every step before it runs.

    Raises:
        PipelineError: malformed text, unknown pass, pass or option, wrong anchor; nothing has run then.
        PassError: a pass refused its input; message and op are the pass's, prefixed with its name.
        InternalError: a pass broke (an exception nobody meant, or invalid IR).
    """
    pipeline = parse_pipeline(text) if isinstance(text, str) else text
    check_pipeline(pipeline, module.context)
    before = module.operation.clone() if reproducer_dir else None
    times: list[StepTime] = []
    for number, step in enumerate(pipeline.steps):
        if on_step is not None:
            on_step(step.nested_text)
        started = time.perf_counter()
        try:
            _run_step(module, step, verify_each)
        except MlirstitchError as error:
            if before is not None and not error.reproducer:
                error.reproducer = str(write_reproducer(before, str(pipeline), reproducer_dir, error))
            raise
        times.append(StepTime(step.nested_text, time.perf_counter() - started))
        if print_after_all:
            print(f"// -----// IR Dump After {step.nested_text} //----- //", file=sys.stderr)
            print(print_op(module.operation, assume_verified=verify_each), file=sys.stderr)
        if dump_tree:
            _dump(module, Path(dump_tree), number, step)
    return tuple(times)


def check_pipeline(pipeline: Pipeline, context: ir.Context) -> None:
    """Refuse a pipeline that MLIR does not know how to run: unknown ops as anchors, unknown passes, wrong options."""
    known: set[str] = set()
    for step in pipeline.steps:
        for anchor in step.anchors:
            if anchor not in (ANY, MODULE) and not context.is_registered_operation(anchor):
                message = f"no op {anchor!r} is known to nest {step.name} in"
                raise pipeline_error(pipeline.text, step.column, message, "check the name, for example func.func(...)")
        if step.python is None and step.nested_text not in known:
            with context:
                add_native(PassManager(MODULE), step, pipeline.text)
            known.add(step.nested_text)


def add_native(manager: PassManager, step: Step, pipeline_text: str) -> None:
    """Add a pass of MLIR to a pass manager on modules. Raises PipelineError with the step's place."""
    try:
        manager.add(step.nested_text)
    except ValueError as error:
        message = str(error)
        if "does not refer to a registered pass" in message:
            hint = unknown_pass_hint(step.name)
            raise pipeline_error(pipeline_text, step.column, f"unknown pass {step.name!r}", hint) from None
        wrong = re.search(r"restricted to '([^']+)' on a PassManager intended to run on '([^']+)'", message)
        if wrong:
            nested_elsewhere = f"write {wrong[1]}({step.name})"
            hint = nested_elsewhere if wrong[1] != MODULE else f"write {step.name} outside of {wrong[2]}(...)"
            message = f"{step.name} runs on {wrong[1]}, not on {wrong[2]}"
            raise pipeline_error(pipeline_text, step.column, message, hint) from None
        lines = [line for line in message.splitlines() if line.strip()]
        raise pipeline_error(
            pipeline_text, step.column, f"MLIR refuses {step.text!r}: {lines[0] if lines else 'no reason given'}"
        ) from None


def run_pass(instance: Pass, op: ir.Operation) -> None:
    """Run one Python pass on one op, turning every way to fail into a :class:`MlirstitchError` that names the pass.

    A refusal keeps its class; any other exception becomes InternalError with the exception as its cause.
    """
    try:
        with op.context, op.location:
            instance.run(op)
    except MlirstitchError as error:
        error.message = f"{instance.NAME}: {error.message}"
        error.args = (error.message,)
        if not error.source:
            error.source = source_line(op.location)
        raise
    except Exception as error:
        raise InternalError(
            f"{instance.NAME}: internal error: {type(error).__name__}: {error}",
            hint="this is a fault of the pass, not of the input: please report it with the reproducer",
            source=source_line(op.location),
        ) from error


def _run_step(module: ir.Module, step: Step, verify_each: bool) -> None:
    if step.python is None:
        with module.context:
            manager = PassManager(MODULE)
            add_native(manager, step, step.nested_text)
            manager.enable_verifier(verify_each)
            try:
                manager.run(module.operation)
            except MLIRError as error:
                raise _native_error(step, error) from error
        return
    for op in nested(module.operation, step.anchors):
        run_pass(step.python, op)
    if verify_each:
        try:
            module.operation.verify()
        except MLIRError as error:
            raise InternalError(
                f"{step.name}: the pass left invalid IR: {_first_diagnostic(error)[0]}",
                hint="this is a fault of the pass, not of the input: please report it with the reproducer",
                source=_first_diagnostic(error)[1],
            ) from error


def _native_error(step: Step, error: Exception) -> PassError:
    message, source = _first_diagnostic(error)
    return PassError(f"{step.name}: {message or 'the pass failed without saying why'}", source=source)


def _first_diagnostic(error: Exception) -> tuple[str, str]:
    for diagnostic in error_diagnostics(error):
        return diagnostic.message.strip(), source_line(diagnostic.location)
    return "", ""


def _dump(module: ir.Module, folder: Path, number: int, step: Step) -> None:
    name = re.sub(r"[^\w.-]+", "_", step.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:02d}_{name}.mlir"
        path.write_text(print_op(module.operation, locations=True))
    except OSError as error:
        raise PipelineError(f"cannot write the dump folder {folder}: {error.strerror}") from error
