"""The sanitizer of a launch: uninitialised global memory, and races in global and shared memory.

Two accesses race if they touch the same place, one of them writes, not both are strong (see :mod:`history`), and no
barrier, fence or release and acquire orders them. That does not depend on the order in which the threads happened to
run. Writes that leave the value as it was do not race with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.reference.allocations import Allocation, GlobalMemory
from mlirstitch.runtime.emulator.reference.async_copies import AsyncCopies
from mlirstitch.runtime.emulator.reference.block_memory import SharedMemory
from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.clocks import Clocks
from mlirstitch.runtime.emulator.reference.departures import Departures
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.global_memory import GlobalAccess
from mlirstitch.runtime.emulator.reference.history import (
    BLOCK_READ,
    BLOCK_WRITE,
    STRONG_READ,
    STRONG_WRITE,
    WEAK_READ,
    WEAK_WRITE,
    Access,
    Conflict,
    History,
    collect,
)
from mlirstitch.runtime.emulator.reference.lanes import Lanes, describe_lane

_STRONG = frozenset({"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"})
_UPDATES = frozenset({"atom", "red", "mbarrier"})
_VERBS = {
    WEAK_READ: "read", WEAK_WRITE: "wrote", STRONG_READ: "read", STRONG_WRITE: "updated", BLOCK_READ: "read",
    BLOCK_WRITE: "updated",
}  # fmt: skip


class Sanitizer:
    """What the sanitizer knows during one launch.

    ``grain`` is the least width of an access to global memory in bytes: the unit in which races are looked for.
    ``defined`` has for the number of an argument one flag a byte: whether it was ever written. Absent ones are.
    ``departures`` watches the shared memory of blocks of a cluster.
    """

    def __init__(self, memory: GlobalMemory, blocks: int, warps: int, grain: int, defined: Mapping[int, Array]) -> None:
        self.clocks = Clocks(blocks, warps)
        self.memory = memory
        self.grain = grain
        self.departures: Departures | None = None
        self._defined = {a.base: defined[a.argument] for a in memory.allocations if a.argument in defined}
        self._histories: dict[int, History] = {}
        self._instructions: list[Instruction] = []
        self._numbers: dict[int, int] = {}

    def number(self, site: Site) -> int:
        """Number of the instruction, from 1."""
        key = id(site.instruction)
        if key not in self._numbers:
            self._instructions.append(site.instruction)
            self._numbers[key] = len(self._instructions)
        return self._numbers[key]

    def kind(self, site: Site, writes: bool) -> int:
        """Kind of the accesses of an instruction."""
        i = site.instruction
        if i.op not in _UPDATES and not _STRONG.intersection(i.modifiers):
            return WEAK_WRITE if writes else WEAK_READ
        if "cta" in i.modifiers:
            return BLOCK_WRITE if writes else BLOCK_READ
        return STRONG_WRITE if writes else STRONG_READ

    # ---- global memory
    def check_global(self, chunk: Chunk, site: Site, lanes: Lanes, writes: bool, changed: Array | None) -> None:
        """Put accesses to global memory on record. Raises :class:`LaunchError` for a finding."""
        bases, _ = self.memory.bounds()
        owners = np.searchsorted(bases, lanes.address, side="right") - 1
        for owner in np.unique(owners):
            allocation = self.memory.allocations[owner]
            chosen = np.nonzero(owners == owner)[0]
            self._check_defined(chunk, site, allocation, lanes, chosen, writes)
            if not allocation.writable:
                continue
            history = self._histories.get(allocation.base)
            if history is None:
                places = -(-(allocation.size + allocation.base % self.grain) // self.grain)
                history = self._histories[allocation.base] = History(places, self.clocks)
            start = allocation.base // self.grain * self.grain
            skip = allocation.base - start

            def locate(offset: int, allocation: Allocation = allocation, skip: int = skip) -> str:
                return f"at byte {offset - skip} of {allocation.describe()}"

            part, offset = lanes.part(chosen), lanes.address[chosen] - start
            self.check(chunk, site, history, part, offset, self.grain, writes, changed, chosen, locate)

    def _check_defined(
        self, chunk: Chunk, site: Site, allocation: Allocation, lanes: Lanes, chosen: Array, writes: bool
    ) -> None:
        defined = self._defined.get(allocation.base)
        if defined is None:
            return
        first = lanes.address[chosen] - allocation.base
        places = first[:, None] + np.arange(site.bytes)
        if not writes or site.instruction.op in _UPDATES:
            known = defined[places]
            if not known.all():
                entry, byte = (int(v[0]) for v in np.nonzero(~known))
                who = chunk.describe(int(lanes.rows[chosen[entry]]), int(lanes.threads[chosen[entry]]))
                place = int(places[entry, byte])
                text = f"{who} reads global memory that nobody has written, at byte {place} of {allocation.describe()}"
                raise chunk.finding(site, text)
        if writes:
            defined[places] = True

    def check(
        self, chunk: Chunk, site: Site, history: History, lanes: Lanes, offset: Array, grain: int, writes: bool,
        changed: Array | None, chosen: Array | slice, locate: Callable[[int], str],
    ) -> None:  # fmt: skip
        """Put accesses at byte ``offset`` of a memory on record; a finding if one races.

        ``changed[chosen]`` is for every thread and grain whether a store changes the value; ``locate`` names an offset.
        """
        per = max(site.bytes // grain, 1)
        place = (offset // grain)[:, None] + np.arange(per)
        warp, lane = np.repeat(lanes.warp, per), np.repeat(lanes.lane, per)
        number = self.number(site)
        kind = self.kind(site, writes)
        flat = None if changed is None else changed[chosen].reshape(-1)
        access = collect(kind, place.reshape(-1), warp, lane, number, flat)
        found = history.check(access)
        if found is not None:
            entry = int(access.first[found.entry]) // per
            self._race(chunk, site, lanes, entry, access, found, locate(int(access.place[found.entry]) * grain))

    def _race(
        self, chunk: Chunk, site: Site, lanes: Lanes, entry: int, access: Access, found: Conflict, where: str
    ) -> NoReturn:
        who = chunk.describe(int(lanes.rows[entry]), int(lanes.threads[entry]))
        verb = {WEAK_READ: "reads", STRONG_READ: "reads", BLOCK_READ: "reads", WEAK_WRITE: "writes"}.get(
            access.kind, "updates"
        )
        earlier = self._instructions[found.site - 1]
        other = describe_lane(chunk, found.warp, found.lane)
        line = f"PTX line {earlier.line} ({earlier.mnemonic})"
        raise chunk.finding(
            site, f"race: {who} {verb} what {other} {_VERBS[found.kind]} at {line}, nothing orders the two, {where}"
        )

    # ---- synchronisation through memory
    def synchronise(self, site: Site, lanes: Lanes, space: str, loads: bool, stores: bool) -> None:
        """What strong accesses release and acquire, thread by thread in order."""
        i = site.instruction
        modifiers = set(i.modifiers)
        if i.op not in _UPDATES and not _STRONG & modifiers:
            return
        acquires = loads and bool(modifiers & {"acquire", "acq_rel"})
        releases = stores and bool(modifiers & {"release", "acq_rel"})
        if i.op == "mbarrier":
            acquires = loads = bool(modifiers & {"test_wait", "try_wait"})
            releases = stores = not loads
        if not acquires and not releases and self.clocks.idle:
            return
        local = space == "shared" or "cta" in modifiers
        seen: set[tuple[int, int]] = set()
        for warp, row, address in zip(lanes.warp.tolist(), lanes.rows.tolist(), lanes.address.tolist(), strict=True):
            if (warp, address) in seen:
                continue
            seen.add((warp, address))
            key: Hashable = (row, space, address) if local else address
            if loads:
                self.clocks.acquire(warp, key, acquires)
            if stores:
                self.clocks.release(warp, key, releases, i.op in _UPDATES)


def _bytes_of(chunk: Chunk, lanes: Lanes, site: Site, values: Sequence[Array]) -> Array:
    """Bytes each active thread stores, [threads, bytes]."""
    columns = [
        np.ascontiguousarray(np.broadcast_to(value.view(dtype), chunk.shape)[lanes.rows, lanes.threads])
        for value, dtype in zip(values, site.dtypes, strict=True)
    ]
    return np.concatenate([c.view(np.uint8).reshape(c.size, c.dtype.itemsize) for c in columns], axis=1)


_NAN_WORDS = {0xFE00: 0x7E00, 0xFFC0: 0x7FC0, 0xFFF8: 0x7FF8, 0x7FFF: 0x7FC0, 0xFFFF: 0x7FC0}
"""Upper 16 bits of the NaNs that arithmetic makes, and which stand for the same NaN: with the sign set, of f16, of bf16
and f32, of f64; and of bf16 as conversions and sums make it, which widens to a float32 other than that of ``0 / 0``."""


def _comparable(stored: Array) -> Array:
    """Stored bytes with one bit pattern for NaN: ``a + b`` and ``b + a`` are the same value, whichever NaN is kept."""
    if stored.shape[1] % 2 or not stored.size:
        return stored
    words = np.ascontiguousarray(stored).view(np.uint16)
    if not np.isin(words, list(_NAN_WORDS)).any():
        return stored
    found = words
    for word, same in _NAN_WORDS.items():
        found = np.where(words == word, np.uint16(same), found)
    return found.view(np.uint8)


def _different(before: Array, after: Array, width: int, grain: int) -> Array:
    """For every thread and grain whether its bytes differ."""
    per = max(width // grain, 1)
    return (_comparable(before) != _comparable(after)).reshape(before.shape[0], per, width // per).any(axis=2)


class SanitizedGlobal(GlobalAccess):
    """Global memory under the sanitizer."""

    def __init__(self, chunk: Chunk, memory: GlobalMemory, tally: Tally | None, sanitizer: Sanitizer) -> None:
        super().__init__(chunk, memory, tally)
        self._sanitizer = sanitizer

    def _current(self, lanes: Lanes, site: Site) -> Array:
        bases, _ = self._memory.bounds()
        owners = np.searchsorted(bases, lanes.address, side="right") - 1
        found = np.zeros((lanes.address.size, site.bytes), np.uint8)
        for owner in np.unique(owners):
            allocation = self._memory.allocations[owner]
            chosen = np.nonzero(owners == owner)[0]
            found[chosen] = allocation.raw[(lanes.address[chosen] - allocation.base)[:, None] + np.arange(site.bytes)]
        return found

    def load(self, site: Site, addresses: Array, mask: Mask) -> Sequence[Array]:
        values = super().load(site, addresses, mask)
        lanes = Lanes(self._chunk, addresses + site.offset, mask)
        self._sanitizer.check_global(self._chunk, site, lanes, False, None)
        self._sanitizer.synchronise(site, lanes, "global", True, False)
        return values

    def store(self, site: Site, addresses: Array, values: Sequence[Array], mask: Mask) -> None:
        lanes = Lanes(self._chunk, addresses + site.offset, mask)
        self._check_range(site, addresses, mask)
        wanted = _bytes_of(self._chunk, lanes, site, values)
        before = self._current(lanes, site)
        super().store(site, addresses, values, mask)
        _check_lost(self._chunk, site, lanes, wanted, self._current(lanes, site), "global")
        changed = _different(before, wanted, site.bytes, self._sanitizer.grain)
        self._sanitizer.check_global(self._chunk, site, lanes, True, changed)
        self._sanitizer.synchronise(site, lanes, "global", False, True)

    def resolve(self, site: Site, addresses: Array, mask: Mask) -> list[tuple[Array, Array, Array]]:
        parts = super().resolve(site, addresses, mask)
        lanes = Lanes(self._chunk, addresses + site.offset, mask)
        self._sanitizer.check_global(self._chunk, site, lanes, True, None)
        self._sanitizer.synchronise(site, lanes, "global", True, True)
        return parts


def _check_lost(chunk: Chunk, site: Site, lanes: Lanes, wanted: Array, after: Array, space: str) -> None:
    """Threads that write different values to one place in one instruction: one of them is lost."""
    lost = (_comparable(wanted) != _comparable(after)).any(axis=1)
    if lost.any():
        entry = int(np.nonzero(lost)[0][0])
        overlap = np.nonzero(np.abs(lanes.address - lanes.address[entry]) < site.bytes)[0]
        last = int(overlap[-1]) if overlap.size else entry
        one, two = (chunk.describe(int(lanes.rows[n]), int(lanes.threads[n])) for n in (entry, last))
        text = f"race: {one} and {two} write different values to the same place in {space} memory at once"
        raise chunk.finding(site, text)


class SanitizedShared(SharedMemory):
    """Shared memory under the sanitizer; its own search for races is off."""

    def __init__(
        self, chunk: Chunk, size: int, grain: int, tally: Tally | None, sanitizer: Sanitizer, cluster: int
    ) -> None:
        super().__init__(chunk, size, grain, True, tally, races=False, cluster=cluster)
        self._sanitizer = sanitizer
        self._history = History(chunk.blocks * (self._stride // grain), sanitizer.clocks)
        self._copies = AsyncCopies(chunk, self._stride, grain, self._history)
        sanitizer.departures = Departures(chunk, sanitizer.clocks) if cluster > 1 else None

    def _lanes(self, site: Site, offsets: Array, mask: Mask) -> tuple[Lanes, Array]:
        """Active threads, and the place each accesses counted over the blocks of the chunk, in bytes."""
        full = self._chunk.full(offsets + site.offset)
        rows, inside = self._owners(site, full)
        return Lanes(self._chunk, inside, mask), Lanes(self._chunk, inside + rows * self._stride, mask).address

    def _note(self, site: Site, lanes: Lanes, places: Array, writes: bool, changed: Array | None) -> None:
        stride = self._stride

        def locate(place: int) -> str:
            return f"at shared offset {place % stride}"

        self._copies.check(site, lanes, places)
        if self._sanitizer.departures is not None:
            self._sanitizer.departures.access(site, lanes, places // stride)
        self._sanitizer.check(
            self._chunk, site, self._history, lanes, places, self._grain, writes, changed, slice(None), locate
        )

    def _current(self, places: Array, site: Site) -> Array:
        return self._bytes.reshape(-1)[places[:, None] + np.arange(site.bytes)]

    def load(self, site: Site, offsets: Array, mask: Mask) -> Sequence[Array]:
        values = super().load(site, offsets, mask)
        lanes, places = self._lanes(site, offsets, mask)
        self._note(site, lanes, places, False, None)
        self._sanitizer.synchronise(site, lanes, "shared", True, False)
        return values

    def store(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        self._check_range(site, offsets, mask)
        lanes, places = self._lanes(site, offsets, mask)
        wanted = _bytes_of(self._chunk, lanes, site, values)
        before = self._current(places, site)
        super().store(site, offsets, values, mask)
        _check_lost(self._chunk, site, lanes, wanted, self._current(places, site), "shared")
        self._note(site, lanes, places, True, _different(before, wanted, site.bytes, self._grain))
        self._sanitizer.synchronise(site, lanes, "shared", False, True)

    def store_async(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        self.store(site, offsets, values, mask)
        self._copies.start(site, *self._lanes(site, offsets, mask))

    def commit_async(self, mask: Mask) -> None:
        self._copies.commit(mask)

    def wait_async(self, groups: int, all_groups: bool, mask: Mask) -> None:
        self._copies.wait(groups, all_groups, mask)

    def resolve(self, site: Site, offsets: Array, mask: Mask) -> tuple[Array, Array]:
        found = super().resolve(site, offsets, mask)
        lanes, places = self._lanes(site, offsets, mask)
        self._note(site, lanes, places, True, None)
        self._sanitizer.synchronise(site, lanes, "shared", True, True)
        return found

    def pass_barrier(self, rows: Array | None) -> None:
        """All threads of these blocks have met: what they did so far races with nothing any more."""
        if self._cluster > 1:
            return
        if rows is None:
            self._history.forget(slice(None))
            return
        per = self._stride // self._grain
        places = (np.nonzero(rows)[0][:, None] * per + np.arange(per)).reshape(-1)
        self._history.forget(places)
