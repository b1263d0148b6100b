"""PyTorch to linalg on tensors: the only file that imports torch_mlir.

``mlir.ir`` is imported first: loaded after torch_mlir it would bind symbols of torch_mlir's own, newer LLVM.
"""

from __future__ import annotations

import mlir.ir  # noqa: F401  isort: skip  before torch_mlir

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch_mlir import ir as _torch_ir
from torch_mlir import passmanager as _torch_passes
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras.fx_decomp_util import get_decomposition_table
from torch_mlir.extras.fx_importer import FxImporter

from mlirstitch.driver.imported import ImportedModel
from mlirstitch.driver.torch_import import repairs
from mlirstitch.driver.torch_import.checks import (
    check_before_decomposition,
    check_decomposed,
    refuse,
    single_op_graphs,
)
from mlirstitch.driver.torch_import.constants import dense_text, lift_splats
from mlirstitch.driver.torch_import.decompositions import decomposition_table
from mlirstitch.driver.torch_import.empty_tensors import fold_empty_tensors
from mlirstitch.driver.torch_import.exporting import export_failure, export_program, parameter_names
from mlirstitch.driver.torch_import.lifted_ops import lift_ops
from mlirstitch.driver.torch_import.program import FlatProgram, flatten_program, literal_targets
from mlirstitch.errors import ImportFailure, MlirstitchError

__all__ = ["ImportedModel", "decompositions", "import_model", "lower_program", "without_torch_warnings"]

torch_ir: Any = _torch_ir  # the stubs of both lack most names
torch_passes: Any = _torch_passes

PIPELINES = (
    "builtin.module(func.func(torch-match-quantized-custom-ops),"
    "torchdynamo-export-to-torch-backend-pipeline{extra-library=})",
    "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})",
)
"""torch_mlir's own way from its torch dialect to linalg on tensors."""


def import_model(
    x: nn.Module | Callable[..., Any] | ExportedProgram,
    example_inputs: Any = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
) -> ImportedModel:
    """Bring a module, a function of tensors or an exported program into linalg on tensors.

    Args:
        x: what to import. Training steps are expanded with ``make_fx`` first and given as its graph module.
        example_inputs: positional arguments (one tensor stands for a tuple of one); not needed for an ExportedProgram.
        example_kwargs: keyword arguments.
        dynamic: must be None: every shape is static.

    Raises:
        ImportFailure: the program cannot be traced, or holds an op, type or shape that cannot be compiled; names the
            aten op, its shapes and the user's line.
    """
    if dynamic is not None:
        raise ImportFailure("dynamic shapes are not compiled yet", hint="import once for every shape you need")
    with without_torch_warnings():
        exported = export_program(x, example_inputs, example_kwargs)
        check_before_decomposition(exported.graph)
        program = flatten_program(_decompose(exported), literal_targets(exported), x, parameter_names(x))
    return lower_program(program)


def lower_program(program: FlatProgram) -> ImportedModel:
    """Lower a decomposed program. Raises :class:`ImportFailure` naming the op that cannot be lowered."""
    check_decomposed(program.graph)
    fold_empty_tensors(program.graph)
    literals = {i: dense_text(value) for i, value in program.literals.items()}
    splats = lift_splats(program.graph)
    literals.update(enumerate(splats, len(program.arguments)))
    cuts = lift_ops(program.graph)
    text = repairs.finish(_lower(program.graph), _labels(program), literals, cuts)
    return _imported(program, text)


@contextmanager
def without_torch_warnings() -> Iterator[None]:
    """torch.export warns about deprecated calls in its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def decompositions() -> dict[Any, Any]:
    """The rules that bring aten ops to those that torch_mlir lowers rightly, by overload."""
    return dict(decomposition_table(cast("Mapping[Any, Any]", get_decomposition_table())))


def _decompose(exported: ExportedProgram) -> ExportedProgram:
    try:
        with torch.no_grad():
            return exported.run_decompositions(decompositions())
    except MlirstitchError:
        raise
    except Exception as error:
        raise export_failure(error) from error


def _imported(program: FlatProgram, text: str) -> ImportedModel:
    """Positions after the literal constants have left the argument list."""
    kept = [i for i in range(len(program.arguments)) if i not in program.literals]
    arguments = tuple(program.arguments[i] for i in kept)
    by_name = {a.name: i for i, a in enumerate(arguments)}
    return ImportedModel(
        mlir=text,
        arguments=arguments,
        results=program.results,
        weights={new: program.weights[old] for new, old in enumerate(kept) if old in program.weights},
        mutations={i: by_name[r.mutates] for i, r in enumerate(program.results) if r.mutates},
        calling=program.calling,
        in_spec=program.in_spec,
        out_spec=program.out_spec,
    )


def _labels(program: FlatProgram) -> repairs.Labels:
    return repairs.Labels(
        [{"stitch.name": a.name, "stitch.role": a.role, "stitch.dtype": a.dtype} for a in program.arguments],
        [{"stitch.name": r.name, "stitch.dtype": r.dtype, "stitch.mutates": r.mutates} for r in program.results],
    )


# ---------------------------------------------------------------- torch_mlir
def _lower(graph: fx.Graph) -> str:
    """The aten graph as linalg text. Raises :class:`ImportFailure` naming the op that torch_mlir cannot lower."""
    try:
        return _lower_graph(graph)
    except _NotLowered as failure:
        # The diagnostic often names a constant or nothing at all: try the ops one by one.
        for node, alone in single_op_graphs(graph):
            try:
                _lower_graph(alone)
            except _NotLowered as reason:
                raise refuse(node, f"torch_mlir cannot lower it: {reason}", _KEEP_EAGER) from failure
        raise ImportFailure(f"torch_mlir cannot lower the program: {failure}", hint=_KEEP_EAGER) from failure


_KEEP_EAGER = "keep this op in eager PyTorch, or express it with other ops"


class _NotLowered(Exception):
    """torch_mlir refused a graph; the text is its first diagnostic."""


def _lower_graph(graph: fx.Graph) -> str:
    context = torch_ir.Context()
    torch_dialect.register_dialect(context)
    importer = FxImporter(context=context)
    try:
        importer.import_stateless_graph(graph, func_name="main")
    except Exception as error:
        raise _NotLowered(f"{type(error).__name__}: {str(error)[:300]}") from error
    module = importer.module
    for pipeline in PIPELINES:
        _run(module, pipeline)
    text = str(module.operation.get_asm(enable_debug_info=True))
    for name in repairs.leftovers(text):
        raise _NotLowered(f"{name} has no linalg form")
    return text


def _run(module: Any, pipeline: str) -> None:
    with module.context:
        try:
            torch_passes.PassManager.parse(pipeline).run(module.operation)
        except torch_ir.MLIRError as error:
            said = [str(d.message) for d in error.error_diagnostics] or [str(error)]
            raise _NotLowered(said[0].strip().splitlines()[0][:300]) from error
