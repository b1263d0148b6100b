"""The seam between clustering and code generation: what a cluster is, and what a kernel template answers about it.

`passes` decide which ops share a kernel; `lowering/kernel` knows how to emit one. They meet here: the code generator
registers its templates, and the clusterer asks them through the registry whether a set of ops can be one kernel. An
empty registry is an error, never "nothing fuses".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mlirstitch.dialects.schedule import Schedule
from mlirstitch.errors import PassError
from mlirstitch.target import Target

if TYPE_CHECKING:
    from mlir import ir

    from mlirstitch.passes.stitching.cost.figures import KernelFigures


PACKED = "packed"
"""The template that gives independent parts of a cluster a range of blocks each. It saves launches but no bytes, so it
does not decide what is stitched: clusters are made for it at the end (see ``packing``)."""

MOST_CANDIDATES = 32
"""Schedules of a cluster that are worth ranking: enough to differ in every respect, few enough to emit all of them."""


@dataclass(frozen=True)
class Cluster:
    """A set of ops that becomes one kernel, seen without regard to where the ops stand.

    Before outlining the ops are spread over ``@main``; afterwards they are the body of the cluster function. ``ops``
    are in topological order and include the constants, fills and ``tensor.empty`` that the others need. ``inputs``
    are the tensor values read from outside, ``outputs`` the tensor values (results of ``ops``) visible outside.
    ``facts`` is where templates keep what they learnt about single ops; clusters of one graph may share it as long as
    the ops do not change.
    """

    ops: tuple[ir.Operation, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    facts: dict[ir.Operation, Any] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of_function(function: ir.Operation) -> Cluster:
        """The cluster that an outlined function is: body, arguments, returned values."""
        block = function.regions[0].blocks[0]
        ops = [op.operation for op in block.operations]
        return Cluster(tuple(ops[:-1]), tuple(block.arguments), tuple(ops[-1].operands))


class Template(Protocol):
    """One way to turn a cluster into a kernel. Implementations live in ``lowering/kernel``, one file each."""

    @property
    def name(self) -> str:
        """Name used in ``stitch.schedule``."""
        ...

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if the template can emit the cluster, else the reason why not, naming op and tensor."""
        ...

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """Legal schedules, best first; at least one whenever :meth:`applies` returned None."""
        ...

    def candidates(self, cluster: Cluster, target: Target, limit: int = MOST_CANDIDATES) -> Sequence[Schedule]:
        """At most ``limit`` different legal schedules worth trying, those of :meth:`schedules` first."""
        ...

    def refusal(self, cluster: Cluster, schedule: Schedule, target: Target) -> str | None:
        """Why a schedule that names this template does not fit the cluster, or None if it does."""
        ...

    def figures(self, cluster: Cluster, schedule: Schedule, target: Target) -> KernelFigures:
        """What the kernel of a schedule asks of the chip. Raises PassError where :meth:`refusal` gives a reason."""
        ...

    def emit(self, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
        """Create the ``gpu.func`` at the current insertion point (inside a ``gpu.module``) and return it."""
        ...


__all__ = [
    "MOST_CANDIDATES",
    "Cluster",
    "Schedule",
    "Template",
    "find_candidates",
    "find_schedule",
    "find_template",
    "register_template",
    "templates",
]

_REGISTRY: dict[str, Template] = {}


def register_template(template: Template, before: str | None = None) -> Template:
    """Add a template; order of registration is order of preference. A name registers once.

    ``before`` names a registered template to which the new one is preferred. Raises ValueError for a name that is
    taken, or not there.
    """
    if template.name in _REGISTRY:
        raise ValueError(f"template {template.name!r} is already registered")
    if before is not None and before not in _REGISTRY:
        raise ValueError(f"no template {before!r} is registered; registered: {', '.join(_REGISTRY)}")
    later = list(_REGISTRY)[list(_REGISTRY).index(before) :] if before is not None else []
    _REGISTRY[template.name] = template
    for name in later:
        _REGISTRY[name] = _REGISTRY.pop(name)
    return template


def templates() -> tuple[Template, ...]:
    """All templates, preferred first. Raises :class:`PassError` if the code generator was not loaded."""
    if not _REGISTRY:
        raise PassError(
            "no kernel templates are registered", hint="import mlirstitch.lowering (mlirstitch.add_passes does so)"
        )
    return tuple(_REGISTRY.values())


def find_template(cluster: Cluster, target: Target, among: Sequence[str] | None = None) -> tuple[Template | None, str]:
    """The first template that applies (restricted to the names in ``among``), with "" or the collected reasons."""
    reasons: list[str] = []
    for template in templates():
        if among is not None and template.name not in among:
            continue
        reason = template.applies(cluster, target)
        if reason is None:
            return template, ""
        reasons.append(f"{template.name}: {reason}")
    return None, "; ".join(reasons)


def find_schedule(cluster: Cluster, target: Target, among: Sequence[str] | None = None) -> tuple[Schedule | None, str]:
    """The schedule that a kernel gets where nobody chooses, with "" or what every template said.

    It is the first that the chip can run, of the first template that has one (of those in ``among``). None means that
    no code can be generated, whatever :meth:`Template.applies` says: every schedule offered was tried.
    """
    reasons: list[str] = []
    for template in templates():
        if among is not None and template.name not in among:
            continue
        reason = template.applies(cluster, target)
        if reason is None:
            for offered in (template.schedules, template.candidates):
                for schedule in offered(cluster, target):
                    reason = template.refusal(cluster, schedule, target)
                    if reason is None:
                        return schedule, ""
        reasons.append(f"{template.name}: {reason or 'offers no schedule'}")
    return None, "; ".join(reasons)


def find_candidates(cluster: Cluster, target: Target, limit: int = MOST_CANDIDATES) -> list[Schedule]:
    """At most ``limit`` different legal schedules of all templates that apply, in order of preference.

    Every one of them covers the cluster and fits the chip. Templates after the first get an eighth of the room each.
    The list is the same in every process. Empty if no template applies.
    """
    offers: list[Sequence[Schedule]] = []
    for template in templates():
        if template.applies(cluster, target) is None:
            offers.append(template.candidates(cluster, target, limit if not offers else max(1, limit // 8)))
    others = [schedule for offer in offers[1:] for schedule in offer][: limit - 1]
    return [*(offers[0][: limit - len(others)] if offers else ()), *others]
