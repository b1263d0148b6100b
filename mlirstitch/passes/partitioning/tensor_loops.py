"""Ops of the tensor dialect and constants as loops over their result (a collapse: over its operand)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.partitioning.access import Access, AccessMap, Affine, Whole, identity
from mlirstitch.passes.partitioning.op_loops import OpLoops, Read, affine, is_unset, row_major
from mlirstitch.passes.structured import constant_of, shape_of, terminator


def tensor_loops(op: ir.Operation) -> OpLoops | None:
    """A tensor op or a constant as loops; None for scalars and for views of tensors that nobody wrote.

    Raises :class:`PassError` for any other op: it does not belong on the linalg level.
    """
    rule = _RULES.get(op.name)
    if rule is None:
        raise refusal(op, "a plan cannot be made over this op", "run the normalize passes first")
    return rule(op)


def _parallel(
    loops: Sequence[int], reads: Sequence[Read], result: AccessMap, linear: Sequence[tuple[int, ...]] = ((0,),)
) -> OpLoops:
    return OpLoops(tuple(loops), ("parallel",) * len(loops), tuple(reads), (result,), linear=tuple(linear))


def _none(op: ir.Operation) -> None:
    return None


def _constant(op: ir.Operation) -> OpLoops | None:
    if not isinstance(op.result.type, ir.RankedTensorType):
        return None
    shape = shape_of(op.result)
    return _parallel(shape, (), identity(len(shape)), ())


def _expand(op: ir.Operation) -> OpLoops | None:
    if is_unset(op.operands[0]):
        return None
    loops = shape_of(op.result)
    access = tuple(row_major(group, loops) for group in reassociation(op))
    return _parallel(loops, (Read(op.operands[0], access, 0),), identity(len(loops)))


def _collapse(op: ir.Operation) -> OpLoops | None:
    if is_unset(op.operands[0]):
        return None
    loops = shape_of(op.operands[0])
    access = tuple(row_major(group, loops) for group in reassociation(op))
    return _parallel(loops, (Read(op.operands[0], identity(len(loops)), 0),), access)


def _cast(op: ir.Operation) -> OpLoops | None:
    if is_unset(op.operands[0]):
        return None
    loops = shape_of(op.result)
    return _parallel(loops, (Read(op.operands[0], identity(len(loops)), 0),), identity(len(loops)))


def reassociation(op: ir.Operation) -> list[list[int]]:
    """The dims of the larger shape that each dim of the smaller one stands for."""
    groups = ir.ArrayAttr(op.attributes["reassociation"])
    return [[ir.IntegerAttr(dim).value for dim in ir.ArrayAttr(group)] for group in groups]


def _window(op: ir.Operation) -> tuple[list[int], list[int], list[int]]:
    return (
        list(ir.DenseI64ArrayAttr(op.attributes["static_offsets"])),
        list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"])),
        list(ir.DenseI64ArrayAttr(op.attributes["static_strides"])),
    )


def _kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dims of a window of ``sizes`` that a tensor of ``shape`` has; the others have one place."""
    kept: list[int] = []
    for dim, size in enumerate(sizes):
        if len(kept) < len(shape) and size == shape[len(kept)]:
            kept.append(dim)
    return kept


def _extract_slice(op: ir.Operation) -> OpLoops:
    offsets, sizes, strides = _window(op)
    loops = shape_of(op.result)
    loop_of = {dim: loop for loop, dim in enumerate(_kept_dims(sizes, loops))}
    access = tuple(
        affine([(loop_of[dim], strides[dim])] if dim in loop_of else [], offset, loops)
        for dim, offset in enumerate(offsets)
    )
    return _parallel(loops, (Read(op.operands[0], access, 0),), identity(len(loops)))


def _insert_slice(op: ir.Operation) -> OpLoops:
    """Loops are those of the result; where the source does not reach, the destination shows."""
    source, destination = op.operands[0], op.operands[1]
    offsets, sizes, strides = _window(op)
    loops = shape_of(op.result)

    def inserted(dim: int) -> Access:
        return Affine(((dim, 1),), -offsets[dim]) if strides[dim] == 1 else Whole()

    reads = [Read(source, tuple(inserted(dim) for dim in _kept_dims(sizes, shape_of(source))), 0)]
    covered = tuple(sizes) == loops
    if not covered and not is_unset(destination):
        reads.append(Read(destination, identity(len(loops)), 1))
    return _parallel(loops, reads, identity(len(loops)), (tuple(range(len(reads))),))


def _concat(op: ir.Operation) -> OpLoops:
    dim = ir.IntegerAttr(op.attributes["dim"]).value
    loops = shape_of(op.result)
    reads, offset = [], 0
    for operand, value in enumerate(op.operands):
        access = tuple(Affine(((loop, 1),), -offset if loop == dim else 0) for loop in range(len(loops)))
        if not is_unset(value):
            reads.append(Read(value, access, operand))
        offset += shape_of(value)[dim]
    return _parallel(loops, reads, identity(len(loops)), (tuple(range(len(reads))),))


def _pad(op: ir.Operation) -> OpLoops:
    low = list(ir.DenseI64ArrayAttr(op.attributes["static_low"]))
    loops = shape_of(op.result)
    padding = constant_of(terminator(op.regions[0].blocks[0]).operands[0])
    if not isinstance(padding, ir.FloatAttr | ir.IntegerAttr):
        raise refusal(op, "the padding is no constant", "pad with one value, the same everywhere")
    access = tuple(Affine(((loop, 1),), -before) for loop, before in enumerate(low))
    linear = ((0,),) if padding.value == 0 else ()
    return _parallel(loops, (Read(op.operands[0], access, 0),), identity(len(loops)), linear)


_RULES: dict[str, Callable[[ir.Operation], OpLoops | None]] = {
    "arith.constant": _constant,
    "tensor.cast": _cast,
    "tensor.collapse_shape": _collapse,
    "tensor.concat": _concat,
    "tensor.empty": _none,
    "tensor.expand_shape": _expand,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.pad": _pad,
}
