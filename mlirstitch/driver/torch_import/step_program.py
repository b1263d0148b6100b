"""From the traced graph of a training step to a flat program: decomposed, without mutation, every argument labelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch.export.graph_signature import ConstantArgument
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_flatten

from mlirstitch.driver.calling import CallingConvention, tree_of
from mlirstitch.driver.torch_import.checks import check_before_decomposition, refuse
from mlirstitch.driver.torch_import.decompositions.pooling import max_pool2d_with_positions
from mlirstitch.driver.torch_import.exporting import step_failure
from mlirstitch.driver.torch_import.program import (
    Argument,
    FlatProgram,
    Result,
    UniqueNames,
    input_names,
    is_small,
    leaves_of,
    type_of,
)
from mlirstitch.driver.torch_import.training import Batch, State, TracedStep
from mlirstitch.errors import ImportFailure, MlirstitchError

aten = torch.ops.aten

_COPIES = (aten.lift_fresh_copy.default, aten.lift_fresh.default)
_ALIASES = (aten.clone.default, aten.detach.default, aten.alias.default)
LOSS = "loss"
"""Name of the result that the caller gets back."""


@dataclass(frozen=True)
class _Constant:
    """A tensor that the program closes over. ``literal``: it is written in the program, and small."""

    name: str
    tensor: Tensor
    literal: bool


def flatten_step(
    traced: TracedStep,
    states: Sequence[State],
    batch: Batch,
    table: Mapping[Any, Callable[..., Any]],
    parameter_names: tuple[str, ...],
) -> FlatProgram:
    """Decompose by ``table`` and label: states, closed-over constants, then the batch.

    States that the step neither reads nor writes are left out. ``parameter_names`` are those of the model's positional
    arguments, and after them those of the loss.

    Raises:
        ImportFailure: the program holds what cannot be compiled, closes over a weight that it should have looked up, or
            changes its input.
    """
    check_before_decomposition(traced.module.graph)
    constants = _lift_constants(traced.module, states)
    graph = _decomposed(traced, table)
    inner = [n for n in graph.nodes if n.op == "placeholder"]
    count = len(states) + len(constants)
    by_key = {state.key: node for state, node in zip(states, inner, strict=False)}
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    *new, loss = output.args[0]  # type: ignore[misc]
    updates = {key: n for key, n in zip(traced.updated, new, strict=True) if _origin(n) is not by_key[key]}
    output.args = ((*updates.values(), loss),)
    graph.eliminate_dead_code()

    names = UniqueNames()
    arguments: list[Argument] = []
    weights: dict[int, Tensor] = {}
    literals: dict[int, Tensor] = {}
    results: list[Result] = []
    for state, node in zip(states, inner, strict=False):
        if not node.users and state.key not in updates:
            graph.erase_node(node)
            continue
        name = names.add(state.name, state.name)
        weights[len(arguments)] = state.tensor
        arguments.append(Argument(name, state.role, *type_of(node, name)))
        if state.key in updates:
            results.append(Result(f"{name} (updated)", type_of(updates[state.key], name)[0], name))
    for constant, node in zip(constants, inner[len(states) : count], strict=True):
        name = names.add(constant.name, constant.name)
        (literals if constant.literal else weights)[len(arguments)] = constant.tensor
        arguments.append(Argument(name, "constant", *type_of(node, name)))
    results.append(Result(LOSS, type_of(loss, LOSS)[0]))

    leaves, spec = batch.flatten()
    tensors = iter(inner[count:])
    for wanted, leaf in zip(input_names(spec, parameter_names), leaves, strict=True):
        if isinstance(leaf, Tensor):
            name = names.add(wanted, wanted)
            arguments.append(Argument(name, "input", *type_of(next(tensors), name)))
    graph.lint()
    out_spec = tree_flatten(0)[1]
    calling = CallingConvention(
        tree_of(spec, leaves_of([v if isinstance(v, Tensor) else ConstantArgument("", v) for v in leaves])),
        tree_of(out_spec, leaves_of([loss])),
        tuple(a.name for a in arguments if a.role == "input"),
        parameter_names,
    )
    return FlatProgram(graph, tuple(arguments), tuple(results), weights, literals, calling, spec, out_spec)


def _origin(node: fx.Node) -> fx.Node:
    """The node that a chain of copies starts from."""
    while node.target in _ALIASES:
        node = node.all_input_nodes[0]
    return node


def _lift_constants(module: fx.GraphModule, states: Sequence[State]) -> list[_Constant]:
    """Turn the tensors that the graph closes over into placeholders behind those of the states."""
    graph = module.graph
    kept = {id(state.tensor): state.name for state in states}
    last = [n for n in graph.nodes if n.op == "placeholder"][: len(states)][-1]
    lifted: dict[str, fx.Node] = {}
    constants: list[_Constant] = []
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        target = str(node.target)
        tensor = getattr(module, target)
        if not isinstance(tensor, Tensor):
            raise refuse(node, "control flow over tensors is not compiled", "choose with torch.where")
        if id(tensor) in kept:
            raise refuse(
                node,
                f"the program uses the tensor of {kept[id(tensor)]} from before the import, which has no gradient here",
                "look it up in the model while the loss is computed: model.get_parameter(name)",
            )
        if target not in lifted:
            with graph.inserting_after(last):
                last = lifted[target] = graph.placeholder(target)
            last.meta = dict(node.meta)
            uses = [u for n in graph.nodes if n.op == "get_attr" and n.target == target for u in n.users]
            constants.append(_Constant(target, tensor, is_small(tensor) and all(u.target in _COPIES for u in uses)))
        node.replace_all_uses_with(lifted[target])
        graph.erase_node(node)
    return constants


def _decomposed(traced: TracedStep, table: Mapping[Any, Callable[..., Any]]) -> fx.Graph:
    graph = traced.module.graph
    for node in graph.nodes:
        if node.target is aten.view.default:  # decompositions may give other strides than eager
            node.target = aten.reshape.default
        elif node.target is aten.max_pool2d_with_indices.default and any(u.args[1] == 1 for u in node.users):
            node.target = max_pool2d_with_positions
    traced.module.recompile()
    run = functionalize(fx.Interpreter(traced.module).run, remove="mutations")
    values = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
    try:
        with traced.mode, torch.no_grad(), preserve_node_meta(), enable_python_dispatcher():
            done = make_fx(run, decomposition_table=dict(table))(*values).graph
    except MlirstitchError:
        raise
    except Exception as error:
        raise step_failure(error) from error
    for node in done.nodes:
        if node.target is aten.copy_.default:
            raise ImportFailure("the step changes its input in place", hint="clone the tensor in the model first")
    return done
