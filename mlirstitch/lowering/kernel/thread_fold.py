"""Folding of what the threads that share a row hold: butterfly shuffles in a warp, shared memory between warps.

Two reductions of one sort fold as a pair. After the first exchange half of the lanes carry on with the first reduction
and half with the second, so that the steps that are left fold both at once: six shuffles a warp instead of ten (the
recursive halving of R. Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004, for two values).
Each total is the sum of the same pairs in the same tree as without; operands of a commutative op swap at most.

One barrier between warps serves all reductions of a level. Every step combines in a fixed order, so results do not
depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial, shuffle

PAIRED_LANES = 8
"""Lanes from which on a pair takes fewer instructions than two reductions for themselves."""


@dataclass(frozen=True)
class Lanes:
    """The threads that fold: ``count`` (a power of two) neighbours of a warp.

    ``number`` (index type) is this one's place among them, or in the warp.
    """

    builder: Builder
    count: int
    number: Value

    @property
    def in_upper_half(self) -> Value:
        """Whether this thread is in the half that carries on with the second of two reductions."""
        builder, half = self.builder, self.builder.index_constant(self.count // 2)
        if self.count == WARP:
            return builder.compare("uge", self.number, half)
        return builder.compare("ne", builder.arith("andi", self.number, half), builder.index_constant(0))


@dataclass(frozen=True)
class Group:
    """One reduction, or two that fold as a pair; ``values`` has a partial result (scalars) for each."""

    folds: tuple[Fold, ...]
    values: tuple[Partial, ...]

    @property
    def is_pair(self) -> bool:
        """Whether there are two."""
        return len(self.folds) == 2


def fold_threads(
    folds: Sequence[tuple[Fold, Partial]],
    threads: int,
    lane: Value,
    warp: Value,
    shared: Callable[[int, ir.Type], Value],
) -> list[Partial]:
    """Fold scalars of ``threads`` (a power of two) threads; every one of them gets the results, in order.

    Up to a warp, ``lane`` is the thread's number among those that fold, or its place in the warp; beyond, the threads
    are a block, and ``lane`` and ``warp`` are its place in the warp and the warp's number. All of index type.
    ``shared`` makes a buffer in shared memory (elements, type); each reduction has slots of its own, so nothing is
    overwritten while it is still read.
    """
    builder = folds[0][0].builder
    lanes = Lanes(builder, min(WARP, threads), lane)
    groups = _groups(folds, lanes.count)
    if threads <= WARP:
        return [total for group in groups for total in _fold_group(group, lanes)]
    return _across_warps([_halved(group, lanes) for group in groups], threads // WARP, lane, warp, shared)


def _groups(folds: Sequence[tuple[Fold, Partial]], lanes: int) -> list[Group]:
    """Neighbours with the same merging op and type make a pair."""
    groups: list[Group] = []
    for fold, value in folds:
        last = groups[-1] if groups else None
        if last is not None and not last.is_pair and lanes >= PAIRED_LANES and _alike(last.folds[0], fold):
            groups[-1] = Group((*last.folds, fold), (*last.values, value))
        else:
            groups.append(Group((fold,), (value,)))
    return groups


def _alike(first: Fold, second: Fold) -> bool:
    merge = first.combiner.merge
    return bool(merge) and merge == second.combiner.merge and first.types() == second.types()


def _fold_group(group: Group, lanes: Lanes) -> list[Partial]:
    halved = _halved(group, lanes)
    if not group.is_pair:
        return list(halved.values)
    return _exchanged(group.folds[0].builder, halved.values[0], lanes.count // 2, lanes.in_upper_half)


def _halved(group: Group, lanes: Lanes) -> Group:
    """Fold over the lanes; of a pair, lanes of the lower half get the first total and those of the upper the second."""
    fold = group.folds[0]
    fold.builder.location = fold.combiner.linalg.op.location
    if not group.is_pair:
        return Group(group.folds, (fold.across_threads(group.values[0], lanes.count),))
    builder, half, upper = fold.builder, lanes.count // 2, lanes.in_upper_half
    (first,), (second,) = group.values
    kept, given = builder.select(upper, second, first), builder.select(upper, first, second)
    both = fold.merge((kept,), (shuffle(builder, given, half),))
    return Group(group.folds, (fold.across_threads(both, half),))


def _exchanged(builder: Builder, both: Partial, distance: int, upper: Value) -> list[Partial]:
    """Both totals of a pair in every lane, where lanes ``distance`` apart have one each."""
    (own,) = both
    other = shuffle(builder, own, distance)
    return [(builder.select(upper, other, own),), (builder.select(upper, own, other),)]


def _across_warps(
    groups: Sequence[Group], warps: int, lane: Value, warp: Value, shared: Callable[[int, ir.Type], Value]
) -> list[Partial]:
    """Fold the warps' results, which :func:`_halved` left, through shared memory; every thread gets the totals."""
    builder = groups[0].folds[0].builder
    buffers = [[shared(len(group.folds) * warps, kind) for kind in group.folds[0].types()] for group in groups]
    # All lanes of a warp, or of its half, hold the same bits and store them: cheaper than a branch around one store.
    for group, slots in zip(groups, buffers, strict=True):
        slot = warp
        if group.is_pair:
            which = builder.arith("divui", lane, builder.index_constant(WARP // 2))
            slot = builder.arith("addi", builder.arith("muli", which, builder.index_constant(warps)), warp)
        for value, buffer in zip(group.values[0], slots, strict=True):
            builder.create("memref.store", [], [scalar_ops.to_memory(builder, value), buffer, slot])
    builder.barrier()
    return [
        total
        for group, slots in zip(groups, buffers, strict=True)
        for total in _read_and_fold(group, slots, warps, lane)
    ]


def _read_and_fold(group: Group, buffers: Sequence[Value], warps: int, lane: Value) -> list[Partial]:
    builder, fold = group.folds[0].builder, group.folds[0]
    if group.is_pair and PAIRED_LANES <= warps < WARP:
        # One load serves both: lanes 0 .. warps-1 read the slots of the first, the next ones those of the second.
        reader = builder.arith("remui", lane, builder.index_constant(2 * warps))
        both = fold.across_threads(_loaded(fold, buffers, reader), warps)
        upper = builder.compare("uge", reader, builder.index_constant(warps))
        return _exchanged(builder, both, warps, upper)
    reader = lane if warps == WARP else builder.arith("remui", lane, builder.index_constant(warps))
    values = [_loaded(fold, buffers, reader)]
    if group.is_pair:
        values.append(_loaded(fold, buffers, builder.arith("addi", reader, builder.index_constant(warps))))
    lanes = Lanes(builder, warps, reader)
    if group.is_pair and warps < PAIRED_LANES:
        return [fold.across_threads(value, warps) for fold, value in zip(group.folds, values, strict=True)]
    return _fold_group(Group(group.folds, tuple(values)), lanes)


def _loaded(fold: Fold, buffers: Sequence[Value], slot: Value) -> Partial:
    builder = fold.builder
    loaded: list[Value] = []
    for kind, buffer in zip(fold.types(), buffers, strict=True):
        stored = builder.emit("memref.load", scalar_ops.memory_type(kind), [buffer, slot])
        loaded.append(scalar_ops.from_memory(builder, stored, kind))
    return tuple(loaded)
