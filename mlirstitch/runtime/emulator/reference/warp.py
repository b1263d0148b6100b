"""Instructions by which the threads of a warp exchange values, and atomic updates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.clocks import Clocks
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.floats import decode_bf16, encode_bf16

_ALL = 0xFFFFFFFF
_WEIGHTS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
_REDUCERS: dict[str, tuple[np.ufunc, str]] = {
    "add": (np.add, "zero"),
    "min": (np.minimum, "max"),
    "max": (np.maximum, "min"),
    "and": (np.bitwise_and, "ones"),
    "or": (np.bitwise_or, "zero"),
    "xor": (np.bitwise_xor, "zero"),
}
_FLOAT_REDUCERS: dict[str, tuple[np.ufunc, float]] = {
    "min_number": (np.fmin, np.inf),
    "max_number": (np.fmax, -np.inf),
    "min_nan": (np.minimum, np.inf),
    "max_nan": (np.maximum, -np.inf),
}


class WarpOperations:
    """Shuffles, votes and reductions of the warps of a chunk. ``exited`` is kept up to date by the scheduler."""

    def __init__(self, chunk: Chunk, checks: bool, clocks: Clocks | None = None) -> None:
        self._chunk = chunk
        self._checks = checks
        self._clocks = clocks
        self._threads = np.arange(chunk.threads, dtype=np.int64)
        self._lane = self._threads & (WARP - 1)
        self._sources: dict[tuple[str, int, int], tuple[Array, Array]] = {}
        self.exited: Mask = None

    # ---- barriers of a warp
    def barrier(self, site: Site, members: Array, mask: Mask) -> None:
        """``bar.warp.sync``. Members may wait at another one, so only the executing threads are checked."""
        if self._checks:
            self._check_named(site, members, mask)
        self._meet(mask)

    def _meet(self, mask: Mask) -> None:
        if self._clocks is not None:
            self._clocks.meet_warps(self._chunk, mask)

    # ---- shuffles
    def shuffle(
        self, site: Site, value: Array, lane: Array, clamp: Array, members: Array, mask: Mask
    ) -> tuple[Array, Array]:
        """``shfl.sync``: the value of the source thread, and whether the source is in range."""
        mode = site.operation
        if lane.size == 1 and clamp.size == 1:
            key = (mode, int(lane[0, 0]), int(clamp[0, 0]))
            found = self._sources.get(key)
            if found is None:
                found = self._sources[key] = _source(mode, self._lane[None, :], lane, clamp)
            source, valid = found
        else:
            source, valid = _source(mode, self._lane[None, :], lane, clamp)
        thread = (self._threads & ~np.int64(WARP - 1)) + source
        if self._checks:
            self._check_members(site, members, mask)
            self._check_sources(site, thread, members, mask)
        self._meet(mask)
        thread = np.minimum(thread, self._chunk.threads - 1)
        if value.shape[1] == 1:
            return value, valid
        if thread.shape[0] == 1:
            return value.take(thread[0], axis=1), valid
        return np.take_along_axis(np.broadcast_to(value, thread.shape), thread, axis=1), valid

    def _check_sources(self, site: Site, thread: Array, members: Array, mask: Mask) -> None:
        if mask is None and self._chunk.threads % WARP == 0 and members.size == 1 and int(members[0, 0]) == _ALL:
            return
        shape = self._chunk.shape
        active = np.ones(shape, bool) if mask is None else self._chunk.full(mask)
        inside = np.broadcast_to(thread < self._chunk.threads, shape)
        lane = np.broadcast_to(thread, shape) & (WARP - 1)
        thread = np.broadcast_to(np.minimum(thread, self._chunk.threads - 1), shape)
        named = (self._chunk.full(members) >> (thread & (WARP - 1)).astype(np.uint32)) & np.uint32(1) != 0
        bad = active & ~(inside & named & np.take_along_axis(active, thread, axis=1))
        if bad.any():
            row, reader = (int(x[0]) for x in np.nonzero(bad))
            text = f"{self._chunk.describe(row, reader)} reads lane {int(lane[row, reader])} of its warp"
            raise self._chunk.finding(site, f"{text}, which does not take part")

    def _check_members(self, site: Site, members: Array, mask: Mask) -> None:
        """Executing threads must be in the member mask, and the members that still run must execute this too."""
        plain = members.size == 1 and int(members[0, 0]) == _ALL
        if mask is None and plain:
            return
        named, active = self._check_named(site, members, mask)
        if mask is None:
            return
        running = ~active if self.exited is None else ~active & ~self._chunk.full(self.exited)
        warps = self._chunk.by_warp(active, False).any(axis=2)
        missing = running & named & np.repeat(warps, WARP, axis=1)[:, : self._chunk.threads]
        if missing.any():
            self._fail(site, missing, "is in the member mask but does not execute this with its warp")

    def _check_named(self, site: Site, members: Array, mask: Mask) -> tuple[Array, Array]:
        """Executing threads must be in the member mask; members and executing threads."""
        named = (self._chunk.full(members) >> self._lane.astype(np.uint32)) & np.uint32(1) != 0
        active = np.ones(self._chunk.shape, bool) if mask is None else self._chunk.full(mask)
        outside = active & ~named
        if outside.any():
            self._fail(site, outside, "executes with a member mask that leaves it out")
        return named, active

    def _fail(self, site: Site, bad: Array, text: str) -> NoReturn:
        row, thread = (int(x[0]) for x in np.nonzero(bad))
        raise self._chunk.finding(site, f"{self._chunk.describe(row, thread)} {text}")

    # ---- votes and reductions
    def vote(self, site: Site, value: Array, members: Array, mask: Mask) -> Array:
        """``vote.sync``: all, any, uni (booleans) or ballot (bits)."""
        if self._checks:
            self._check_members(site, members, mask)
        self._meet(mask)
        active = self._active(mask)
        held = self._chunk.by_warp(np.ascontiguousarray(self._chunk.full(value)), False) & active
        if site.operation == "ballot":
            return self._spread((held * _WEIGHTS).sum(axis=2, dtype=np.uint32))
        if site.operation == "any":
            return self._spread(np.any(held, axis=2))
        every = np.all(held | ~active, axis=2)
        return self._spread(every if site.operation == "all" else every | ~np.any(held, axis=2))

    def reduce(self, site: Site, value: Array, members: Array, mask: Mask) -> Array:
        """``redux.sync``."""
        if self._checks:
            self._check_members(site, members, mask)
        self._meet(mask)
        if site.operation in _FLOAT_REDUCERS:
            ufunc, neutral = _FLOAT_REDUCERS[site.operation]
            held = self._chunk.by_warp(np.ascontiguousarray(self._chunk.full(value)), neutral)
            held = np.where(self._active(mask), held, np.float32(neutral))
            return self._spread(ufunc.reduce(held, axis=2).astype(value.dtype))
        ufunc, start = _REDUCERS[site.operation]
        limits = np.iinfo(value.dtype)
        neutral = {"zero": 0, "min": limits.min, "max": limits.max, "ones": -1 if limits.min < 0 else limits.max}[start]
        held = self._chunk.by_warp(np.ascontiguousarray(self._chunk.full(value)), neutral)
        held = np.where(self._active(mask), held, value.dtype.type(neutral))
        return self._spread(ufunc.reduce(held, axis=2).astype(value.dtype))

    # ---- other
    def elect(self, site: Site, members: Array, mask: Mask) -> tuple[Array, Array]:
        """``elect.sync``: the lowest executing member, and whether it is the thread itself."""
        if self._checks:
            self._check_members(site, members, mask)
        self._meet(mask)
        lead = self._spread(np.argmax(self._active(mask), axis=2).astype(np.uint32))
        return lead, lead == self._lane.astype(np.uint32)

    def match_any(self, site: Site, value: Array, members: Array, mask: Mask) -> Array:
        """``match.any.sync``: bits of the executing threads of the warp that hold the same value."""
        return self._spread_lanes(self._equal(site, value, members, mask))

    def match_all(self, site: Site, value: Array, members: Array, mask: Mask) -> tuple[Array, Array]:
        """``match.all.sync``: bits of the executing threads if all hold the same value, else 0; and whether they do."""
        bits = self._equal(site, value, members, mask)
        every = self.active_mask(mask)
        same = self._spread_lanes(bits) == every
        return np.where(same, every, np.uint32(0)), same

    def _equal(self, site: Site, value: Array, members: Array, mask: Mask) -> Array:
        if self._checks:
            self._check_members(site, members, mask)
        self._meet(mask)
        held = self._chunk.by_warp(np.ascontiguousarray(self._chunk.full(value)), 0)
        active = self._active(mask)
        same = (held[:, :, :, None] == held[:, :, None, :]) & active[:, :, None, :]
        return (same * _WEIGHTS).sum(axis=3, dtype=np.uint32)

    def _spread_lanes(self, by_lane: Array) -> Array:
        return by_lane.reshape(by_lane.shape[0], -1)[:, : self._chunk.threads]

    def active_mask(self, mask: Mask) -> Array:
        """``activemask``."""
        return self._spread((self._active(mask) * _WEIGHTS).sum(axis=2, dtype=np.uint32))

    def _active(self, mask: Mask) -> Array:
        full = np.ones(self._chunk.shape, bool) if mask is None else np.ascontiguousarray(self._chunk.full(mask))
        return self._chunk.by_warp(full, False)

    def _spread(self, by_warp: Any) -> Array:
        return np.repeat(by_warp, WARP, axis=1)[:, : self._chunk.threads]


def _source(mode: str, own: Array, lane: Array, clamp: Array) -> tuple[Array, Array]:
    """Source lane and whether it is in range (PTX ISA, ``shfl.sync``)."""
    other = (lane & np.uint32(31)).astype(np.int64)
    bound = (clamp & np.uint32(31)).astype(np.int64)
    segment = ((clamp >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
    last = (own & segment) | (bound & ~segment)
    if mode == "up":
        source = own - other
        valid = source >= last
    else:
        if mode == "down":
            source = own + other
        elif mode == "bfly":
            source = own ^ other
        else:
            source = (own & segment) | (other & ~segment)
        valid = source <= last
    return np.where(valid, source, own), valid


def update(elements: Array, index: Array, operation: str, operands: list[Array], wanted: bool) -> Array | None:
    """Atomic updates of ``elements[index]`` one after the other in order of ``index``; the old values if wanted."""
    plain = _REDUCERS.get(operation)
    if not wanted:
        if plain is not None:
            plain[0].at(elements, index, operands[0])
            return None
        if operation == "exch":
            elements[index] = operands[0]
            return None
    old = np.empty(index.shape, elements.dtype)
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    first = np.maximum.accumulate(np.where(starts, np.arange(order.size), 0))
    rank = np.arange(order.size) - first
    # The n-th updates of all places are independent of each other.
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(int(rank.max()) + 2))
    for begin, end in pairwise(bounds):
        lanes = order[by_rank[begin:end]]
        place = index[lanes]
        before = elements[place]
        old[lanes] = before
        elements[place] = _combine(operation, before, [operand[lanes] for operand in operands])
    return old


def _combine(operation: str, old: Array, operands: list[Array]) -> Array:
    value = operands[0]
    if operation in _REDUCERS:
        return _REDUCERS[operation][0](old, value)
    if operation == "exch":
        return value
    if operation == "cas":
        return np.where(old == value, operands[1], old)
    if operation == "inc":
        return np.where(old >= value, old.dtype.type(0), old + old.dtype.type(1))
    if operation == "dec":
        return np.where((old == 0) | (old > value), value, old - old.dtype.type(1))
    if operation == "add_bf16":
        return encode_bf16(decode_bf16(old) + decode_bf16(value))
    if operation in ("add_f16x2", "add_bf16x2"):
        halves = np.ascontiguousarray(old).view(np.uint16), np.ascontiguousarray(value).view(np.uint16)
        if operation == "add_f16x2":
            return (halves[0].view(np.float16) + halves[1].view(np.float16)).view(np.uint32)
        return encode_bf16(decode_bf16(halves[0]) + decode_bf16(halves[1])).view(np.uint32)
    raise AssertionError(operation)
