"""Plan ``auto``: the fastest in simulation of its own solution and of all named plans that apply.

Its own solution cuts by one mesh axis after the other, largest first, each by an integer program
(:mod:`mlirstitch.passes.partitioning.plans.auto_program`). What a plan cuts beforehand stays as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.conversion import Converter
from mlirstitch.passes.partitioning.graph import GraphOp
from mlirstitch.passes.partitioning.layout import Layout, split
from mlirstitch.passes.partitioning.materialize import materialize
from mlirstitch.passes.partitioning.placement import Placement
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plans import NAMED_PLANS
from mlirstitch.passes.partitioning.plans.auto_program import Flow, Option, solve
from mlirstitch.passes.partitioning.rates import Rates
from mlirstitch.passes.partitioning.simulate import simulate
from mlirstitch.passes.partitioning.splits import layout_of, refusal_of_split
from mlirstitch.target import Links, Target

Rules = Callable[[Plan], None]
OWN = "own"
"""Name of what the integer programs give."""


@dataclass(frozen=True)
class Tried:
    """A plan that ``auto`` simulated: seconds of a step and peak bytes of the fullest device; or why it was refused."""

    name: str
    seconds: float
    peak_bytes: int
    refused: str = ""


def plans_on(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Named plans on some axes of a mesh, and all their combinations; none that computes ops a second time."""
    on_axis = [
        ["", *(plan.name for plan in NAMED_PLANS.values() if plan.axis == axis and plan.recompute is None)]
        for axis in axes
    ]
    return tuple("+".join(filter(None, names)) for names in itertools.product(*on_axis) if any(names))


def cut_by_program(plan: Plan, axis: str, target: Target, links: Links, memory: int | None = None) -> None:
    """Cut ops and stored arguments by one axis, as its integer program says.

    Raises :class:`PlanError` if the plan places ops on parts of the mesh, or nothing keeps ``memory`` bytes a device
    of arguments.
    """
    _AxisProgram(plan, axis, target, links).apply(memory)


def auto(
    plan: Plan, target: Target, links: Links, named: dict[str, Rules], memory: int | None = None
) -> tuple[Tried, ...]:
    """Apply the fastest plan to ``plan``; what was tried, in order.

    Args:
        plan: may have rules already; they are kept.
        target, links: the machine.
        named: named plans to compare with, by name; those that do not apply are listed as refused.
        memory: bytes that every device may hold at any time.

    Raises:
        PlanError: no plan is legal, or none keeps the memory limit: it names the least that one takes.
    """

    def own(made: Plan) -> None:
        axes = sorted(made.mesh.names, key=lambda axis: (-made.mesh.sizes[axis], made.mesh.names.index(axis)))
        for axis in axes:
            cut_by_program(made, axis, target, links, memory)

    candidates: dict[str, Rules] = {**named, OWN: own}
    tried: list[Tried] = []
    for name, rules in candidates.items():
        made = plan.copy()
        try:
            rules(made)
            timeline = simulate(materialize(made.place(), target, links))
        except PlanError as error:
            tried.append(Tried(name, math.inf, 0, str(error).splitlines()[0]))
            continue
        tried.append(Tried(name, timeline.seconds, max(timeline.peak_bytes, default=0)))
    legal = [found for found in tried if not found.refused]
    if not legal:
        raise PlanError(f"plan auto: no plan is legal: {tried[-1].refused}", hint="take back some of the rules")
    fitting = [found for found in legal if memory is None or found.peak_bytes <= memory]
    if not fitting:
        least = min(legal, key=lambda found: found.peak_bytes)
        raise PlanError(
            f"plan auto: no plan keeps {memory} bytes a device; "
            f"the least is {least.peak_bytes} bytes, plan {least.name}",
            hint="raise the limit, or add devices",
        )
    best = min(fitting, key=lambda found: (found.seconds, found.peak_bytes))
    candidates[best.name](plan)
    return tuple(tried)


