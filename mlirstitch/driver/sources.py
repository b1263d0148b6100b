"""What can be compiled, brought to one form: IR text, how it is called, and the tensors it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlirstitch.driver.calling import CallingConvention
from mlirstitch.driver.imported import ImportedModel
from mlirstitch.driver.markers import recording
from mlirstitch.errors import ImportFailure, MlirstitchError
from mlirstitch.options import CompileOptions


@dataclass(frozen=True)
class Source:
    """A program to compile.

    Attributes:
        text: IR text, at the level the options name (linalg unless they say otherwise).
        name: file name shown in diagnostics.
        calling: how the user's call maps to inputs and results; None for IR, whose inputs are positional.
        weights: name of a weight or constant argument -> the module's own tensor, not a copy.
        requests: what markers in the model ask for, by the option that it adds to.
        trees: torch's specifications of the arguments and of the result, which know a user's own pytree classes.
    """

    text: str
    name: str = "-"
    calling: CallingConvention | None = None
    weights: Mapping[str, Any] = field(default_factory=dict)
    trees: tuple[Any, Any] | None = None
    requests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_requests(self, options: CompileOptions) -> CompileOptions:
        """The options, and what the markers in the model ask for."""
        joined = {
            name: ";".join(text for text in (getattr(options, name), *texts) if text)
            for name, texts in self.requests.items()
        }
        return replace(options, **joined)


def read_source(x: Any, example_inputs: Any = None, example_kwargs: Mapping[str, Any] | None = None) -> Source:
    """Bring ``x`` into IR text.

    Args:
        x: an ``nn.Module``, a function of tensors, an ``ExportedProgram``, an imported program; or MLIR as text, as a
            path, or as a module of the ``mlir`` package.
        example_inputs, example_kwargs: arguments for tracing; not used for MLIR, exported and imported programs.

    Raises:
        ImportFailure: the model cannot be imported, or ``x`` is none of these.
        MlirstitchError: the file cannot be read.
    """
    if isinstance(x, Path):
        return _read_file(x)
    if isinstance(x, str):
        return Source(x) if _looks_like_ir(x) else _read_file(Path(x))
    if isinstance(x, ImportedModel):
        return _of_import(x)
    operation = getattr(x, "operation", None)
    if operation is not None and hasattr(operation, "get_asm"):
        return Source(operation.get_asm(enable_debug_info=True))
    if not callable(x) and type(x).__name__ != "ExportedProgram":
        raise ImportFailure(
            f"a {type(x).__name__} cannot be compiled",
            hint="give an nn.Module, a function of tensors, an ExportedProgram, or MLIR (text, path or module)",
        )
    return _import(x, example_inputs, example_kwargs)


def read_spec(spec: str, text: str | None = None) -> Source:
    """What the command line names: a ``.mlir`` path, ``-`` with its ``text``, or a factory (:mod:`.spec`)."""
    if text is not None:
        return Source(text, "<stdin>" if spec == "-" else spec)
    if spec.endswith(".py"):
        raise ImportFailure(f"{spec} names no function", hint=f"write {spec}:NAME; NAME() returns (model, inputs)")
    if ":" not in spec or Path(spec).exists():
        return _read_file(Path(spec))
    from mlirstitch.driver.spec import load_spec

    model, inputs = load_spec(spec)
    return _of_import(model) if isinstance(model, ImportedModel) else _import(model, inputs, None)


def _looks_like_ir(text: str) -> bool:
    """A path is one line without braces; even an empty module has them, or is blank."""
    return "\n" in text or "{" in text or not text.strip()


def _read_file(path: Path) -> Source:
    try:
        return Source(path.read_bytes().decode("utf-8"), str(path))
    except OSError as error:
        raise MlirstitchError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise MlirstitchError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}",
            hint="MLIR bytecode is not read; print it",
        ) from error


def _import(x: Any, example_inputs: Any, example_kwargs: Mapping[str, Any] | None) -> Source:
    try:
        import mlir.ir  # noqa: F401  isort: skip  before anything that may load torch_mlir

        from mlirstitch.driver.import_torch import import_model
    except ModuleNotFoundError as error:
        raise ImportFailure(
            f"importing a model needs {error.name}, which is not installed",
            hint="pip install torch==2.13.0, then pip install 'mlirstitch[torch]'; compiling .mlir needs neither",
        ) from error
    with recording() as requests:
        model = import_model(x, () if example_inputs is None else example_inputs, example_kwargs=example_kwargs)
    return replace(_of_import(model), requests={name: tuple(texts) for name, texts in requests.items()})


def _of_import(model: ImportedModel) -> Source:
    return Source(
        text=model.mlir,
        calling=model.calling,
        weights={model.arguments[position].name: tensor for position, tensor in model.weights.items()},
        trees=(model.in_spec, model.out_spec),
        requests=model.requests,
    )
