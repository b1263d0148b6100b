"""The functions that devices run, with ``dist`` ops between the computations; devices that do the same share one.

Positions that differ between devices alike are written as formulas of ``dist.coordinate``, so that the functions of
devices with parts of equal shape have equal texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlir import ir

from mlirstitch.dialects import dist, stitch
from mlirstitch.dialects.bindings import print_op
from mlirstitch.dialects.locations import refusal
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning import local_build as build
from mlirstitch.passes.partitioning.access import Box, shape_of
from mlirstitch.passes.partitioning.layout import coordinates, split
from mlirstitch.passes.partitioning.local_build import First, first_of
from mlirstitch.passes.partitioning.localize import LocalPart, localize
from mlirstitch.passes.partitioning.messages import Piece, pieces_of
from mlirstitch.passes.partitioning.placement import At
from mlirstitch.passes.partitioning.program import COMPUTE, ORDER, Buffer, DistributedProgram, Task
from mlirstitch.passes.partitioning.steps import (
    Accumulate,
    AllGather,
    AllReduce,
    AllToAll,
    Concat,
    Exchange,
    Neutralize,
    ReduceScatter,
    Slice,
    Step,
    Transfer,
)
from mlirstitch.passes.structured import block_ops, build_constant, build_empty, defining_op, symbol_name, tensor_type


def device_programs(program: DistributedProgram, function: ir.Operation, sequence: Sequence[int]) -> ir.Module:
    """A new module, in the context of ``function``, with one function per distinct device program.

    Args:
        program: made from the graph of ``function``.
        function: the whole function, which is left as it is.
        sequence: the order of the tasks (``Timeline.sequence``).

    Returns:
        Functions ``@main_0``, ``@main_1``, ... with ``dist.mesh`` and ``dist.devices``. Arguments are the parts of the
        function's arguments that the device holds, in their order, results likewise; a device that holds no part of
        one lacks it. ``stitch.name`` says which it is.

    Raises:
        PassError: an op has no part of the wanted form.
        PlanError: partial values that nothing combines on one device.
    """
    with function.context, ir.Location.unknown(function.context):
        return _module_of(program, function, sequence)


def _module_of(program: DistributedProgram, function: ir.Operation, sequence: Sequence[int]) -> ir.Module:
    module = ir.Module.create()
    for name, attr in _attributes(function.parent):
        module.operation.attributes[name] = attr
    texts: dict[str, list[int]] = {}
    for device in program.placed.mesh.devices:
        built = _DeviceProgram(program, function, device).build(module, sequence)
        text = print_op(built, assume_verified=True)
        if text in texts:
            built.erase()
        texts.setdefault(text, []).append(device)
    functions = [op.operation for op in module.body.operations]
    for number, (made, devices) in enumerate(zip(functions, texts.values(), strict=True)):
        made.attributes["sym_name"] = ir.StringAttr.get(f"{symbol_name(function)}_{number}")
        dist.set_mesh(made, program.placed.mesh.axes, devices)
        dist.verify_device_program(made)
    return module


def _attributes(op: ir.Operation | None) -> list[tuple[str, ir.Attribute]]:
    if op is None or op.name != "builtin.module":
        return []
    return [(name, op.attributes[name]) for name in op.attributes]


class _DeviceProgram:
    """The program of one device."""

    def __init__(self, program: DistributedProgram, function: ir.Operation, device: int) -> None:
        self.program = program
        self.graph = program.placed.graph
        self.time = dict(program.placed.time_axes)
        self.function = function
        self.ops = block_ops(function)
        self.device = device
        self._coordinates: dict[Mesh, dict[str, int] | None] = {}
        self.values: dict[int, ir.Value] = {}
        self.scalars: dict[ir.Value, ir.Value] = {}

    def build(self, module: ir.Module, sequence: Sequence[int]) -> ir.Operation:
        """The function, at the end of ``module``."""
        arguments = [n for n, b in enumerate(self.program.arguments) if self._has(self._buffer(b).mesh)]
        types = [self._type(self._buffer(self.program.arguments[n])) for n in arguments]
        with ir.InsertionPoint(module.body), self.function.location:
            function = ir.Operation.create(
                "func.func",
                attributes={
                    "sym_name": ir.StringAttr.get(symbol_name(self.function)),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                },
                regions=1,
            )
        self.block = block = function.regions[0].blocks.append(*types, arg_locs=[self.function.location] * len(types))
        for number, argument in zip(arguments, block.arguments, strict=True):
            self.values[self.program.arguments[number]] = argument
        with ir.InsertionPoint(block):
            for number in sequence:
                self._task(self.program.tasks[number])
            results = [n for n, b in enumerate(self.program.returned) if self._has(self._buffer(b).mesh)]
            returned = [self.values[self.program.returned[n]] for n in results]
            ir.Operation.create("func.return", operands=returned, loc=self.function.location)
        signature = ir.FunctionType.get(types, [value.type for value in returned])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        self._copy_attributes(function, stitch.ARGUMENT, arguments)
        self._copy_attributes(function, stitch.RESULT, results)
        return function

    def _copy_attributes(self, function: ir.Operation, place: str, numbers: Sequence[int]) -> None:
        entries = stitch.group_attributes(self.function, place)
        key = "arg_attrs" if place == stitch.ARGUMENT else "res_attrs"
        function.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(entries[n]) for n in numbers])

    # where things are

    def _coordinate(self, mesh: Mesh) -> dict[str, int] | None:
        if mesh not in self._coordinates:
            found = (place for device, place in mesh.coordinates() if device == self.device)
            self._coordinates[mesh] = next(found, None)
        return self._coordinates[mesh]

    def _has(self, mesh: Mesh) -> bool:
        return self._coordinate(mesh) is not None

    def _buffer(self, number: int) -> Buffer:
        return self.program.buffers[number]

    def _place(self, mesh: Mesh, at: At) -> dict[str, int]:
        return {**(self._coordinate(mesh) or {}), **dict(at)}

    def _sizes(self, mesh: Mesh) -> Mapping[str, int]:
        return self.program.placed.sizes(mesh)

    def _box(self, buffer: Buffer) -> Box:
        shape = self.graph.values[buffer.value].shape
        return buffer.layout.box(shape, self._place(buffer.mesh, buffer.at), self._sizes(buffer.mesh))

    def _type(self, buffer: Buffer) -> ir.RankedTensorType:
        return tensor_type(shape_of(self._box(buffer)), self._element(buffer.value))

    def _element(self, value: int) -> ir.Type:
        return ir.Type.parse(self.graph.values[value].element, self.function.context)

    def _first(self, buffer: Buffer, dim: int) -> First:
        size = self.graph.values[buffer.value].shape[dim]
        place = self._place(buffer.mesh, buffer.at)
        return first_of(buffer.layout.dims[dim], size, place, self._sizes(buffer.mesh), self.time)

    # tasks

    def _task(self, task: Task) -> None:
        if task.kind == ORDER:
            return
        if task.kind == COMPUTE:
            if self._has(task.mesh):
                self._compute(task)
            return
        if self._has(task.mesh) or (task.sender is not None and self._has(task.sender)):
            self._convert(task)

    def _compute(self, task: Task) -> None:
        graph_op = self.graph.ops[task.op]
        op = self.ops[graph_op.index]
        if op.name == "arith.constant" and not _is_splat(op):
            self.values[task.writes[0]] = self._constant(op, self._buffer(task.writes[0]))
            return
        cuts = dict(self.program.placed.placements[task.op].cuts)
        sizes, place = self._sizes(task.mesh), self._place(task.mesh, task.at)
        loops = [split(cuts.get(loop, ()), extent) for loop, extent in enumerate(graph_op.loops)]
        ranges = tuple(s.range(n, place, sizes) for s, n in zip(loops, graph_op.loops, strict=True))
        firsts = [first_of(s, n, place, sizes, self.time) for s, n in zip(loops, graph_op.loops, strict=True)]
        part = LocalPart(
            ranges,
            tuple(self.values[buffer] for buffer in task.reads),
            tuple(self._box(self._buffer(buffer)) for buffer in task.reads),
            tuple(self._box(self._buffer(buffer)) for buffer in task.writes),
            lambda loop: build.index_value(firsts[loop], op.location),
            lambda number, dim: self._start(task.reads[number], dim, op.location),
            self._scalar,
            frozenset(loop for loop, first in enumerate(firsts) if first.steps),
        )
        with op.location:
            results = localize(op, part)
        self.values.update(zip(task.writes, results, strict=True))

    def _start(self, buffer: int, dim: int, location: ir.Location) -> ir.Value | None:
        """Where the part that this device has of a dim starts; None if that is 0 on every device."""
        first = self._first(self._buffer(buffer), dim)
        return build.index_value(first, location) if first.steps or first.constant else None

    def _scalar(self, value: ir.Value) -> ir.Value:
        """A scalar of the function, which every device computes for itself."""
        if value not in self.scalars:
            op = defining_op(value)
            if op is None:
                raise refusal(self.function, "an argument is a scalar", "pass a tensor of rank 0")
            operands = [self._scalar(operand) for operand in op.operands]
            clone = op.clone(ip=ir.InsertionPoint.at_block_begin(self.block) if not operands else None)
            for position, operand in enumerate(operands):
                clone.operands[position] = operand
            self.scalars[value] = clone.result
        return self.scalars[value]

    def _constant(self, op: ir.Operation, buffer: Buffer) -> ir.Value:
        """Different on every device, so that it is kept whole and cut where it is used: programs stay equal."""
        whole = build_constant(op.attributes["value"], op.result.type, op.location)
        firsts = [self._first(buffer, dim) for dim in range(len(buffer.layout.dims))]
        return build.slice_at(whole, firsts, shape_of(self._box(buffer)), op.location)

    # steps

    def _convert(self, task: Task) -> None:
        step = task.step
        location = self._location(task.value)
        if isinstance(step, Exchange | Transfer):
            self._messages(task, step, location)
            return
        reads = [self.values[buffer] for buffer in task.reads]
        if len(task.reads) > 1 and isinstance(step, Accumulate):
            self.values[task.writes[0]] = build.combine(reads[0], reads[1], step.combiner, location)
            return
        rule = next((rule for kind, rule in self._rules.items() if isinstance(step, kind)), None)
        if rule is None or step is None:
            raise TypeError(f"no rule builds {type(step).__name__}")
        self.values[task.writes[0]] = rule(self, task, step, reads, location)

    def _location(self, value: int) -> ir.Location:
        producer = self.graph.values[value].producer
        return self.function.location if producer < 0 else self.ops[self.graph.ops[producer].index].location

    def _slice(self, task: Task, step: Step, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        before, after = self._buffer(task.reads[0]), self._buffer(task.writes[0])
        firsts = [self._first(after, d).minus(self._first(before, d)) for d in range(len(after.layout.dims))]
        return build.slice_at(reads[0], firsts, shape_of(self._box(after)), location)

    def _gather(self, task: Task, step: AllGather, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        return dist.all_gather(reads[0], self._type(self._buffer(task.writes[0])), step.axes, step.dim, location)

    def _reduce(self, task: Task, step: AllReduce, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        return dist.all_reduce(reads, step.axes, step.combiner, location)[0]

    def _scatter(self, task: Task, step: ReduceScatter, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        after = self._buffer(task.writes[0])
        shares = self._shares(self._buffer(task.reads[0]), after, step.axes, step.dim)
        return dist.reduce_scatter(reads[0], self._type(after), step.axes, step.combiner, step.dim, shares, location)

    def _all_to_all(self, task: Task, step: AllToAll, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        after = self._buffer(task.writes[0])
        shares = self._shares(self._buffer(task.reads[0]), after, step.axes, step.dim_to)
        return dist.all_to_all(reads[0], self._type(after), step.axes, step.dim_to, step.dim_from, shares, location)

    def _shares(self, before: Buffer, after: Buffer, axes: Sequence[str], dim: int) -> dist.Shares:
        """The share of every member of this device's group over ``axes``, counted from the part that each has."""
        size = self.graph.values[after.value].shape[dim]
        sizes = self._sizes(after.mesh)
        here = self._place(after.mesh, after.at)
        start = self._box(before)[dim][0]
        ranges = [
            after.layout.dims[dim].range(size, {**here, **place}, sizes) for place in coordinates(tuple(axes), sizes)
        ]
        return tuple((low - start, high - start) if low < high else (0, 0) for low, high in ranges)

    def _concat(self, task: Task, step: Concat, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        return build.concat(reads, step.dim, location)

    def _accumulate(self, task: Task, step: Accumulate, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        return reads[0]

    def _neutralize(self, task: Task, step: Neutralize, reads: list[ir.Value], location: ir.Location) -> ir.Value:
        if step.combiner not in ("add", "mul"):
            return reads[0]
        later = any(place for axis, place in self._buffer(task.writes[0]).at if axis in step.axes)
        if later:
            return build.neutral(reads[0], step.combiner, location)
        sizes = self._sizes(task.mesh)
        axes = [axis for axis in step.axes if axis not in self.time and sizes[axis] > 1]
        return build.only_first(reads[0], axes, step.combiner, location)

    _rules: Mapping[type[Step], Callable[..., ir.Value]] = {
        Slice: _slice,
        AllGather: _gather,
        AllReduce: _reduce,
        ReduceScatter: _scatter,
        AllToAll: _all_to_all,
        Concat: _concat,
        Accumulate: _accumulate,
        Neutralize: _neutralize,
    }

    # messages

    def _messages(self, task: Task, step: Exchange | Transfer, location: ir.Location) -> None:
        before = {self._buffer(number).at: number for number in task.reads}
        after = {self._buffer(number).at: number for number in task.writes}
        meshes = (task.sender or task.mesh, task.mesh)
        shape = self.graph.values[task.value].shape
        got: dict[tuple[At, int], list[tuple[Piece, ir.Value]]] = {}
        for piece in pieces_of(step, shape, meshes, self.time, task.at):
            here, there = piece.source.device == self.device, piece.receiver.device == self.device
            if not here and not there:
                continue
            if here:
                message = build.take(self.values[before[piece.source.at]], piece.taken, location)
                if not there:
                    dist.send(message, piece.receiver.device, location)
                    continue
            else:
                type_ = tensor_type(shape_of(piece.taken), self._element(task.value))
                message = dist.recv(type_, piece.source.device, location)
            got.setdefault((piece.receiver.at, piece.fragment), []).append((piece, message))
        if self._has(task.mesh):
            for at, number in after.items():
                self.values[number] = self._assembled(self._buffer(number), at, got, step.combiner, location)

    def _assembled(
        self,
        buffer: Buffer,
        at: At,
        got: Mapping[tuple[At, int], list[tuple[Piece, ir.Value]]],
        combiner: str,
        location: ir.Location,
    ) -> ir.Value:
        type_ = self._type(buffer)
        whole = build_empty(list(type_.shape), type_.element_type, location)
        for (where, _), received in got.items():
            if where != at:
                continue
            ordered = sorted(received, key=lambda pair: (pair[0].source.device, pair[0].source.at))
            value = ordered[0][1]
            for _, other in ordered[1:]:
                value = build.combine(value, other, combiner, location)
            whole = build.put(value, whole, ordered[0][0].put, location)
        return whole


def _is_splat(op: ir.Operation) -> bool:
    value = op.attributes["value"]
    return isinstance(value, ir.DenseElementsAttr) and value.is_splat
