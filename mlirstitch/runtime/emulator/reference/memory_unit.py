"""Everything a chunk does to memory: the spaces, generic addresses, atomics, asynchronous copies, ``mbarrier``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.ptx.ir import Kernel
from mlirstitch.runtime.emulator.reference import memory_barriers
from mlirstitch.runtime.emulator.reference.block_memory import LocalMemory, SharedMemory
from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask, merge
from mlirstitch.runtime.emulator.reference.clusters import RANK_SHIFT
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.global_memory import GlobalAccess
from mlirstitch.runtime.emulator.reference.launch import Launch
from mlirstitch.runtime.emulator.reference.sanitizer import SanitizedGlobal, SanitizedShared
from mlirstitch.runtime.emulator.reference.schedule import ready_warps
from mlirstitch.runtime.emulator.reference.warp import update

SHARED_WINDOW = 1 << 48
LOCAL_WINDOW = 1 << 49
"""Where shared and local memory start among generic addresses."""

_SPACE_STARTS = {"global": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


class MemoryUnit:
    """Memory as the generated code sees it. ``changes`` counts what may have changed memory."""

    def __init__(self, launch: Launch, chunk: Chunk) -> None:
        self._launch = launch
        self._chunk = chunk
        self.changes = 0
        program, sanitizer = launch.program, launch.sanitizer
        kernel: Kernel = program.kernel
        if sanitizer is None:
            self._global = GlobalAccess(chunk, launch.memory, launch.tally)
        else:
            self._global = SanitizedGlobal(chunk, launch.memory, launch.tally, sanitizer)
        self.load_global = self._global.load
        self._shared: SharedMemory | None = None
        self._local: LocalMemory | None = None
        size, clustered = launch.shared_bytes, launch.cluster_size
        if size:
            grain = min((s.width for s in program.sites if s.space in ("shared", "generic")), default=4)
            if sanitizer is None:
                # Only the sanitizer knows which accesses a barrier object orders.
                races = all(site.instruction.op != "mbarrier" for site in program.sites)
                self._shared = SharedMemory(
                    chunk, size, grain, launch.checks, launch.tally, races=races, cluster=clustered
                )
            else:
                self._shared = SanitizedShared(chunk, size, grain, launch.tally, sanitizer, clustered)
            self.load_shared = self._shared.load
        if kernel.local_bytes:
            self._local = LocalMemory(chunk, kernel.local_bytes, launch.checks)
            self.load_local = self._local.load

    # ---- plain accesses
    def _missing_space(self, site: Site, space: str) -> LaunchError:
        return self._chunk.finding(site, f"accesses {space} memory, but the kernel has none")

    def store_global(self, site: Site, addresses: Array, values: Sequence[Array], mask: Mask) -> None:
        """Store to global memory."""
        self.changes += 1
        self._global.store(site, addresses, values, mask)

    def load_shared(self, site: Site, offsets: Array, mask: Mask) -> Sequence[Array]:
        """Replaced where the launch has shared memory."""
        raise self._missing_space(site, "shared")

    def store_shared(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        """Store to shared memory."""
        if self._shared is None:
            raise self._missing_space(site, "shared")
        self.changes += 1
        self._shared.store(site, offsets, values, mask)

    def load_local(self, site: Site, offsets: Array, mask: Mask) -> Sequence[Array]:
        """Replaced where the kernel has local memory."""
        raise self._missing_space(site, "local")

    def store_local(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        """Store to local memory."""
        if self._local is None:
            raise self._missing_space(site, "local")
        self._local.store(site, offsets, values, mask)

    # ---- generic addresses
    def _spaces(self, site: Site, addresses: Array, mask: Mask) -> list[tuple[str, Mask]]:
        """The spaces that active threads address, each with these threads."""
        full = self._chunk.full(addresses) + site.offset
        number = (full >= SHARED_WINDOW).astype(np.int8) + (full >= LOCAL_WINDOW)
        active = number if mask is None else number[self._chunk.full(mask)]
        found = np.unique(active).tolist() or [0]
        names = tuple(_SPACE_STARTS)
        if len(found) == 1:
            return [(names[found[0]], mask)]
        return [(names[n], number == n if mask is None else (number == n) & mask) for n in found]

    def load_generic(self, site: Site, addresses: Array, mask: Mask) -> Sequence[Array]:
        """Load through generic addresses."""
        results: list[Array] = []
        for space, chosen in self._spaces(site, addresses, mask):
            values = getattr(self, f"load_{space}")(site, addresses - _SPACE_STARTS[space], chosen)
            results = [merge(chosen, *pair) for pair in zip(values, results or [None] * len(values), strict=True)]
        return results

    def store_generic(self, site: Site, addresses: Array, values: Sequence[Array], mask: Mask) -> None:
        """Store through generic addresses."""
        for space, chosen in self._spaces(site, addresses, mask):
            getattr(self, f"store_{space}")(site, addresses - _SPACE_STARTS[space], values, chosen)

    def is_space(self, addresses: Array, space: str) -> Array:
        """``isspacep``."""
        shared, local = addresses >= SHARED_WINDOW, addresses >= LOCAL_WINDOW
        return {"global": ~shared, "const": ~shared, "shared": shared & ~local, "local": local}[space]

    def map_address(self, site: Site, address: Array, rank: Array) -> Array:
        """``mapa``: the address of the same place in the shared memory of another block of the cluster."""
        outside = self._chunk.full(rank) >= self._launch.cluster_size
        if outside.any():
            row, thread = (int(v[0]) for v in np.nonzero(outside))
            text = f"{self._chunk.describe(row, thread)} names block {int(self._chunk.full(rank)[row, thread])}"
            raise self._chunk.finding(site, f"{text} of a cluster of {self._launch.cluster_size}")
        return address + ((rank.astype(address.dtype) + address.dtype.type(1)) << address.dtype.type(RANK_SHIFT))

    def cluster_rank(self, address: Array) -> Array:
        """``getctarank``: the block of the cluster in whose shared memory an address lies."""
        rank = (address >> address.dtype.type(RANK_SHIFT)) & address.dtype.type(0xFF)
        own = np.arange(self._chunk.blocks)[:, None] % self._launch.cluster_size
        return np.where(rank > 0, rank.astype(np.int64) - 1, own).astype(np.uint32)

    # ---- atomics
    def atomic(self, site: Site, addresses: Array, operands: Sequence[Array], mask: Mask, wanted: bool) -> Array | None:
        """Update memory one thread after the other, in order of block and thread; the old values if wanted."""
        if site.space != "generic":
            return self._atomic(site, site.space, addresses, operands, mask, wanted)
        result: Array | None = None
        for space, chosen in self._spaces(site, addresses, mask):
            old = self._atomic(site, space, addresses - _SPACE_STARTS[space], operands, chosen, wanted)
            result = old if old is None else merge(chosen, old, result)
        return result

    def _atomic(
        self, site: Site, space: str, addresses: Array, operands: Sequence[Array], mask: Mask, wanted: bool
    ) -> Array | None:
        chunk = self._chunk
        active = None if mask is None else chunk.full(mask)

        def pick(value: Array) -> Array:
            full = chunk.full(value)
            return full.reshape(-1) if active is None else full[active]

        picked = [pick(operand) for operand in operands]
        result = np.zeros(chunk.lanes if active is None else int(np.count_nonzero(active)), site.dtypes[0])
        if not result.size:
            return np.zeros(chunk.shape, site.dtypes[0])
        if space == "shared":
            if self._shared is None:
                raise self._missing_space(site, space)
            elements, index = self._shared.resolve(site, addresses, mask)
            parts = [(elements, index, np.arange(index.size))]
        elif space == "global":
            parts = self._global.resolve(site, addresses, mask)
        else:
            raise chunk.finding(site, "updates local memory atomically")
        for elements, index, chosen in parts:
            old = update(elements, index, site.operation, [operand[chosen] for operand in picked], wanted)
            if old is None or (elements[index] != old).any():
                self.changes += 1
            if old is not None:
                result[chosen] = old
        if active is None:
            return result.reshape(chunk.shape)
        full = np.zeros(chunk.shape, site.dtypes[0])
        full[active] = result
        return full

    # ---- order
    def fence(self, site: Site, mask: Mask) -> None:
        """A fence; accesses are in order here, so it matters to the sanitizer only."""
        sanitizer = self._launch.sanitizer
        if sanitizer is None or "cta" in site.instruction.modifiers:
            return
        for warps in ready_warps(self._chunk, {0: mask}).values():
            rows, numbers = np.nonzero(warps)
            sanitizer.clocks.fence(self._chunk.numbers[rows] * self._chunk.warps + numbers)

    def pass_barrier(self, rows: Array | None) -> None:
        """The threads of these blocks (None: all) have met at a barrier."""
        if self._shared is not None:
            self._shared.pass_barrier(rows)

    # ---- asynchronous copies
    def copy_async(
        self, load: Site, store: Site, source: Array, target: Array, amount: Array | None, mask: Mask
    ) -> None:
        """``cp.async`` of ``amount`` bytes (None: all), the rest of the destination becomes zero."""
        whole = mask
        if amount is not None:
            full = amount >= load.bytes
            whole = full if mask is None else full & mask
        values = list(self.load_global(load, source, whole))
        if amount is not None:
            partial = (amount > 0) & (amount < load.bytes)
            partial = partial if mask is None else partial & mask
            if partial.any():
                self._copy_some(load, source, values, amount, np.asarray(partial))
        self.changes += 1
        if self._shared is None:
            raise self._missing_space(store, "shared")
        self._shared.store_async(store, target, values, mask)

    def _copy_some(self, load: Site, source: Array, values: list[Array], amount: Array, partial: Array) -> None:
        """Fill in the first ``amount`` bytes of threads that copy only a part."""
        for byte in range(load.bytes):
            one = Site(load.instruction, "global", 1, 1, ("u1",), offset=load.offset + byte)
            (value,) = self.load_global(one, source, partial & (amount > byte))
            word = byte // load.width
            shifted = value.astype(np.uint32) << np.uint32(8 * (byte % load.width))
            values[word] = values[word] | np.where(partial, shifted, np.uint32(0))

    def commit_async(self, mask: Mask) -> None:
        """``cp.async.commit_group``."""
        if self._shared is not None:
            self._shared.commit_async(mask)

    def wait_async(self, groups: int, all_groups: bool, mask: Mask) -> None:
        """``cp.async.wait_group`` and ``wait_all``."""
        if self._shared is not None:
            self._shared.wait_async(groups, all_groups, mask)

    # ---- mbarrier
    def barrier_object(self, site: Site, offsets: Array, operand: Array, mask: Mask) -> Array:
        """An ``mbarrier`` operation, thread by thread in order; the words before, or for tests whether they passed."""
        chunk = self._chunk
        if site.space == "generic":
            offsets = offsets - SHARED_WINDOW
        if self._shared is None:
            raise self._missing_space(site, "shared")
        active = np.ones(chunk.shape, bool) if mask is None else chunk.full(mask)
        result = np.zeros(chunk.shape, np.uint64)
        if not active.any():
            return result
        elements, index = self._shared.resolve(site, offsets, mask)
        operate = memory_barriers.OPERATIONS[site.operation]
        rows, threads = np.nonzero(active)
        values = chunk.full(operand)[active].tolist()
        for row, thread, place, value in zip(rows, threads, index.tolist(), values, strict=True):
            word = int(elements[place])
            try:
                after = operate(word, value)
            except memory_barriers.FaultyBarrier as error:
                raise chunk.finding(site, f"{chunk.describe(int(row), int(thread))} {error}") from error
            if after != word:
                elements[place] = after
                self.changes += 1
            result[row, thread] = word
        if site.operation == "test_wait":
            return (result ^ chunk.full(operand)) & np.uint64(memory_barriers.PHASE) != 0
        if site.operation == "test_wait_parity":
            parity = (result >> np.uint64(40)) & np.uint64(1)
            return parity != chunk.full(operand) & np.uint64(1)
        return result
