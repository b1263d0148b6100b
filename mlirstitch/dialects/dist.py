"""The ``dist`` dialect: what one of several devices says and hears. Defined with IRDL, printed generically.

All devices of a group execute the same collectives in the same order. A *group* are the devices that differ in the named
axes of the function's mesh alone, in lexicographic order of these axes.

| op | operands -> results | attributes |
|---|---|---|
| ``dist.coordinate`` | -> index: where the device stands along an axis | ``axis`` |
| ``dist.all_gather`` | part -> the parts of the group, one behind the other along ``dim`` | ``axes``, ``dim`` |
| ``dist.all_reduce`` | parts -> what the combiner makes of the group's, one result an operand | ``axes``, ``combiner`` |
| ``dist.reduce_scatter`` | part -> the device's share of the combined value along ``dim`` | ``axes``, ``combiner``, ``dim``, ``parts`` |
| ``dist.all_to_all`` | part -> shares along ``split_dim``, one behind the other along ``concat_dim`` | ``axes``, ``split_dim``, ``concat_dim``, ``parts`` |
| ``dist.send`` | tensor -> | ``to``: device |
| ``dist.recv`` | -> tensor | ``from``: device |

``parts`` gives the extent of every member's share, in the order of the group; ``offsets`` where it starts, where shares
overlap or leave something out (else it is left away). ``argmax`` and ``argmin`` combine two
operands: a value and its index. A send waits for its receiver (no buffer is promised), and the messages between two
devices arrive in the order in which they were sent. Functions of one device program carry ``dist.mesh`` (axis names and
sizes) and ``dist.devices`` (who runs it).
"""  # noqa: E501  a table

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import irdl

from mlirstitch.dialects.locations import refusal

Shares = tuple[tuple[int, int], ...]
"""A range of positions for every member of a group."""
COMBINERS = ("add", "mul", "max", "min", "and", "or", "argmax", "argmin")
MESH, DEVICES = "dist.mesh", "dist.devices"
COORDINATE, ALL_GATHER, ALL_REDUCE = "dist.coordinate", "dist.all_gather", "dist.all_reduce"
REDUCE_SCATTER, ALL_TO_ALL, SEND, RECV = "dist.reduce_scatter", "dist.all_to_all", "dist.send", "dist.recv"
COLLECTIVES = (ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL)

# An IRDL value that two operands name constrains them to be equal, so that each has its own.
_DEFINITION = """
irdl.dialect @dist {
  irdl.operation @coordinate {
    %string = irdl.base "#builtin.string"
    %index = irdl.base "!builtin.index"
    irdl.attributes {"axis" = %string}
    irdl.results(place: %index)
  }
  irdl.operation @all_gather {
    %part = irdl.base "!builtin.tensor"
    %whole = irdl.base "!builtin.tensor"
    %array = irdl.base "#builtin.array"
    %integer = irdl.base "#builtin.integer"
    irdl.attributes {"axes" = %array, "dim" = %integer}
    irdl.operands(part: %part)
    irdl.results(whole: %whole)
  }
  irdl.operation @all_reduce {
    %part = irdl.base "!builtin.tensor"
    %part_index = irdl.base "!builtin.tensor"
    %whole = irdl.base "!builtin.tensor"
    %whole_index = irdl.base "!builtin.tensor"
    %array = irdl.base "#builtin.array"
    %string = irdl.base "#builtin.string"
    irdl.attributes {"axes" = %array, "combiner" = %string}
    irdl.operands(part: %part, part_index: optional %part_index)
    irdl.results(whole: %whole, whole_index: optional %whole_index)
  }
  irdl.operation @reduce_scatter {
    %part = irdl.base "!builtin.tensor"
    %share = irdl.base "!builtin.tensor"
    %array = irdl.base "#builtin.array"
    %string = irdl.base "#builtin.string"
    %integer = irdl.base "#builtin.integer"
    %parts = irdl.base "#builtin.dense_array"
    irdl.attributes {"axes" = %array, "combiner" = %string, "dim" = %integer, "parts" = %parts}
    irdl.operands(part: %part)
    irdl.results(share: %share)
  }
  irdl.operation @all_to_all {
    %part = irdl.base "!builtin.tensor"
    %share = irdl.base "!builtin.tensor"
    %array = irdl.base "#builtin.array"
    %split_dim = irdl.base "#builtin.integer"
    %concat_dim = irdl.base "#builtin.integer"
    %parts = irdl.base "#builtin.dense_array"
    irdl.attributes {"axes" = %array, "split_dim" = %split_dim, "concat_dim" = %concat_dim, "parts" = %parts}
    irdl.operands(part: %part)
    irdl.results(share: %share)
  }
  irdl.operation @send {
    %tensor = irdl.base "!builtin.tensor"
    %integer = irdl.base "#builtin.integer"
    irdl.attributes {"to" = %integer}
    irdl.operands(message: %tensor)
  }
  irdl.operation @recv {
    %tensor = irdl.base "!builtin.tensor"
    %integer = irdl.base "#builtin.integer"
    irdl.attributes {"from" = %integer}
    irdl.results(message: %tensor)
  }
}
"""