class _AxisProgram:
    """The integer program of one axis."""

    def __init__(self, plan: Plan, axis: str, target: Target, links: Links) -> None:
        self.plan, self.axis, self.graph = plan, axis, plan.graph
        self.decisions = plan.decisions()
        if any(mesh is not None and mesh != plan.mesh for mesh in self.decisions.meshes):
            raise PlanError("plan auto cuts whole meshes alone, and ops are assigned to parts of it")
        self.time = dict(self.decisions.time_axes)
        self.sizes = {**plan.mesh.sizes, **self.time}
        self.rates = Rates.of(target)
        self.converter = Converter(plan.mesh, plan.mesh, self.time, links)
        self.loops = [self._loops(op) for op in self.graph.ops]
        self.dims = [self._dims(number) for number in range(len(self.graph.arguments))]

    def apply(self, memory: int | None) -> None:
        """Solve it and make its cuts."""
        ops = len(self.graph.ops)
        op_nodes = [[Option(self._seconds(op, loop)) for loop in self.loops[op.number]] for op in self.graph.ops]
        argument_nodes = [
            [Option(0.0, self._kept(number, dim)) for dim in dims] for number, dims in enumerate(self.dims)
        ]
        chosen = solve([*op_nodes, *argument_nodes], list(self._flows()), memory)
        for op, (loops, option) in enumerate(zip(self.loops, chosen[:ops], strict=True)):
            loop = loops[option]
            if loop is not None and not self.plan.is_cut(op, self.axis):
                self.plan.trans_op(op, loop, space=self.axis)
        for number, (dims, option) in enumerate(zip(self.dims, chosen[ops:], strict=True)):
            dim = dims[option]
            if dim is not None and self.axis not in itertools.chain(*dict(self.decisions.stored[number]).values()):
                self.plan.store(self.graph.values[self.graph.arguments[number]].name, dim, self.axis)

    def _loops(self, op: GraphOp) -> list[int | None]:
        """Loops that may be cut, None for none; what is cut already is the only choice."""
        fixed = self.plan.cut_loops(op.number, self.axis)
        if fixed:
            return [fixed[0]]
        cut = [loop for loop, _ in self.decisions.cuts[op.number]]
        size = self.sizes[self.axis]
        legal = (
            loop
            for loop, extent in enumerate(op.loops)
            if extent >= size and refusal_of_split(op, loop, cut) is None and self._divides(op, loop)
        )
        return [None, *legal]

    def _divides(self, op: GraphOp, loop: int) -> bool:
        parts = math.prod(self.sizes[a] for a in dict(self.decisions.cuts[op.number]).get(loop, ()))
        return op.loops[loop] >= parts * self.sizes[self.axis]

    def _dims(self, number: int) -> list[int | None]:
        stored = dict(self.decisions.stored[number])
        fixed = [dim for dim, axes in stored.items() if self.axis in axes]
        if fixed:
            return [fixed[0]]
        shape = self.graph.values[self.graph.arguments[number]].shape
        return [None, *(dim for dim, extent in enumerate(shape) if extent >= self.sizes[self.axis])]

    def _cuts(self, op: int, loop: int | None) -> dict[int, tuple[str, ...]]:
        cuts = dict(self.decisions.cuts[op])
        if loop is not None and self.axis not in cuts.get(loop, ()):
            axes = (*cuts.get(loop, ()), self.axis)
            cuts[loop] = tuple(sorted(axes, key=lambda axis: axis in self.time))
        return cuts

    def _seconds(self, op: GraphOp, loop: int | None) -> float:
        cuts = self._cuts(op.number, loop)
        times = math.prod(self.time[a] for axes in cuts.values() for a in axes if a in self.time)
        placement = Placement(self.plan.mesh, tuple(sorted(cuts.items())))
        return times * self.rates.seconds(self.graph, op, placement, self.sizes)

    def _stored(self, number: int, dim: int | None) -> Layout:
        cuts = dict(self.decisions.stored[number])
        if dim is not None and self.axis not in cuts.get(dim, ()):
            cuts[dim] = (*cuts.get(dim, ()), self.axis)
        shape = self.graph.values[self.graph.arguments[number]].shape
        return Layout(tuple(split(cuts.get(place, ()), extent) for place, extent in enumerate(shape)))

    def _kept(self, number: int, dim: int | None) -> int:
        tensor = self.graph.values[self.graph.arguments[number]]
        return self._stored(number, dim).largest(tensor.shape, self.sizes) * tensor.element_bytes

    def _flows(self) -> Iterator[Flow]:
        """From producers and arguments to readers, and from new contents to where arguments are stored."""
        ops = len(self.graph.ops)
        made: dict[int, tuple[int, list[Layout]]] = {
            value: (ops + number, [self._stored(number, dim) for dim in self.dims[number]])
            for number, value in enumerate(self.graph.arguments)
        }
        for op in self.graph.ops:
            cuts = [self._cuts(op.number, loop) for loop in self.loops[op.number]]
            for use in op.inputs:
                yield self._flow(made[use.value], op.number, use.value, [layout_of(op, use, cut) for cut in cuts])
            for use in op.results:
                made[use.value] = (op.number, [layout_of(op, use, cut) for cut in cuts])
        for value, argument in zip(self.graph.returned, self.graph.mutated, strict=True):
            if argument >= 0:
                reader, wanted = made[argument]
                yield self._flow(made[value], reader, value, wanted)
            else:
                whole = Layout(tuple(split((), extent) for extent in self.graph.values[value].shape))
                source, layouts = made[value]
                yield self._flow((source, layouts), source, value, [whole] * len(layouts))

    def _flow(self, source: tuple[int, list[Layout]], reader: int, value: int, wanted: list[Layout]) -> Flow:
        seconds = tuple(tuple(self._conversion(value, before, after) for after in wanted) for before in source[1])
        return Flow(source[0], reader, value, tuple(wanted), seconds)

    def _conversion(self, value: int, before: Layout, after: Layout) -> float:
        tensor = self.graph.values[value]
        try:
            return self.converter.convert(before, after, tensor.shape, tensor.element_bytes).seconds
        except PlanError:
            return math.inf
