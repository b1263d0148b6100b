"""A whole training step as a graph: loss, gradients, update of weights, buffers and optimizer state.

Autograd itself is traced, so that gradients are torch's own, ``no_grad`` regions and custom gradients included. All
tensors are fake while that happens: nothing is computed, nothing of the size of a weight is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from mlirstitch.driver.torch_import.decompositions.registry import computing
from mlirstitch.driver.torch_import.exporting import step_failure, to_fake
from mlirstitch.driver.torch_import.gradient_tracing import (
    carry_stacks_backward,
    set_stack,
    stack_of,
    tracing_gradients,
)
from mlirstitch.driver.torch_import.optimizers import Group, Optimizer
from mlirstitch.errors import ImportFailure, MlirstitchError

T = TypeVar("T")
Key = tuple[str, ...]
"""What a state is: ``("weight", name)``, ``("buffer", name)``, ``("slot", slot, weight)``, ``("step",)``,
``("rate", group)``."""


@dataclass(frozen=True)
class Clipping:
    """Limits of gradients: of the norm of all of them together, and of every element; None is no limit."""

    norm: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class State:
    """One tensor that the program keeps from step to step; ``role`` as of an argument."""

    key: Key
    name: str
    tensor: Tensor
    role: str = "weight"


@dataclass(frozen=True)
class Batch:
    """What the caller passes at every step: arguments of the model, and what the loss takes after the output."""

    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def flatten(self) -> tuple[list[Any], TreeSpec]:
        """Leaves and specification of ``((*inputs, *targets), kwargs)``."""
        return tree_flatten(((*self.inputs, *self.targets), dict(self.kwargs)))

    def with_tensors(self, tensors: Sequence[Tensor]) -> Batch:
        """The batch with other tensors; other leaves stay."""
        leaves, spec = self.flatten()
        remaining = iter(tensors)
        args, kwargs = tree_unflatten([next(remaining) if isinstance(v, Tensor) else v for v in leaves], spec)
        return Batch(args[: len(self.inputs)], args[len(self.inputs) :], kwargs)

    def tensors(self) -> list[Tensor]:
        """The leaves that are tensors, in order."""
        return [v for v in self.flatten()[0] if isinstance(v, Tensor)]


@dataclass(frozen=True)
class TracedStep:
    """The graph of a step, before decomposition.

    Placeholders are all states, then the batch's tensors; results are the new contents of the states ``updated`` names
    (all buffers among them), in that order, and the loss. Tensors that the program closes over are attributes of the
    module.
    """

    module: fx.GraphModule
    updated: tuple[Key, ...]
    mode: FakeTensorMode


def collect_states(model: nn.Module, optimizer: Optimizer) -> list[State]:
    """Weights, buffers, and the optimizer's state, in the order in which they become arguments; tied ones once."""
    weights = dict(model.named_parameters())
    states = [State(("weight", name), name, tensor) for name, tensor in weights.items()]
    persistent = model.state_dict()
    for name, tensor in model.named_buffers():
        states.append(State(("buffer", name), name, tensor, "weight" if name in persistent else "constant"))
    slots = {name: slots for group in optimizer.groups for name, slots in group.states.items()}
    for name in weights:
        for slot, tensor in slots.get(name, {}).items():
            states.append(State(("slot", slot, name), f"optimizer.{slot}.{name}", tensor))
    if any(group.rule.counts_steps for group in optimizer.groups):
        states.append(State(("step",), "optimizer.step", torch.zeros((), dtype=torch.float32)))
    for number, group in enumerate(optimizer.groups):
        if isinstance(group.rate, Tensor):
            states.append(State(("rate", str(number)), f"optimizer.lr.{number}", group.rate))
    return states


def trace_step(
    model: nn.Module,
    loss: Callable[..., Any] | None,
    optimizer: Optimizer,
    states: Sequence[State],
    batch: Batch,
    clipping: Clipping,
    source: str,
) -> TracedStep:
    """Forward, backward and update of one batch, as aten ops.

    ``loss(model(*inputs, **kwargs), *targets)``, or without loss the model's own result, is minimised. Ops carry the
    user's line, those of the backward the line of the op whose gradient they compute, those of the update and others
    without a line of the user's ``source`` (``file.py:12``, or "").

    Raises:
        ImportFailure: torch cannot trace the step, there is no 0-d float loss or no weight that it depends on, or the
            step changes its input.
    """
    tensors = batch.tensors()
    mode = detect_fake_mode([*(s.tensor for s in states), *tensors]) or FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [to_fake(v.detach(), mode) for v in (*(s.tensor for s in states), *tensors)]
    step = _Step(_Objective(model, loss), optimizer, [s.key for s in states], batch, clipping, source)
    try:
        with mode, tracing_gradients(__file__):
            module = make_fx(step, record_stack_traces=True)(*fakes)
    except MlirstitchError:
        raise
    except Exception as error:
        raise step_failure(error) from error
    for node in module.graph.nodes:
        if node.op == "call_function" and not node.stack_trace:
            node.stack_trace = stack_of(source) or None
    return TracedStep(module, tuple(step.updated), mode)


