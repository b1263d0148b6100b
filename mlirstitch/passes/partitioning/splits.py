"""Which loops of an op may be split, and what a split leaves of its operands and results: derived from its accesses.

A split parallel loop gives every part a box of each result; a split reduction loop gives every part a partial value of
all results, which the op's combiner makes one; an operand that does not depend on the loop is replicated
(SuperScaler, arXiv 2301.08984, section 3.1; there op-trans rules are written by hand).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.access import Access, AccessMap, Affine, Whole
from mlirstitch.passes.partitioning.graph import PARALLEL, Graph, GraphOp, GraphUse
from mlirstitch.passes.partitioning.layout import DimSplit, Layout

VIEW = "view"


@dataclass(frozen=True)
class Split:
    """A legal split of one loop.

    Attributes:
        loop, extent: which loop, and how many units there are to deal out.
        combiner: "" for a parallel loop; else how the partial results become one.
        inputs, results: for every input and result the dim that is cut, or -1: the input is replicated, the result
            is partial.
    """

    loop: int
    extent: int
    combiner: str
    inputs: tuple[int, ...]
    results: tuple[int, ...]


def legal_splits(op: GraphOp) -> dict[int, Split]:
    """Every loop that may be split, ascending. Several may be split together unless they walk along the same dim."""
    found: dict[int, Split] = {}
    for loop in range(len(op.loops)):
        if refusal_of_split(op, loop) is None:
            inputs = tuple(_dim_of(use.access, loop) for use in op.inputs)
            results = tuple(_dim_of(use.access, loop) for use in op.results)
            combiner = "" if op.kinds[loop] == PARALLEL else op.combiner
            found[loop] = Split(loop, op.loops[loop], combiner, inputs, results)
    return found


def refusal_of_split(op: GraphOp, loop: int, together_with: Collection[int] = ()) -> str | None:
    """Why a loop of an op must not be split, in plain words, or None if it may.

    ``together_with``: loops that are split already; two loops that walk along one dim are not split together.
    """
    if not 0 <= loop < len(op.loops):
        return f"it has {len(op.loops)} loops, d{loop} is none of them"
    fixed = dict(op.fixed).get(loop)
    if fixed is not None:
        return fixed
    if op.loops[loop] < 2:
        return f"d{loop} has extent {op.loops[loop]}, too few to split"
    parallel = op.kinds[loop] == PARALLEL
    if not parallel and not op.combiner:
        return f"d{loop} is reduced in a way whose parts nothing is known to combine"
    for number, use in enumerate(op.results):
        reason = _result_refusal(op, use.access, loop, parallel)
        if reason is not None:
            return f"result {number}: {reason}"
    for number, use in enumerate(op.inputs):
        reason = _input_refusal(op, use.access, loop, parallel)
        if reason is not None:
            return f"operand {number}: {reason}"
    return _shared_dim(op, loop, together_with)


def layout_of(op: GraphOp, use: GraphUse, space: Mapping[int, tuple[str, ...]]) -> Layout:
    """The layout of an operand or result of an op whose loops are cut by axes.

    Args:
        op: the op.
        use: one of ``op.inputs`` (the layout it must be read in) or ``op.results`` (the one it is computed in).
        space: the axes that cut each loop, outermost first; loops without an entry are whole.

    Returns:
        Cuts of the dims that follow a cut loop, with halos where several loops walk along a dim. A result is partial
        over the axes of cut reduction loops. Nothing is said of operands that are partial themselves: where the op is
        linear (``GraphOp.linear``), its results are partial over the same axes.

    Raises:
        PlanError: two cut loops walk along one dim of the tensor.
    """
    cut = {loop: tuple(axes) for loop, axes in space.items() if axes}
    dims = tuple(_dim_split(op, access, cut) for access in use.access)
    if use not in op.results:
        return Layout(dims)
    partial = [(axis, op.combiner) for loop, axes in cut.items() if op.kinds[loop] != PARALLEL for axis in axes]
    return Layout(dims, tuple(sorted(partial)))


def partial_refusal(op: GraphOp, partial: Collection[int], combiner: str) -> str | None:
    """Why an op must not read partial values, or None if its results are then partial with the same combiner.

    Args:
        op: the op.
        partial: positions in ``op.inputs`` of the operands that are partial over one axis; all others are whole.
        combiner: how the partial values become one.
    """
    if not partial or (op.kind == VIEW and len(partial) == len(op.inputs)):
        return None
    if combiner != "add":
        return f"only a view may read parts of a {combiner}"
    if tuple(sorted(partial)) in op.linear:
        return None
    if not op.linear:
        return "it is not linear, so that it must read whole sums"
    sets = " or ".join(_listed(found) for found in op.linear)
    return f"partial operands must be {sets}, not {_listed(sorted(partial))}"


def explain_splits(op: GraphOp, graph: Graph | None = None) -> str:
    """One line a loop: what its split does, or why it is refused. With the graph, operands go by their names."""
    lines = [f"{op.name} (op {op.number}){' at ' + op.source if op.source else ''}"]
    legal = legal_splits(op)
    for loop, extent in enumerate(op.loops):
        what = _described(op, legal[loop], graph) if loop in legal else f"refused: {refusal_of_split(op, loop)}"
        lines.append(f"  d{loop} ({extent}, {op.kinds[loop]}): {what}")
    return "\n".join(lines)


def main_loop(op: GraphOp, access: Access) -> int | None:
    """The loop that walks farthest along a dim, None if there is none: the rows of a window, the outermost of a
    collapsed group. The others that walk along it are taps."""
    if not isinstance(access, Affine) or not access.terms:
        return None
    return min(access.terms, key=lambda t: (-abs(t[1]) * max(op.loops[t[0]] - 1, 0), op.kinds[t[0]] != PARALLEL, t[0]))[
        0
    ]


def _result_refusal(op: GraphOp, access_map: AccessMap, loop: int, parallel: bool) -> str | None:
    if any(isinstance(access, Whole) for access in access_map):
        return "where it is written depends on data"
    dims = _dims_of(access_map, loop)
    if not parallel:
        return f"dim {dims[0]} keeps the reduced loop d{loop}" if dims else None
    if len(dims) != 1:
        return f"d{loop} walks along {len(dims)} dims of it, not along one"
    if not _splits_exactly(op, access_map[dims[0]], loop):
        return f"d{loop} is an inner part of dim {dims[0]}: parts of it are no boxes, split the outermost part"
    return None


def _input_refusal(op: GraphOp, access_map: AccessMap, loop: int, parallel: bool) -> str | None:
    dims = _dims_of(access_map, loop)
    if not dims:
        return None
    if len(dims) > 1:
        return f"d{loop} walks along dims {dims[0]} and {dims[1]} together"
    access = access_map[dims[0]]
    assert isinstance(access, Affine)
    if access.step(loop) < 0:
        return f"d{loop} reads dim {dims[0]} backwards"
    if op.kind == VIEW and not _splits_exactly(op, access, loop):
        return f"d{loop} is an inner part of dim {dims[0]}: parts of it are no boxes, split the outermost part"
    if not parallel and main_loop(op, access) != loop:
        return f"d{loop} walks over a window of dim {dims[0]}"
    return None


def _shared_dim(op: GraphOp, loop: int, others: Collection[int]) -> str | None:
    for use in (*op.inputs, *op.results):
        for access in use.access:
            if isinstance(access, Affine) and access.step(loop):
                shared = [other for other in sorted(others) if other != loop and access.step(other)]
                if shared:
                    return f"d{loop} and d{shared[0]}, which is split already, walk along the same dim"
    return None


def _splits_exactly(op: GraphOp, access: Access, loop: int) -> bool:
    """The parts of a loop cut a dim into ranges that are disjoint and leave nothing out."""
    assert isinstance(access, Affine)
    found = _cut_by(op, access, loop, ("",))
    return found.step == found.span and found.offset == 0


def _cut_by(op: GraphOp, access: Affine, loop: int, axes: tuple[str, ...]) -> DimSplit:
    offset, span = access.constant, 1
    for other, step in access.terms:
        if other != loop:
            reach = step * max(op.loops[other] - 1, 0)
            offset += min(reach, 0)
            span += abs(reach)
    return DimSplit(axes, op.loops[loop], access.step(loop), offset, span)


def _dim_split(op: GraphOp, access: Access, cut: Mapping[int, tuple[str, ...]]) -> DimSplit:
    if isinstance(access, Whole):
        return DimSplit()
    loops = [loop for loop, _ in access.terms if loop in cut]
    if len(loops) > 1:
        raise PlanError(
            f"{op.name} (op {op.number}): d{loops[0]} and d{loops[1]} are both split, but walk along the same dim",
            hint="split one of them",
            source=op.source,
        )
    return _cut_by(op, access, loops[0], cut[loops[0]]) if loops else DimSplit()


def _listed(numbers: Collection[int]) -> str:
    return " with ".join(str(number) for number in numbers)


def _dims_of(access_map: AccessMap, loop: int) -> list[int]:
    return [dim for dim, access in enumerate(access_map) if isinstance(access, Affine) and access.step(loop)]


def _dim_of(access_map: AccessMap, loop: int) -> int:
    dims = _dims_of(access_map, loop)
    return dims[0] if dims else -1


def _described(op: GraphOp, found: Split, graph: Graph | None) -> str:
    parts: list[str] = []
    for number, (use, dim) in enumerate(zip(op.inputs, found.inputs, strict=True)):
        name = f"operand {number}" if graph is None else graph.values[use.value].name
        if dim < 0:
            parts.append(f"{name} replicated")
            continue
        access = use.access[dim]
        assert isinstance(access, Affine)
        cut = _cut_by(op, access, found.loop, ("",))
        halo = f" with a halo of {cut.span - cut.step}" if cut.span > cut.step else ""
        parts.append(f"{name} dim {dim}{halo}")
    results = f"results partial ({found.combiner})" if found.combiner else f"result dim {found.results[0]}"
    return ", ".join([*parts, results])
