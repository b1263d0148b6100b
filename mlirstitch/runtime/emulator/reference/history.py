"""Who accessed every place of a memory last, and whether a new access races with that.

Kept are the last weak write, and for weak reads, strong writes and strong reads the last access and, where later ones
are not ordered after it, the others in a log. Strong are atomics and ``.relaxed .acquire .release .volatile`` accesses:
they do not race with each other, unless their scope is the block (``.cta``) and they come from different ones. A write
that is ordered after all else makes the rest irrelevant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import Array
from mlirstitch.runtime.emulator.reference.clocks import LANE_BITS, Clocks
from mlirstitch.runtime.emulator.reference.lanes import SEVERAL

WEAK_READ, WEAK_WRITE, STRONG_READ, STRONG_WRITE, BLOCK_READ, BLOCK_WRITE = range(6)
"""Kinds of accesses; ``BLOCK`` are strong ones with the scope of a block."""

_RIVALS: dict[int, tuple[int, ...]] = {
    WEAK_READ: (WEAK_WRITE, STRONG_WRITE, BLOCK_WRITE),
    WEAK_WRITE: (WEAK_WRITE, STRONG_WRITE, BLOCK_WRITE, WEAK_READ, STRONG_READ, BLOCK_READ),
    STRONG_READ: (WEAK_WRITE,),
    STRONG_WRITE: (WEAK_WRITE, WEAK_READ),
    BLOCK_READ: (WEAK_WRITE,),
    BLOCK_WRITE: (WEAK_WRITE, WEAK_READ),
}
_RIVALS_OF_OTHER_BLOCKS: dict[int, tuple[int, ...]] = {
    WEAK_READ: (),
    WEAK_WRITE: (),
    STRONG_READ: (BLOCK_WRITE,),
    STRONG_WRITE: (BLOCK_WRITE, BLOCK_READ),
    BLOCK_READ: (STRONG_WRITE, BLOCK_WRITE),
    BLOCK_WRITE: (STRONG_WRITE, STRONG_READ, BLOCK_WRITE, BLOCK_READ),
}


@dataclass(frozen=True)
class Access:
    """One instruction's accesses, one entry for every place and warp.

    ``place``, ``warp``, ``lane`` are arrays sorted by place and warp; ``first`` is the number of the thread that stands
    for the entry among those that take part; ``site`` numbers the instruction, from 1. ``changed`` is False where a
    write leaves the value as it was, which two writes in any order do.
    """

    kind: int
    place: Array
    warp: Array
    lane: Array
    first: Array
    site: int
    changed: Array


@dataclass(frozen=True)
class Conflict:
    """Entry of an access that races, and the earlier access: kind, warp and lane, number of the instruction."""

    entry: int
    kind: int
    warp: int
    lane: int
    site: int


def collect(kind: int, place: Array, warp: Array, lane: Array, site: int, changed: Array | None = None) -> Access:
    """Sort by place and warp; lanes of a warp that share a place become one entry."""
    first = np.arange(place.size)
    if changed is None:
        changed = np.ones(place.size, bool)
    if place.size > 1 and not (place[1:] > place[:-1]).all():
        first = np.lexsort((warp, place))
        place, warp, lane = place[first], warp[first], lane[first]
        fresh = np.ones(place.size, bool)
        fresh[1:] = (place[1:] != place[:-1]) | (warp[1:] != warp[:-1])
        starts = np.nonzero(fresh)[0]
        counts = np.diff(np.append(starts, place.size))
        place, warp, first = place[starts], warp[starts], first[starts]
        lane = np.where(counts > 1, SEVERAL, lane[starts])
        changed = changed[first]
    return Access(kind, place, warp, lane, first, site, changed)


class _Accesses:
    """Accesses of one kind: the last one of every place, and a log of those that it does not supersede."""

    def __init__(self, places: int) -> None:
        self.who = np.zeros(places, np.int64)
        self.when = np.zeros(places, np.int32)
        self.site = np.zeros(places, np.int32)
        self.many = np.zeros(places, bool)
        self._age = np.zeros(places, np.int32)
        self._log: list[tuple[Array, Array, Array, Array, Array]] = []

    def forget(self, place: Array | slice) -> None:
        """These places have no accesses any more."""
        self.site[place] = 0
        self.many[place] = False
        self._age[place] += 1
        if isinstance(place, slice) and place == slice(None):
            self._log.clear()

    def record(self, access: Access, clocks: Clocks) -> None:
        place = access.place
        who = (access.warp << LANE_BITS) | access.lane
        when = clocks.time_of(access.warp, access.kind not in (WEAK_READ, WEAK_WRITE))
        if access.kind != WEAK_WRITE:
            # The same warp at the same time: one entry for several lanes. Else what is not ordered before goes on file.
            old = (self.site[place] != 0) & (self.who[place] != who)
            if old.any():
                together = old & (self.who[place] >> LANE_BITS == access.warp) & (self.when[place] == when)
                who = np.where(together, (access.warp << LANE_BITS) | SEVERAL, who)
                rest = np.nonzero(old & ~together)[0]
                before = place[rest]
                kept = ~clocks.ordered(self.who[before], self.when[before], access.warp[rest], access.lane[rest])
                self._file(before[kept], self.who[before[kept]], self.when[before[kept]], self.site[before[kept]])
        self.who[place], self.when[place], self.site[place] = who, when, access.site
        if place.size > 1:
            twice = np.nonzero(place[1:] == place[:-1])[0]
            if twice.size:
                site = np.full(twice.size, access.site, np.int32)
                self._file(place[twice], who[twice], when[twice], site)

    def _file(self, place: Array, who: Array, when: Array, site: Array) -> None:
        if place.size:
            self.many[place] = True
            self._log.append((place, who, when, site, self._age[place]))

    def conflict(self, access: Access, clocks: Clocks, kind: int, others: bool) -> Conflict | None:
        """An access on record that races; with ``others`` only those of other blocks do."""
        place = access.place
        seen = np.nonzero(self.site[place] != 0)[0]
        if kind == access.kind == WEAK_WRITE:
            seen = seen[access.changed[seen]]
        if not seen.size:
            return None
        here = place[seen]
        bad = ~clocks.ordered(self.who[here], self.when[here], access.warp[seen], access.lane[seen])
        if others:
            bad &= clocks.apart(self.who[here], access.warp[seen])
        if bad.any():
            entry = int(seen[np.nonzero(bad)[0][0]])
            return self._describe(entry, kind, self.who[place[entry]], self.site[place[entry]])
        return self._conflict_on_file(access, clocks, kind, others) if self.many[here].any() else None

    def _conflict_on_file(self, access: Access, clocks: Clocks, kind: int, others: bool) -> Conflict | None:
        if len(self._log) > 1:
            self._log = [tuple(np.concatenate(part) for part in zip(*self._log, strict=True))]  # type: ignore[list-item]
        place, who, when, site, age = self._log[0]
        left = np.searchsorted(access.place, place, "left")
        right = np.searchsorted(access.place, place, "right")
        live = (right > left) & (age == self._age[place])
        place, who, when, site, left, right = (v[live] for v in (place, who, when, site, left, right))
        for step in range(int((right - left).max()) if place.size else 0):
            chosen = np.nonzero(left + step < right)[0]
            entry = left[chosen] + step
            bad = ~clocks.ordered(who[chosen], when[chosen], access.warp[entry], access.lane[entry])
            if others:
                bad &= clocks.apart(who[chosen], access.warp[entry])
            if bad.any():
                first = int(np.nonzero(bad)[0][0])
                return self._describe(int(entry[first]), kind, who[chosen[first]], site[chosen[first]])
        return None

    def _describe(self, entry: int, kind: int, who: Any, site: Any) -> Conflict:
        return Conflict(entry, kind, int(who) >> LANE_BITS, int(who) & (2**LANE_BITS - 1), int(site))


class History:
    """All kinds of accesses to the places of one memory."""

    def __init__(self, places: int, clocks: Clocks) -> None:
        self._places = places
        self._clocks = clocks
        self._kinds: dict[int, _Accesses] = {}

    def check(self, access: Access) -> Conflict | None:
        """An earlier access that races with this one, else None; then the access is on record."""
        for table, others in ((_RIVALS, False), (_RIVALS_OF_OTHER_BLOCKS, True)):
            for kind in table[access.kind]:
                known = self._kinds.get(kind)
                found = None if known is None else known.conflict(access, self._clocks, kind, others)
                if found is not None:
                    return found
        if access.kind == BLOCK_WRITE:
            found = self._check_among(access)
            if found is not None:
                return found
        if access.kind == WEAK_WRITE:
            for kind, known in self._kinds.items():
                if kind != WEAK_WRITE:
                    known.forget(access.place)
        if access.kind not in self._kinds:
            self._kinds[access.kind] = _Accesses(self._places)
        self._kinds[access.kind].record(access, self._clocks)
        return None

    def _check_among(self, access: Access) -> Conflict | None:
        """Warps of different blocks that access one place with the scope of a block in the same instruction."""
        same = access.place[1:] == access.place[:-1]
        bad = same & self._clocks.apart(access.warp[:-1] << LANE_BITS, access.warp[1:])
        if not bad.any():
            return None
        before = int(np.nonzero(bad)[0][0])
        return Conflict(before + 1, access.kind, int(access.warp[before]), int(access.lane[before]), access.site)

    def renew(self, place: Array, warp: Array, lane: Array) -> None:
        """Writes that are on record happen only now, by the threads given."""
        known = self._kinds[WEAK_WRITE]
        known.who[place] = (warp << LANE_BITS) | lane
        known.when[place] = self._clocks.now[warp]

    def forget(self, place: Array | slice) -> None:
        """All accesses so far come before everything that follows."""
        for known in self._kinds.values():
            known.forget(place)