def load(context: ir.Context) -> None:
    """Make the dialect known to a context; nothing happens if it is (MLIR aborts when one is loaded twice)."""
    if context.is_registered_operation(COORDINATE):
        return
    with context, ir.Location.unknown(context):
        irdl.load_dialects(ir.Module.parse(_DEFINITION))  # pyright: ignore[reportAttributeAccessIssue]  no stub


# building


def coordinate(axis: str, location: ir.Location) -> ir.Value:
    """Where the device stands along an axis."""
    attributes = {"axis": ir.StringAttr.get(axis)}
    return ir.Operation.create(COORDINATE, results=[ir.IndexType.get()], attributes=attributes, loc=location).result


def all_gather(part: ir.Value, type_: ir.Type, axes: Sequence[str], dim: int, location: ir.Location) -> ir.Value:
    """The parts of the group along ``dim``."""
    attributes = {"axes": _axes(axes), "dim": _integer(dim)}
    return ir.Operation.create(ALL_GATHER, [type_], [part], attributes, loc=location).result


def all_reduce(parts: Sequence[ir.Value], axes: Sequence[str], combiner: str, location: ir.Location) -> list[ir.Value]:
    """The combined values of the group."""
    attributes = {"axes": _axes(axes), "combiner": ir.StringAttr.get(combiner)}
    types = [part.type for part in parts]
    return list(ir.Operation.create(ALL_REDUCE, types, list(parts), attributes, loc=location).results)


def reduce_scatter(
    part: ir.Value,
    type_: ir.Type,
    axes: Sequence[str],
    combiner: str,
    dim: int,
    shares: Shares,
    location: ir.Location,
) -> ir.Value:
    """The device's share of the combined value."""
    attributes = {
        "axes": _axes(axes),
        "combiner": ir.StringAttr.get(combiner),
        "dim": _integer(dim),
        **_shares(shares),
    }
    return ir.Operation.create(REDUCE_SCATTER, [type_], [part], attributes, loc=location).result


def all_to_all(
    part: ir.Value,
    type_: ir.Type,
    axes: Sequence[str],
    split_dim: int,
    concat_dim: int,
    shares: Shares,
    location: ir.Location,
) -> ir.Value:
    """One share of every member."""
    attributes = {
        "axes": _axes(axes),
        "split_dim": _integer(split_dim),
        "concat_dim": _integer(concat_dim),
        **_shares(shares),
    }
    return ir.Operation.create(ALL_TO_ALL, [type_], [part], attributes, loc=location).result


def send(message: ir.Value, to: int, location: ir.Location) -> None:
    """Hand a tensor to another device."""
    ir.Operation.create(SEND, [], [message], {"to": _integer(to)}, loc=location)


