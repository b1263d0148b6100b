"""Constants of the program as text of dense attributes.

The importer folds ops of constant tensors, and folds them wrongly (``full(-3.0) < 0`` gives false: a negative number is
read as unsigned). So it is shown no constant tensor at all: they become arguments, and are written into the IR as
``arith.constant`` when it has done its work.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

aten = torch.ops.aten

_VALUE_POSITION = {aten.full.default: 1, aten.full_like.default: 1, aten.scalar_tensor.default: 0}
_UNSET = (aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default)


def dense_text(value: Tensor) -> str:
    """A real tensor as the text of a dense attribute; all its elements are written out."""
    flat = value.detach().contiguous().reshape(-1)
    if flat.numel() == 0:
        return "dense<>"
    if flat.dtype == torch.bool:
        return f"dense<{str(value.tolist()).lower()}>"
    return f'dense<"0x{bytes(flat.view(torch.uint8).tolist()).hex().upper()}">'


def lift_splats(graph: fx.Graph) -> list[str]:
    """Turn every tensor filled with one number into a placeholder after the others.

    Returns the dense attributes of the new placeholders, in order. Uninitialised tensors are filled with zeros.
    """
    last = [n for n in graph.nodes if n.op == "placeholder"][-1:]
    known: dict[tuple[str, tuple[int, ...], str], fx.Node] = {}
    texts: list[str] = []
    for node in list(graph.nodes):
        number = _number(node)
        if number is None:
            continue
        value = node.meta["val"]
        text = _splat(number, value)
        key = (str(value.dtype), tuple(value.shape), text)
        if key not in known:
            with graph.inserting_after(last[0]) if last else graph.inserting_before(next(iter(graph.nodes))):
                placeholder = graph.placeholder(f"splat_{len(texts)}")
            placeholder.meta = dict(node.meta)
            last = [placeholder]
            known[key] = placeholder
            texts.append(text)
        node.replace_all_uses_with(known[key])
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return texts


def _number(node: fx.Node) -> bool | int | float | None:
    """The number a node fills its tensor with, or None for any other node."""
    if node.op != "call_function":
        return None
    if node.target in _UNSET:
        return 0
    position = _VALUE_POSITION.get(node.target)  # type: ignore[arg-type]
    if position is None:
        return None
    number = node.args[position]
    return number if isinstance(number, (bool, int, float)) else None


def _splat(number: bool | int | float, like: Tensor) -> str:
    if like.numel() == 0:
        return "dense<>"
    return dense_text(torch.full((), number, dtype=like.dtype, device="cpu"))
