"""From what the user gives (module, function, exported program) to an exported program with static shapes."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import uninteresting_files
from torch.fx.proxy import TracerBase
from torch.fx.traceback import preserve_node_meta
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_map

from mlirstitch.errors import ImportFailure, MlirstitchError


class _Function(nn.Module):
    """A plain function of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class _Traced(nn.Module):
    """A traced graph, run node by node so that each node's recorded source lines pass to the exported graph."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__()
        self.graph_module = graph_module

    def forward(self, *args: Any) -> Any:
        with preserve_node_meta():
            return fx.Interpreter(self.graph_module).run(*args)


def export_program(
    x: nn.Module | Callable[..., Any] | ExportedProgram,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None,
) -> ExportedProgram:
    """Export with ``torch.export`` (non-strict, no gradients, attention written out).

    Weights and inputs may be fake or on the meta device; nothing of their size is allocated then. Raises
    :class:`ImportFailure` with the user's line when torch cannot export the program.
    """
    if isinstance(x, ExportedProgram):
        return x
    if not callable(x):
        raise ImportFailure(
            f"cannot import a value of type {type(x).__name__}",
            hint="give an nn.Module, a function of tensors or an ExportedProgram",
        )
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    kwargs = dict(example_kwargs or {})
    try:
        exported = _export(_as_module(x), args, kwargs)
        if not _enables_gradients(exported):
            return exported
        if isinstance(x, nn.Module) or kwargs:
            raise ImportFailure("the program computes gradients", hint=_GRADIENT_HINT)
    except MlirstitchError:
        raise
    except Exception as error:
        if isinstance(x, nn.Module) or kwargs or not _is_about_gradients(error):
            raise export_failure(error) from error
    try:
        return _export(_as_module(expand_gradients(x, args)), args, {})
    except MlirstitchError:
        raise
    except Exception as error:
        raise export_failure(error) from error


def _enables_gradients(exported: ExportedProgram) -> bool:
    """Whether the program turns gradients on: torch.export would take tensors of the tape for constants."""
    regions = (n for n in exported.graph.nodes if str(n.target) == "wrap_with_set_grad_enabled")
    return any(n.args[0] is True for n in regions)


def expand_gradients(function: Callable[..., Any], inputs: tuple[Any, ...]) -> fx.GraphModule:
    """A training step (``torch.func.grad``, ``vjp`` inside) as one graph of forward and backward ops.

    ``torch.export`` does not trace through gradients, ``make_fx`` does. Every op keeps the user's line.
    """
    with whole_user_stacks():
        return make_fx(function, record_stack_traces=True)(*inputs)


def _export(module: nn.Module, args: Any, kwargs: Any) -> ExportedProgram:
    with ExitStack() as stack:
        mode = _fake_mode(module, args, kwargs)
        if mode is not None:
            stack.enter_context(_fake_weights(module, mode))
            args, kwargs = tree_map(lambda v: to_fake(v, mode), (args, kwargs))
            stack.enter_context(mode)
        stack.enter_context(torch.no_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(whole_user_stacks())
        return torch.export.export(module, args, kwargs, strict=False)


def _as_module(x: Callable[..., Any]) -> nn.Module:
    if isinstance(x, fx.GraphModule):
        return _Traced(x)
    return x if isinstance(x, nn.Module) else _Function(x)


def parameter_names(x: Any) -> tuple[str, ...]:
    """Names of the positional parameters of what the user calls, as far as Python tells."""
    called = x.forward if isinstance(x, nn.Module) else x
    if isinstance(x, ExportedProgram) or not callable(called):
        return ()
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds)


# ---------------------------------------------------------------- fake and meta weights
def _fake_mode(module: nn.Module, args: Any, kwargs: Any) -> FakeTensorMode | None:
    """The mode of the fake tensors among weights and inputs, a new one for meta tensors, None if all is real."""
    tensors = [*module.parameters(), *module.buffers(), *tree_flatten((args, kwargs))[0]]
    tensors = [t for t in tensors if isinstance(t, Tensor)]
    mode = detect_fake_mode(tensors)
    if mode is not None:
        return mode
    return FakeTensorMode(allow_non_fake_inputs=True) if any(t.is_meta for t in tensors) else None


def to_fake(value: Any, mode: FakeTensorMode) -> Any:
    """A fake CPU tensor of the same shape; other values stay. A fake tensor of the mode is itself."""
    if not isinstance(value, Tensor) or (isinstance(value, FakeTensor) and not value.is_meta):
        return value
    if not value.is_meta:
        return mode.from_tensor(value)
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


@contextmanager
def _fake_weights(module: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Put fake CPU tensors in the place of the module's weights that are not fake yet, and take them out again."""
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    known: dict[int, Tensor] = {}
    try:
        for part in module.modules():
            for table in cast("tuple[dict[str, Any], ...]", (part._parameters, part._buffers)):
                for name, value in list(table.items()):
                    if value is None or (isinstance(value, FakeTensor) and not value.is_meta):
                        continue
                    fake = known.setdefault(id(value), to_fake(value.detach(), mode))
                    replaced.append((table, name, value))
                    table[name] = nn.Parameter(fake, value.requires_grad) if table is part._parameters else fake
        yield
    finally:
        for table, name, value in replaced:
            table[name] = value


