"""Export to upstream's ``shard`` dialect: the grid of devices, and collectives and messages between its members."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import dist
from mlirstitch.dialects.locations import refusal
from mlirstitch.mesh import Mesh
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import block_ops, build_empty, functions, symbol_name

GRID = "grid"
REDUCTIONS = {
    "add": "sum",
    "mul": "product",
    "max": "max",
    "min": "min",
    "and": "bitwise_and",
    "or": "bitwise_or",
}
"""Names of combiners in the shard dialect."""


@register_pass
@dataclass(frozen=True)
class ConvertToShard(Pass):
    """Rewrite the ``dist`` ops of device programs as ops of upstream's ``shard`` dialect.

    ``dist.mesh`` becomes a ``shard.grid`` whose axes are numbered in its order. A send gives the tensor that it sends,
    which nobody reads; a receive takes a ``tensor.empty`` of its type. Devices become places of the grid. Refused by
    name is what the dialect cannot say: shares of different size, combiners of a value with its index, and reductions
    over no axis (an empty list of axes means all of them there).

    ``dist.devices`` goes on saying who runs a function, which the dialect has no word for.
    """

    NAME = "convert-dist-to-shard"

    def run(self, op: ir.Operation) -> None:
        programs = [function for function in functions(op) if dist.devices_of(function)]
        if not programs:
            raise refusal(op, "the module has no device programs", "run dist-insert-communication first")
        sizes = dist.mesh_of(programs[0])
        for function in programs:
            dist.verify_device_program(function)
            if dist.mesh_of(function) != sizes:
                raise refusal(function, f"the program is for another mesh than @{symbol_name(programs[0])}")
        mesh = Mesh.of(**sizes)
        exported = [child for function in programs for child in block_ops(function) if child.name in _RULES]
        for child in exported:  # all are checked before the first is rewritten
            _check(child, mesh)
        for child in exported:
            _replace(child, mesh)
        block = op.regions[0].blocks[0]
        shape = ir.DenseI64ArrayAttr.get(list(sizes.values()) or [1])
        with ir.InsertionPoint.at_block_begin(block):
            ir.Operation.create("shard.grid", attributes={"sym_name": ir.StringAttr.get(GRID), "shape": shape})


def _check(op: ir.Operation, mesh: Mesh) -> None:
    """Refuse what the shard dialect cannot say."""
    if op.name in (dist.SEND, dist.RECV):
        _place(op, "to" if op.name == dist.SEND else "from", mesh)
    if op.name not in dist.COLLECTIVES:
        return
    if not dist.axes_of(op):
        raise refusal(op, "a collective over no axis: shard takes an empty list of axes for all of them", "drop it")
    if "combiner" in op.attributes:
        combiner = ir.StringAttr(op.attributes["combiner"]).value
        if combiner not in REDUCTIONS:
            raise refusal(op, f"the combiner {combiner} has no name in shard", f"it knows {', '.join(REDUCTIONS)}")
    if "parts" in op.attributes:
        _check_shares(op)
    elif op.name == dist.ALL_GATHER:
        members = math.prod(mesh.sizes[axis] for axis in dist.axes_of(op))
        _check_multiple(op, dist.integer_of(op, "dim"), members)


def _check_shares(op: ir.Operation) -> None:
    shares = dist.shares_of(op)
    part = shares[0][1] - shares[0][0]
    if any(share != (number * part, (number + 1) * part) for number, share in enumerate(shares)):
        raise refusal(op, f"shares {list(shares)} are not of one size: shard deals dims out evenly", "split evenly")
    dim = dist.integer_of(op, "dim" if op.name == dist.REDUCE_SCATTER else "split_dim")
    extent = ir.RankedTensorType(op.operands[0].type).shape[dim]
    if shares[-1][1] != extent:
        raise refusal(op, f"shares {list(shares)} leave out a part of dim {dim} of extent {extent}", "split all of it")
    if op.name == dist.ALL_TO_ALL:
        _check_multiple(op, dist.integer_of(op, "concat_dim"), len(shares))


def _check_multiple(op: ir.Operation, dim: int, members: int) -> None:
    before, after = (ir.RankedTensorType(value.type).shape[dim] for value in (op.operands[0], op.results[0]))
    if after != before * members:
        raise refusal(
            op,
            f"dim {dim} grows from {before} to {after} over {members} members: their parts are not of one size, "
            "which shard cannot say",
            "split evenly",
        )


# rewriting


def _replace(op: ir.Operation, mesh: Mesh) -> None:
    with ir.InsertionPoint(op), op.location:
        made = _RULES[op.name](op, mesh)
    for old, new in zip(op.results, made, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _coordinate(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    attributes = {"axes": _numbers((ir.StringAttr(op.attributes["axis"]).value,), mesh)}
    return [_build("shard.process_multi_index", [ir.IndexType.get()], [], attributes)]


def _all_gather(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    return [_collective("shard.all_gather", op, op.operands[0], mesh, gather_axis=_dim(op, "dim"))]


def _all_reduce(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    return [_collective("shard.all_reduce", op, part, mesh, reduction=_reduction(op)) for part in op.operands]


def _reduce_scatter(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    more = {"reduction": _reduction(op), "scatter_axis": _dim(op, "dim")}
    return [_collective("shard.reduce_scatter", op, op.operands[0], mesh, **more)]


def _all_to_all(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    more = {"split_axis": _dim(op, "split_dim"), "concat_axis": _dim(op, "concat_dim")}
    return [_collective("shard.all_to_all", op, op.operands[0], mesh, **more)]


def _send(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    message = op.operands[0]
    where = _place(op, "to", mesh)
    _build("shard.send", [message.type], [message], {"grid_axes": _numbers(mesh.names, mesh), "destination": where})
    return []


def _recv(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    type_ = op.results[0].type
    shape, element = ir.RankedTensorType(type_).shape, ir.RankedTensorType(type_).element_type
    empty = build_empty(list(shape), element, op.location)
    where = _place(op, "from", mesh)
    return [_build("shard.recv", [type_], [empty], {"grid_axes": _numbers(mesh.names, mesh), "source": where})]


_RULES: dict[str, Callable[[ir.Operation, Mesh], list[ir.Value]]] = {
    dist.COORDINATE: _coordinate,
    dist.ALL_GATHER: _all_gather,
    dist.ALL_REDUCE: _all_reduce,
    dist.REDUCE_SCATTER: _reduce_scatter,
    dist.ALL_TO_ALL: _all_to_all,
    dist.SEND: _send,
    dist.RECV: _recv,
}


def _build(
    name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: dict[str, ir.Attribute]
) -> ir.Value:
    grid = ir.FlatSymbolRefAttr.get(GRID)
    return ir.Operation.create(name, list(types), list(operands), {"grid": grid, **attributes}).results[0]


def _collective(name: str, op: ir.Operation, part: ir.Value, mesh: Mesh, **more: ir.Attribute) -> ir.Value:
    type_ = part.type if name == "shard.all_reduce" else op.results[0].type
    return _build(name, [type_], [part], {"grid_axes": _numbers(dist.axes_of(op), mesh), **more})


def _numbers(axes: Sequence[str], mesh: Mesh) -> ir.Attribute:
    return ir.Attribute.parse(f"array<i16: {', '.join(str(mesh.names.index(axis)) for axis in axes)}>")


def _dim(op: ir.Operation, name: str) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IndexType.get(), dist.integer_of(op, name))


def _reduction(op: ir.Operation) -> ir.Attribute:
    return ir.Attribute.parse(f"#shard<partial {REDUCTIONS[ir.StringAttr(op.attributes['combiner']).value]}>")


def _place(op: ir.Operation, name: str, mesh: Mesh) -> ir.Attribute:
    device = dist.integer_of(op, name)
    place = next((place for number, place in mesh.coordinates() if number == device), None)
    if place is None:
        raise refusal(op, f"there is no device {device}", f"the mesh is {mesh}")
    return ir.DenseI64ArrayAttr.get(list(place.values()))
