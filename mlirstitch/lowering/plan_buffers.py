"""``plan-buffers``: where every tensor of the host function lives.

A tensor value is a buffer of its own or a reshape of one. Arguments keep their buffers, a result is computed straight
into its output buffer where that is possible, everything else is a temporary at an offset of one arena.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal, source_line
from mlirstitch.dialects.schedule import Schedule
from mlirstitch.errors import PassError
from mlirstitch.lowering.arena import Lifetime, assign_offsets
from mlirstitch.lowering.buffers import MEMORY_TYPES, Buffer, BufferPlan, annotate, host_function
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import functions, symbol_name

_DTYPE_OF_TYPE = {element: name for name, element in stitch.DTYPES.items() if name != "uint8"}
_DTYPE_IN_MEMORY = {element: name for name, element in MEMORY_TYPES.items() if name not in ("uint8", "bool")}
_NO_SCHEDULE = Schedule("", (1, 1, 1), (1, 1, 1))
_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape")


def plan_buffers(main: ir.Operation) -> BufferPlan:
    """Plan the buffers of a stitched host function. Raises :class:`PassError` for what the level does not allow."""
    return _Planner(main).plan()


class _Planner:
    """One planning run: collects buffers while walking the calls in order."""

    def __init__(self, main: ir.Operation) -> None:
        self.main = main
        block = main.regions[0].blocks[0]
        operations = [op.operation for op in block.operations]
        self.calls = [op for op in operations if op.name == "func.call"]
        self.returned = list(operations[-1].operands)
        for op in operations[:-1]:
            if op.name != "func.call" and op.name not in _VIEWS:
                raise refusal(
                    op,
                    "the host function of a stitched module holds calls and reshapes only",
                    hint="run stitch-outline first",
                )
        self.buffers: list[Buffer] = []
        self.homes: dict[ir.Value, int] = {}
        self.schedules = _schedules(main)

    def plan(self) -> BufferPlan:
        self._add_arguments()
        mutations = self._mutations()
        results = self._add_outputs(mutations)
        tickets = self._add_tickets()
        self._place_call_results(results, mutations)
        copies = self._copies(results, mutations)
        reads = tuple(tuple(self.homes[_root(v)] for v in call.operands) for call in self.calls)
        writes = tuple(tuple(self.homes[v] for v in call.results) for call in self.calls)
        workspaces = self._add_workspaces(tickets)
        _check_names(self.buffers)
        touched = [r + w + s for r, w, s in zip(reads, writes, workspaces, strict=True)]
        arena = self._place_temporaries([*touched, *copies])
        return BufferPlan(tuple(self.buffers), tuple(results), reads, writes, workspaces, tuple(copies), arena)

    def _add(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _add_arguments(self) -> None:
        """One buffer an argument, with the argument's number."""
        names, dtypes = stitch.NAME.of_arguments(self.main), stitch.DTYPE.of_arguments(self.main)
        for number, role in enumerate(stitch.ROLE.of_arguments(self.main)):
            value = self.main.regions[0].blocks[0].arguments[number]
            buffer = _buffer(role or "input", names[number] or f"arg{number}", value, dtypes[number])
            self.homes[value] = self._add(buffer)

    def _add_outputs(self, mutations: dict[int, int]) -> list[int]:
        """The buffer that holds each result at the end: a mutated argument's, or a new output buffer."""
        names, dtypes = stitch.NAME.of_results(self.main), stitch.DTYPE.of_results(self.main)
        results: list[int] = []
        for position, value in enumerate(self.returned):
            if position in mutations:
                results.append(mutations[position])
            else:
                name = names[position] or f"result{position}"
                results.append(self._add(_buffer("output", name, value, dtypes[position])))
        return results

    def _mutations(self) -> dict[int, int]:
        """Result position -> buffer of the argument whose new contents it is."""
        by_name = {buffer.name: number for number, buffer in enumerate(self.buffers)}
        found: dict[int, int] = {}
        for position, name in enumerate(stitch.MUTATES.of_results(self.main)):
            if name is None:
                continue
            if name not in by_name:
                raise PassError(
                    f"result {position} of @main is said to be the new contents of {name!r}, which is no argument",
                    hint=f"arguments: {', '.join(by_name)}",
                )
            target = by_name[name]
            if target in found.values():
                raise PassError(
                    f"two results of @main are the new contents of argument {name!r}",
                    hint="keep stitch.mutates on the last one",
                )
            value = self.returned[position]
            shape, dtype = _shape_and_type(value)
            buffer = self.buffers[target]
            if shape != buffer.shape or stitch.DTYPES[dtype] != stitch.DTYPES[buffer.dtype]:
                raise PassError(
                    f"result {position} of @main ({value.type}) cannot become the contents of argument "
                    f"{name!r} ({buffer.dtype} {list(buffer.shape)})"
                )
            found[position] = target
            self.buffers[target] = replace(buffer, mutated=True)
        return found

    def _place_call_results(self, results: list[int], mutations: dict[int, int]) -> None:
        """Give every call result its buffer: an output's, a mutated argument's where safe, or a temporary."""
        wanted: dict[ir.Value, int] = {}
        for position, value in enumerate(self.returned):
            if position not in mutations:
                wanted.setdefault(_root(value), results[position])
        last_read = self._last_reads()
        made = 0
        for step, call in enumerate(self.calls):
            for value in call.results:
                home = wanted.get(value)
                if home is None:
                    home = self._argument_to_overwrite(value, step, mutations, last_read)
                if home is None:
                    home = self._add(_buffer("temporary", f"t{made}", value, None))
                    made += 1
                self.homes[value] = home

    def _last_reads(self) -> dict[ir.Value, int]:
        """Last step that reads each value, through reshapes; a returned value is read after the last step."""
        last: dict[ir.Value, int] = {}
        for step, call in enumerate(self.calls):
            for value in call.operands:
                last[_root(value)] = step
        for value in self.returned:
            last[_root(value)] = len(self.calls)
        return last

    def _argument_to_overwrite(
        self, value: ir.Value, step: int, mutations: dict[int, int], last_read: dict[ir.Value, int]
    ) -> int | None:
        """The argument that ``value`` replaces, if no step from this one on reads its old contents."""
        for position, target in mutations.items():
            if _root(self.returned[position]) != value:
                continue
            argument = self.main.regions[0].blocks[0].arguments[target]
            if last_read.get(argument, -1) < step:
                return target
        return None

    def _copies(self, results: list[int], mutations: dict[int, int]) -> list[tuple[int, int]]:
        """Copies after the last call: outputs first, then arguments, all as if at once.

        Outputs may need the old contents of an argument, so they are filled before any argument is overwritten. A
        mutation whose source is itself an overwritten argument (two arguments that swap) passes through a temporary.
        """
        sources = [self.homes[_root(value)] for value in self.returned]
        copies = [
            (sources[i], results[i]) for i in range(len(results)) if i not in mutations and sources[i] != results[i]
        ]
        pending = [(sources[i], target) for i, target in mutations.items() if sources[i] != target]
        overwritten = {target for _, target in pending}
        back: list[tuple[int, int]] = []
        for source, target in pending:
            if source in overwritten:
                staged = self._add(replace(self.buffers[source], role="temporary", name=f"old{target}", mutated=False))
                copies.append((source, staged))
                source = staged
            back.append((source, target))
        return copies + back

    def _add_tickets(self) -> dict[int, int]:
        """One buffer of counters for all launches that need as many.

        Launches run one after the other, and each puts its counters back to 0.
        """
        counts = sorted({self._schedule(call).tickets for call in self.calls} - {0})
        return {count: self._add(Buffer("persistent", f"tickets{count}", (count,), "int32")) for count in counts}

    def _add_workspaces(self, tickets: dict[int, int]) -> tuple[tuple[int, ...], ...]:
        """Scratch of every call, alive during its step only, then the tickets if it needs some."""
        found: list[tuple[int, ...]] = []
        for step, call in enumerate(self.calls):
            schedule = self._schedule(call)
            numbers = [
                self._add(Buffer("temporary", f"scratch{step}_{number}", (size,), _DTYPE_IN_MEMORY[kind]))
                for number, (kind, size) in enumerate(schedule.scratch)
            ]
            if schedule.tickets:
                numbers.append(tickets[schedule.tickets])
            found.append(tuple(numbers))
        return tuple(found)

    def _schedule(self, call: ir.Operation) -> Schedule:
        return self.schedules.get(ir.FlatSymbolRefAttr(call.attributes["callee"]).value, _NO_SCHEDULE)

    def _place_temporaries(self, touches: list[tuple[int, ...]]) -> int:
        """Set the offsets of the temporaries; returns the size of the arena."""
        spans: dict[int, tuple[int, int]] = {}
        for step, numbers in enumerate(touches):
            for number in numbers:
                first, _ = spans.get(number, (step, step))
                spans[number] = (first, step)
        temporaries = [n for n, buffer in enumerate(self.buffers) if buffer.role == "temporary"]
        lifetimes = [Lifetime(self.buffers[n].bytes, *spans[n]) for n in temporaries]
        offsets, arena = assign_offsets(lifetimes)
        for number, offset in zip(temporaries, offsets, strict=True):
            self.buffers[number] = replace(self.buffers[number], offset=offset)
        return arena


