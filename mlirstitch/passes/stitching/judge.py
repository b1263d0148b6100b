"""Whether a set of nodes may be one kernel: limits, recomputation, and what the templates say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.op_kind import CASTS, MATMUL_OPS, Kind
from mlirstitch.passes.stitching.cluster_key import find_template_once
from mlirstitch.passes.stitching.fusion_plan import Rule
from mlirstitch.passes.stitching.graph import Graph, root
from mlirstitch.passes.stitching.library_form import library_form, rounds_exactly
from mlirstitch.passes.stitching.recurrent_steps import recurrent_steps
from mlirstitch.passes.stitching.requests import Requests
from mlirstitch.passes.stitching.template import PACKED, templates
from mlirstitch.passes.structured import REDUCTION, structured
from mlirstitch.target import Target

LOOP_NEST = "loop_nest"
"""The template that compiles everything, one output element at a time; it does not decide what is stitched."""

_BESIDE_LIBRARY = (Kind.LIGHT, Kind.EXPENSIVE, Kind.MOVEMENT)
"""Kinds that a library call may compute besides its contraction: what moves its operands, and its epilogue."""

HEAVY = (Kind.COMPUTE, Kind.REDUCTION, Kind.SCATTER)

MOST_LIGHT_EVALUATIONS = 4
"""How often a loop nest may evaluate an element of a light op: a few instructions take less time than to store it and
to load it again."""

MOST_PIECES = 4
"""Tensors of a concatenation that costs nothing but its reads: a comparison each finds where an element lies."""

Refusal = tuple[Rule, str]
"""The rule that forbids a union, and what the templates said about it (or "")."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one kernel: ops (compile time, registers), tensors it reads or writes (argument space), and independent
    parts that share its launch (code size; 1: none do)."""

    ops: int = 512
    arguments: int = 128
    parts: int = 32


class Judge:
    """Answers for one graph.

    Attributes:
        anchors: nodes that no stitching template can hold: contractions, column reductions, gathers ...; and those that
            a library call computes along with its contraction.
        exact: results must round as the ops say, which rules out epilogues of several operations.
        routines: library routine of every node that a library computes.
        requests: what a user asks for.
    """

    def __init__(self, graph: Graph, target: Target, library: str, limits: Limits) -> None:
        """Ask the templates about every node. Raises :class:`PassError` for an op that none of them can compute."""
        self.graph = graph
        self.target = target
        self.limits = limits
        self.requests = Requests.of(graph)
        self.stitching = tuple(template.name for template in templates() if template.name not in (LOOP_NEST, PACKED))
        self.exact = rounds_exactly(graph.function)
        self.anchors: set[int] = set()
        self.routines: dict[int, str] = {}
        self._cheap = [_is_cheap(graph, node) for node in range(len(graph.ops))]
        self._factors = {node: factors for node in range(len(graph.ops)) if (factors := _shared_factors(graph, node))}
        steps = recurrent_steps(graph, target) if library == "auto" else frozenset()
        for node, op in enumerate(graph.ops):
            if library == "auto" and node not in steps and _is_library_call(graph, node, exact=self.exact):
                self.anchors.add(node)
                self.routines[node] = op.name.removeprefix("linalg.")
            elif not self._stitches_alone(node):
                self.anchors.add(node)

    def routine(self, nodes: Collection[int]) -> str:
        """The library routine that computes the nodes, or ""."""
        return next((self.routines[node] for node in sorted(nodes) if node in self.routines), "")

    def is_anchored(self, nodes: Collection[int]) -> bool:
        """A loop nest or library call is among the nodes."""
        return any(node in self.anchors for node in nodes)

    def is_cheap(self, nodes: Collection[int]) -> bool:
        """Every node only moves or casts data, so that computing it twice costs nothing but its reads."""
        return all(self._cheap[node] for node in nodes)

    def why_apart(
        self, first: Collection[int], second: Collection[int], duplicated: Collection[int] = frozenset()
    ) -> Refusal | None:
        """None if the union of two sets may be one kernel (the contracted graph is not looked at).

        ``duplicated`` are nodes that every reader computes for itself: the kernel does not store them.
        """
        union = sorted({*first, *second})
        asked = self.why_asked(union)
        if asked is not None:
            return asked
        if any(node in self.routines for node in union):
            return self._why_no_library(union, duplicated)
        if self.is_anchored(union):
            return self._why_no_loop_nest(union, duplicated)
        return self._why_no_stitch(union, duplicated)

    def why_no_stitch(self, nodes: Collection[int]) -> Refusal | None:
        """None if one stitching template (not the loop nest) can compute all nodes together."""
        return self.why_asked(nodes) or self._why_no_stitch(sorted(nodes), frozenset())

    def why_asked(self, nodes: Collection[int]) -> Refusal | None:
        """None if no request of the user forbids one kernel for all nodes."""
        request = self.requests.why_apart(nodes)
        return (Rule.ASKED, request) if request else None

    def _why_no_library(self, union: list[int], duplicated: Collection[int]) -> Refusal | None:
        """None if one library call computes all nodes."""
        others = [self.graph.kinds[node] for node in union if node not in self.routines]
        if len(union) - len(others) > 1 or any(kind not in _BESIDE_LIBRARY for kind in others):
            return Rule.LIBRARY, ""
        form = library_form(self.graph.cluster(union, duplicated), exact=self.exact)
        return (Rule.LIBRARY, form) if isinstance(form, str) else None

    def _why_no_stitch(self, union: list[int], duplicated: Collection[int]) -> Refusal | None:
        if self._recomputes_factors(union):
            return Rule.RECOMPUTE, ""
        return self._ask(union, self.stitching, duplicated)

    def _why_no_loop_nest(self, union: list[int], duplicated: Collection[int]) -> Refusal | None:
        if sum(self.graph.kinds[node] in HEAVY for node in union) > 1:
            return Rule.COMPUTE, ""
        if self._recomputes(union):
            return Rule.RECOMPUTE, ""
        return self._ask(union, (LOOP_NEST,), duplicated)

    def _ask(
        self, nodes: Collection[int], among: tuple[str, ...], duplicated: Collection[int] = frozenset()
    ) -> Refusal | None:
        if len(nodes) > self.limits.ops:
            return Rule.LIMIT, f"{len(nodes)} ops, at most {self.limits.ops}"
        cluster = self.graph.cluster(nodes, duplicated)
        arguments = len(cluster.inputs) + len(cluster.outputs)
        if arguments > self.limits.arguments:
            return Rule.LIMIT, f"{arguments} tensors, at most {self.limits.arguments}"
        template, reasons = find_template_once(self.graph, cluster, self.target, among)
        return None if template is not None else (Rule.TEMPLATE, reasons)

    def _recomputes(self, union: list[int]) -> bool:
        """Some node that is not cheap has fewer elements than an op that depends on it is evaluated for.

        A loop nest evaluates what it stores on demand, element by element; then every such element of the node would
        be computed more than once. Light nodes may be, a few times (windows of a pooling that overlap).
        """
        inside = set(union)
        largest_below: dict[int, int] = {}
        for node in reversed(union):
            below = 0
            for target in self.graph.successors[node]:
                if target in inside:
                    below = max(below, self.graph.iteration_space(target), largest_below[target])
            largest_below[node] = below
            times = MOST_LIGHT_EVALUATIONS if self.graph.kinds[node] is Kind.LIGHT else 1
            if not self._cheap[node] and below > times * self.graph.elements(node):
                return True
        return False

    def _recomputes_factors(self, union: list[int]) -> bool:
        """The same of a sum of products: the vector that a matrix is multiplied by is read once for each of its rows.

        Reductions are computed once, with what only they need.
        """
        inside = set(union)
        largest_below: dict[int, int] = {}
        for node in reversed(union) if any(node in self._factors for node in union) else ():
            below = 0
            for target in self.graph.successors[node]:
                if target not in inside:
                    continue
                if node in self._factors.get(target, ()):
                    below = max(below, self.graph.iteration_space(target))
                below = max(below, largest_below[target])
            if self.graph.kinds[node] is Kind.REDUCTION:
                below = 0
            largest_below[node] = below
            times = MOST_LIGHT_EVALUATIONS if self.graph.kinds[node] is Kind.LIGHT else 1
            if not self._cheap[node] and below > times * self.graph.elements(node):
                return True
        return False

    def _stitches_alone(self, node: int) -> bool:
        """A stitching template holds the node by itself. If not, the loop nest must, or the node is refused."""
        reason = ""
        if self.graph.kinds[node] is not Kind.COMPUTE:
            answer = self._ask([node], self.stitching)
            if answer is None:
                return True
            reason = answer[1]
        answer = self._ask([node], (LOOP_NEST,))
        if answer is not None:
            reasons = "; ".join(text for text in (reason, answer[1]) if text)
            raise refusal(
                self.graph.ops[node],
                f"no kernel template can compute this op: {reasons}",
                "rewrite it with simpler ops",
            )
        return False


def _is_cheap(graph: Graph, node: int) -> bool:
    op = graph.ops[node]
    if op.name == "tensor.concat":
        return len(op.operands) <= MOST_PIECES
    if graph.kinds[node] is Kind.MOVEMENT:
        return True
    view = structured(graph.ops[node])
    return view is not None and view.is_parallel and all(op.name in CASTS for op in view.body_ops)


def _shared_factors(graph: Graph, node: int) -> frozenset[int]:
    """The nodes whose results a sum of products reads element by element for each of several results."""
    view = structured(graph.ops[node]) if graph.kinds[node] is Kind.REDUCTION else None
    if view is None or len(view.inputs) < 2:
        return frozenset()
    wide = {dim for dim, size in enumerate(view.loop_sizes()) if size > 1}
    summed = {dim for dim in wide if view.iterators[dim] == REDUCTION}
    found: set[int] = set()
    for value, affine_map in zip(view.inputs, view.maps, strict=False):
        read = {expr.position for expr in affine_map.results if isinstance(expr, ir.AffineDimExpr)}
        if summed & read and wide - summed - read and root(value) in graph.producer:
            found.add(graph.producer[root(value)])
    return frozenset(found)


def _is_library_call(graph: Graph, node: int, *, exact: bool) -> bool:
    """A matmul of tensors in memory into zeros that a routine computes without reading its destination."""
    op = graph.ops[node]
    return op.name in MATMUL_OPS and not isinstance(library_form(graph.cluster([node]), exact=exact), str)