def recv(type_: ir.Type, source: int, location: ir.Location) -> ir.Value:
    """Take a tensor from another device."""
    return ir.Operation.create(RECV, [type_], [], {"from": _integer(source)}, loc=location).result


def _shares(shares: Shares) -> dict[str, ir.Attribute]:
    starts = [low for low, _ in shares]
    parts = [high - low for low, high in shares]
    found: dict[str, ir.Attribute] = {"parts": ir.DenseI64ArrayAttr.get(parts)}
    if starts != list(itertools.accumulate(parts, initial=0))[:-1]:
        found["offsets"] = ir.DenseI64ArrayAttr.get(starts)
    return found


def _axes(axes: Sequence[str]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes])


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


# reading


def axes_of(op: ir.Operation) -> tuple[str, ...]:
    """The axes of a collective."""
    return tuple(ir.StringAttr(entry).value for entry in ir.ArrayAttr(op.attributes["axes"]))


def integer_of(op: ir.Operation, name: str) -> int:
    """An integer attribute."""
    return ir.IntegerAttr(op.attributes[name]).value


def shares_of(op: ir.Operation) -> Shares:
    """The range of every member's share of the dim that is dealt out, in the order of the group."""
    parts = list(ir.DenseI64ArrayAttr(op.attributes["parts"]))
    starts = itertools.accumulate(parts, initial=0)
    if "offsets" in op.attributes:
        starts = ir.DenseI64ArrayAttr(op.attributes["offsets"])
    return tuple((start, start + part) for start, part in zip(starts, parts, strict=False))


def mesh_of(function: ir.Operation) -> dict[str, int]:
    """Names and sizes of the axes of the mesh a device program is for. Raises PassError if it does not say."""
    if MESH not in function.attributes:
        raise refusal(function, f"the attribute {MESH} is missing", "it names the axes and their sizes")
    entries = ir.ArrayAttr(function.attributes[MESH])
    pairs = [ir.ArrayAttr(entry) for entry in entries]
    return {ir.StringAttr(pair[0]).value: ir.IntegerAttr(pair[1]).value for pair in pairs}


def set_mesh(function: ir.Operation, axes: Sequence[tuple[str, int]], devices: Sequence[int]) -> None:
    """Write for which mesh a device program is, and which devices run it."""
    with function.context:
        pairs = [ir.ArrayAttr.get([ir.StringAttr.get(name), _integer(size)]) for name, size in axes]
        function.attributes[MESH] = ir.ArrayAttr.get(pairs)
        function.attributes[DEVICES] = ir.DenseI64ArrayAttr.get(list(devices))


def devices_of(function: ir.Operation) -> tuple[int, ...]:
    """The devices that run a device program; none if it is no such function."""
    return tuple(ir.DenseI64ArrayAttr(function.attributes[DEVICES])) if DEVICES in function.attributes else ()


# verification


