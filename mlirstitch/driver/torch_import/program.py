"""A flat program: one aten graph of tensors, and what each argument and result means to the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind
from torch.utils._pytree import TreeSpec, keystr, tree_flatten_with_path, tree_unflatten

from mlirstitch.driver.calling import CallingConvention, Node, tree_of
from mlirstitch.errors import ImportFailure

INLINE_ELEMENTS = 64
"""Tensors written as literals in the program, up to this many elements, become dense constants."""

DTYPE_NAMES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
"""``stitch.dtype`` of a torch type; other types cannot be compiled."""

_ROLES = {
    InputKind.USER_INPUT: "input",
    InputKind.PARAMETER: "weight",
    InputKind.BUFFER: "constant",
    InputKind.CONSTANT_TENSOR: "constant",
}
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


@dataclass(frozen=True)
class Argument:
    """One argument of ``@main``. ``role`` is "input", "weight" or "constant"; ``dtype`` a ``stitch.dtype`` name."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """One result of ``@main``; ``mutates`` names the argument whose new contents it is, or is ""."""

    name: str
    dtype: str
    mutates: str = ""


@dataclass(frozen=True)
class FlatProgram:
    """An aten graph whose placeholders and outputs are tensors only.

    Attributes:
        graph: placeholders match ``arguments``, outputs match ``results``.
        weights: argument position to the module's own tensor.
        literals: argument position to the value of a small constant that is to be written into the IR.
        calling: argument and result trees of the user's call.
        in_spec, out_spec: the same as torch ``TreeSpec``.
    """

    graph: fx.Graph
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    weights: dict[int, Tensor]
    literals: dict[int, Tensor]
    calling: CallingConvention
    in_spec: TreeSpec
    out_spec: TreeSpec


def literal_targets(exported: ExportedProgram) -> set[str]:
    """Constants written in the program (``torch.tensor([...])``): every use copies them first. For look-ups only.

    A tensor that the program closes over is used directly; it may change later and stays an argument.
    """
    copies = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)
    by_name = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
    found = set[str]()
    for spec in exported.graph_signature.input_specs:
        node = by_name.get(getattr(spec.arg, "name", ""))
        if spec.kind == InputKind.CONSTANT_TENSOR and node is not None and node.users:
            value = exported.constants.get(spec.target or "")
            if is_small(value) and all(u.target in copies for u in node.users):
                found.add(spec.target or "")
    return found


def is_small(value: object) -> bool:
    """Whether a tensor has values, few enough to be written into the program."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.is_meta:
        return False
    return value.numel() <= INLINE_ELEMENTS


def flatten_program(
    decomposed: ExportedProgram, literals: set[str], module: Any, parameter_names: tuple[str, ...]
) -> FlatProgram:
    """Strip everything from the graph that is no tensor, unused weights and second names of tied weights.

    ``module`` is what the user gave: weights are looked up in it, so that fake stand-ins never reach the caller.
    Raises :class:`ImportFailure` for a value that the compiler has no type for.
    """
    graph = decomposed.graph
    nodes = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    mutated = {s.target for s in decomposed.graph_signature.output_specs if s.kind in _MUTATIONS}
    tensors = _Tensors(decomposed, module)
    user_inputs = iter(input_names(_present(decomposed.call_spec.in_spec), parameter_names))
    names = UniqueNames()
    arguments: list[Argument] = []
    weights: dict[int, Tensor] = {}
    written: dict[int, Tensor] = {}
    twins = _merge_tied(decomposed, nodes, tensors)
    for spec in decomposed.graph_signature.input_specs:
        node = nodes[spec.arg.name]
        role = _role(spec, tensors)
        wanted = next(user_inputs) if role == "input" else spec.target or spec.arg.name
        if isinstance(spec.arg, ConstantArgument):
            graph.erase_node(node)
            continue
        if role != "input":
            if node in twins or (not node.users and spec.target not in mutated):
                graph.erase_node(node)
                continue
            (written if spec.target in literals else weights)[len(arguments)] = tensors.of(spec)
        name = names.add(spec.target or spec.arg.name, wanted)
        arguments.append(Argument(name, role, *type_of(node, name)))
    calling, user_names = _calling(decomposed, parameter_names, [a.name for a in arguments if a.role == "input"])
    results = _results(graph, decomposed, names, user_names)
    graph.lint()
    return FlatProgram(
        graph,
        tuple(arguments),
        results,
        weights,
        written,
        calling,
        _present(decomposed.call_spec.in_spec),
        _present(decomposed.call_spec.out_spec),
    )


