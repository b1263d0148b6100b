"""Our passes inside somebody else's compiler: on their context, module and pass manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlirstitch.lowering  # registers the kernel templates, which the stitching passes ask
import mlirstitch.passes  # noqa: F401  registers the passes
from mlirstitch.dialects.locations import location_of
from mlirstitch.dialects.walk import nested
from mlirstitch.errors import MlirstitchError, PipelineError
from mlirstitch.passes.base import register_pass
from mlirstitch.passes.pipeline import add_native, run_pass
from mlirstitch.passes.pipeline_text import ANY, MODULE, Step, parse_pipeline

if TYPE_CHECKING:
    from mlir import ir
    from mlir.passmanager import ExternalPass, PassManager

__all__ = ["add_passes", "register_pass"]


def add_passes(pass_manager: PassManager, pipeline: str) -> PassManager:
    """Append a pipeline of our passes and MLIR's to a pass manager on ``builtin.module``; returns it.

    ``add_passes(pm, "stitch-cluster{max-ops=64},func.func(canonicalize)")``, then ``pm.run(module.operation)`` as
    usual: the caller's printing, timing and verifier options hold. Where one of our passes refuses, ``run`` raises
    MLIR's error, whose diagnostics carry our message, hint and the op's location; ``pass_manager`` may be used again.

    Raises:
        PipelineError: the text is malformed, names an unknown pass or option, or ``pass_manager`` runs on another op.
    """
    anchor = str(pass_manager).partition("(")[0]
    if anchor not in (MODULE, ANY):
        raise PipelineError(
            f"the pass manager runs on {anchor}, but our pipelines run on {MODULE}",
            hint=f'create it as PassManager("{MODULE}") and write {anchor}(...) in the pipeline text',
        )
    steps = parse_pipeline(pipeline).steps
    for step in steps:
        if step.python is None:
            add_native(pass_manager, step, pipeline)
        else:
            _add_python(pass_manager, step)
    return pass_manager


def _add_python(pass_manager: PassManager, step: Step) -> None:
    instance = step.python
    if instance is None:
        raise PipelineError(f"{step.text} is a pass of MLIR")

    def run(op: ir.Operation, handle: ExternalPass) -> None:
        # Nothing may be raised here: an exception that crosses C++ makes a later call abort the process.
        try:
            for target in nested(op, step.anchors):
                run_pass(instance, target)
        except MlirstitchError as error:
            location = location_of(error.source, op.context) or op.location
            location.emit_error(error.message + (f"\n  hint: {error.hint}" if error.hint else ""))
            handle.signal_pass_failure()
        except BaseException as error:  # KeyboardInterrupt among them: the caller sees MLIR's error instead
            op.location.emit_error(f"{step.name}: interrupted by {type(error).__name__}")
            handle.signal_pass_failure()

    run.__name__ = step.name
    pass_manager.add(run, name=step.name, argument=step.text)
