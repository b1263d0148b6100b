"""From what the user gives (module, function, exported program) to an exported program with static shapes."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
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
    module = _as_module(x)
    try:
        with ExitStack() as stack:
            mode = _fake_mode(module, args, kwargs)
            if mode is not None:
                stack.enter_context(_fake_weights(module, mode))
                args, kwargs = tree_map(lambda v: _to_fake(v, mode), (args, kwargs))
                stack.enter_context(mode)
            stack.enter_context(torch.no_grad())
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            return torch.export.export(module, args, kwargs, strict=False)
    except MlirstitchError:
        raise
    except Exception as error:
        raise export_failure(error) from error


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


def _to_fake(value: Any, mode: FakeTensorMode) -> Any:
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
                    fake = known.setdefault(id(value), _to_fake(value.detach(), mode))
                    replaced.append((table, name, value))
                    table[name] = nn.Parameter(fake, value.requires_grad) if table is part._parameters else fake
        yield
    finally:
        for table, name, value in replaced:
            table[name] = value


# ---------------------------------------------------------------- errors
def export_failure(error: Exception) -> ImportFailure:
    """The user-facing form of an exception that torch raised while it traced the program."""
    text = str(error).strip()
    message = text.split("\n\nWhile executing")[0].split("\n\nThe following call raised")[0]
    message = "\n".join(line for line in message.splitlines() if line.strip())[:600] or type(error).__name__
    hint = "trace it with torch.export.export(..., strict=False) to see torch's own report"
    if "grad" in text and ("functorch" in text or "vjp" in text or "requires_grad" in text or "autograd" in text):
        hint = "expand gradients first: torch.fx.experimental.proxy_tensor.make_fx(step)(*inputs), then import that"
    elif "data-dependent" in text or "GuardOnDataDependent" in type(error).__name__:
        hint = "shapes and branches that depend on tensor contents cannot be compiled; keep that part in eager"
    return ImportFailure(
        f"torch.export cannot trace the program ({type(error).__name__}): {message}",
        hint=hint,
        source=user_line(error),
    )


def user_line(error: BaseException) -> str:
    """``file.py:12`` of the innermost frame of a traceback that is neither torch's nor ours, or ""."""
    own = ("/mlirstitch/", "site-packages", "<", "/torch/", "/lib/python")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(part in frame.filename for part in own):
            return f"{frame.filename}:{frame.lineno}"
    return ""
