"""How a compiled program is called: the pytree of its arguments and of its results.

A program takes and returns flat lists of tensors; a model takes and returns nested tuples, lists and dictionaries. The
trees here are plain JSON, so that they survive in a bundle that is loaded where torch is not installed. Containers that
JSON cannot name (a user's own pytree class) are kept in memory by torch's tree specification and come back as tuples
from disk.

A node is ``{"leaf": k}``, ``{"constant": value}``, ``{"tuple": [...]}``, ``{"list": [...]}``,
``{"dict": [[key, node], ...]}`` or ``{"namedtuple": [name, [field, ...], [node, ...]]}``.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirstitch.errors import LaunchError

Node = dict[str, Any]


@dataclass(frozen=True)
class CallingConvention:
    """Argument and result trees of one program.

    Attributes:
        arguments: tree of ``(args, kwargs)``; a leaf ``k`` is the program's k-th user input, a constant a Python value
            that was fixed when the model was imported.
        results: tree of the return value; a leaf ``k`` is the program's k-th user output.
        names: a printable path of every leaf of ``arguments``, for messages.
        parameter_names: names of the positional parameters, in order, so that an argument may be given by name.
    """

    arguments: Node
    results: Node
    names: tuple[str, ...] = field(default=())
    parameter_names: tuple[str, ...] = field(default=())

    def flatten_arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Tensors of a call in program order. Raises LaunchError where the structure differs from the imported one."""
        args, kwargs = self._by_position(args, kwargs)
        leaves: dict[int, Any] = {}
        _flatten(self.arguments, (tuple(args), kwargs), "", leaves)
        return [leaves[k] for k in sorted(leaves)]

    def _by_position(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Move arguments given by name to their position where the model was imported with them positional."""
        wanted = len(self.arguments["tuple"][0].get("tuple", ()))
        keywords = {key for key, _ in self.arguments["tuple"][1].get("dict", ())}
        moved = list(args)
        rest = dict(kwargs)
        while len(moved) < min(wanted, len(self.parameter_names)):
            name = self.parameter_names[len(moved)]
            if name not in rest or name in keywords:
                break
            moved.append(rest.pop(name))
        return moved, rest

    def build_results(self, leaves: Sequence[Any]) -> Any:
        """The model's return value from the program's user outputs."""
        return _build(self.results, leaves)

    def result_leaves(self, leaves: Sequence[Any]) -> list[Any]:
        """Leaves of the return value in flattening order, constants included."""
        found: list[Any] = []
        _collect_leaves(self.results, leaves, found)
        return found

    def to_json(self) -> dict[str, Any]:
        """JSON form kept in a bundle's manifest."""
        return {
            "arguments": self.arguments,
            "results": self.results,
            "names": list(self.names),
            "parameter_names": list(self.parameter_names),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> CallingConvention:
        """Inverse of :meth:`to_json`."""
        return CallingConvention(
            data["arguments"], data["results"], tuple(data["names"]), tuple(data.get("parameter_names", ()))
        )


def positional(inputs: int, outputs: int, names: Sequence[str]) -> CallingConvention:
    """The convention of a program that was given as IR: inputs by position; one result, a tuple of several, or None."""
    arguments: Node = {"tuple": [{"tuple": [{"leaf": k} for k in range(inputs)]}, {"dict": []}]}
    if outputs == 0:
        results: Node = {"constant": None}
    elif outputs == 1:
        results = {"leaf": 0}
    else:
        results = {"tuple": [{"leaf": k} for k in range(outputs)]}
    return CallingConvention(arguments, results, tuple(names), tuple(names))


def tree_of(spec: Any, leaf: Callable[[], Node]) -> Node:
    """The JSON tree of a torch ``TreeSpec``; ``leaf`` is called once per leaf, in flattening order."""
    if spec.is_leaf():
        return leaf()
    children = [tree_of(child, leaf) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind is list:
        return {"list": children}
    if kind is dict or getattr(kind, "__name__", "") in ("OrderedDict", "defaultdict"):
        keys = context[1] if kind is not dict and isinstance(context, (list, tuple)) and len(context) == 2 else context
        return {"dict": [[key, child] for key, child in zip(keys, children, strict=True)]}
    if getattr(kind, "__name__", "") == "namedtuple":
        return {"namedtuple": [context.__name__, list(context._fields), children]}
    return {"tuple": children}


def _flatten(node: Node, value: Any, path: str, leaves: dict[int, Any]) -> None:
    if "leaf" in node:
        leaves[node["leaf"]] = value
    elif "constant" in node:
        if type(value) is not type(node["constant"]) or value != node["constant"]:
            raise LaunchError(
                f"argument {path or 'value'} is {value!r}, but the model was compiled for {node['constant']!r}",
                hint="Python values are fixed at compile time: compile again, or pass a tensor",
            )
    elif "dict" in node:
        wanted = [key for key, _ in node["dict"]]
        if not isinstance(value, dict) or set(value) != set(wanted):
            got = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise LaunchError(f"argument {path or 'keywords'}: expected the keys {wanted}, got {got}")
        for key, child in node["dict"]:
            _flatten(child, value[key], f"{path}[{key!r}]" if path else str(key), leaves)
    else:
        children = _children(node)
        if not isinstance(value, (tuple, list)) or len(value) != len(children):
            got = f"{len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__
            what = "values" if path not in ("", "args") else "positional arguments"
            raise LaunchError(
                f"{'call' if path in ('', 'args') else 'argument ' + path}: expected {len(children)} {what}, got {got}",
                hint="call the program with the structure of the example inputs",
            )
        top = path == ""
        for k, (child, item) in enumerate(zip(children, value, strict=True)):
            # The outermost tuple is (args, kwargs): its members are named after what the caller wrote.
            name = ("args" if k == 0 else "") if top else f"{path}[{k}]"
            _flatten(child, item, name, leaves)


def _build(node: Node, leaves: Sequence[Any]) -> Any:
    if "leaf" in node:
        return leaves[node["leaf"]]
    if "constant" in node:
        return node["constant"]
    if "dict" in node:
        return {key: _build(child, leaves) for key, child in node["dict"]}
    if "list" in node:
        return [_build(child, leaves) for child in node["list"]]
    if "namedtuple" in node:
        name, fields, children = node["namedtuple"]
        return namedtuple(name, fields)(*(_build(child, leaves) for child in children))
    return tuple(_build(child, leaves) for child in node["tuple"])


def _collect_leaves(node: Node, leaves: Sequence[Any], found: list[Any]) -> None:
    if "leaf" in node:
        found.append(leaves[node["leaf"]])
    elif "constant" in node:
        found.append(node["constant"])
    else:
        for child in _children(node):
            _collect_leaves(child, leaves, found)


def _children(node: Node) -> list[Node]:
    """The children of a container node."""
    if "dict" in node:
        return [child for _, child in node["dict"]]
    if "namedtuple" in node:
        return node["namedtuple"][2]
    return node.get("tuple") or node.get("list") or []
