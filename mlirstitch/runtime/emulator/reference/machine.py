"""Runs a chunk of thread blocks: schedules basic blocks, keeps masks, barriers and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.ptx.ir import Instruction, Terminator
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory
from mlirstitch.runtime.emulator.reference.barriers import Barriers
from mlirstitch.runtime.emulator.reference.block_memory import LocalMemory, SharedMemory
from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.emit import Program, Site
from mlirstitch.runtime.emulator.reference.fragments import MatrixUnit, gather_matrices, spread_matrices
from mlirstitch.runtime.emulator.reference.global_memory import GlobalAccess
from mlirstitch.runtime.emulator.reference.progress import FIRST_SAMPLE, Progress
from mlirstitch.runtime.emulator.reference.sanitizer import SanitizedGlobal, SanitizedShared, Sanitizer
from mlirstitch.runtime.emulator.reference.schedule import Fair, LowestFirst, Order, RandomWarps, ready_warps
from mlirstitch.runtime.emulator.reference.warp import WarpOperations, update

SHARED_WINDOW = 1 << 48
LOCAL_WINDOW = 1 << 49
"""Where shared and local memory start among generic addresses."""

BlockFunction = Callable[["Machine", list[Any], Mask], Any]


@dataclass(frozen=True)
class Launch:
    """What all chunks of a launch share.

    ``budget`` is the instructions a chunk may issue; ``random`` draws the order of warps, None for the fixed one.
    """

    program: Program
    functions: Sequence[BlockFunction]
    memory: GlobalMemory
    parameters: bytes
    symbols: dict[str, int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    checks: bool
    budget: int
    cooperative: bool
    tally: Tally | None
    executed: list[int]
    sanitizer: Sanitizer | None = None
    random: np.random.Generator | None = None


class Machine:
    """The run-time side of the generated code for one chunk."""

    def __init__(self, launch: Launch, numbers: Array) -> None:
        self._launch = launch
        program = launch.program
        kernel = program.kernel
        chunk = self._chunk = Chunk(kernel.name, launch.grid, launch.block, numbers)
        self._terminators = [block.terminator for block in kernel.blocks]
        self._lengths = [len(block.instructions) + 1 for block in kernel.blocks]
        sanitizer = self._sanitizer = launch.sanitizer
        if sanitizer is not None:
            sanitizer.clocks.attach(chunk)
        self._order = self._choose_order()
        self._barriers = Barriers(chunk, launch.checks, None if sanitizer is None else sanitizer.clocks.meet)
        self._eager = not isinstance(self._order, LowestFirst)
        self._changes = 0
        self._warp_operations = WarpOperations(chunk, launch.checks, None if sanitizer is None else sanitizer.clocks)
        self.shuffle = self._warp_operations.shuffle
        self.vote = self._warp_operations.vote
        self.reduce_warp = self._warp_operations.reduce
        self.active_mask = self._warp_operations.active_mask
        self.warp_barrier = self._warp_operations.barrier
        self._matrices = MatrixUnit(chunk)
        self.multiply, self.transpose_matrix = self._matrices.multiply, self._matrices.transpose
        if sanitizer is None:
            access = self._global = GlobalAccess(chunk, launch.memory, launch.tally)
        else:
            access = self._global = SanitizedGlobal(chunk, launch.memory, launch.tally, sanitizer)
        self.load_global, self._write_global = access.load, access.store
        self._shared: SharedMemory | None = None
        self._local: LocalMemory | None = None
        if launch.shared_bytes:
            grain = min((s.width for s in program.sites if s.space in ("shared", "generic")), default=4)
            if sanitizer is None:
                self._shared = SharedMemory(chunk, launch.shared_bytes, grain, launch.checks, launch.tally)
            else:
                self._shared = SanitizedShared(chunk, launch.shared_bytes, grain, launch.tally, sanitizer)
            self.load_shared = self._shared.load
        if kernel.local_bytes:
            self._local = LocalMemory(chunk, kernel.local_bytes, launch.checks)
            self.load_local, self.store_local = self._local.load, self._local.store
        self._constants: dict[tuple[int, str], Array] = {}
        self._ticks = 0
        self._special_registers()

    def _choose_order(self) -> Order:
        if self._launch.random is not None:
            return RandomWarps(self._chunk, self._launch.random)
        return Fair(self._chunk) if self._launch.cooperative else LowestFirst()

    def _special_registers(self) -> None:
        chunk = self._chunk
        x, y, _ = chunk.block
        thread = np.arange(chunk.threads, dtype=np.uint32)[None, :]
        number = chunk.numbers[:, None]
        columns, rows, _ = chunk.grid
        self.tid = [_short(v.astype(np.uint32)) for v in (thread % x, thread // x % y, thread // (x * y))]
        position = (number % columns, number // columns % rows, number // (columns * rows))
        self.ctaid = [_short(v.astype(np.uint32)) for v in position]
        self.ntid = [np.array([[n]], np.uint32) for n in chunk.block]
        self.nctaid = [np.array([[n]], np.uint32) for n in chunk.grid]
        self.lane_id = thread & np.uint32(WARP - 1)
        self.warp_id = thread // np.uint32(WARP)
        self.warp_count = np.array([[chunk.warps]], np.uint32)
        self.zero, self.one = np.zeros((1, 1), np.uint32), np.ones((1, 1), np.uint32)

    # ---- called by the generated code
    def lane_mask(self, relation: str) -> Array:
        """``%lanemask_eq`` and its relatives."""
        own = np.uint32(1) << self.lane_id
        below = own - np.uint32(1)
        return {"eq": own, "lt": below, "le": below | own, "gt": ~(below | own), "ge": ~below}[relation]

    def clock(self) -> Array:
        """A counter that grows with every reading."""
        self._ticks += 1
        return np.array([[self._ticks & 0xFFFFFFFF]], np.uint32)

    def symbol(self, name: str, offset: int, dtype: str) -> Array:
        """Address of a module variable."""
        return np.array([[self._launch.symbols[name] + offset]], dtype)

    def parameter(self, offset: int, dtype: str) -> Array:
        """Value of a kernel parameter."""
        key = (offset, dtype)
        value = self._constants.get(key)
        if value is None:
            value = np.frombuffer(self._launch.parameters, dtype, 1, offset).reshape(1, 1)
            self._constants[key] = value
        return value

    def define(self, mask: Mask, known: Mask | bool) -> Mask | bool:
        """Threads that have written a register after a write under ``mask``; True for all, None for none."""
        if mask is None or known is True:
            return True
        return mask if known is None else known | mask

    def defined(self, site: Site, name: str, frame: list[Any], slot: int, kept: int, home: str, mask: Mask) -> Array:
        """The register, after a check that every active thread has written it."""
        known = frame[kept]
        if known is not True and self._launch.checks:
            active = np.ones((1, 1), bool) if mask is None else mask
            missing = active if known is None else active & ~known
            if missing.any():
                row, thread = (int(v[0]) for v in np.nonzero(self._chunk.full(missing)))
                who = self._chunk.describe(row, thread)
                raise self._chunk.finding(site, f"{who} reads register {name}, which it has not written")
        return self.previous(frame[slot], home)

    def previous(self, value: Array | None, home: str) -> Array:
        """The value, or zeros if the register was never written."""
        return np.zeros((1, 1), home) if value is None else value

    def _missing_space(self, site: Site, space: str) -> LaunchError:
        return self._chunk.finding(site, f"accesses {space} memory, but the kernel has none")

    def load_shared(self, site: Site, offsets: Array, mask: Mask) -> Sequence[Array]:
        """Replaced where the launch has shared memory."""
        raise self._missing_space(site, "shared")

    def store_shared(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        """Store to shared memory."""
        if self._shared is None:
            raise self._missing_space(site, "shared")
        self._changes += 1
        self._shared.store(site, offsets, values, mask)

    def store_global(self, site: Site, addresses: Array, values: Sequence[Array], mask: Mask) -> None:
        """Store to global memory."""
        self._changes += 1
        self._write_global(site, addresses, values, mask)

    def fence(self, site: Site, mask: Mask) -> None:
        """A fence; accesses are in order here, so it matters to the sanitizer only."""
        if self._sanitizer is None or "cta" in site.instruction.modifiers:
            return
        rows, warps = np.nonzero(ready_warps(self._chunk, {0: mask})[0])
        self._sanitizer.clocks.fence(self._chunk.numbers[rows] * self._chunk.warps + warps)

    def load_matrix(self, site: Site, offsets: Array, count: int, transposed: bool, mask: Mask) -> list[Array]:
        """``ldmatrix``."""
        rows = self.load_shared(site, offsets, self._matrices.rows(site, count, mask))
        return spread_matrices(self._chunk, rows, count, transposed)

    def store_matrix(self, site: Site, offsets: Array, values: Sequence[Array], transposed: bool, mask: Mask) -> None:
        """``stmatrix``."""
        rows = self._matrices.rows(site, len(values), mask)
        self.store_shared(site, offsets, gather_matrices(self._chunk, values, transposed), rows)

    def arrive(self, site: Site, number: Array, count: Array, mask: Mask) -> None:
        """``bar.arrive``."""
        if self._launch.tally is not None:
            self._launch.tally.barriers += self._chunk.count_warps(mask)
        self._changes += 1
        self._barriers.arrive(site, mask, number, count)

    def barrier_result(self) -> Array:
        """Result of the ``bar.red`` that the threads have passed last."""
        return self._barriers.results

    def load_local(self, site: Site, offsets: Array, mask: Mask) -> Sequence[Array]:
        """Replaced where the kernel has local memory."""
        raise self._missing_space(site, "local")

    def store_local(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        """Replaced where the kernel has local memory."""
        raise self._missing_space(site, "local")

    def _window(self, site: Site, addresses: Array, mask: Mask) -> tuple[str, int]:
        """Space of generic addresses, and where it starts."""
        full = self._chunk.full(addresses)
        picked = (full.reshape(-1) if mask is None else full[self._chunk.full(mask)]) + site.offset
        spaces = set(((picked >= SHARED_WINDOW).astype(np.int8) + (picked >= LOCAL_WINDOW)).tolist())
        if len(spaces) > 1:
            raise self._chunk.finding(site, "threads access different memory spaces at once through generic addresses")
        return (("global", 0), ("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW))[spaces.pop() if spaces else 0]

    def load_generic(self, site: Site, addresses: Array, mask: Mask) -> Sequence[Array]:
        """Load through generic addresses."""
        space, start = self._window(site, addresses, mask)
        return getattr(self, f"load_{space}")(site, addresses - start, mask)

    def store_generic(self, site: Site, addresses: Array, values: Sequence[Array], mask: Mask) -> None:
        """Store through generic addresses."""
        space, start = self._window(site, addresses, mask)
        getattr(self, f"store_{space}")(site, addresses - start, values, mask)

    def atomic(self, site: Site, addresses: Array, operands: Sequence[Array], mask: Mask, wanted: bool) -> Array | None:
        """Update memory one thread after the other, in order of block and thread; the old values if wanted."""
        chunk = self._chunk
        space = site.space
        if space == "generic":
            space, start = self._window(site, addresses, mask)
            addresses = addresses - start
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
                self._changes += 1
            if old is not None:
                result[chosen] = old
        if active is None:
            return result.reshape(chunk.shape)
        full = np.zeros(chunk.shape, site.dtypes[0])
        full[active] = result
        return full

    # ---- scheduling
    def run(self) -> None:
        """Execute the chunk to the end. Raises :class:`LaunchError` for every finding."""
        launch = self._launch
        self._pending: dict[int, Mask] = {0: None}
        self._exited: Mask = None
        self._progress = Progress()
        frame: list[Any] = [None] * launch.program.slots
        functions = launch.functions
        pending = self._pending
        issued = steps = 0
        while pending or self._barriers:
            if not pending and not self._release():
                self._barriers.deadlock(self._exited)
            steps += 1
            index, mask = self._order.pop(pending) if steps > self._progress.late_until else self._pop_last()
            if mask is not None and self._exited is None and not pending and not self._barriers and mask.all():
                mask = None
            issued += self._lengths[index]
            if issued > launch.budget:
                self._out_of_budget(index)
            if launch.tally is not None:
                launch.executed[index] += self._chunk.count_warps(mask)
            result = functions[index](self, frame, mask)
            self._leave(self._terminators[index], mask, result)
            if steps >= FIRST_SAMPLE and self._progress.stalled(steps, self._changes, pending, frame):
                self._stalled(steps)

    def _pop_last(self) -> tuple[int, Mask]:
        index = max(self._pending)
        return index, self._pending.pop(index)

    def _stalled(self, steps: int) -> None:
        """All threads repeat what they did and nothing changes: let those go on that wait for others to catch up."""
        if self._release():
            return
        if not isinstance(self._order, Fair):
            self._order, self._eager = Fair(self._chunk), True
            self._progress = Progress(steps)
            return
        groups = len(self._pending)
        if self._progress.gave_way_at != self._changes and groups > 1:
            self._progress.give_way(steps, self._changes)
            return
        raise self._no_progress()

    def _no_progress(self) -> LaunchError:
        chunk = self._chunk
        blocks = self._launch.program.kernel.blocks
        found = self._barriers.waiting_lines()
        first: Instruction | None = None
        for index in sorted(self._pending):
            block, mask = blocks[index], self._pending[index]
            row, thread = (0, 0) if mask is None else (int(v[0]) for v in np.nonzero(chunk.full(mask)))
            reads = [i for i in block.instructions if i.op in ("ld", "atom")]
            instruction = (reads or [block.terminator.instruction, *block.instructions])[0]
            if instruction is None:
                continue
            first = first or instruction
            found.append(f"{chunk.describe(row, thread)} at PTX line {instruction.line} ({instruction.mnemonic})")
        text = "deadlock: no thread makes progress any more; waiting are " + ", ".join(found)
        return LaunchError(f"kernel {chunk.kernel!r}: {text}") if first is None else chunk.finding(Site(first), text)

    def _leave(self, terminator: Terminator, mask: Mask, result: Any) -> None:
        kind = terminator.kind
        if kind == "jump":
            self._enter(terminator.targets[0], mask)
        elif kind == "branch":
            self._branch(terminator, mask, result)
        elif kind == "exit":
            self._changes += 1
            if mask is not None:
                self._exited = mask if self._exited is None else self._exited | mask
                self._warp_operations.exited = self._exited
        elif kind == "barrier":
            self._arrive(terminator, mask, None)
        elif kind == "barrier_general":
            self._arrive(terminator, mask, result)
        elif kind == "switch":
            self._switch(terminator, mask, result)
        else:
            assert terminator.instruction is not None
            active = np.ones((1, 1), bool) if mask is None else mask
            row, thread = (int(v[0]) for v in np.nonzero(self._chunk.full(active)))
            raise self._chunk.finding(
                Site(terminator.instruction), f"{terminator.message} in {self._chunk.describe(row, thread)}"
            )

    def _enter(self, target: int, mask: Mask) -> None:
        if target in self._pending:
            other = self._pending[target]
            mask = None if other is None or mask is None else other | mask
        self._pending[target] = mask

    def _branch(self, terminator: Terminator, mask: Mask, taken: Array) -> None:
        yes, no = terminator.targets
        if mask is None:
            if taken.size == 1:
                self._enter(yes if taken[0, 0] else no, None)
                return
            if taken.all():
                self._enter(yes, None)
                return
            if not taken.any():
                self._enter(no, None)
                return
            other = ~taken
        else:
            other = mask & ~taken
            taken = mask & taken
            if not other.any():
                self._enter(yes, taken)
                return
            if not taken.any():
                self._enter(no, other)
                return
        if self._launch.tally is not None and terminator.instruction is not None:
            self._launch.tally.divergent_branches += self._split_warps([taken, other])
        self._enter(yes, taken)
        self._enter(no, other)

    def _switch(self, terminator: Terminator, mask: Mask, selector: Array) -> None:
        assert terminator.instruction is not None
        targets = terminator.targets
        chunk = self._chunk
        active = np.ones((1, 1), bool) if mask is None else mask
        outside = active & (selector >= len(targets))
        if outside.any():
            row, thread = (int(v[0]) for v in np.nonzero(chunk.full(outside)))
            value = int(chunk.full(selector)[row, thread])
            text = f"{chunk.describe(row, thread)} selects target {value} of {len(targets)}"
            raise chunk.finding(Site(terminator.instruction), text)
        by_target: dict[int, Array] = {}
        for number, target in enumerate(targets):
            chosen = active & (selector == number)
            if chosen.any():
                by_target[target] = by_target[target] | chosen if target in by_target else chosen
        if len(by_target) == 1:
            self._enter(next(iter(by_target)), mask)
            return
        if self._launch.tally is not None:
            self._launch.tally.divergent_branches += self._split_warps(list(by_target.values()))
        for target, chosen in by_target.items():
            self._enter(target, chosen)

    def _split_warps(self, masks: Sequence[Array]) -> int:
        """Warps with threads in more than one of the masks."""
        shape = np.broadcast_shapes(*(mask.shape for mask in masks))
        if shape[1] == 1:
            return 0
        ways = sum(self._chunk.active_warps(np.broadcast_to(mask, shape)).astype(np.int64) for mask in masks)
        return int(np.count_nonzero(np.asarray(ways) > 1)) * (self._chunk.blocks // shape[0])

    # ---- barriers
    def _arrive(self, terminator: Terminator, mask: Mask, operands: Any) -> None:
        if self._launch.tally is not None:
            self._launch.tally.barriers += self._chunk.count_warps(mask)
        everyone = operands is None and terminator.barrier[1] in (None, self._chunk.threads)
        if mask is None and everyone and self._sanitizer is None:
            if self._shared is not None:
                self._shared.pass_barrier(None)
            self._enter(terminator.targets[0], None)
            return
        self._barriers.wait(terminator, mask, operands)
        if self._eager:
            self._release()

    def _release(self) -> bool:
        """Let threads go on whose barrier is complete; whether there were any."""
        released = self._barriers.release(self._exited)
        for terminator, go, whole in released:
            self._enter(terminator.targets[0], go)
            if self._shared is not None:
                self._shared.pass_barrier(whole if self._sanitizer is not None else np.asarray(go.any(axis=1)))
        self._changes += len(released)
        return bool(released)

    def _out_of_budget(self, index: int) -> None:
        block = self._launch.program.kernel.blocks[index]
        instruction = block.instructions[0] if block.instructions else block.terminator.instruction
        text = f"still running after {self._launch.budget} instructions: an endless loop?"
        if instruction is None:
            error = LaunchError(f"kernel {self._chunk.kernel!r}: {text}")
        else:
            error = self._chunk.finding(Site(instruction), text)
        error.hint = "raise `budget` if the kernel is that long"
        raise error


def _short(value: Array) -> Array:
    """[1, 1] if all values are equal."""
    return value[:1, :1] if (value == value[0, 0]).all() else value
