"""What cannot be compiled, found in the aten graph: before anything native sees it, with op, shapes and user's line."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload

from mlirstitch.driver.torch_import.program import DTYPE_NAMES
from mlirstitch.errors import ImportFailure

_EAGER = "keep this part in eager PyTorch, or rewrite it with supported ops"
_RANDOM = "draw random numbers outside and pass them in; put dropout into eval mode"
_DYNAMIC = "the result's shape depends on tensor contents; use a mask of fixed shape (torch.where) instead"
_SCAN = "this prefix scan is not compiled; cumsum, cumprod, cummax, cummin and logcumsumexp of real numbers are"
_ORDER = "sorting is not compiled yet; max, min and argmax are"
_WRITE = (
    "this form of writing through indices is not compiled: a mask takes a single value, bools are not summed; "
    "torch.where, or a sum of integers, does the same"
)
_COMPLEX = "compute with real and imaginary parts as two real tensors"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_cummax_helper"), _SCAN),
    **dict.fromkeys(("sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "msort"), _ORDER),
    **dict.fromkeys(("unique", "_unique2", "unique_dim", "unique_consecutive", "nonzero", "masked_select"), _DYNAMIC),
    **dict.fromkeys(("_local_scalar_dense", "item", "bincount", "repeat_interleave.Tensor"), _DYNAMIC),
    **dict.fromkeys(
        (
            *("scatter", "scatter_add", "scatter_reduce", "index_put", "_unsafe_index_put", "index_copy", "index_add"),
            *("index_reduce", "masked_scatter", "put", "index_fill", "max_pool2d_with_indices_backward", "histc"),
        ),
        _WRITE,
    ),
    **dict.fromkeys(
        (
            *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli"),
            *("multinomial", "normal", "normal_functional", "uniform", "native_dropout", "dropout", "poisson"),
            *("exponential", "geometric", "cauchy", "log_normal", "rrelu_with_noise", "feature_dropout"),
        ),
        _RANDOM,
    ),
    **dict.fromkeys(
        ("_fft_r2c", "_fft_c2r", "_fft_c2c", "view_as_complex", "view_as_real", "complex", "polar", "angle"), _COMPLEX
    ),
}
"""aten ops without a lowering, and the way out. Names may carry an overload."""

_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Regions that decomposition expands in place."""

_ASSERTIONS = (
    "_assert_async",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)


def source_of(node: fx.Node) -> str:
    """``file.py:12``: the innermost frame of a node's stack that lies outside installed packages, or ""."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [f for f in frames if "site-packages" not in f[0] and not f[0].startswith("<")]
    chosen = (own or frames)[-1:]
    return f"{chosen[0][0]}:{chosen[0][1]}" if chosen else ""


def describe(node: fx.Node) -> str:
    """``aten.sort.stable(float32[4, 8]) -> float32[4, 8], int64[4, 8]``."""
    operands = ", ".join(_shapes(node.all_input_nodes))
    results = ", ".join(_value_text(v) for v in _values(node))
    return f"{_name(node)}({operands})" + (f" -> {results}" if results else "")


def refuse(node: fx.Node, reason: str, hint: str) -> ImportFailure:
    """The error for one node."""
    return ImportFailure(f"{describe(node)}: {reason}", hint=hint, source=source_of(node))


def _name(node: fx.Node) -> str:
    target = node.target
    return str(target) if isinstance(target, OpOverload) else getattr(target, "__name__", str(target))


def _values(node: fx.Node) -> Iterator[object]:
    value = node.meta.get("val")
    yield from value if isinstance(value, (tuple, list)) else (value,) if value is not None else ()


def _value_text(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(str(n) for n in value.shape)}]"
    return type(value).__name__


def _shapes(nodes: list[fx.Node]) -> list[str]:
    return [_value_text(v) for n in nodes for v in _values(n)]


def _base_name(target: OpOverload) -> str:
    return target._schema.name.partition("::")[2]


def single_op_graphs(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Graph]]:
    """Every distinct op of the graph alone in a graph of its own, to find the one that the importer stumbles over."""
    seen = set[str]()
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        key = f"{describe(node)} {[a for a in node.args if not isinstance(a, fx.Node)]} {node.kwargs}"
        if key not in seen:
            seen.add(key)
            yield node, _alone(node)


def _alone(node: fx.Node) -> fx.Graph:
    graph = fx.Graph()
    inputs: dict[fx.Node, fx.Node] = {}
    for argument in node.all_input_nodes:
        inputs[argument] = graph.placeholder(argument.name)
        inputs[argument].meta = dict(argument.meta)
    copy = graph.node_copy(node, lambda n: inputs[n])
    values = tuple(_values(node))
    if isinstance(node.meta.get("val"), (tuple, list)):
        parts = [graph.call_function(operator.getitem, (copy, k)) for k in range(len(values))]
        for part, value in zip(parts, values, strict=True):
            part.meta["val"] = value
        graph.output(tuple(parts))
    else:
        graph.output((copy,))
    return graph


def check_before_decomposition(graph: fx.Graph) -> None:
    """Refuse what decompositions would hide or what would raise inside them. Raises :class:`ImportFailure`."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, HigherOrderOperator) and node.target.name() not in _INLINED:
            raise refuse(
                node,
                "control flow over tensors is not compiled",
                "compute both branches and choose with torch.where, or unroll the loop",
            )
        _check_values(node)
        if isinstance(node.target, OpOverload):
            _check_refused(node, _base_name(node.target), only=(_RANDOM, _DYNAMIC, _COMPLEX))
            _check_dropout(node, _base_name(node.target))
            _check_resampling(node, _base_name(node.target))