def _schedules(main: ir.Operation) -> dict[str, Schedule]:
    """The schedule of every function of the module that has one."""
    found: dict[str, Schedule] = {}
    if main.parent is not None:
        for function in functions(main.parent.operation):
            schedule = stitch.SCHEDULE.get(function)
            if schedule is not None:
                found[symbol_name(function)] = schedule
    return found


def _root(value: ir.Value) -> ir.Value:
    """The argument or call result of which ``value`` is a reshape."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in _VIEWS:
        value = value.owner.operands[0]
    return value


def _shape_and_type(value: ir.Value) -> tuple[tuple[int, ...], str]:
    """Shape and default dtype of a tensor value."""
    where = "" if isinstance(value.owner, ir.Block) else source_line(value.owner.location)
    if not isinstance(value.type, ir.RankedTensorType):
        raise PassError(
            f"a value of type {value.type} crosses the host function", source=where, hint="pass scalars as 0-d tensors"
        )
    kind = value.type
    if not kind.has_static_shape:
        raise PassError(f"{kind} has a dynamic shape", source=where, hint="export the model with static shapes")
    element = str(kind.element_type)
    if element not in _DTYPE_OF_TYPE:
        raise PassError(
            f"{kind}: no buffer can hold elements of type {element}",
            source=where,
            hint=f"supported: {', '.join(_DTYPE_OF_TYPE)}",
        )
    return tuple(kind.shape), _DTYPE_OF_TYPE[element]


def _buffer(role: str, name: str, value: ir.Value, declared: str | None) -> Buffer:
    """A buffer for ``value``; ``declared`` overrides the dtype that its IR type suggests."""
    shape, dtype = _shape_and_type(value)
    if declared is not None and stitch.DTYPES[declared] != stitch.DTYPES[dtype]:
        raise PassError(f"{name!r} is declared {declared} but its type is {value.type}")
    return Buffer(role, name, shape, declared or dtype)


def _check_names(buffers: list[Buffer]) -> None:
    """Arguments are told apart by name (weights are looked up by it), outputs among themselves."""
    seen: set[tuple[bool, str]] = set()
    for buffer in buffers:
        key = (buffer.role == "output", buffer.name)
        if key in seen and buffer.role not in ("temporary", "persistent"):
            raise PassError(
                f"two {'results' if key[0] else 'arguments'} of @main are named {buffer.name!r}",
                hint="give each its own stitch.name",
            )
        seen.add(key)


@register_pass
@dataclass(frozen=True)
class PlanBuffers(Pass):
    """Give every tensor of the host function a buffer.

    Writes ``stitch.buffers`` (role, name, shape, dtype, arena offset), ``stitch.results``, ``stitch.copies``,
    ``stitch.arena_bytes`` and ``stitch.temporary_bytes`` on ``@main``, and ``stitch.reads`` and ``stitch.writes`` on
    its calls.

    A result is computed into its output buffer; a result that is an argument, a reshape of another result or the
    same value twice is copied at the end, as are new contents of arguments unless nothing reads the old ones any more.
    Temporaries, and the scratch memory that schedules ask for, share one arena by liveness. Tickets are persistent
    buffers of the program; ``stitch.workspace`` on a call says which of them its kernel works in.
    """

    NAME: ClassVar[str] = "plan-buffers"

    def run(self, op: ir.Operation) -> None:
        """Annotate the module ``op``."""
        main = host_function(op)
        annotate(main, plan_buffers(main))
