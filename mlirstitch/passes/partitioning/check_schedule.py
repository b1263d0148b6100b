"""Device programs run abstractly: who waits for whom, with sends that no buffer takes up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import dist
from mlirstitch.dialects.locations import describe, refusal, source_line
from mlirstitch.errors import PassError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import functions, symbol_name

MEETINGS = frozenset((*dist.COLLECTIVES, dist.SEND, dist.RECV))
_SHOWN = 3
"""Of more devices that wait, a message names these and counts the others."""


@register_pass
@dataclass(frozen=True)
class CheckSchedule(Pass):
    """Refuse device programs that would hang or that do not fit each other; change nothing.

    Sends, receives and collectives of all devices are run abstractly. A send waits for its receiver, a collective for
    all of its group. Refused are: a send whose receiver gets a tensor of another type, members of a group with
    different collectives, a device without a program or with two, a message to no device, and a state in which every
    device that is not done waits; two of them are named with their ops. One order of running finds every hang, since no
    device can choose what it does next.
    """

    NAME = "dist-check-schedule"

    def run(self, op: ir.Operation) -> None:
        check_schedule(op)


def check_schedule(module: ir.Operation) -> None:
    """Run the device programs of a module abstractly.

    Raises:
        PassError: see :class:`CheckSchedule`.
    """
    programs = [function for function in functions(module) if dist.devices_of(function)]
    if not programs:
        raise refusal(module, "the module has no device programs", "run dist-insert-communication first")
    for function in programs:
        dist.verify_device_program(function)
    _Run(programs).finish()


class _Run:
    """Every device with the op it waits at."""

    def __init__(self, programs: list[ir.Operation]) -> None:
        self.mesh = _mesh_of(programs)
        meetings = [list(_meetings(function)) for function in programs]
        self.ops: dict[int, list[ir.Operation]] = {}
        for function, ops in zip(programs, meetings, strict=True):
            for device in dist.devices_of(function):
                if device not in self.mesh.devices:
                    raise refusal(function, f"there is no device {device}", f"the mesh is {self.mesh}")
                if device in self.ops:
                    raise refusal(function, f"device {device} runs two programs", "dist.devices gives each device one")
                self.ops[device] = ops
        missing = [device for device in self.mesh.devices if device not in self.ops]
        if missing:
            raise refusal(programs[0], f"device {missing[0]} has no program", "dist.devices gives each device one")
        self.at = dict.fromkeys(self.ops, 0)
        self._groups: dict[tuple[str, ...], dict[int, tuple[int, ...]]] = {}

    def finish(self) -> None:
        """Let devices go on as long as any can; each that moves lets those that it met move again."""
        ready = list(reversed(self.mesh.devices))
        while ready:
            met = self._meet(ready.pop())
            for device in met:
                self.at[device] += 1
            ready += reversed(met)
        waiting = [device for device in self.mesh.devices if self._op(device) is not None]
        if waiting:
            raise self._hang(waiting)

    def _op(self, device: int) -> ir.Operation | None:
        ops, at = self.ops[device], self.at[device]
        return ops[at] if at < len(ops) else None

    def _meet(self, device: int) -> tuple[int, ...]:
        """The devices that do their next op together with ``device``, none if one of them is not there yet."""
        op = self._op(device)
        if op is None:
            return ()
        if op.name in dist.COLLECTIVES:
            return self._collective(device, op)
        other_device = self._partner(device, op)
        other = self._op(other_device)
        wanted = dist.RECV if op.name == dist.SEND else dist.SEND
        if other is None or other.name != wanted or self._partner(other_device, other) != device:
            return ()
        sent, received = (op, other) if op.name == dist.SEND else (other, op)
        if sent.operands[0].type != received.results[0].type:
            sender, receiver = (device, other_device) if op.name == dist.SEND else (other_device, device)
            raise _at_both(
                sent,
                f"device {sender} sends {sent.operands[0].type}, device {receiver} receives {received.results[0].type}",
                received,
            )
        return (device, other_device)

    def _partner(self, device: int, op: ir.Operation) -> int:
        other = dist.integer_of(op, "to" if op.name == dist.SEND else "from")
        if other not in self.ops:
            raise refusal(op, f"there is no device {other}", f"the mesh is {self.mesh}")
        if other == device:
            raise refusal(op, f"device {device} exchanges a message with itself", "it would wait for itself")
        return other

    def _collective(self, device: int, op: ir.Operation) -> tuple[int, ...]:
        group = self._group(device, op)
        others = [(member, self._op(member)) for member in group]
        for member, other in others:
            if other is not None and other.name in dist.COLLECTIVES and self._group(member, other) == group:
                self._same(device, op, member, other)
        there = all(
            other is not None and other.name in dist.COLLECTIVES and self._group(member, other) == group
            for member, other in others
        )
        return group if there else ()

    def _group(self, device: int, op: ir.Operation) -> tuple[int, ...]:
        axes = dist.axes_of(op)
        if axes not in self._groups:
            self._groups[axes] = {member: group for group in self.mesh.groups(axes) for member in group}
        return self._groups[axes][device]

    def _same(self, device: int, op: ir.Operation, member: int, other: ir.Operation) -> None:
        """Refuse members of a group that meet at collectives which differ."""
        if op == other:
            return
        different = next((what for what, value in _signature(op) if (what, value) not in _signature(other)), None)
        if different is None:
            return
        raise _at_both(
            op,
            f"device {device} meets device {member}, which is of its group, at a collective with another {different}: "
            f"{_spelled(op)} and {_spelled(other)}",
            other,
        )

    def _hang(self, waiting: list[int]) -> PassError:
        """Name devices that wait for each other: from the first one on, whom each waits for, up to one seen before."""
        chain = [waiting[0]]
        while (following := self._waits_for(chain[-1])) in waiting and following not in chain:
            chain.append(following)
        if following in chain:
            chain = chain[chain.index(following) :]
        else:
            chain.append(following)
        told = [self._state(device) for device in chain[:_SHOWN]]
        more = f"; and {len(chain) - _SHOWN} more" if len(chain) > _SHOWN else ""
        first = next(op for device in chain if (op := self._op(device)) is not None)
        return refusal(
            first,
            f"the programs would hang: {'; '.join(told)}{more}",
            "put sends, receives and collectives of these devices in one order",
        )

    def _state(self, device: int) -> str:
        op = self._op(device)
        if op is None:
            return f"device {device} is done"
        where = source_line(op.location)
        place = f" at {where}" if where else ""
        return f"device {device} waits in {_spelled(op)}{place} for device {self._waits_for(device)}"

    def _waits_for(self, device: int) -> int:
        op = self._op(device)
        if op is None:
            return device
        if op.name not in dist.COLLECTIVES:
            return self._partner(device, op)
        group = self._group(device, op)
        for member in group:
            other = self._op(member)
            if other is None or other.name not in dist.COLLECTIVES or self._group(member, other) != group:
                return member
        return device


def _meetings(function: ir.Operation) -> Iterator[ir.Operation]:
    for op in function.regions[0].blocks[0].operations:
        if op.operation.name in MEETINGS:
            yield op.operation


def _mesh_of(programs: list[ir.Operation]) -> Mesh:
    """The mesh that all programs are for: its devices are those that run one, in ascending order."""
    first = dist.mesh_of(programs[0])
    for function in programs[1:]:
        if dist.mesh_of(function) != first:
            raise refusal(
                function,
                f"the program is for the mesh {dist.mesh_of(function)}, @{symbol_name(programs[0])} for {first}",
                "all device programs of a module are for one mesh",
            )
    return Mesh.of(**first)


def _signature(op: ir.Operation) -> list[tuple[str, str]]:
    """What members of a group must agree on."""
    found = [("name", op.name)]
    for name in ("axes", "combiner", "dim", "split_dim", "concat_dim"):
        if name in op.attributes:
            found.append((name, str(op.attributes[name])))
    types = [ir.RankedTensorType(value.type) for value in op.operands]
    if op.name == dist.ALL_REDUCE:
        return [*found, ("type", ", ".join(map(str, types)))]
    return [*found, ("element type", ", ".join(str(type_.element_type) for type_ in types))]


def _spelled(op: ir.Operation) -> str:
    if op.name == dist.SEND:
        return f"{op.name} to {dist.integer_of(op, 'to')}"
    if op.name == dist.RECV:
        return f"{op.name} from {dist.integer_of(op, 'from')}"
    combiner = f" {ir.StringAttr(op.attributes['combiner']).value}" if "combiner" in op.attributes else ""
    return f"{op.name}{combiner} over {', '.join(dist.axes_of(op)) or 'no axis'}"


def _at_both(op: ir.Operation, message: str, other: ir.Operation) -> PassError:
    where = source_line(other.location)
    return refusal(op, message, f"the other is {describe(other)}{' at ' + where if where else ''}")
