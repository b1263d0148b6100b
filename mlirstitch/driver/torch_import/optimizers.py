"""The update of an optimizer as a function of tensors: weight, gradient and state in, new weight and state out.

A ``torch.optim`` object is read, never written. Formulas: torch's SGD (with its momentum that starts at the first
gradient), Adam (Kingma and Ba 2015, algorithm 1), AdamW (Loshchilov and Hutter 2019, algorithm 2), AMSGrad (Reddi et
al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mlirstitch.driver.torch_import.decompositions.registry import computing
from mlirstitch.errors import ImportFailure

SUPPORTED = ("SGD", "Adam", "AdamW")
"""Classes of ``torch.optim`` that can be imported; subclasses may do anything and are not."""

Number = float | Tensor
"""A Python number, or a 0-d tensor."""


class Rule(Protocol):
    """How one parameter group is updated.

    ``slots`` names the state tensors of a weight, each of the weight's shape and type and zero at the start;
    ``counts_steps`` says whether the update depends on the number of the step.
    """

    @property
    def slots(self) -> tuple[str, ...]: ...

    @property
    def counts_steps(self) -> bool: ...

    def factors(self, rate: Number, step: Tensor | None) -> tuple[Number, ...]:
        """What all weights of the group share, from the learning rate and the number of this step (from 1; 0-d)."""
        ...

    def update(
        self, weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor], factors: Sequence[Number]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """New weight and new state, in the types of the old ones; half types are computed in float32."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent; all fields as in ``torch.optim.SGD``. Dampening is 0."""

    momentum: float
    weight_decay: float
    nesterov: bool
    maximize: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def counts_steps(self) -> bool:
        return False

    def factors(self, rate: Number, step: Tensor | None) -> tuple[Number, ...]:
        return (rate,)

    def update(
        self, weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor], factors: Sequence[Number]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        w, g = computing(weight), computing(gradient)
        g = -g if self.maximize else g
        if self.weight_decay:
            g = g + w * self.weight_decay
        new: dict[str, Tensor] = {}
        if self.momentum:
            buffer = computing(state["momentum_buffer"]) * self.momentum + g
            new["momentum_buffer"] = buffer.to(weight.dtype)
            g = g + buffer * self.momentum if self.nesterov else buffer
        return (w - g * factors[0]).to(weight.dtype), new


@dataclass(frozen=True)
class Adam:
    """Adam, AdamW (``decoupled``) and their AMSGrad forms; fields as in ``torch.optim.Adam``."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    amsgrad: bool
    maximize: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if self.amsgrad else ("exp_avg", "exp_avg_sq")

    @property
    def counts_steps(self) -> bool:
        return True

    def factors(self, rate: Number, step: Tensor | None) -> tuple[Number, ...]:
        """Step size, root of the second bias correction, and what decoupled decay leaves of a weight."""
        assert step is not None
        second = _bias_correction(self.beta2, step)
        root = second.sqrt() if isinstance(second, Tensor) else math.sqrt(second)
        kept = 1.0 - rate * self.weight_decay if self.decoupled else 1.0
        return rate / _bias_correction(self.beta1, step), root, kept

    def update(
        self, weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor], factors: Sequence[Number]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        step_size, root, kept = factors
        w, g = computing(weight), computing(gradient)
        g = -g if self.maximize else g
        if self.weight_decay and self.decoupled:
            w = w * kept
        elif self.weight_decay:
            g = g + w * self.weight_decay
        first, second = computing(state["exp_avg"]), computing(state["exp_avg_sq"])
        first = first + (g - first) * (1.0 - self.beta1)
        second = second * self.beta2 + g * g * (1.0 - self.beta2)
        new = {"exp_avg": first, "exp_avg_sq": second}
        if self.amsgrad:
            second = new["max_exp_avg_sq"] = torch.maximum(computing(state["max_exp_avg_sq"]), second)
        w = w - step_size * (first / (second.sqrt() / root + self.eps))
        return w.to(weight.dtype), {slot: value.to(state[slot].dtype) for slot, value in new.items()}


def _bias_correction(beta: float, step: Tensor) -> Number:
    """``1 - beta ** step``; in float32 the subtraction would lose 4 digits where beta is 0.999."""
    return -torch.expm1(step * math.log(beta)) if beta > 0.0 else 1.0


@dataclass(frozen=True)
class Group:
    """One parameter group: its rule, its learning rate (a 0-d tensor is looked up at every step) and its weights.

    ``states``: for every weight the state tensor of every slot of the rule, as it is now; ``steps``: how many steps it
    has seen.
    """

    rule: Rule
    rate: Number
    weights: tuple[str, ...]
    states: Mapping[str, Mapping[str, Tensor]]
    steps: Mapping[str, float]


@dataclass(frozen=True)
class Optimizer:
    """Parameter groups in the optimizer's order."""

    groups: tuple[Group, ...]

    def steps_done(self, weights: Sequence[str]) -> float:
        """The one number of steps that all these weights have seen. Raises ImportFailure where they differ."""
        steps = {name: group.steps[name] for group in self.groups for name in weights if name in group.steps}
        first = next(iter(steps), "")
        for name, count in steps.items():
            if count != steps[first]:
                raise ImportFailure(
                    f"the optimizer has done {steps[first]:g} steps for {first} and {count:g} for {name}",
                    hint="one counter is kept for all weights; start with a new optimizer",
                )
        return steps.get(first, 0.0)


