"""Sets of nodes worth asking the templates about as a whole, before anything is merged pair by pair."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from mlirstitch.passes.op_kind import Kind
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.structured import REDUCTION, structured

Rows = tuple[int, int]
"""How a reduction runs: how many values it makes, and over how many elements each."""


def level_regions(graph: Graph, anchors: Collection[int]) -> list[list[int]]:
    """Connected sets of nodes that are no anchors and have equally many anchors above them, each ascending.

    No path leaves such a set and returns: contracting it makes no cycle.
    """
    level = [0] * len(graph.ops)
    for node, sources in enumerate(graph.predecessors):
        level[node] = max((level[source] + (source in anchors) for source in sources), default=0)
    free = [node for node in range(len(graph.ops)) if node not in anchors]
    return connected(graph, free, level)


def connected(graph: Graph, nodes: Sequence[int], label: Sequence[int] | None = None) -> list[list[int]]:
    """The connected parts of a set of nodes; with ``label``, only edges between equal labels connect."""
    group = {node: node for node in nodes}

    def find(node: int) -> int:
        while group[node] != node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for node in nodes:
        for source in graph.predecessors[node]:
            if source in group and (label is None or label[source] == label[node]):
                group[find(node)] = find(source)
    parts: dict[int, list[int]] = {}
    for node in nodes:
        parts.setdefault(find(node), []).append(node)
    return list(parts.values())


def split_by_rows(graph: Graph, region: Sequence[int]) -> Iterator[list[int]]:
    """Cut a region whose reductions run over different rows into parts whose reductions run over the same.

    Part by part, everything that depends on no reduction of another sort is cut off: of the small sorts only what
    their reductions need (the count of labels before a loss), of the largest sort all (the layer norm before a column
    sum). Each part is closed under "is read by" in what is left, so that contracting the parts makes no cycle. A
    region with reductions of one sort is not cut.
    """
    rest = list(region)
    while rest:
        sorts = _sorts(graph, rest)
        if len(sorts) < 2:
            break
        part = next(part for part in (_closed_part(graph, rest, rows, sorts) for rows in sorts) if part)
        yield from connected(graph, part)
        taken = set(part)
        rest = [node for node in rest if node not in taken]
    if len(rest) < len(region):
        yield from connected(graph, rest)


def _sorts(graph: Graph, nodes: Sequence[int]) -> list[Rows]:
    """The sorts of reductions among the nodes, the one with the least work first."""
    work: dict[Rows, int] = {}
    for node in nodes:
        rows = _rows(graph, node)
        if rows is not None:
            work[rows] = work.get(rows, 0) + math.prod(rows)
    return sorted(work, key=lambda rows: (work[rows], rows))


def _rows(graph: Graph, node: int) -> Rows | None:
    if graph.kinds[node] is not Kind.REDUCTION:
        return None
    view = structured(graph.ops[node])
    if view is None:
        return None
    reduced = math.prod(size for size, kind in zip(view.loop_sizes(), view.iterators, strict=True) if kind == REDUCTION)
    return graph.elements(node), reduced


def _closed_part(graph: Graph, nodes: Sequence[int], rows: Rows, sorts: Sequence[Rows]) -> list[int]:
    """Nodes below no reduction of another sort; unless ``rows`` is the largest, only those its reductions need."""
    foreign: set[int] = set()
    for node in nodes:
        is_other = _rows(graph, node) not in (None, rows)
        if is_other or any(source in foreign for source in graph.predecessors[node]):
            foreign.add(node)
    part = [node for node in nodes if node not in foreign]
    wanted = {node for node in part if _rows(graph, node) == rows}
    if rows != sorts[-1]:
        for node in reversed(part):
            if node in wanted:
                wanted.update(graph.predecessors[node])
        return [node for node in part if node in wanted]
    return part if wanted else []
