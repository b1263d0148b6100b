"""Threads that wait at barriers: who has arrived, who may go on, and what is wrong if nobody may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.ptx.ir import Instruction, Terminator
from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.emit import Site

BARRIERS = 16
"""Barriers a block has."""

OnMeet = Callable[[int, Array, Array], None]
"""Called for a row: warps that arrived at a barrier, warps that go on."""


@dataclass
class _Group:
    """Threads that wait at one instruction for barrier ``number`` until ``count`` threads have come, [blocks].

    ``counted`` tells whether the PTX gives a thread count.
    """

    terminator: Terminator
    mask: Array
    number: Array
    count: Array
    counted: bool


class Barriers:
    """The barriers of the blocks of a chunk. Thread counts are those of the PTX operand or of the whole block."""

    def __init__(self, chunk: Chunk, checks: bool, on_meet: OnMeet | None) -> None:
        self._chunk = chunk
        self._checks = checks
        self._on_meet = on_meet
        self._waiting: list[_Group] = []
        self._arrived = np.zeros((chunk.blocks, BARRIERS, chunk.warps), np.int64)
        self._expected = np.zeros((chunk.blocks, BARRIERS), np.int64)
        self._values = np.zeros(chunk.shape, bool)
        self.results = np.zeros(chunk.shape, np.uint32)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, terminator: Terminator, mask: Mask, operands: Sequence[Array | None] | None = None) -> None:
        """Threads arrive and wait. ``operands`` of a general barrier: number, thread count (None: all), predicate."""
        chunk = self._chunk
        fixed, threads = terminator.barrier
        number, count, predicate = (None, None, None) if operands is None else operands
        assert terminator.instruction is not None
        site = Site(terminator.instruction)
        full = np.ones(chunk.shape, bool) if mask is None else chunk.full(mask)
        if predicate is not None:
            self._values = np.where(full, chunk.full(predicate), self._values)
        counted = threads is not None or count is not None
        for group in self._waiting:
            if group.terminator is terminator and operands is None:
                group.mask = group.mask | full
                return
        whole = chunk.threads if threads is None else threads
        for which, wanted, mine in self._by_operands(site, full, number, fixed, count, whole):
            numbers, counts = (np.full(chunk.blocks, value, np.int64) for value in (which, wanted))
            self._waiting.append(_Group(terminator, mine, numbers, counts, counted))

    def arrive(self, site: Site, mask: Mask, number: Array, count: Array) -> None:
        """``bar.arrive``: threads count as arrived and go on."""
        chunk = self._chunk
        full = np.ones(chunk.shape, bool) if mask is None else chunk.full(mask)
        for which, wanted, mine in self._by_operands(site, full, number, 0, count, 0):
            lanes = chunk.by_warp(np.ascontiguousarray(mine), False).sum(axis=2)
            self._arrived[:, which] += lanes
            self._expected[mine.any(axis=1), which] = wanted

    def _by_operands(
        self, site: Site, full: Array, number: Array | None, fixed: int, count: Array | None, whole: int
    ) -> list[tuple[int, int, Array]]:
        """Threads by the number and the thread count they give; a finding if a warp's threads disagree."""
        chunk = self._chunk
        found: list[tuple[int, int, Array]] = []
        numbers = np.full(chunk.shape, fixed) if number is None else chunk.full(number).astype(np.int64)
        counts = np.full(chunk.shape, whole) if count is None else chunk.full(count).astype(np.int64)
        taken = np.zeros((chunk.blocks, chunk.warps), np.int64)
        for which in np.unique(numbers[full]).tolist():
            for wanted in np.unique(counts[full]).tolist():
                mine = full & (numbers == which) & (counts == wanted)
                if mine.any():
                    self._check_operands(site, which, wanted)
                    taken += chunk.by_warp(mine, False).any(axis=2)
                    found.append((which, wanted, mine))
        if (taken > 1).any():
            row, warp = (int(v[0]) for v in np.nonzero(taken > 1))
            text = f"threads of warp {warp} of {chunk.describe_block(row)} name different barriers or thread counts"
            raise chunk.finding(site, text)
        return found

    def _check_operands(self, site: Site, number: int, count: int) -> None:
        if not 0 <= number < BARRIERS:
            raise self._chunk.finding(site, f"barrier {number}: a block has barriers 0 to {BARRIERS - 1}")
        whole = -(-self._chunk.threads // WARP) * WARP
        odd = (count % WARP and count != self._chunk.threads) or not 0 < count <= whole
        if odd and self._checks:
            text = f"a barrier of {count} threads: it takes whole warps, at most the {whole} of the block"
            raise self._chunk.finding(site, text)

    # ---- going on
    def release(self, exited: Mask) -> list[tuple[Terminator, Array, Array]]:
        """Threads that may go on, by the instruction they waited at, and the rows whose whole block has met there."""
        chunk = self._chunk
        present = np.zeros((chunk.blocks, BARRIERS), np.int64)
        wanted = self._expected.copy()
        rows = np.arange(chunk.blocks)
        for group in self._waiting:
            here = group.mask.any(axis=1)
            np.add.at(present, (rows[here], group.number[here]), group.mask.sum(axis=1)[here])
            wanted[rows[here], group.number[here]] = group.count[here]
        total = present + self._arrived.sum(axis=2)
        whole = chunk.threads
        if not self._checks and exited is not None:
            total = np.where(wanted == whole, total + chunk.full(exited).sum(axis=1)[:, None], total)
        # Counts are of whole warps; a last warp that is not full counts as one.
        rounded = np.where(total == whole, -(-whole // WARP) * WARP, total)
        ready = (present > 0) & ((total >= wanted) | (rounded >= wanted))
        if self._checks:
            self._check_same_barrier()
        released: list[tuple[Terminator, Array, Array]] = []
        if not ready.any():
            return released
        self._meet(ready)
        waiting, self._waiting = self._waiting, []
        for group in waiting:
            open_rows = ready[rows, group.number] & group.mask.any(axis=1)
            if not open_rows.any():
                self._waiting.append(group)
                continue
            go, stay = group.mask & open_rows[:, None], group.mask & ~open_rows[:, None]
            released.append((group.terminator, go, open_rows & (group.count >= whole)))
            if stay.any():
                self._waiting.append(_Group(group.terminator, stay, group.number, group.count, group.counted))
        self._arrived[ready] = 0
        return released

    def _meet(self, ready: Array) -> None:
        """Tell who has met, and reduce the predicates of ``bar.red``."""
        for row, number in zip(*np.nonzero(ready), strict=True):
            groups = [g for g in self._waiting if g.number[row] == number and g.mask[row].any()]
            waits = np.logical_or.reduce([g.mask[row] for g in groups])
            if self._on_meet is not None:
                lanes = np.nonzero(waits)[0]
                going = np.unique(lanes // WARP)
                arrived = np.unique(np.append(going, np.nonzero(self._arrived[row, number])[0]))
                self._on_meet(int(row), arrived, going)
            self._reduce(int(row), groups, waits)

    def _reduce(self, row: int, groups: Sequence[_Group], waits: Array) -> None:
        modifiers = self._instruction(groups[0]).modifiers
        if "red" not in modifiers:
            return
        held = self._values[row, waits]
        value = held.sum() if "popc" in modifiers else held.all() if "and" in modifiers else held.any()
        self.results[row, waits] = value

    # ---- findings
    def _check_same_barrier(self) -> None:
        """Threads of a warp that wait at different instructions for one barrier have diverged; so have threads of a
        block if the barrier is for all of them. Warps may meet at different instructions if a count is given."""
        chunk = self._chunk
        for position, group in enumerate(self._waiting):
            for other in self._waiting[:position]:
                if other.terminator is group.terminator:
                    continue
                same = group.number == other.number
                here, there = group.mask & same[:, None], other.mask & same[:, None]
                if not group.counted:
                    split = here.any(axis=1) & there.any(axis=1)
                else:
                    warps = [chunk.by_warp(np.ascontiguousarray(m), False).any(axis=2) for m in (here, there)]
                    split = np.asarray(warps[0] & warps[1]).any(axis=1)
                if split.any():
                    row = int(np.nonzero(split)[0][0])
                    first, second = self._instruction(group), self._instruction(other)
                    one = chunk.describe(row, int(np.nonzero(here[row])[0][0]))
                    two = chunk.describe(row, int(np.nonzero(there[row])[0][0]))
                    text = f"divergent barrier: {one} waits here, {two} at PTX line {second.line}"
                    raise chunk.finding(Site(first), text)

    def _instruction(self, group: _Group) -> Instruction:
        assert group.terminator.instruction is not None
        return group.terminator.instruction

    def waiting_lines(self) -> list[str]:
        """Where threads wait, for a message."""
        chunk = self._chunk
        found: list[str] = []
        for group in self._waiting:
            row, thread = (int(v[0]) for v in np.nonzero(group.mask))
            instruction = self._instruction(group)
            found.append(f"{chunk.describe(row, thread)} at PTX line {instruction.line} ({instruction.mnemonic})")
        return found

    def deadlock(self, exited: Mask) -> NoReturn:
        """The finding where threads wait for others that never come."""
        raise self._deadlock(exited)

    def _deadlock(self, exited: Mask) -> LaunchError:
        chunk = self._chunk
        group = self._waiting[0]
        row = int(np.nonzero(group.mask.any(axis=1))[0][0])
        present = np.zeros(chunk.threads, bool)
        for other in self._waiting:
            if other.number[row] == group.number[row]:
                present |= other.mask[row]
        waits = chunk.describe(row, int(np.nonzero(group.mask[row])[0][0]))
        absent = np.nonzero(~present)[0]
        reason = "too few threads ever arrive"
        if absent.size:
            gone = exited is not None and bool(chunk.full(exited)[row, absent[0]])
            reason = f"{chunk.describe(row, int(absent[0]))} {'has exited' if gone else 'never arrives'}"
        else:
            reason = f"it is for {int(group.count[row])} threads and only {int(present.sum())} arrive"
        text = f"divergent barrier: {waits} waits, but {reason}"
        return chunk.finding(Site(self._instruction(group)), text)
