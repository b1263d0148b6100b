"""Ops that somebody wants in one kernel: ``stitch.cluster = array<i64: n>`` on ops before they are clustered.

Ops with the same number become one cluster, exactly these and no others; all others are clustered around them. A set
that no template can compute, or that cannot run as one kernel because of what lies between its ops, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal, source_line
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.cluster_name import op_label
from mlirstitch.passes.stitching.contraction import Contraction
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.requests import Requests
from mlirstitch.passes.stitching.template import find_schedule
from mlirstitch.target import Target

_LINES_SHOWN = 4


@dataclass(frozen=True)
class Kept:
    """Nodes that become one cluster, ascending, and the number that their ops carry."""

    number: int
    nodes: tuple[int, ...]


def kept_together(graph: Graph) -> tuple[Kept, ...]:
    """The sets that the ops' attributes ask for, by number.

    Raises :class:`PassError` for an op that is in several sets.
    """
    found: dict[int, list[int]] = {}
    for node, op in enumerate(graph.ops):
        numbers = stitch.MEMBER.get(op) or ()
        if len(numbers) > 1:
            raise refusal(
                op,
                f"stitch.cluster names the clusters {', '.join(map(str, numbers))}: an op is kept together with others "
                "in one cluster",
                "leave one number",
            )
        for number in numbers:
            found.setdefault(number, []).append(node)
    return tuple(Kept(number, tuple(found[number])) for number in sorted(found))


def contract_kept(graph: Graph, kept: Sequence[Kept], contraction: Contraction, target: Target) -> None:
    """Make each set one cluster of ``contraction``.

    Raises:
        PassError: no template can emit a set, or an op outside of it reads one of its ops and feeds another.
    """
    for wanted in kept:
        first, *others = wanted.nodes
        if others:
            schedule, reasons = find_schedule(graph.cluster(wanted.nodes), target)
            if schedule is None:
                raise _refuse(graph, wanted, f"no kernel template can compute them together: {reasons}")
        name = contraction.owner[first]
        for node in others:
            other = contraction.owner[node]
            if other == name:
                continue
            if not contraction.can_merge(name, other):
                raise _refuse(graph, wanted, _what_lies_between(graph, wanted))
            name = contraction.merge(name, other)


def contract_asked(
    graph: Graph, requests: Requests, contraction: Contraction, target: Target, kept: Collection[int]
) -> frozenset[int]:
    """Make each set that :class:`Requests` wants together, with what lies between, a cluster that others may join.

    ``kept`` are nodes of clusters that stay as they are. Returns the nodes of all sets. Raises :class:`PassError` if
    another request wants some of them apart or as they are, if no template can emit a set, or if it needs results of an
    op that needs its own.
    """
    found: set[int] = set()
    for name, wanted in requests.together.items():
        nodes = tuple(sorted({*wanted, *between(graph, wanted)}))
        request = f"keep together {name.rpartition(' #')[0]}"
        against = requests.why_apart(nodes)
        if against:
            raise _refuse_asked(graph, wanted, request, f"{against} is asked for too")
        held = [node for node in nodes if node in kept]
        if held:
            raise _refuse_asked(graph, wanted, request, f"stitch.cluster keeps {_listed(graph, held)} as it is")
        schedule, reasons = find_schedule(graph.cluster(nodes), target)
        if schedule is None:
            raise _refuse_asked(graph, wanted, request, f"no kernel template can compute them together: {reasons}")
        first = contraction.owner[nodes[0]]
        for node in nodes[1:]:
            other = contraction.owner[node]
            if other != first:
                if not contraction.can_merge(first, other):
                    raise _refuse_asked(graph, wanted, request, "with another request they need each other's results")
                first = contraction.merge(first, other)
        found.update(nodes)
    return frozenset(found)


def between(graph: Graph, nodes: Sequence[int]) -> list[int]:
    """Nodes outside of a set that depend on one of it and feed another, ascending."""
    inside = set(nodes)
    below: set[int] = set()
    for node in range(len(graph.ops)):
        if node not in inside and any(source in inside or source in below for source in graph.predecessors[node]):
            below.add(node)
    above: set[int] = set()
    for node in reversed(range(len(graph.ops))):
        if node not in inside and any(target in inside or target in above for target in graph.successors[node]):
            above.add(node)
    return sorted(below & above)


def _refuse_asked(graph: Graph, nodes: Sequence[int], request: str, problem: str) -> PassError:
    return refusal(
        graph.ops[nodes[0]],
        f"{request} ({_listed(graph, nodes)}): {problem}",
        "leave the request out, or name fewer ops",
    )


def _listed(graph: Graph, nodes: Sequence[int]) -> str:
    shown = ", ".join(f"{op_label(graph.ops[node])}{_at(graph.ops[node])}" for node in nodes[:_LINES_SHOWN])
    return shown + (f" and {len(nodes) - _LINES_SHOWN} more" if len(nodes) > _LINES_SHOWN else "")


def _what_lies_between(graph: Graph, wanted: Kept) -> str:
    """Why a set is no single kernel: an op outside that reads the one and feeds the other."""
    found = between(graph, wanted.nodes)
    if not found:
        return "together with another stitch.cluster they would need each other's results"
    op = graph.ops[found[0]]
    return f"{op.name}{_at(op)} reads one of them and feeds another; give it the same number"


def _refuse(graph: Graph, wanted: Kept, problem: str) -> PassError:
    ops = [graph.ops[node] for node in wanted.nodes]
    shown = ", ".join(f"{op.name}{_at(op)}" for op in ops[:_LINES_SHOWN])
    more = f" and {len(ops) - _LINES_SHOWN} more" if len(ops) > _LINES_SHOWN else ""
    return refusal(
        ops[0],
        f"stitch.cluster keeps {len(ops)} ops together as {wanted.number} ({shown}{more}): {problem}",
        "give the ops different numbers, or none",
    )


def _at(op: ir.Operation) -> str:
    line = source_line(op.location)
    return f" at {line}" if line else ""
