"""The outline that all kernel templates share: program -> space -> layouts -> schedule -> layout -> kernel body.

A template says what its iteration space is, in which ways threads can be laid over it, how such a layout is written as
a schedule and read back, and what a thread then does. Everything else stands here: asking, enumerating, checking,
opening and closing the kernel. A new template is one file and one line of registration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from mlir import ir

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.builder import Builder
from mlirstitch.lowering.kernel.evaluate import Evaluator
from mlirstitch.lowering.kernel.figures import try_figures
from mlirstitch.lowering.kernel.kernel_body import KernelBody, Site, emit_whole
from mlirstitch.lowering.kernel.memory_access import Accesses
from mlirstitch.lowering.kernel.reduction_facts import unreachable
from mlirstitch.lowering.kernel.resources import try_schedule
from mlirstitch.lowering.kernel.schedule_checks import check_same_schedule
from mlirstitch.lowering.kernel.tensor_program import Node, TensorProgram
from mlirstitch.passes.stitching.cost.figures import KernelFigures
from mlirstitch.passes.stitching.template import MOST_CANDIDATES, Cluster, Schedule
from mlirstitch.target import Target

Space = TypeVar("Space")
"""What a template iterates over: rows and columns, a number of elements ..."""

Layout = TypeVar("Layout")
"""How threads are laid over a space."""


@dataclass(frozen=True, eq=False)
class OpenKernel:
    """A kernel, or the part of a packed one, under construction.

    Attributes:
        program: what it computes.
        schedule: how it runs.
        place: where it is emitted; makes shared memory.
        evaluator: computes values at the current point of the body, and stores outputs.
    """

    program: TensorProgram
    schedule: Schedule
    place: KernelBody
    evaluator: Evaluator

    @property
    def builder(self) -> Builder:
        """Where ops go."""
        return self.evaluator.builder

    @property
    def first_workspace(self) -> int:
        """Number of the first argument behind inputs and outputs: scratch buffers, then tickets."""
        return len(self.program.arguments) + len(self.program.outputs)


class EmittingTemplate(ABC):
    """What follows from emitting a body: a kernel of its own, whether a schedule fits, and figures."""

    name: str
    """Name used in ``stitch.schedule``."""

    @abstractmethod
    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if the template can emit the cluster, else why not."""

    @abstractmethod
    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """The schedules that the template prefers, best first. Raises :class:`PassError` if it does not apply."""

    @abstractmethod
    def candidates(self, cluster: Cluster, target: Target, limit: int = MOST_CANDIDATES) -> Sequence[Schedule]:
        """At most ``limit`` different legal schedules, best first. Raises :class:`PassError` if it does not apply."""

    @abstractmethod
    def emit_body(self, cluster: Cluster, schedule: Schedule, site: Site, target: Target) -> Accesses:
        """Emit the cluster at ``site``; see :class:`mlirstitch.lowering.kernel.kernel_body.BodyTemplate`."""

    def refusal(self, cluster: Cluster, schedule: Schedule, target: Target) -> str | None:
        """Why ``schedule`` does not fit the cluster or the chip, or None if it does."""
        try:
            check_program(build_program(cluster))
            try_schedule(self, cluster, schedule, target)
        except PassError as error:
            return error.message
        return None

    def figures(self, cluster: Cluster, schedule: Schedule, target: Target) -> KernelFigures:
        """What the kernel asks of the chip. Raises :class:`PassError` where :meth:`refusal` gives a reason."""
        return try_figures(self, cluster, schedule, target)

    def emit(self, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
        """Create the ``gpu.func`` at the current insertion point (inside a ``gpu.module``) and return it.

        Raises :class:`PassError` for what :meth:`applies` refuses, or a schedule that does not fit.
        """
        return emit_whole(self, cluster, schedule, name, target)


class KernelTemplate(EmittingTemplate, Generic[Space, Layout]):
    """One way to turn a cluster into a kernel. Implements :class:`mlirstitch.passes.stitching.template.Template`."""

    # What a template decides ------------------------------------------------------------------------------------

    @abstractmethod
    def space(self, program: TensorProgram) -> Space:
        """What the kernel iterates over, from the shapes alone. Raises :class:`PassError` if it has no such space."""

    @abstractmethod
    def check(self, program: TensorProgram, space: Space, target: Target) -> None:
        """Raise :class:`PassError` if the template cannot, or should not, emit the cluster. Asked often: keep it cheap.

        What passes has at least one layout.
        """

    @abstractmethod
    def layouts(self, program: TensorProgram, space: Space, target: Target) -> Sequence[Layout]:
        """The layouts that the template prefers, best first. Raises :class:`PassError` if there is none."""

    def variants(self, program: TensorProgram, space: Space, target: Target) -> Iterator[Layout]:
        """Further layouts worth trying, better ones first. They may repeat, or be refused by :meth:`layout`."""
        return iter(())

    @abstractmethod
    def schedule(self, cluster: Cluster, space: Space, layout: Layout) -> Schedule:
        """The schedule that describes a layout."""

    @abstractmethod
    def layout(self, program: TensorProgram, space: Space, schedule: Schedule, target: Target) -> Layout:
        """The layout that a schedule describes, checked: a person may have edited it.

        Raises:
            PassError: the schedule does not cover the space, or asks for what the template cannot emit.
        """

    @abstractmethod
    def body(self, kernel: OpenKernel, space: Space, layout: Layout) -> None:
        """Emit the body of the kernel."""

    # The outline ------------------------------------------------------------------------------------------------

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if the template can emit the cluster, else why not."""
        try:
            program = build_program(cluster)
            check_program(program)
            self.check(program, self.space(program), target)
        except PassError as error:
            return error.message
        return None

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """The schedules that the template prefers, best first. Raises :class:`PassError` if it does not apply."""
        program = build_program(cluster)
        space = self.space(program)
        return [self.schedule(cluster, space, layout) for layout in self.layouts(program, space, target)]

    def candidates(self, cluster: Cluster, target: Target, limit: int = MOST_CANDIDATES) -> Sequence[Schedule]:
        """At most ``limit`` different legal schedules, those of :meth:`schedules` first.

        Raises :class:`PassError` if the template does not apply.
        """
        program = build_program(cluster)
        space = self.space(program)
        found: dict[Schedule, None] = {}
        for layout in chain(self.layouts(program, space, target), self.variants(program, space, target)):
            schedule = self.schedule(cluster, space, layout)
            if schedule not in found and self.refusal(cluster, schedule, target) is None:
                found[schedule] = None
                if len(found) == limit:
                    break
        return list(found)

    def emit_body(self, cluster: Cluster, schedule: Schedule, site: Site, target: Target) -> Accesses:
        """Emit the cluster at ``site``; see :class:`mlirstitch.lowering.kernel.kernel_body.BodyTemplate`."""
        program = build_program(cluster)
        space = self.space(program)
        layout = self.layout(program, space, schedule, target)
        check_same_schedule(schedule, self.schedule(cluster, space, layout))
        place = site.open(program, schedule)
        evaluator = place.evaluator(program, unreachable)
        self.body(OpenKernel(program, schedule, place, evaluator), space, layout)
        return evaluator.accesses


def schemes_of(cluster: Cluster, roots: Iterable[tuple[Node, str]]) -> tuple[tuple[int, str], ...]:
    """``Schedule.schemes``: the scheme of every (value, scheme), by position of its op among the cluster's ops."""
    positions = {op: position for position, op in enumerate(cluster.ops)}
    return tuple(
        sorted(
            {
                positions[node.op]: scheme for node, scheme in roots if node.op is not None and node.op in positions
            }.items()
        )
    )
