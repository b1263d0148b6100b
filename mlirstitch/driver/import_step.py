"""A training step of PyTorch, as one program: loss, gradients and the optimizer's update."""

from __future__ import annotations

from mlirstitch.errors import ImportFailure

try:
    from mlirstitch.driver.import_torch import decompositions, lower_program, without_torch_warnings
except ModuleNotFoundError as error:
    raise ImportFailure(
        f"importing a training step needs {error.name}, which is not installed",
        hint="pip install torch==2.13.0, then pip install 'mlirstitch[torch]'",
    ) from error

import inspect  # isort: skip  after import_torch, which loads MLIR in the right order
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from mlirstitch.driver.imported import ImportedModel
from mlirstitch.driver.markers import recording
from mlirstitch.driver.torch_import.exporting import parameter_names
from mlirstitch.driver.torch_import.optimizers import parameters, read_optimizer
from mlirstitch.driver.torch_import.step_program import flatten_step
from mlirstitch.driver.torch_import.training import Batch, Clipping, collect_states, trace_step


def import_step(
    model: nn.Module,
    loss: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer,
    inputs: Any,
    *,
    targets: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
) -> ImportedModel:
    """Import one step of training: forward, backward, and the update of everything that it changes.

    The program is called with the inputs and then the targets, and gives the loss before the update. Its other
    arguments are weights under their own names, buffers, and the optimizer's state under ``optimizer.SLOT.WEIGHT``,
    ``optimizer.step`` (steps done, 0-d float32) and, where the learning rate is a tensor, ``optimizer.lr.GROUP``; each
    has a result that mutates it if the step changes it. A tied weight is one argument; weights that the loss does not
    depend on are left alone, as ``optimizer.step()`` does.

    Args:
        model: in the mode it shall train in. Weights on the meta device or fake ones are never allocated: the program
            can be planned and compiled, not run.
        loss: ``loss(model(*inputs, **kwargs), *targets)`` gives a 0-d tensor, a mean over the batch; None if the model
            returns the loss itself.
        optimizer: SGD, Adam or AdamW of ``torch.optim``. Its hyper-parameters and state are read, the object is not
            touched; state it has not made yet starts at zero. A learning rate given as a 0-d tensor is looked up at
            every step, so that a scheduler may change it.
        inputs, kwargs: example arguments of the model: a tuple, or one tensor. Shapes and types are fixed.
        targets: example arguments of the loss after the output: a tuple, or one tensor.
        clip_norm, clip_value: as ``torch.nn.utils.clip_grad_norm_`` and then ``clip_grad_value_`` before the update.

    The batch is the whole one. Micro-batches are a split of the batch in time, made by a partition plan on this program
    (gradients of a mean over the batch are sums over its parts): the import does not need to know.

    Raises:
        ImportFailure: the step cannot be traced or compiled, or the optimizer is not supported; names the op, its
            shapes and the user's line, or the option.
    """
    source = _caller()
    batch = Batch(_tuple(inputs), _tuple(targets), dict(kwargs or {}))
    _check_shared(model)
    chosen = read_optimizer(optimizer, _trained(model, optimizer))
    states = collect_states(model, chosen)
    clipping = Clipping(_limit("clip_norm", clip_norm), _limit("clip_value", clip_value))
    with without_torch_warnings(), recording() as requests:
        traced = trace_step(model, loss, chosen, states, batch, clipping, source)
        reached = [key[1] for key in traced.updated if key[0] == "weight"]
        for state in states:
            if state.key == ("step",):
                state.tensor.fill_(chosen.steps_done(reached))
        program = flatten_step(traced, states, batch, decompositions(), _names(model, loss))
    return replace(lower_program(program), requests={name: tuple(texts) for name, texts in requests.items()})


def _tuple(values: Any) -> tuple[Any, ...]:
    return (values,) if isinstance(values, Tensor) else tuple(values)


def _limit(name: str, value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise ImportFailure(f"{name} is {value}", hint="give a positive number, or leave it out")
    return None if value is None else float(value)


def _names(model: nn.Module, loss: Callable[..., Any] | None) -> tuple[str, ...]:
    """Names of positional parameters in the order of a call: the model's, and those of the loss after the output."""
    return (*parameter_names(model), *(parameter_names(loss)[1:] if loss is not None else ()))


def _caller() -> str:
    """``file.py:12`` of the code outside this package that asked for the import, or ""."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights that the optimizer updates, by name."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {}
    names = {id(p): name for name, p in model.named_parameters()}
    trained: dict[str, Tensor] = {}
    for parameter in parameters(optimizer):
        name = names.get(id(parameter))
        if name is None:
            raise ImportFailure(
                f"the optimizer updates a tensor of shape {list(parameter.shape)} that is no weight of the model",
                hint="make it from model.parameters(), after the model is on its device; a loss with weights belongs "
                "into the model",
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ImportFailure(
                f"weight {name} has gradient hooks, which would not run",
                hint="remove them; clip_norm and clip_value limit gradients",
            )
        if parameter.requires_grad:
            trained[name] = parameter
    return trained


def _check_shared(model: nn.Module) -> None:
    """Refuse two parameters over one memory: each would be updated as if it were alone."""
    seen: dict[tuple[int, torch.Size], str] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_meta or parameter.numel() == 0 or isinstance(parameter, FakeTensor):
            continue
        other = seen.setdefault((parameter.data_ptr(), parameter.shape), name)
        if other != name:
            raise ImportFailure(
                f"weights {other} and {name} are two parameters over the same memory",
                hint="tie weights by assigning the parameter itself: b.weight = a.weight",
            )
