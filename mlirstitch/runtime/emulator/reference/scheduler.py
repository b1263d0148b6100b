"""Runs the basic blocks of a chunk: who is where, branches, barriers, and whether it ever ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.ptx.ir import Instruction, Terminator
from mlirstitch.runtime.emulator.reference.barriers import Barriers
from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.clusters import ClusterBarriers
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.launch import Launch, OutOfBudget
from mlirstitch.runtime.emulator.reference.memory_unit import MemoryUnit
from mlirstitch.runtime.emulator.reference.progress import FIRST_SAMPLE, Progress
from mlirstitch.runtime.emulator.reference.schedule import Fair, LowestFirst, Order, RandomWarps
from mlirstitch.runtime.emulator.reference.warp import WarpOperations


class Scheduler:
    """Execution of one chunk. ``memory`` and ``warps`` are the parts of the machine that have to know of barriers."""

    def __init__(self, launch: Launch, chunk: Chunk, memory: MemoryUnit, warps: WarpOperations) -> None:
        self._launch = launch
        self._chunk = chunk
        self._memory = memory
        self._warps = warps
        blocks = launch.program.kernel.blocks
        self._terminators = [block.terminator for block in blocks]
        self._lengths = [len(block.instructions) + 1 for block in blocks]
        sanitizer = self._sanitizer = launch.sanitizer
        self._order = self._choose_order()
        self.barriers = Barriers(chunk, launch.checks, None if sanitizer is None else sanitizer.clocks.meet)
        self.cluster_barriers = ClusterBarriers(chunk, launch.cluster_size)
        self._eager = not isinstance(self._order, LowestFirst)
        self._pending: dict[int, Mask] = {0: None}
        self._exited: Mask = None
        self._progress = Progress()
        self._issued = np.zeros((chunk.blocks, chunk.warps), np.int64)

    def _choose_order(self) -> Order:
        if self._launch.random is not None:
            return RandomWarps(self._chunk, self._launch.random)
        return Fair(self._chunk) if self._launch.cooperative else LowestFirst()

    def run(self, machine: Any) -> None:
        """Execute the chunk to the end. Raises :class:`LaunchError` for every finding."""
        launch = self._launch
        frame: list[Any] = [None] * launch.program.slots
        functions = launch.functions
        pending, barriers, clusters = self._pending, self.barriers, self.cluster_barriers
        issued = steps = 0
        while pending or barriers or clusters:
            if not pending and not self._release():
                self._deadlock()
            steps += 1
            index, mask = self._order.pop(pending) if steps > self._progress.late_until else self._pop_last()
            if mask is not None and self._exited is None and not (pending or barriers or clusters) and mask.all():
                mask = None
            issued = self._issue(issued, index, mask)
            if issued > launch.budget:
                self._out_of_budget(index)
            if launch.tally is not None:
                launch.executed[index] += self._chunk.count_warps(mask)
            result = functions[index](machine, frame, mask)
            self._leave(self._terminators[index], mask, result)
            if steps >= FIRST_SAMPLE and self._progress.stalled(steps, self._memory.changes, pending, frame):
                self._stalled(steps)

    def _issue(self, issued: int, index: int, mask: Mask) -> int:
        """Instructions issued after a block: by all threads together, or, where warps run apart, by the busiest one."""
        if not self._eager:
            return issued + self._lengths[index]
        active = True if mask is None else self._chunk.active_warps(mask)
        self._issued += np.where(active, self._lengths[index], 0)
        return int(self._issued.max())

    def _deadlock(self) -> None:
        if self.barriers:
            self.barriers.deadlock(self._exited)
        raise self._no_progress()

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
        if self._progress.gave_way_at != self._memory.changes and groups > 1:
            self._progress.give_way(steps, self._memory.changes)
            return
        raise self._no_progress()

    def _no_progress(self) -> LaunchError:
        chunk = self._chunk
        blocks = self._launch.program.kernel.blocks
        found = self.barriers.waiting_lines() + self.cluster_barriers.waiting_lines()
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
            self._memory.changes += 1
            if mask is not None:
                self._exited = mask if self._exited is None else self._exited | mask
                self._warps.exited = self._exited
            if self._sanitizer is not None and self._sanitizer.departures is not None:
                self._sanitizer.departures.exit(None if mask is None else self._exited)
        elif kind == "barrier":
            self._arrive(terminator, mask, None)
        elif kind == "barrier_general":
            self._arrive(terminator, mask, result)
        elif kind == "cluster_wait":
            self._wait_for_cluster(terminator, mask)
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
            self._memory.pass_barrier(None)
            self._enter(terminator.targets[0], None)
            return
        self.barriers.wait(terminator, mask, operands)
        if self._eager:
            self._release()

    def _wait_for_cluster(self, terminator: Terminator, mask: Mask) -> None:
        early = self.cluster_barriers.wait(terminator, mask)
        if early.any():
            assert terminator.instruction is not None
            row, thread = (int(v[0]) for v in np.nonzero(early))
            text = f"{self._chunk.describe(row, thread)} waits for its cluster without having arrived"
            raise self._chunk.finding(Site(terminator.instruction), text)
        if self._eager:
            self._release()

    def _release(self) -> bool:
        """Let threads go on whose barrier is complete; whether there were any."""
        released = self.barriers.release(self._exited) if self.barriers else []
        for terminator, go, whole in released:
            self._enter(terminator.targets[0], go)
            self._memory.pass_barrier(whole if self._sanitizer is not None else np.asarray(go.any(axis=1)))
        free = self._release_clusters() if self.cluster_barriers else 0
        self._memory.changes += len(released) + free
        return bool(released) or free > 0

    def _release_clusters(self) -> int:
        released, met = self.cluster_barriers.release(self._exited)
        if self._sanitizer is not None:
            for cluster in np.nonzero(met)[0]:
                rows = np.arange(self._launch.cluster_size) + cluster * self._launch.cluster_size
                self._sanitizer.clocks.meet_cluster(rows, self._chunk.warps)
        for terminator, go in released:
            self._enter(terminator.targets[0], go)
        return len(released)

    def _out_of_budget(self, index: int) -> None:
        block = self._launch.program.kernel.blocks[index]
        instruction = block.instructions[0] if block.instructions else block.terminator.instruction
        text = f"still running after {self._launch.budget} instructions: an endless loop?"
        if instruction is None:
            found = LaunchError(f"kernel {self._chunk.kernel!r}: {text}")
        else:
            found = self._chunk.finding(Site(instruction), text)
        raise OutOfBudget(found.message, hint="raise `budget` if the kernel is that long", source=found.source)