# ---------------------------------------------------------------- source lines
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
"""Our own files. By folder, not by name: the user's program may lie in a clone called mlirstitch."""
_LIBRARIES = (str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"])


def _is_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((*_LIBRARIES, "<frozen"))


def user_frames(stack: traceback.StackSummary, tracer: str = __file__) -> traceback.StackSummary:
    """The frames of the user's code and the ``forward`` methods of torch's modules.

    Frames outside the program (our own and those of the caller of the compiler) are cut off: all up to the last one of
    the file ``tracer``, which calls the program.
    """
    frames = list(stack)
    own = [i for i, frame in enumerate(frames) if frame.filename == tracer]
    inside = frames[own[-1] + 1 :] if own else frames
    return traceback.StackSummary.from_list(
        [f for f in inside if (f.name == "forward" or _is_users(f)) and f.filename not in uninteresting_files()]
    )


@contextmanager
def whole_user_stacks(tracer: str = __file__) -> Iterator[None]:
    """Record, for every traced op, all of :func:`user_frames`.

    torch records ``forward`` methods only, which leaves ops of plain functions without a line.
    """

    def keep(self: TracerBase, user_stack_summary: traceback.StackSummary) -> traceback.StackSummary:
        return user_frames(user_stack_summary, tracer)

    original = TracerBase._filter_traceback_frames
    TracerBase._filter_traceback_frames = keep
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = original


# ---------------------------------------------------------------- errors
_GRADIENT_HINT = (
    "give a training step as a function of tensors (weights included); torch.func.grad and vjp inside it are expanded"
)


def _is_about_gradients(error: Exception) -> bool:
    text = str(error)
    return "grad" in text and any(word in text for word in ("functorch", "vjp", "requires_grad", "autograd"))


_DYNAMIC = ("GuardOnDataDependentSymNode", "DynamicOutputShapeException", "DataDependentOutputException")
_DEBUGGING_OF_TORCH = ("Caused by: (", "consider using data", "For ", "If you suspect the guard")
"""Beginnings of lines that tell how to debug torch itself."""


def export_failure(error: Exception) -> ImportFailure:
    """The user-facing form of an exception that torch raised while it exported a program."""
    hint = "trace it with torch.export.export(..., strict=False) to see torch's own report"
    return _failure(
        "torch.export cannot trace the program", error, _GRADIENT_HINT if _is_about_gradients(error) else hint
    )


def step_failure(error: Exception) -> ImportFailure:
    """The user-facing form of an exception that torch raised while a training step was traced."""
    return _failure("torch cannot trace the step", error, "do one step in eager PyTorch: it may say more")


def _failure(what: str, error: Exception, hint: str) -> ImportFailure:
    text = str(error).strip()
    message = text.split("\n\nWhile executing")[0].split("\n\nThe following call raised")[0]
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith(_DEBUGGING_OF_TORCH)]
    message = "\n".join(lines)[:600] or type(error).__name__
    if "data-dependent" in text or type(error).__name__ in _DYNAMIC:
        hint = "shapes and branches that depend on tensor contents cannot be compiled; keep that part in eager"
    return ImportFailure(f"{what} ({type(error).__name__}): {message}", hint=hint, source=user_line(error))


def user_line(error: BaseException) -> str:
    """``file.py:12`` of the innermost frame of a traceback that is neither a library's nor ours, or ""."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        ours = frame.filename.startswith(_PACKAGE) or frame.filename.startswith("<")
        if _is_users(frame) and "site-packages" not in frame.filename and not ours:
            return f"{frame.filename}:{frame.lineno}"
    return ""