class UniqueNames:
    """Names of arguments, made distinct; looked up by what the exported program calls the tensor."""

    def __init__(self) -> None:
        self._by_target: dict[str, str] = {}
        self._used = set[str]()

    def add(self, target: str, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._used:
            name, number = f"{wanted}_{number}", number + 1
        self._used.add(name)
        self._by_target[target] = name
        return name

    def of(self, target: str) -> str:
        return self._by_target[target]


def _merge_tied(exported: ExportedProgram, nodes: dict[str, fx.Node], tensors: _Tensors) -> set[fx.Node]:
    """Let the first used name of a tensor stand for all of its names; returns the others (for look-ups only)."""
    first: dict[tuple[Any, ...], fx.Node] = {}
    others = set[fx.Node]()
    mutated = {s.target for s in exported.graph_signature.output_specs if s.kind in _MUTATIONS}
    specs = [s for s in exported.graph_signature.input_specs if _ROLES.get(s.kind, "input") != "input"]
    for spec in sorted(specs, key=lambda s: s.target not in mutated):  # a name that is written to comes first
        node = nodes[spec.arg.name]
        if not node.users and spec.target not in mutated:
            continue
        twin = first.setdefault(_identity(tensors.of(spec)), node)
        if twin is not node:
            node.replace_all_uses_with(twin)
            others.add(node)
    return others


def input_names(spec: TreeSpec, parameter_names: tuple[str, ...]) -> list[str]:
    """A printable name of every leaf of the user's ``(args, kwargs)``: ``x``, ``state['h']``, ``args[2]``."""
    count = spec.num_leaves
    named: list[str] = []
    for path, _ in tree_flatten_with_path(tree_unflatten(list(range(count)), spec))[0]:
        group, first, *rest = path
        if getattr(group, "idx", 0) == 1:
            named.append(str(getattr(first, "key", first)) + keystr(tuple(rest)))
        else:
            number = getattr(first, "idx", 0)
            base = parameter_names[number] if number < len(parameter_names) else f"args[{number}]"
            named.append(base + keystr(tuple(rest)))
    return named


def _present(spec: TreeSpec | None) -> TreeSpec:
    if spec is None:
        raise ImportFailure("the exported program does not describe its inputs and outputs", hint="export it again")
    return spec


def _role(spec: InputSpec, tensors: _Tensors) -> str:
    if spec.kind not in _ROLES:
        raise ImportFailure(
            f"the program takes {spec.arg.name}, a {spec.kind.name.lower().replace('_', ' ')}",
            hint="programs over tensors only can be compiled",
        )
    return "weight" if spec.kind == InputKind.BUFFER and tensors.is_state(spec) else _ROLES[spec.kind]


class _Tensors:
    """The tensors behind parameters, buffers and constants: the user's own ones where the module has them."""

    def __init__(self, exported: ExportedProgram, module: Any) -> None:
        self.exported = exported
        self.own: dict[str, Tensor] = {}
        if isinstance(module, nn.Module):
            self.own.update(module.named_parameters(remove_duplicate=False))
            self.own.update(module.named_buffers(remove_duplicate=False))
        self.persistent = set(exported.state_dict)

    def is_state(self, spec: InputSpec) -> bool:
        """Whether a buffer belongs to the model's state (persistent ones do)."""
        return spec.target in self.persistent

    def of(self, spec: InputSpec) -> Tensor:
        target = spec.target or ""
        for table in (self.own, self.exported.state_dict, self.exported.constants):
            if isinstance(value := table.get(target), Tensor):
                return value
        raise ImportFailure(f"the exported program has lost the tensor {target!r}", hint="export the program again")


def _identity(value: Tensor) -> tuple[Any, ...]:
    """Equal for two names of one tensor. Fake and meta tensors have no address: the object tells them apart."""
    if isinstance(value, FakeTensor) or value.is_meta or value.numel() == 0:
        return (id(value),)
    return (value.data_ptr(), value.shape, value.stride(), value.dtype)


def type_of(node: fx.Node, name: str) -> tuple[str, tuple[int, ...]]:
    """``stitch.dtype`` and shape of a node. Raises :class:`ImportFailure` if the compiler has no such type."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        raise ImportFailure(f"{name} is no tensor but {type(value).__name__}", hint="pass tensors, or fixed numbers")
    if value.dtype not in DTYPE_NAMES:
        raise ImportFailure(
            f"{name} has type {value.dtype}", hint=f"types that can be compiled: {', '.join(DTYPE_NAMES.values())}"
        )
    if not all(type(n) is int for n in value.shape):
        raise ImportFailure(
            f"{name} has the dynamic shape {list(value.shape)}", hint="export without dynamic_shapes: shapes are static"
        )
    return DTYPE_NAMES[value.dtype], tuple(value.shape)


def _calling(
    exported: ExportedProgram, parameter_names: tuple[str, ...], input_names: list[str]
) -> tuple[CallingConvention, list[str]]:
    """The calling convention, and a printable name of every tensor the user gets back."""
    in_spec, out_spec = exported.call_spec.in_spec, _present(exported.call_spec.out_spec)
    signature = exported.graph_signature
    inputs = [s.arg for s in signature.input_specs if s.kind == InputKind.USER_INPUT]
    outputs = [s.arg for s in signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    arguments = tree_of(_present(in_spec), leaves_of(inputs))
    results = tree_of(out_spec, leaves_of(outputs))
    user_names = [f"output{path}" for path, arg in _paths(out_spec, outputs) if not isinstance(arg, ConstantArgument)]
    return CallingConvention(arguments, results, tuple(input_names), parameter_names), user_names


def leaves_of(values: list[Any]) -> Callable[[], Node]:
    """For :func:`tree_of`: one tree leaf a call: tensors are numbered, fixed Python values are written down."""
    remaining = iter(values)
    numbers = iter(range(len(values)))

    def leaf() -> Node:
        value = next(remaining)
        return {"constant": value.value} if isinstance(value, ConstantArgument) else {"leaf": next(numbers)}

    return leaf


def _paths(spec: TreeSpec, leaves: list[Any]) -> list[tuple[str, Any]]:
    pairs, _ = tree_flatten_with_path(tree_unflatten(leaves, spec), is_leaf=lambda v: any(v is x for x in leaves))
    return [(keystr(path), leaf) for path, leaf in pairs]


def _results(
    graph: fx.Graph, exported: ExportedProgram, names: UniqueNames, user_names: list[str]
) -> tuple[Result, ...]:
    """Rewrite the output node to the tensors that are returned, and describe them."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    kept: list[fx.Node] = []
    results: list[Result] = []
    remaining = iter(user_names)
    for value, spec in zip(output.args[0], exported.graph_signature.output_specs, strict=True):  # type: ignore[arg-type]
        if isinstance(spec.arg, ConstantArgument):
            continue
        if not isinstance(value, fx.Node):
            raise ImportFailure(f"the program returns {value!r} as {spec.kind.name}", hint="return tensors")
        if spec.kind in _MUTATIONS:
            target = names.of(spec.target or "")
            results.append(Result(f"{target} (updated)", type_of(value, target)[0], target))
        elif spec.kind == OutputKind.USER_OUTPUT:
            name = next(remaining)
            results.append(Result(name, type_of(value, name)[0]))
        else:
            raise ImportFailure(
                f"the program returns a {spec.kind.name.lower().replace('_', ' ')}",
                hint="return tensors of the forward computation",
            )
        kept.append(value)
    if not kept:
        raise ImportFailure("the program returns no tensor and changes none", hint="return a tensor from forward")
    output.args = (tuple(kept),)
    return tuple(results)
