"""Scans and scatters: ops of our own that decompositions answer with, and how they leave the aten graph.

torch_mlir lowers prefix scans and writes through indices to a dialect of its own, elements listed one by one. It is
shown neither: each such op is cut out of the graph before it works, and put back into the IR by ``splicing.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from mlirstitch.driver.torch_import.checks import source_of
from mlirstitch.driver.torch_import.splicing import SCAN, SCATTER, Cut

_LIBRARY = torch.library.Library("mlirstitch", "FRAGMENT")
_LIBRARY.define("prefix_scan(Tensor x, int dim, str combine) -> Tensor")
_LIBRARY.define("combine_at(Tensor x, int dim, Tensor index, Tensor source, str combine) -> Tensor")


@torch.library.register_fake("mlirstitch::prefix_scan", lib=_LIBRARY)
def _prefix_scan(x: Tensor, dim: int, combine: str) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.register_fake("mlirstitch::combine_at", lib=_LIBRARY)
def _combine_at(x: Tensor, dim: int, index: Tensor, source: Tensor, combine: str) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def prefix_scan(x: Tensor, dim: int, combine: str) -> Tensor:
    """Every element combined with those before it along ``dim`` (not negative), itself included.

    x: a tensor of more than one element along ``dim``, of any type but bool; computed in its own type. combine: "add",
    "mul", "max", "min" (NaN is contagious) or "logaddexp".
    """
    result: Tensor = torch.ops.mlirstitch.prefix_scan(x, dim, combine)
    return result


def combine_at(x: Tensor, dim: int, index: Tensor, source: Tensor, combine: str) -> Tensor:
    """x with updates combined into the positions along ``dim`` (not negative) that ``index`` names.

    x [..., D, ...], source [..., N, ...], otherwise of the same shape and type; index int64, [N] or of source's shape.
    An index outside 0 ... D-1 names nothing. combine: "add", "mul", "max" or "min".
    """
    result: Tensor = torch.ops.mlirstitch.combine_at(x, dim, index, source, combine)
    return result


def lift_ops(graph: fx.Graph) -> list[Cut]:
    """Cut the ops of this module out of the graph: operands become outputs, the result a placeholder, at the end."""
    scan, scatter = torch.ops.mlirstitch.prefix_scan.default, torch.ops.mlirstitch.combine_at.default
    nodes = [n for n in graph.nodes if n.op == "call_function" and n.target in (scan, scatter)]
    if not nodes:
        return []
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    cuts: list[Cut] = []
    for node in nodes:
        if node.target is scan:
            tensor, dim, combine = node.args
            kind, operands = SCAN, [tensor]
        else:
            tensor, dim, index, source, combine = node.args
            kind, operands = SCATTER, [tensor, index, source]
        last = placeholders[-1]
        with graph.inserting_after(last):
            stand_in = graph.placeholder(f"cut_{len(cuts)}")
        stand_in.meta = dict(node.meta)
        placeholders.append(stand_in)
        positions = tuple(range(len(results), len(results) + len(operands)))
        cuts.append(Cut(kind, int(dim), str(combine), positions, len(placeholders) - 1, source_of(node)))  # type: ignore[arg-type]
        results.extend(operands)
        node.replace_all_uses_with(stand_in)
        results = [stand_in if value is node else value for value in results]
        output.args = (tuple(results),)
        graph.erase_node(node)
    graph.lint()
    return cuts