def read_optimizer(optimizer: torch.optim.Optimizer, trained: Mapping[str, Tensor]) -> Optimizer:
    """Rules, weights and state of an optimizer; ``trained`` are the weights that get gradients, by name.

    State that the optimizer does not have yet is zero; other state is copied.

    Raises:
        ImportFailure: the optimizer is none of :data:`SUPPORTED`, or uses an option that has no form here.
    """
    _check_class(optimizer)
    by_identity = {id(tensor): name for name, tensor in trained.items()}
    groups: list[Group] = []
    for number, settings in enumerate(optimizer.param_groups):
        rule = _rule(optimizer, settings, f"parameter group {number}")
        names = tuple(by_identity[id(p)] for p in settings["params"] if id(p) in by_identity)
        known = {name: optimizer.state.get(trained[name], {}) for name in names}
        states = {name: {slot: _slot(known[name].get(slot), trained[name]) for slot in rule.slots} for name in names}
        steps = {name: float(known[name].get("step", 0.0)) for name in names}
        groups.append(Group(rule, _rate(settings["lr"]), names, states, steps))
    return Optimizer(tuple(groups))


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """All tensors that the optimizer updates."""
    for settings in optimizer.param_groups:
        yield from settings["params"]


def _check_class(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ImportFailure(
            f"a {type(optimizer).__name__} is no optimizer", hint=f"give one of torch.optim: {', '.join(SUPPORTED)}"
        )
    if type(optimizer) not in [getattr(torch.optim, name) for name in SUPPORTED]:
        raise ImportFailure(
            f"the optimizer {type(optimizer).__name__} is not supported",
            hint=f"use one of torch.optim: {', '.join(SUPPORTED)}; or write the step as a function of tensors",
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ImportFailure(
            f"the optimizer {type(optimizer).__name__} has step hooks, which would not run",
            hint="remove the hooks before the import",
        )


def _rule(optimizer: torch.optim.Optimizer, settings: Mapping[str, Any], where: str) -> Rule:
    """The rule of one group; ``foreach``, ``fused`` and ``capturable`` say how torch computes, not what."""

    def number(key: str, value: Any) -> float:
        if isinstance(value, Tensor):
            raise _option(optimizer, where, f"{key} is a tensor", f"give {key} as a number; lr may be a tensor")
        return float(value)

    if settings["differentiable"]:
        raise _option(optimizer, where, "differentiable=True", "leave it out: the step is not differentiated again")
    decay, maximize = number("weight_decay", settings["weight_decay"]), bool(settings["maximize"])
    if isinstance(optimizer, torch.optim.SGD):
        if settings["dampening"] != 0:
            raise _option(optimizer, where, f"dampening={settings['dampening']}", "use dampening=0")
        return Sgd(number("momentum", settings["momentum"]), decay, bool(settings["nesterov"]), maximize)
    beta1, beta2 = (number("betas", beta) for beta in settings["betas"])
    decoupled = bool(settings["decoupled_weight_decay"])
    return Adam(beta1, beta2, number("eps", settings["eps"]), decay, decoupled, bool(settings["amsgrad"]), maximize)


def _option(optimizer: object, where: str, what: str, hint: str) -> ImportFailure:
    return ImportFailure(f"{type(optimizer).__name__}, {where}: {what} is not supported", hint=hint)


def _rate(value: Any) -> Number:
    if not isinstance(value, Tensor):
        return float(value)
    if value.ndim:
        raise ImportFailure(f"the learning rate has the shape {list(value.shape)}", hint="give a 0-d tensor")
    return value


def _slot(known: Tensor | None, weight: Tensor) -> Tensor:
    if known is not None:
        return known.detach().clone()
    return torch.zeros_like(weight.detach(), memory_format=torch.contiguous_format)
