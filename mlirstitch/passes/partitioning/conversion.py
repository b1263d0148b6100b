"""Conversion of a value from the layout in which it is computed to the one in which it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.graph import COMBINERS
from mlirstitch.passes.partitioning.layout import Layout
from mlirstitch.passes.partitioning.layout_question import LayoutQuestion
from mlirstitch.passes.partitioning.link_cost import LinkCost
from mlirstitch.passes.partitioning.steps import Step
from mlirstitch.passes.partitioning.transfer import transfer_steps
from mlirstitch.target import Links


@dataclass(frozen=True)
class Conversion:
    """Steps from one layout to another, in order; none if every device has its part already."""

    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all executions of all steps."""
        return math.fsum(step.seconds * step.times for step in self.steps)

    @property
    def bytes(self) -> int:
        """What the busiest device of every step receives over links, in all executions."""
        return sum(step.bytes * step.times for step in self.steps)


class Converter:
    """Answers how to convert values from one mesh to another or on one; a question is answered once.

    Layouts may name axes of time, ``time_axes`` with their sizes, besides those of the mesh.
    """

    def __init__(self, source_mesh: Mesh, wanted_mesh: Mesh, time_axes: Mapping[str, int], links: Links) -> None:
        self.source_mesh, self.wanted_mesh, self.links = source_mesh, wanted_mesh, links
        self.time_axes = dict(time_axes)
        for axis in self.time_axes:
            if axis in (*source_mesh.names, *wanted_mesh.names):
                raise PlanError(f"axis {axis} is one of the mesh and one of time", hint="give one another name")
        self._source = LinkCost(source_mesh, links)
        self._wanted = self._source if source_mesh == wanted_mesh else LinkCost(wanted_mesh, links)
        self._found: dict[tuple[Layout, Layout, tuple[int, ...], int], Conversion] = {}

    def convert(self, source: Layout, wanted: Layout, shape: tuple[int, ...], element_bytes: int) -> Conversion:
        """The cheapest steps from ``source`` to ``wanted`` for a tensor of ``shape``.

        A pair that ``argmax`` or ``argmin`` combines is one value whose elements have the bytes of both. Raises
        :class:`PlanError` for a layout that names an unknown axis, or one twice, that is partial with different
        combiners, or whose parts leave out something that is wanted.
        """
        key = (source, wanted, shape, element_bytes)
        if key not in self._found:
            self._found[key] = Conversion(self._steps(*key))
        return self._found[key]

    def _steps(self, source: Layout, wanted: Layout, shape: tuple[int, ...], element_bytes: int) -> tuple[Step, ...]:
        check_layout(source, shape, {**self.source_mesh.sizes, **self.time_axes})
        check_layout(wanted, shape, {**self.wanted_mesh.sizes, **self.time_axes})
        if self._source is self._wanted:
            if source == wanted:
                return ()
            return LayoutQuestion((self._source,), self.time_axes, shape, element_bytes, source, wanted).steps()
        return transfer_steps(self._source, self._wanted, self.time_axes, shape, element_bytes, source, wanted)


def check_layout(layout: Layout, shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
    """Raise :class:`PlanError` unless the layout is one of a tensor of ``shape`` on a grid with these axes."""
    if len(layout.dims) != len(shape):
        raise PlanError(f"layout {layout} has {len(layout.dims)} dims, the tensor has shape {list(shape)}")
    for number, axis in enumerate(layout.axes):
        if axis not in sizes:
            raise PlanError(f"layout {layout} names axis {axis!r}", hint=f"axes are {', '.join(sizes) or 'none'}")
        if axis in layout.axes[:number]:
            raise PlanError(f"layout {layout} names axis {axis!r} twice", hint="an axis cuts one dim, or none")
    for split in layout.dims:
        if split.axes and (split.step < 1 or split.span < 1 or split.extent < 0):
            raise PlanError(f"layout {layout} has units with step {split.step} and span {split.span}")
    combiners = sorted({combiner for _, combiner in layout.partial})
    if unknown := [combiner for combiner in combiners if combiner not in COMBINERS]:
        raise PlanError(f"layout {layout} has an unknown combiner {unknown[0]!r}")
    if len(combiners) > 1:
        raise PlanError(
            f"layout {layout} is partial with {' and '.join(combiners)}: the value depends on which comes first",
            hint="combine one of them before the other is made",
        )
