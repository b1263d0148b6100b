"""Template ``elementwise``: clusters without reductions, as one pass over the elements of the outputs.

Broadcasts, transposes, slices, pads, concats and gathers of inputs are index arithmetic inside the thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2

from mlirstitch.dialects.locations import refusal
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES
from mlirstitch.lowering.kernel.flat_kernel import FlatKernel, FlatLayout, dry_kernel, flat_elements, refuse_reduction
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel
from mlirstitch.lowering.kernel.schedule_checks import check_flat_schedule
from mlirstitch.lowering.kernel.tensor_program import Computed, TensorProgram
from mlirstitch.lowering.kernel.variants import nearest_first, powers_of_two
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

THREADS = 256
MAX_VECTOR = 8
MIN_CHUNKS = 1024
"""Below this many chunks, a remainder is not worth a second copy of the body."""

MAX_UNROLL = 4
MAX_UNROLLED_OPS = 256
WAVES_BEFORE_UNROLL = 8
"""Waves of full multiprocessors from which on a thread takes several chunks."""


@dataclass(frozen=True)
class ElementwiseTemplate(KernelTemplate[int, FlatLayout]):
    """Clusters without reductions. The space is the number of elements of every output."""

    name: str = "elementwise"

    def space(self, program: TensorProgram) -> int:
        """Elements of every output."""
        return flat_elements(program)

    def check(self, program: TensorProgram, space: int, target: Target) -> None:
        """Refuse reductions, and values that cannot be computed."""
        for node in program.nodes.values():
            if isinstance(node, Computed) and node.is_reduction:
                raise refusal(node.linalg.op, "is a reduction")
        dry_kernel(program, FlatLayout(space, THREADS, 1, 1, 1)).emit()

    def layouts(self, program: TensorProgram, space: int, target: Target) -> Sequence[FlatLayout]:
        """The best layout, then the one with scalar accesses."""
        vector, ops = self._vector(program, space)
        unroll = 1
        chunks = space // vector
        resident = target.sms * target.max_threads_per_sm
        while (
            unroll < MAX_UNROLL
            and 2 * unroll * ops <= MAX_UNROLLED_OPS
            and chunks >= resident * WAVES_BEFORE_UNROLL * unroll
        ):
            unroll *= 2
        best = FlatLayout.over(space, vector, unroll, THREADS, target.sms)
        scalar = FlatLayout.over(space, 1, 1, THREADS, target.sms)
        return [best] if vector == 1 else [best, scalar]

    def variants(self, program: TensorProgram, space: int, target: Target) -> Iterator[FlatLayout]:
        """Other block sizes, narrower accesses, more or fewer chunks a thread."""
        best = self.layouts(program, space, target)[0]
        found: list[FlatLayout] = []
        for vector in powers_of_two(1, best.vector):
            chunks = max(1, space // vector)
            for threads in powers_of_two(WARP, target.max_threads_per_block):
                for unroll in powers_of_two(1, MAX_UNROLL):
                    blocks = -(-chunks // (threads * unroll))
                    if threads * unroll <= chunks + WARP and blocks <= GRID_X_LIMIT:
                        found.append(FlatLayout(space, threads, blocks, vector, unroll))
        yield from nearest_first(best, found, lambda x: (log2(x.threads), 2 * log2(x.vector), log2(x.unroll)))

    def schedule(self, cluster: Cluster, space: int, layout: FlatLayout) -> Schedule:
        """The schedule that describes a layout."""
        return layout.schedule(self.name)

    def layout(self, program: TensorProgram, space: int, schedule: Schedule, target: Target) -> FlatLayout:
        """The layout that a schedule describes."""
        check_flat_schedule(schedule, space, target)
        return FlatLayout.of(schedule, space)

    def body(self, kernel: OpenKernel, space: int, layout: FlatLayout) -> None:
        """Emit the body."""
        kernel.evaluator.reduce = refuse_reduction
        FlatKernel(kernel.program, layout, kernel.evaluator).emit()

    def _vector(self, program: TensorProgram, elements: int) -> tuple[int, int]:
        """The widest chunk that breaks no contiguous access, and the number of ops that computing it takes."""
        vector = MAX_VECTOR
        while True:
            fits = vector == 1 or elements % vector == 0 or elements // vector >= MIN_CHUNKS
            if fits:
                whole = elements // vector * vector
                kernel = dry_kernel(program, FlatLayout(whole, THREADS, 1, vector, 1))
                kernel.emit()
                accesses = kernel.evaluator.accesses
                widest = MAX_ACCESS_BYTES // min(accesses.sizes, default=4)
                if vector == 1 or (vector <= widest and not accesses.broken):
                    return vector, kernel.builder.ops_created
            vector //= 2
