"""The body of a ``scan`` kernel: prefix scans of rows, with everything element-wise around them and the rows' sums.

Threads lie over the space as in ``row_kernel`` or, where neighbours in memory belong to different rows,
``column_kernel``. Reductions that the scans need are folded first, pass by pass, and those of what was scanned on the
way. The last pass walks the row tile by tile: a tile is one chunk a thread. Each thread scans its chunk, lanes of a
warp their threads' totals by shuffles (Hillis and Steele 1986), warps theirs through shared memory, and the total of
the tile is carried to the next one.
Every value is combined in an order that the layout fixes, so results do not depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.analysis import sources
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.column_kernel import ColumnKernel
from mlirstitch.lowering.kernel.combiner import combiner_of
from mlirstitch.lowering.kernel.evaluate import Guard
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial, load_chunk, shuffle, store_chunk
from mlirstitch.lowering.kernel.index_expr import Expr, delinearize, linearize
from mlirstitch.lowering.kernel.linalg_body import LinalgOp
from mlirstitch.lowering.kernel.reduction_kernel import ReductionKernel, Thread
from mlirstitch.lowering.kernel.row_kernel import RowKernel
from mlirstitch.lowering.kernel.row_space import Dims, RowSpace, by_level, dims_of, op_of, row_shape
from mlirstitch.lowering.kernel.scan_combiner import scan_combiner
from mlirstitch.lowering.kernel.tensor_program import Computed, Indices, Node, TensorProgram
from mlirstitch.passes.scan import SCANNED, TOTAL


@dataclass(frozen=True)
class ScanSpace:
    """The rows that are scanned.

    Attributes:
        rows: the space, with the reductions that no scan comes before.
        scans: in order of dependence.
        after: reductions of scanned values, one value per folding.
    """

    rows: RowSpace
    scans: tuple[Computed, ...]
    after: tuple[Computed, ...]

    @staticmethod
    def of(program: TensorProgram) -> ScanSpace:
        """Derive the space from the scans. Raises :class:`PassError` if scans and reductions do not share one."""
        reducing = [node for node in program.nodes.values() if isinstance(node, Computed) and node.is_reduction]
        scans = tuple(node for node in reducing if node.is_scan and node.result == SCANNED)
        if not scans:
            raise PassError("nothing is scanned")
        linalg = scans[0].linalg
        shape, dims = _shape(linalg), _dims(linalg)
        for node in scans:
            scan_combiner(node.linalg)
            if _shape(node.linalg) != shape or _dims(node.linalg) != dims:
                raise refusal(op_of(node), "scans other rows than another scan", "they become separate kernels")
        reductions = [node for node in reducing if not node.is_scan]
        for node in reductions:
            own = dims_of(node.linalg)
            if row_shape(node) != shape or (own is not None and own != dims):
                raise refusal(op_of(node), "reduces other rows than are scanned", "they become separate kernels")
        if 0 in shape:
            raise refusal(op_of(scans[0]), "scans an empty tensor")
        if shape[1] == 1:
            raise refusal(op_of(scans[0]), "scans a dim of one element", "leave the scan out: it changes nothing")
        scanned = _depending(program, scans)
        before = by_level([node for node in reductions if node.uid not in scanned])
        after = by_level([node for node in reductions if node.uid in scanned])
        return ScanSpace(RowSpace(*shape, dims, before), scans, tuple(node for level in after for node in level))


def _shape(linalg: LinalgOp) -> tuple[int, int]:
    return math.prod(linalg.parallel_extents), math.prod(linalg.reduction_extents)


def _dims(linalg: LinalgOp) -> Dims:
    """How rows and columns lie in the scanned tensor."""
    found: list[tuple[int, bool]] = []
    for mapped in linalg.maps[len(linalg.inputs) + SCANNED]:
        dim = mapped.dim
        if dim is None or linalg.extents[dim] == 1:
            continue
        extent, scanned = linalg.extents[dim], linalg.reduced[dim]
        if found and found[-1][1] == scanned:
            extent *= found.pop()[0]
        found.append((extent, scanned))
    rows, cols = _shape(linalg)
    return tuple(found) if len(found) > 1 else ((rows, False), (cols, True))


class ScanPass(ReductionKernel):
    """The last pass of a kernel that scans. Mixed into a kernel that says how threads lie over the space."""

    scans: tuple[Computed, ...] = ()
    after: tuple[Computed, ...] = ()
    across: int = 1
    """Threads side by side in a warp that belong to different rows."""

    def _emit_rows(self, thread: Thread) -> None:
        self._thread = thread
        self._tile: dict[int, tuple[Expr, Value]] = {}
        self._buffers: dict[int, Value] = {}
        everything = self.outputs
        scanned = _depending(self.program, self.scans)
        self.outputs = tuple(i for i in everything if self.program.outputs[i].uid not in scanned)
        stored: set[int] = set()
        for number, level in enumerate(self.space.levels):
            self._begin(number)
            folds, partials = self._fold_level(level, stored)
            totals = self.fold_threads(list(zip(folds, partials, strict=True)), thread)
            self._publish(folds, totals)
        self.outputs = everything
        self._store_rest(thread, stored)

    def _last_pass(self, outputs: Sequence[int]) -> None:
        scans = [(node, Fold(self.evaluator, node, scan_combiner(node.linalg))) for node in self.scans]
        initial = [self._carry(fold) for _, fold in scans]
        folds = [Fold(self.evaluator, node, combiner_of(node.linalg, node.result)) for node in self.after]
        counts = [len(fold.combiner.results) for fold in folds]
        running = [value for fold in folds for value in self._initial(fold, self.layout.vector)]

        def visit(col: Expr, guard: Guard | None, carried: list[Value]) -> Sequence[Value]:
            taken: list[Value] = []
            for (node, fold), carry in zip(scans, carried[: len(scans)], strict=True):
                value, total = self._scan_tile(fold, self._element(fold, col), carry)
                self._tile[id(node.linalg)] = (col, value)
                taken.append(total)
            for fold, partial in zip(folds, _split(carried[len(scans) :], counts), strict=True):
                taken.extend(self._accumulate(fold, partial, col, guard))
            self._store_full(outputs, col)
            return taken

        found = self._for_each_chunk([*initial, *running], visit)[len(scans) :]
        self._tile = {}
        if folds:
            partials = list(zip(folds, _split(found, counts), strict=True))
            self._publish(folds, self.fold_threads(partials, self._thread))

    def _carry(self, fold: Fold) -> Value:
        value = self._row_init(fold, TOTAL)
        return self.builder.broadcast(value, self.result_width) if self.result_width > 1 else value

    def _element(self, fold: Fold, col: Expr) -> Value:
        linalg = fold.combiner.linalg
        loop = linalg.loop_indices(
            delinearize(self.row, linalg.parallel_extents), delinearize(col, linalg.reduction_extents)
        )
        (value,) = self.evaluator.run_body(fold.node, fold.combiner.elements, loop, {})
        width = self.layout.vector
        return self.builder.broadcast(value, width) if width > 1 else value

    def _reduced(self, node: Computed, indices: Indices) -> Value:
        linalg = node.linalg
        if linalg.scan is None:
            return super()._reduced(node, indices)
        if node.result != SCANNED:
            raise refusal(linalg.op, "its total is read", "reduce the tensor by itself, or read the last element")
        place = linearize(linalg.parallel_point(SCANNED, indices), linalg.parallel_extents)
        maps = linalg.maps[len(linalg.inputs) + SCANNED]
        (col,) = (index for mapped, index in zip(maps, indices, strict=True) if mapped.dim == linalg.scan.dim)
        known = self._tile.get(id(linalg))
        if known is None or place != self.row or col != known[0]:
            raise refusal(linalg.op, "its result is read at another place than it is computed", "it is stored first")
        return known[1]

    # A tile -----------------------------------------------------------------------------------------------------

    def _scan_tile(self, fold: Fold, element: Value, carry: Value) -> tuple[Value, Value]:
        """The scanned chunk of this thread, and the total of the row up to the end of the tile."""
        scan = fold.combiner.linalg.scan
        if scan is None:
            raise TypeError("not a scan")
        builder = self.builder
        location, builder.location = builder.location, fold.combiner.linalg.op.location
        prefixes = self._prefixes(fold, element)
        before, total = self._before(fold, prefixes[-1], carry)
        if scan.inclusive:
            values = [_join(fold, before, prefix) for prefix in prefixes]
        else:
            values = [before, *(_join(fold, before, prefix) for prefix in prefixes[:-1])]
        builder.location = location
        return (scalar_ops.assemble(builder, values) if len(values) > 1 else values[0]), total

    def _prefixes(self, fold: Fold, element: Value) -> list[Value]:
        """The inclusive scan of this thread's chunk, one value per column."""
        columns = self.layout.vector // self.result_width
        if columns == 1:
            return [element]
        prefixes = [scalar_ops.extract(self.builder, element, 0)]
        for lane in range(1, columns):
            prefixes.append(_join(fold, prefixes[-1], scalar_ops.extract(self.builder, element, lane)))
        return prefixes

    def _before(self, fold: Fold, own: Value, carry: Value) -> tuple[Value, Value]:
        """What is combined before this thread's chunk, ``own`` in all, and the total with the whole tile."""
        builder, lanes = self.builder, self.layout.lanes
        if lanes == 1:
            return carry, _join(fold, carry, own)
        in_warp = min(WARP // self.across, lanes)
        step = builder.arith("remui", self._thread.in_row, builder.index_constant(in_warp))
        prefix, reach = own, 1
        while reach < in_warp:
            other = shuffle(builder, prefix, reach * self.across, "up")
            has = builder.compare("uge", step, builder.index_constant(reach))
            prefix = builder.select(has, _join(fold, other, prefix), prefix)
            reach *= 2
        last = builder.compare("eq", step, builder.index_constant(in_warp - 1))
        if lanes == in_warp:
            total = _join(fold, carry, self._of_last(prefix, step, in_warp))
        else:
            carry, total = self._across_warps(fold, prefix, last, carry, in_warp)
        if in_warp == 1:
            return carry, total
        first = builder.compare("eq", step, builder.index_constant(0))
        previous = shuffle(builder, prefix, self.across, "up")
        return builder.select(first, carry, _join(fold, carry, previous)), total

    def _of_last(self, value: Value, step: Value, in_warp: int) -> Value:
        """The value that the last of the ``in_warp`` threads of a warp that share the row has."""
        builder = self.builder
        lane = builder.arith("remui", builder.thread_id(), builder.index_constant(WARP))
        ahead = builder.arith("subi", builder.index_constant(in_warp - 1), step)
        source = builder.arith("addi", lane, builder.arith("muli", ahead, builder.index_constant(self.across)))
        return shuffle(builder, value, builder.emit("arith.index_cast", builder.i32, [source]), "idx")

    def _across_warps(self, fold: Fold, prefix: Value, last: Value, carry: Value, in_warp: int) -> tuple[Value, Value]:
        """What comes before this warp's threads of the row, and the total with the whole tile."""
        builder, across = self.builder, self.across
        warps = self.layout.lanes // in_warp
        (kind,) = fold.types()
        width = max(1, scalar_ops.width_of(prefix))
        key = id(fold.combiner.linalg)
        if key not in self._buffers:
            self._buffers[key] = self.shared(warps * across * width, kind)
        buffer = self._buffers[key]
        warp = builder.arith("divui", self._thread.in_row, builder.index_constant(in_warp))
        place = builder.arith("remui", builder.thread_id(), builder.index_constant(across))
        chunk = builder.arith("muli", place, builder.index_constant(width))
        row = builder.index_constant(across * width)

        def write() -> list[Value]:
            at = builder.arith("addi", builder.arith("muli", warp, row), chunk)
            store_chunk(builder, scalar_ops.to_memory(builder, prefix), buffer, at)
            return []

        builder.barrier()  # what the tile before left has been read
        builder.branch(last, [], write, None, builder.scope.executions / in_warp)
        builder.barrier()

        def take(number: Value, carried: list[Value]) -> Sequence[Value]:
            before, total = carried
            at = builder.arith("addi", builder.arith("muli", number, row), chunk)
            stored = scalar_ops.from_memory(builder, load_chunk(builder, buffer, at, width, kind), kind)
            total = _join(fold, total, stored)
            return [builder.select(builder.compare("ult", number, warp), total, before), total]

        bounds = tuple(builder.index_constant(value) for value in (0, warps, 1))
        before, total = builder.loop(None, (bounds[0], bounds[1], bounds[2]), warps, [carry, carry], take)
        return before, total


@dataclass(eq=False)
class RowScanKernel(ScanPass, RowKernel):
    """Scans of rows whose columns are neighbours in memory; the vector lane runs along the row."""

    scans: tuple[Computed, ...] = ()
    after: tuple[Computed, ...] = ()


@dataclass(eq=False)
class ColumnScanKernel(ScanPass, ColumnKernel):
    """Scans of rows that are columns of memory; the vector lane runs over rows."""

    scans: tuple[Computed, ...] = ()
    after: tuple[Computed, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.across = self.layout.across


def _split(values: Sequence[Value], counts: Sequence[int]) -> list[Partial]:
    """Cut a list of running values into those of every folding."""
    ends = list(accumulate(counts, initial=0))
    return [tuple(values[start:end]) for start, end in pairwise(ends)]


def _join(fold: Fold, first: Value, second: Value) -> Value:
    """``second``, which comes right behind ``first``, combined with it."""
    pair: tuple[Partial, Partial] = ((first,), (second,))
    return fold.combine(*pair)[0]


def _depending(program: TensorProgram, scans: Sequence[Computed]) -> set[int]:
    """The values that depend on a scan, by ``uid``; for look-ups only."""
    known: dict[int, bool] = {node.uid: True for node in scans}

    def depends(node: Node) -> bool:
        if node.uid not in known:
            known[node.uid] = any(list(map(depends, sources(node))))
        return known[node.uid]

    for node in program.nodes.values():
        depends(node)
    return {uid for uid, found in known.items() if found}
