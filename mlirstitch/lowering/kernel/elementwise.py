"""Template ``elementwise``: clusters without reductions, as one pass over the elements of the outputs.

Broadcasts, transposes, slices, pads, concats and gathers of inputs are index arithmetic inside the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES
from mlirstitch.lowering.kernel.flat_kernel import FlatLayout, dry_kernel, flat_elements, open_kernel
from mlirstitch.lowering.kernel.kernel_body import Site, emit_whole
from mlirstitch.lowering.kernel.schedule_checks import check_flat_schedule
from mlirstitch.lowering.kernel.tensor_program import Computed, TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

THREADS = 256
MAX_VECTOR = 8
MIN_CHUNKS = 1024
"""Below this many chunks, a remainder is not worth a second copy of the body."""

MAX_UNROLLED_OPS = 256
WAVES_BEFORE_UNROLL = 8
"""Waves of full multiprocessors from which on a thread takes several chunks."""


@dataclass(frozen=True)
class ElementwiseTemplate:
    """Clusters without reductions."""

    name: str = "elementwise"

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if nothing is reduced and all outputs have one size, else why not."""
        try:
            program = build_program(cluster)
            check_program(program)
            self._check(program)
        except PassError as error:
            return error.message
        return None

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """The best schedule, then the one with scalar accesses. Raises PassError if the template does not apply."""
        program = build_program(cluster)
        elements = flat_elements(program)
        vector, ops = self._vector(program, elements)
        unroll = 1
        chunks = elements // vector
        resident = target.sms * target.max_threads_per_sm
        while unroll < 4 and 2 * unroll * ops <= MAX_UNROLLED_OPS and chunks >= resident * WAVES_BEFORE_UNROLL * unroll:
            unroll *= 2
        best = FlatLayout.over(elements, vector, unroll, THREADS, target.sms)
        scalar = FlatLayout.over(elements, 1, 1, THREADS, target.sms)
        layouts = [best] if vector == 1 else [best, scalar]
        return [layout.schedule(self.name) for layout in layouts]

    def emit(self, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
        """Create the kernel. Raises :class:`PassError` for what :meth:`applies` refuses, or a wrong schedule."""
        return emit_whole(self, cluster, schedule, name, target)

    def emit_body(self, cluster: Cluster, schedule: Schedule, site: Site, target: Target) -> Sequence[Fraction]:
        """See :class:`BodyTemplate`."""
        program = build_program(cluster)
        check_flat_schedule(schedule, flat_elements(program), target)
        kernel = open_kernel(program, schedule, site)
        kernel.emit()
        return kernel.evaluator.accesses.bytes

    def _check(self, program: TensorProgram) -> None:
        elements = flat_elements(program)
        for node in program.nodes.values():
            if isinstance(node, Computed) and node.is_reduction:
                raise refusal(node.linalg.op, "is a reduction")
        dry_kernel(program, FlatLayout(elements, THREADS, 1, 1, 1)).emit()

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
