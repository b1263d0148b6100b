"""Tensors without elements: what is computed from nothing else is a constant, and eager PyTorch tells which.

torch_mlir divides by the number of elements while it matches reshapes, which ends the process when there are none.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

aten = torch.ops.aten


def fold_empty_tensors(graph: fx.Graph) -> None:
    """Replace ops by ``aten.full`` where the answer does not depend on any element.

    These are the ops whose results are all empty (a slice of nothing, ``cat`` of nothings) and those whose tensor
    operands are all empty (the sum of nothing is 0, its mean NaN, padding of nothing the padding). Empty operands of
    ``cat`` beside others are dropped.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if node.target is aten.cat.default:
            _drop_empty_operands(node)
        results = list(_tensors(node))
        if not results:
            continue
        if all(value.numel() == 0 for value in results):
            _replace(graph, node, [0] * len(results))
        elif node.all_input_nodes and all(v.numel() == 0 for n in node.all_input_nodes for v in _tensors(n)):
            numbers = _computed(node)
            if numbers is not None:
                _replace(graph, node, numbers)
    graph.eliminate_dead_code()


def _tensors(node: fx.Node) -> Iterator[Tensor]:
    value = node.meta.get("val")
    for part in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(part, Tensor):
            yield part


def _drop_empty_operands(node: fx.Node) -> None:
    operands: Any = node.args[0]
    kept = [n for n in operands if any(value.numel() for value in _tensors(n))]
    if kept and len(kept) < len(operands):
        node.update_arg(0, kept)


def _computed(node: fx.Node) -> list[bool | int | float] | None:
    """The number that fills each result, computed by eager PyTorch, or None if a result holds several."""

    def real(operand: fx.Node) -> Any:
        value = operand.meta["val"]
        return torch.empty(value.shape, dtype=value.dtype, device="cpu")

    if any(not isinstance(n.meta.get("val"), Tensor) for n in node.all_input_nodes):
        return None
    arguments, named = fx.map_arg((node.args, node.kwargs), real)
    target: Any = node.target
    made = target(*arguments, **named)
    numbers: list[bool | int | float] = []
    for value in made if isinstance(made, (tuple, list)) else (made,):
        different = torch.unique(value)
        if different.numel() > 1:
            return None
        numbers.append(different.item() if different.numel() else 0)
    return numbers


def _replace(graph: fx.Graph, node: fx.Node, numbers: list[bool | int | float]) -> None:
    """Fill the results of ``node`` with one number each."""
    parts = [node]
    if isinstance(node.meta["val"], (tuple, list)):
        parts = [user for user in node.users if user.target is operator.getitem]
        numbers = [numbers[int(user.args[1])] for user in parts]  # type: ignore[arg-type]
    for part, number in zip(parts, numbers, strict=True):
        value = part.meta["val"]
        with graph.inserting_before(part):
            constant = graph.call_function(aten.full.default, (list(value.shape), number), {"dtype": value.dtype})
        constant.meta = dict(part.meta)
        part.replace_all_uses_with(constant)
        graph.erase_node(part)
