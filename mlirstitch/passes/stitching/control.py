"""``stitch-control``: find the ops that a user wants together, apart or alone, and write that on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal, source_line
from mlirstitch.errors import PassError
from mlirstitch.options import option
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.stitching.cluster_name import op_label
from mlirstitch.passes.stitching.graph import Graph, build_graph
from mlirstitch.passes.stitching.op_pattern import NamedOp, matching, named_ops
from mlirstitch.passes.stitching.requests import LEFT, RIGHT
from mlirstitch.passes.structured import main_function

_SHOWN = 4


@register_pass
@dataclass(frozen=True)
class StitchControl(Pass):
    """Write on the ops of ``@main`` what a user asks of clustering; ``stitch-cluster`` honours or refuses it.

    Each option is a list of requests with semicolons between them; a request is a list of patterns with commas between
    them, and ops that match one of them are meant: ``exp*``, ``linalg.matmul``, ``model.py:42``, ``model.py:40-52``.
    ``together``: those of the ops that read each other become one kernel, as a set written to
    ``stitch.keep_together``. ``apart``: no kernel holds one of the ops and any other; ``exp|sum`` with a bar: no kernel
    holds an op of the left and one of the right, written to ``stitch.keep_apart``. ``never``: each op is a kernel of
    its own, written to ``stitch.never_fuse``. A pattern that matches nothing is refused.
    """

    NAME = "stitch-control"

    together: str = option("", "ops that share a kernel, for example exp,sum;model.py:40-52")
    apart: str = option("", "ops that do not share a kernel with the others, or left|right with each other")
    never: str = option("", "ops that are kernels of their own")

    def run(self, op: ir.Operation) -> None:
        main = main_function(op)
        if main is None:
            return
        graph = build_graph(main)
        ops = named_ops(graph)
        for text in requests_of(self.together):
            _keep_together(graph, ops, text)
        for text in requests_of(self.apart):
            _keep_apart(graph, ops, text)
        for text in requests_of(self.never):
            for node in matching(ops, text, f"never fuse {text}"):
                stitch.NEVER_FUSE.set(graph.ops[node], text)


def requests_of(option_text: str) -> Iterator[str]:
    """The requests of an option, which stand between semicolons."""
    return (text.strip() for text in option_text.split(";") if text.strip())


def _keep_together(graph: Graph, ops: Sequence[NamedOp], text: str) -> None:
    request = f"keep together {text}"
    found = matching(ops, text, request)
    sets = [nodes for nodes in _connected(graph, found) if len(nodes) > 1]
    if not sets:
        shown = ", ".join(_shown(graph, node) for node in found[:_SHOWN])
        raise refusal(
            graph.ops[found[0]],
            f"{request}: no two of the ops that match read each other ({shown}"
            + (f" and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ")"),
            "name what lies between them too, or a range of source lines",
        )
    for number, nodes in enumerate(sets):
        for node in nodes:
            op = graph.ops[node]
            stitch.KEEP_TOGETHER.set(op, (*(stitch.KEEP_TOGETHER.get(op) or ()), f"{text} #{number}"))


def _connected(graph: Graph, nodes: Sequence[int]) -> list[list[int]]:
    """The nodes in sets of those that read each other, directly or through others of them; by first node."""
    inside = set(nodes)
    owner: dict[int, int] = {}
    for first in nodes:
        stack = [first]
        while stack:
            node = stack.pop()
            if node in inside and node not in owner:
                owner[node] = first
                stack += [*graph.predecessors[node], *graph.successors[node]]
    return [[node for node in nodes if owner[node] == first] for first in nodes if owner[first] == first]


def _keep_apart(graph: Graph, ops: Sequence[NamedOp], text: str) -> None:
    request = f"keep apart {text}"
    sides = text.split("|")
    if len(sides) > 2:
        raise PassError(f"{request}: {len(sides)} sides", hint="write two, left|right, or one, apart from all others")
    left = matching(ops, sides[0], request)
    if len(sides) == 2:
        right = matching(ops, sides[1], request)
    else:
        right = tuple(node for node in range(len(ops)) if node not in set(left))
        if not right:
            raise PassError(f"{request}: every op of the program matches", hint="name fewer ops, or left|right")
    both = sorted(set(left) & set(right))
    if both:
        raise refusal(
            graph.ops[both[0]], f"{request}: {_shown(graph, both[0])} stands on both sides", "name it on one side"
        )
    for nodes, side in ((left, LEFT), (right, RIGHT)):
        for node in nodes:
            op = graph.ops[node]
            stitch.KEEP_APART.set(op, (*(stitch.KEEP_APART.get(op) or ()), side + text))


def _shown(graph: Graph, node: int) -> str:
    op = graph.ops[node]
    line = source_line(op.location)
    return op_label(op) + (f" at {line}" if line else "")