def check_decomposed(graph: fx.Graph) -> None:
    """Refuse what has no lowering after decomposition, and drop run-time checks of metadata."""
    for node in list(graph.nodes):
        if node.op == "get_attr":
            raise refuse(node, "a submodule or tensor inside the graph", "export the program again with torch 2.13")
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, OpOverload):
            raise refuse(node, "no tensor op", "shapes must be static: export without dynamic_shapes")
        name = _base_name(node.target)
        if name in _ASSERTIONS:
            graph.erase_node(node)
            continue
        _check_values(node)
        _check_refused(node, name)
    graph.eliminate_dead_code()


def _check_values(node: fx.Node) -> None:
    for value in (*_values(node), *(v for n in node.all_input_nodes for v in _values(n))):
        if not isinstance(value, Tensor):
            continue
        if value.dtype.is_complex:
            raise refuse(node, "complex numbers are not compiled", _COMPLEX)
        if value.dtype not in DTYPE_NAMES:
            raise refuse(node, f"type {value.dtype} is not compiled", f"use one of {', '.join(DTYPE_NAMES.values())}")
        if value.layout != torch.strided:
            raise refuse(node, f"layout {value.layout} is not compiled", "convert with .to_dense() before the call")
        if not all(type(n) is int for n in value.shape):
            raise refuse(node, "dynamic shapes are not compiled", _DYNAMIC)


def _check_refused(node: fx.Node, name: str, only: tuple[str, ...] = ()) -> None:
    overload = f"{name}.{node.target._overloadname}" if isinstance(node.target, OpOverload) else name
    hint = REFUSED.get(name) or REFUSED.get(overload)
    if hint is None or (only and hint not in only):
        return
    if name in ("dropout", "feature_dropout", "native_dropout") and not _trains(node):
        return
    raise refuse(node, "not supported", hint)


def _trains(node: fx.Node) -> bool:
    """Whether a dropout is active: its last argument says so, and its probability is positive."""
    return bool(node.args[-1]) and bool(node.args[1]) if len(node.args) > 2 else True


def _check_dropout(node: fx.Node, name: str) -> None:
    if name == "scaled_dot_product_attention":
        probability = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        if isinstance(probability, float) and probability > 0:
            raise refuse(node, f"dropout {probability} draws random numbers", _RANDOM)


def _check_resampling(node: fx.Node, name: str) -> None:
    """Eager interpolates integers in fixed point."""
    interpolates = name.startswith("upsample_") and "nearest" not in name
    if interpolates and any(isinstance(v, Tensor) and not v.is_floating_point() for v in _values(node)):
        raise refuse(node, "interpolation of integers is not compiled", "convert to float32 before and back after")
