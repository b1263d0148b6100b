"""One function partitioned by a plan: the distributed program, how it runs on a model, and the devices' functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from mlir import ir

from mlirstitch.driver.reference.devices import run_devices
from mlirstitch.errors import LaunchError, PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.access import Box
from mlirstitch.passes.partitioning.device_programs import device_programs
from mlirstitch.passes.partitioning.linalg_graph import graph_of
from mlirstitch.passes.partitioning.materialize import materialize
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plan_record import RecordedPlan
from mlirstitch.passes.partitioning.plans import named_plan, named_recompute
from mlirstitch.passes.partitioning.plans.auto import auto, plans_on
from mlirstitch.passes.partitioning.program import DistributedProgram
from mlirstitch.passes.partitioning.recompute import Recompute, mark_recomputed
from mlirstitch.passes.partitioning.simulate import Timeline, simulate
from mlirstitch.passes.structured import main_function
from mlirstitch.target import Links, Target

Rules = Callable[[Plan], None]
DEFAULT_LINKS = "dgx-h100"
AUTO = "auto"


@dataclass(frozen=True)
class Partitioned:
    """A function and its plan.

    Attributes:
        source: the module that holds the whole function, and keeps it alive.
        function: the whole function.
        program: what all devices do.
        timeline: when they do it, on the model of the machine.
        plan: the rules that made it.
        target, links: the machine that it is costed on.
    """

    source: ir.Module
    function: ir.Operation
    program: DistributedProgram
    timeline: Timeline
    plan: RecordedPlan
    target: Target
    links: Links

    @cached_property
    def module(self) -> ir.Module:
        """One function per distinct device program. Raises PassError as :func:`device_programs` does."""
        return device_programs(self.program, self.function, self.timeline.sequence)

    def parts(self, arguments: Sequence[Any]) -> dict[int, list[np.ndarray]]:
        """What every device holds of the function's arguments, in the order its own function takes them.

        Raises :class:`LaunchError` for another number of arguments, or another shape.
        """
        graph = self.program.placed.graph
        if len(arguments) != len(graph.arguments):
            raise LaunchError(f"the function takes {len(graph.arguments)} arguments, {len(arguments)} were given")
        found: dict[int, list[np.ndarray]] = {device: [] for device in self.program.placed.mesh.devices}
        for argument, number in zip(arguments, self.program.arguments, strict=True):
            value = graph.values[self.program.buffers[number].value]
            array = np.asarray(argument)
            if array.shape != value.shape:
                raise LaunchError(f"argument {value.name} has shape {list(array.shape)}, not {list(value.shape)}")
            for device, box in self.boxes(number).items():
                found[device].append(np.ascontiguousarray(array[_window(box)]).reshape([hi - lo for lo, hi in box]))
        return found

    def whole(self, results: Mapping[int, Sequence[np.ndarray]]) -> list[np.ndarray]:
        """The function's results, put together from what the devices' functions gave.

        Raises :class:`LaunchError` if devices that hold the same part of a result do not agree to the bit.
        """
        taken = dict.fromkeys(results, 0)
        found: list[np.ndarray] = []
        for number in self.program.returned:
            value = self.program.placed.graph.values[self.program.buffers[number].value]
            array: np.ndarray | None = None
            seen: dict[Box, tuple[int, np.ndarray]] = {}
            for device, box in self.boxes(number).items():
                part = np.asarray(results[device][taken[device]])
                taken[device] += 1
                first, known = seen.setdefault(box, (device, part))
                if known.tobytes() != part.tobytes():
                    raise LaunchError(f"devices {first} and {device} give different values of {value.name}")
                if array is None:
                    array = np.empty(value.shape, part.dtype)
                array[_window(box)] = part
            if array is None:
                raise LaunchError(f"no device gives {value.name}")
            found.append(array)
        return found

    def whole_by_name(self, results: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Results of :meth:`run` by what they are: new contents by the argument's name, others by their own."""
        graph = self.program.placed.graph
        numbers = zip(graph.mutated, graph.returned, strict=True)
        names = [graph.values[mutated if mutated >= 0 else value].name for mutated, value in numbers]
        return dict(zip(names, results, strict=True))

    def boxes(self, buffer: int) -> dict[int, Box]:
        """Which part of a tensor every device of a buffer's mesh holds."""
        found = self.program.buffers[buffer]
        shape = self.program.placed.graph.values[found.value].shape
        sizes = self.program.placed.sizes(found.mesh)
        return {
            device: found.layout.box(shape, {**place, **dict(found.at)}, sizes)
            for device, place in found.mesh.coordinates()
        }

    def run(self, arguments: Sequence[Any], *, precision: str = "ir") -> list[np.ndarray]:
        """All devices in this process, on numpy. Arguments and results are those of the whole function.

        Raises :class:`LaunchError` as :func:`run_devices` does.
        """
        parts = self.parts(arguments)
        return self.whole(run_devices(self.module, self.program.placed.mesh, parts, precision=precision))


def partition(
    module: ir.Module,
    plan: str | Rules,
    mesh: Mesh,
    *,
    target: str | Target = "sm_90",
    links: str | Links = DEFAULT_LINKS,
    micro_batches: int | None = None,
    recompute: Callable[[Plan], Iterable[int]] | None = None,
) -> Partitioned:
    """Partition the public function of a normalized module (docs/architecture.md, level "linalg").

    Args:
        module: left as it is.
        plan: the name of a plan (``tp``, ``dp+pp-1f1b``), ``auto`` for the fastest in simulation, or a function that
            makes rules.
        mesh: the devices.
        target, links: for the model of the machine.
        micro_batches: how many a plan with micro-batches makes, or parts a plan that cuts in time on one device; its
            own choice by default.
        recompute: chooses the forward ops that the backward pass computes again (``dist-recompute``), given a plan
            without rules; by default what a named plan chooses, else none. Rules then see the function with them.

    Raises:
        PlanError: the plan does not fit the function or the mesh, or contradicts itself.
        PassError: an op that no plan can be made over.
    """
    function = main_function(module.operation)
    if function is None:
        raise PlanError("the module has no public function to partition", hint="name one @main")
    machine = Target.parse(target), Links.parse(links)
    rules = plan if not isinstance(plan, str) else _auto(*machine) if plan == AUTO else named_plan(plan)
    chooses = named_recompute(plan) if isinstance(plan, str) and plan != AUTO and recompute is None else recompute
    made = RecordedPlan(graph_of(function), mesh, micro_batches=micro_batches)
    if chooses is not None:
        again = tuple(sorted(chooses(made)))
        module, function = _recomputing(module, [made.graph.ops[op].index for op in again])
        made = RecordedPlan(graph_of(function), mesh, micro_batches=micro_batches, recomputed=again)
    rules(made)
    program = materialize(made.place(), *machine)
    return Partitioned(module, function, program, simulate(program), made, *machine)


def _auto(target: Target, links: Links) -> Rules:
    """The rules of the fastest plan of those on the axes of the mesh."""

    def rules(plan: Plan) -> None:
        named = {name: named_plan(name) for name in plans_on(tuple(plan.mesh.names))}
        auto(plan, target, links, named)

    return rules


def _recomputing(module: ir.Module, indices: Sequence[int]) -> tuple[ir.Module, ir.Operation]:
    """A copy of a module that computes some ops of its function again, and the function."""
    copy = ir.Module.parse(str(module), module.context)
    function = main_function(copy.operation)
    assert function is not None  # the module has one
    mark_recomputed(function, indices)
    Recompute().run(copy.operation)
    return copy, function


def _window(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)