class _Objective(nn.Module):
    """Model and loss under one roof, so that a loss that looks at weights sees those that are traced.

    So does a forward that is run again by the backward (``torch.utils.checkpoint``): ``then`` takes the loss while they
    are in their places.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Batch, then: Callable[[Any], T]) -> T:
        output = self.model(*batch.inputs, **batch.kwargs)
        return then(output if self.loss is None else self.loss(output, *batch.targets))


@dataclass
class _Step:
    """The step as a function of flat tensors. ``updated`` is known when it has run."""

    objective: _Objective
    optimizer: Optimizer
    keys: list[Key]
    batch: Batch
    clipping: Clipping
    source: str
    updated: list[Key] = field(default_factory=list)

    def __call__(self, *flat: Tensor) -> tuple[Tensor, ...]:
        old = dict(zip(self.keys, flat, strict=False))
        tensors = flat[len(self.keys) :]
        new: dict[Key, Tensor] = {}
        loss, gradients = self._differentiate(old, tensors, new)
        set_stack(stack_of(self.source))
        with torch.no_grad():
            self._update(old, _clipped(gradients, self.clipping), new)
        self.updated = [key for key in self.keys if key in new]
        return (*(new[key] for key in self.updated), loss.detach())

    def _differentiate(
        self, old: Mapping[Key, Tensor], tensors: Sequence[Tensor], new: dict[Key, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss, and gradients of the weights that it depends on; buffers after the forward go to ``new``."""
        trained = [name for group in self.optimizer.groups for name in group.weights]
        wanted = set(trained)  # for look-ups only
        weights = {k[1]: v.detach().requires_grad_(k[1] in wanted) for k, v in old.items() if k[0] == "weight"}
        buffers = {k[1]: v.clone() for k, v in old.items() if k[0] == "buffer"}
        batch = self.batch.with_tensors(tensors)
        replaced = {f"model.{name}": v for name, v in (*weights.items(), *buffers.items())}

        def differentiate(loss: Any) -> tuple[Tensor, tuple[Tensor | None, ...]]:
            _check_loss(loss, self.objective.loss is None)
            carry_stacks_backward(loss)
            return loss, torch.autograd.grad(loss, [weights[name] for name in trained], allow_unused=True)

        with torch.enable_grad():
            loss, found = functional_call(self.objective, replaced, (batch, differentiate))
        # A module that assigns to its buffer leaves the new tensor in the dictionary.
        new.update({("buffer", name): replaced[f"model.{name}"].detach() for name in buffers})
        gradients = {name: g for name, g in zip(trained, found, strict=True) if g is not None}
        if not gradients:
            raise _no_weight()
        return loss, gradients

    def _update(self, old: Mapping[Key, Tensor], gradients: Mapping[str, Tensor], new: dict[Key, Tensor]) -> None:
        step = old.get(("step",))
        if step is not None:
            step = new["step",] = step + 1.0
        for number, group in enumerate(self.optimizer.groups):
            reached = [name for name in group.weights if name in gradients]
            if reached:
                rate = old.get(("rate", str(number)), group.rate)
                factors = group.rule.factors(rate, _counted(step, [old["weight", name] for name in reached]))
                for name in reached:
                    self._update_one(group, name, old, gradients[name], factors, new)

    @staticmethod
    def _update_one(
        group: Group,
        name: str,
        old: Mapping[Key, Tensor],
        gradient: Tensor,
        factors: Sequence[float | Tensor],
        new: dict[Key, Tensor],
    ) -> None:
        state = {slot: old["slot", slot, name] for slot in group.rule.slots}
        new["weight", name], slots = group.rule.update(old["weight", name], gradient, state, factors)
        new.update({("slot", slot, name): value for slot, value in slots.items()})


def _counted(step: Tensor | None, weights: Sequence[Tensor]) -> Tensor | None:
    """The number of the step, in float64 where a weight is: torch computes with it as a Python number."""
    wide = any(weight.dtype == torch.float64 for weight in weights)
    return step.to(torch.float64) if step is not None and wide else step


def _check_loss(loss: Any, from_model: bool) -> None:
    what = "the model's result" if from_model else "the loss"
    hint = "reduce it with .mean()" if not from_model else "give loss=..., or let the model return a 0-d tensor"
    if not isinstance(loss, Tensor):
        raise ImportFailure(f"{what} is a {type(loss).__name__}, no tensor", hint=hint)
    if loss.numel() != 1 or loss.ndim or not loss.is_floating_point():
        kind = str(loss.dtype).removeprefix("torch.")
        raise ImportFailure(f"{what} is {kind}{list(loss.shape)}, not a 0-d float", hint=hint)
    if not loss.requires_grad:
        raise _no_weight()


def _no_weight() -> ImportFailure:
    return ImportFailure(
        "the loss depends on no weight of the optimizer", hint="give the optimizer the model's parameters"
    )


def _clipped(gradients: Mapping[str, Tensor], clipping: Clipping) -> dict[str, Tensor]:
    """Gradients as ``clip_grad_norm_`` (2-norm), and then ``clip_grad_value_``, leave them."""
    done = dict(gradients)
    if clipping.norm is not None:
        squares = [(wide * wide).sum() for wide in (computing(g) for g in done.values())]
        norm = torch.stack(squares).sum().sqrt()
        scale = (clipping.norm / (norm + 1e-6)).clamp(max=1.0)
        done = {name: (computing(g) * scale).to(g.dtype) for name, g in done.items()}
    if clipping.value is not None:
        done = {name: g.clamp(-clipping.value, clipping.value) for name, g in done.items()}
    return done