@dataclass(frozen=True)
class _Shapes:
    """Shape of the operand and of the result, and how many devices a group has."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    members: int


def verify_device_program(function: ir.Operation) -> None:
    """Check every op of the dialect in one function: axes of its mesh, dims, shapes.

    Raises:
        PassError: naming the op and what is wrong.
    """
    sizes = mesh_of(function)
    for op in function.regions[0].blocks[0].operations:
        if op.operation.name.startswith("dist."):
            _verify(op.operation, sizes)


def _verify(op: ir.Operation, sizes: dict[str, int]) -> None:
    if op.name == COORDINATE:
        _known_axes(op, (ir.StringAttr(op.attributes["axis"]).value,), sizes)
    if op.name not in COLLECTIVES:
        return
    axes = axes_of(op)
    _known_axes(op, axes, sizes)
    members = 1
    for axis in axes:
        members *= sizes[axis]
    if "combiner" in op.attributes:
        _known_combiner(op)
    before, after = (tuple(ir.RankedTensorType(v.type).shape) for v in (op.operands[0], op.results[0]))
    if len(before) != len(after):
        raise refusal(op, f"the result has {len(after)} dims, the operand {len(before)}")
    _SHAPE_RULES[op.name](op, _Shapes(before, after, members))


def _known_axes(op: ir.Operation, axes: Sequence[str], sizes: dict[str, int]) -> None:
    for number, axis in enumerate(axes):
        if axis not in sizes:
            raise refusal(op, f"the mesh has no axis {axis!r}", f"its axes are {', '.join(sizes) or 'none'}")
        if axis in axes[:number]:
            raise refusal(op, f"axis {axis!r} is named twice")


def _known_combiner(op: ir.Operation) -> None:
    combiner = ir.StringAttr(op.attributes["combiner"]).value
    if combiner not in COMBINERS:
        raise refusal(op, f"unknown combiner {combiner!r}", f"choose one of {', '.join(COMBINERS)}")
    wanted = 2 if combiner.startswith("arg") else 1
    if len(op.operands) != wanted:
        raise refusal(op, f"combiner {combiner} takes {wanted} operands, not {len(op.operands)}")


def _dim(op: ir.Operation, name: str, rank: int) -> int:
    dim = integer_of(op, name)
    if not 0 <= dim < rank:
        raise refusal(op, f"{name} = {dim} is no dim of a tensor of rank {rank}")
    return dim


def _same_but(op: ir.Operation, shapes: _Shapes, dims: Sequence[int]) -> None:
    for dim, (before, after) in enumerate(zip(shapes.before, shapes.after, strict=True)):
        if dim not in dims and before != after:
            raise refusal(op, f"dim {dim} has extent {before} before and {after} after")


def _check_parts(op: ir.Operation, shapes: _Shapes, dim: int) -> None:
    shares = shares_of(op)
    listed = f"shares {list(shares)} of dim {dim}"
    if len(shares) != shapes.members:
        raise refusal(op, f"{listed} are {len(shares)}, the group has {shapes.members} members")
    if any(not 0 <= low <= high <= shapes.before[dim] for low, high in shares):
        raise refusal(op, f"{listed} leave its extent of {shapes.before[dim]}")
    if shapes.after[dim] not in [high - low for low, high in shares]:
        raise refusal(op, f"dim {dim} of the result has extent {shapes.after[dim]}, which no member's share has")


def _verify_gather(op: ir.Operation, shapes: _Shapes) -> None:
    dim = _dim(op, "dim", len(shapes.before))
    _same_but(op, shapes, (dim,))
    if shapes.after[dim] < shapes.before[dim]:
        raise refusal(op, f"dim {dim} shrinks from {shapes.before[dim]} to {shapes.after[dim]}")


def _verify_reduce(op: ir.Operation, shapes: _Shapes) -> None:
    for operand, result in zip(op.operands, op.results, strict=True):
        if operand.type != result.type:
            raise refusal(op, f"a reduction of {operand.type} gives {result.type}")


def _verify_reduce_scatter(op: ir.Operation, shapes: _Shapes) -> None:
    dim = _dim(op, "dim", len(shapes.before))
    _same_but(op, shapes, (dim,))
    _check_parts(op, shapes, dim)


def _verify_all_to_all(op: ir.Operation, shapes: _Shapes) -> None:
    rank = len(shapes.before)
    split_dim, concat_dim = _dim(op, "split_dim", rank), _dim(op, "concat_dim", rank)
    if split_dim == concat_dim:
        raise refusal(op, f"dim {split_dim} is both split and concatenated")
    _same_but(op, shapes, (split_dim, concat_dim))
    _check_parts(op, shapes, split_dim)


_SHAPE_RULES: dict[str, Callable[[ir.Operation, _Shapes], None]] = {
    ALL_GATHER: _verify_gather,
    ALL_REDUCE: _verify_reduce,
    REDUCE_SCATTER: _verify_reduce_scatter,
    ALL_TO_ALL: _verify_all_to_all,
}
