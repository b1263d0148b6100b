"""What one linalg op computes, read once: loops, index maps as functions on index expressions, and the body as data.

Walking IR through the bindings costs more than the walk is worth when a clusterer asks the same question again and
again, so :func:`linalg_op` may be cached by the caller (see ``TensorProgram``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.lowering.kernel.index_expr import Expr, constant, floordiv, mod, unbounded
from mlirstitch.passes.scan import ScanForm, scan_form, scan_problem
from mlirstitch.passes.scatter import scatter_form
from mlirstitch.passes.structured import REDUCTION, Structured, shape_of, structured

_DROPPED_ATTRIBUTES = frozenset(("fastmath", "overflowFlags", "isExact", "nonNeg"))
"""Promises a program may carry into a body. The kernel computes what the plain op says."""


@dataclass(frozen=True)
class MapResult:
    """One result of an affine map: ``dim`` if it is a plain loop dim; ``apply`` maps loop indices to the index."""

    dim: int | None
    apply: Callable[[Sequence[Expr]], Expr]


_KNOWN: dict[str, tuple[MapResult, ...] | None] = {}
"""Results by the text of a map. A map as key would keep its context, and with it every module of it, in memory."""
_MOST_KNOWN = 1 << 12


def map_results(affine_map: ir.AffineMap) -> tuple[MapResult, ...] | None:
    """The results of an affine map without symbols, or None if one of them has no index expression."""
    text = str(affine_map)
    if text not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[text] = _read_results(affine_map)
    return _KNOWN[text]


def _read_results(affine_map: ir.AffineMap) -> tuple[MapResult, ...] | None:
    results: list[MapResult] = []
    for expr in affine_map.results:
        apply = _compile(expr)
        if apply is None:
            return None
        results.append(MapResult(expr.position if isinstance(expr, ir.AffineDimExpr) else None, apply))
    return tuple(results)


def _compile(expr: ir.AffineExpr) -> Callable[[Sequence[Expr]], Expr] | None:
    if isinstance(expr, ir.AffineDimExpr):
        position = expr.position
        return lambda dims: dims[position]
    if isinstance(expr, ir.AffineConstantExpr):
        value = constant(expr.value)
        return lambda dims: value
    if not isinstance(expr, ir.AffineAddExpr | ir.AffineMulExpr | ir.AffineFloorDivExpr | ir.AffineModExpr):
        return None
    left, right = _compile(expr.lhs), _compile(expr.rhs)
    if left is None or right is None:
        return None
    if isinstance(expr, ir.AffineAddExpr):
        return lambda dims: left(dims) + right(dims)
    if not isinstance(expr.rhs, ir.AffineConstantExpr):
        return None
    factor = expr.rhs.value
    if isinstance(expr, ir.AffineMulExpr):
        return lambda dims: left(dims) * factor
    if factor < 1:
        return None
    if isinstance(expr, ir.AffineFloorDivExpr):
        return lambda dims: floordiv(left(dims), factor)
    return lambda dims: mod(left(dims), factor)


@dataclass(frozen=True)
class BodyOp:
    """One op of a body. Operands and result are slots of the body's value table.

    ``tensor`` is the tensor a ``tensor.extract`` reads (it is then not among the operands); ``dim`` the loop dim of a
    ``linalg.index``.
    """

    name: str
    operands: tuple[int, ...]
    result: int
    type: ir.Type
    attributes: dict[str, ir.Attribute]
    location: ir.Location
    tensor: ir.Value | None = None
    dim: int = -1


@dataclass(frozen=True)
class Body:
    """A body in single-assignment form over numbered slots; slots ``0 .. arguments-1`` are the block arguments.

    Attributes:
        arguments: number of block arguments (inputs, then inits).
        ops: in order.
        yields: slot of each yielded scalar.
        captures: slots of scalars defined outside the body.
        slots: size of the value table.
    """

    arguments: int
    ops: tuple[BodyOp, ...]
    yields: tuple[int, ...]
    captures: tuple[tuple[int, ir.Value], ...]
    slots: int

    def needed(self, roots: Sequence[int], known: frozenset[int]) -> tuple[tuple[BodyOp, ...], frozenset[int]]:
        """The ops that ``roots`` depend on, in order, and the slots they read; slots in ``known`` need nothing."""
        live = set(roots)
        kept: list[BodyOp] = []
        for op in reversed(self.ops):
            if op.result in live and op.result not in known:
                kept.append(op)
                live.update(op.operands)
        return tuple(reversed(kept)), frozenset(live)


@dataclass(frozen=True)
class LinalgOp:
    """One linalg op with a body.

    Attributes:
        op: the operation.
        inputs, inits: operand values.
        extents: loop bounds, one per iteration dim.
        reduced: per iteration dim, whether it is reduced.
        maps: index map of every operand, inputs then inits.
        body: the body.
        problem: why no kernel can compute it, or "".
        scan: how it scans a dim, if it is a scan.
        scatter: the loop dim whose rows indices name, if it is a scatter.
    """

    op: ir.Operation
    inputs: tuple[ir.Value, ...]
    inits: tuple[ir.Value, ...]
    extents: tuple[int, ...]
    reduced: tuple[bool, ...]
    maps: tuple[tuple[MapResult, ...], ...]
    body: Body
    problem: str
    scan: ScanForm | None = None
    scatter: int | None = None

    @property
    def is_reduction(self) -> bool:
        """Whether a dim is reduced."""
        return any(self.reduced)

    @property
    def parallel_extents(self) -> tuple[int, ...]:
        """Bounds of the parallel dims, in loop order."""
        return tuple(e for e, reduced in zip(self.extents, self.reduced, strict=True) if not reduced)

    @property
    def reduction_extents(self) -> tuple[int, ...]:
        """Bounds of the reduced dims, in loop order."""
        return tuple(e for e, reduced in zip(self.extents, self.reduced, strict=True) if reduced)

    def parallel_point(self, result: int, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The parallel loop indices at which element ``indices`` of ``result`` is computed, in loop order."""
        found: dict[int, Expr] = {}
        for mapped, index in zip(self.maps[len(self.inputs) + result], indices, strict=True):
            if mapped.dim is not None:
                found.setdefault(mapped.dim, index)
        return tuple(found.get(dim, constant(0)) for dim, reduced in enumerate(self.reduced) if not reduced)

    def loop_indices(self, parallel: Sequence[Expr], reduction: Sequence[Expr]) -> tuple[Expr, ...]:
        """All loop indices, in loop order, from the parallel and the reduced ones."""
        parallel_left, reduction_left = iter(parallel), iter(reduction)
        return tuple(next(reduction_left) if reduced else next(parallel_left) for reduced in self.reduced)

    def operand_indices(self, operand: int, loop: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where operand ``operand`` is read at the given loop indices."""
        return tuple(mapped.apply(loop) for mapped in self.maps[operand])

    @property
    def is_contraction_like(self) -> bool:
        """Whether every input is indexed by fewer loop dims than there are, or by sums of dims (a window).

        Such an op reads its inputs many times: contraction, convolution, pooling.
        """
        if any(mapped.dim is None for maps in self.maps for mapped in maps if _depends(mapped, len(self.extents))):
            return True
        wide = {dim for dim, extent in enumerate(self.extents) if extent != 1}
        inputs = self.maps[: len(self.inputs)]
        return len(inputs) > 1 and all(not wide <= {m.dim for m in maps} for maps in inputs)


def _depends(mapped: MapResult, dims: int) -> bool:
    return bool(mapped.apply([unbounded(f"d{dim}").expr for dim in range(dims)]).terms)


def linalg_op(op: ir.Operation) -> LinalgOp | None:
    """Read a linalg op with a body; None for any other op."""
    view = structured(op)
    if view is None:
        return None
    problem = ""
    maps: list[tuple[MapResult, ...]] = []
    for affine_map in view.maps:
        results = map_results(affine_map) if affine_map.n_symbols == 0 else None
        if results is None:
            problem = f"the indexing map {affine_map} is not supported"
            results = ()
        maps.append(results)
    reduced = tuple(kind == REDUCTION for kind in view.iterators)
    extents = view.loop_sizes()
    scan = scan_form(view) if any(reduced) else None
    scatter = scatter_form(view) if any(reduced) else None
    scattered = None if scatter is None else scatter.dim
    if not problem:
        problem = _loop_problem(view, maps, extents, reduced, scan is not None)
    body, body_problem = _read_body(view.body)
    return LinalgOp(
        op, view.inputs, view.inits, extents, reduced, tuple(maps), body, problem or body_problem, scan, scattered
    )


def _loop_problem(
    view: Structured,
    maps: Sequence[Sequence[MapResult]],
    extents: Sequence[int],
    reduced: Sequence[bool],
    is_scan: bool,
) -> str:
    if any(extent < 0 for value in view.operands for extent in shape_of(value)):
        return "its shape is dynamic"
    if any(extent < 0 for extent in extents):
        return "a loop bound does not follow from the operand shapes"
    for results in maps[len(view.inputs) :]:
        dims = {mapped.dim for mapped in results if mapped.dim is not None}
        if any(reduced[dim] for dim in dims) and not is_scan:
            return f"a result is indexed by a reduced dim, but {scan_problem(view)}"
        if any(not reduced[d] and d not in dims and extents[d] != 1 for d in range(len(extents))):
            return "a parallel dim does not appear in the result"
        if any(mapped.dim is None and _depends(mapped, len(extents)) for mapped in results):
            return "a result is not indexed by plain dims"
    return ""


def _read_body(block: ir.Block) -> tuple[Body, str]:
    slots: dict[ir.Value, int] = {argument: i for i, argument in enumerate(block.arguments)}
    arguments = len(slots)
    captures: list[tuple[int, ir.Value]] = []
    ops: list[BodyOp] = []
    problem = ""
    count = arguments

    def slot(value: ir.Value) -> int:
        nonlocal count
        if value not in slots:
            slots[value] = count
            captures.append((count, value))
            count += 1
        return slots[value]

    items = [op.operation for op in block.operations]
    for op in items[:-1]:
        results = list(op.results)
        if len(results) != 1 or len(op.regions) != 0:
            problem = problem or f"{op.name} in its body is not supported"
            continue
        operands = list(op.operands)
        tensor = operands.pop(0) if op.name == "tensor.extract" else None
        names = [slot(value) for value in operands]
        slots[results[0]] = count
        dim = ir.IntegerAttr(op.attributes["dim"]).value if op.name == "linalg.index" else -1
        kept = {name: op.attributes[name] for name in op.attributes if name not in _DROPPED_ATTRIBUTES}
        ops.append(BodyOp(op.name, tuple(names), count, results[0].type, kept, op.location, tensor, dim))
        count += 1
    yields = tuple(slot(value) for value in items[-1].operands)
    return Body(arguments, tuple(ops), yields, tuple(captures), count), problem
