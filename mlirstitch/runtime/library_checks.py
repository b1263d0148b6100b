"""Whether a library step is one that its routine can do: the table of ``library_capabilities``, read for a step.

A device's library may refuse more, never less.
"""

from __future__ import annotations

import math

from mlirstitch.library_capabilities import (
    CAPABILITIES,
    Matrix,
    is_apart,
    runs_along_rows,
    why_no_epilogue,
    why_not_addressed,
    why_not_typed,
)
from mlirstitch.runtime.program import LibraryCall, Operand

_MAPS = {
    "matmul": [[0, 2], [2, 1], [0, 1]],
    "batch_matmul": [[0, 1, 3], [0, 3, 2], [0, 1, 2]],
}
"""Loop dims of left operand, right operand and result where a step has no ``indexing_maps``."""


def adjacent_dim(call: LibraryCall, operand: Operand) -> int:
    """The dim of a result, or addend, along which elements are adjacent: the one that a bias has."""
    dims, rows, columns, _ = _loops(call)
    along = columns if runs_along_rows(_matrix(operand, dims[2], rows, columns)) else rows
    return dims[2].index(along)


def why_not_in_table(call: LibraryCall) -> str | None:
    """None if the table has the step's types, addresses and epilogue, else the reason.

    Routines without a row (convolutions, plain sums of products) have contiguous operands and no epilogue.
    """
    if call.routine not in CAPABILITIES:
        if call.epilogue is not None:
            return f"{call.routine} has no epilogue"
        if any(operand.strides is not None or operand.offset for operand in call.operands):
            return f"{call.routine} reads and writes contiguous tensors only"
        return None
    if _is_plain(call):
        return None  # the contraction alone, of contiguous tensors: a library may have it for other types as well
    if len(call.operands) < 3:
        return f"{call.routine} has two operands and a result, not {len(call.operands)} tensors"
    return _why_not_typed(call) or _why_not_addressed(call) or _why_no_epilogue(call)


def _is_plain(call: LibraryCall) -> bool:
    return call.epilogue is None and all(o.strides is None and not o.offset for o in call.operands)


def _why_not_typed(call: LibraryCall) -> str | None:
    left, right, result = call.operands[0].dtype, call.operands[1].dtype, call.operands[-1].dtype
    if left != right:
        return f"{call.routine} does not multiply {left} by {right}"
    return why_not_typed(call.routine, left, result)


def _loops(call: LibraryCall) -> tuple[list[list[int]], int, int, int]:
    """Loop dims of left operand, right operand and result; numbers of the rows, the columns and the summed dim.

    Loop dims are numbered batch first, then rows, columns and the summed dim.
    """
    dims = call.attributes.get("indexing_maps", _MAPS[call.routine])
    inner = max(number for numbers in dims for number in numbers)
    return dims, inner - 2, inner - 1, inner


def _why_not_addressed(call: LibraryCall) -> str | None:
    dims, rows, columns, inner = _loops(call)
    matrices = {
        0: (dims[0], rows, inner),
        1: (dims[1], inner, columns),
        len(call.operands) - 1: (dims[2], rows, columns),
    }
    if call.epilogue is not None and call.epilogue.addend is not None:
        matrices[call.epilogue.addend] = matrices[len(call.operands) - 1]
    for position, (numbers, down, across) in sorted(matrices.items()):
        operand = call.operands[position]
        if not len(operand.steps) == len(operand.shape) == len(numbers):
            return f"operand {position} has {len(operand.shape)} dims and {len(operand.steps)} strides"
        if numbers.count(down) != 1 or numbers.count(across) != 1:
            return f"operand {position} is no matrix: loop dims {numbers}"
        reason = why_not_addressed(_matrix(operand, numbers, down, across)) if 0 not in operand.shape else None
        if reason:
            return f"operand {position}: {reason}"
    result = call.operands[-1]
    if not is_apart(list(zip(result.shape, result.steps, strict=True))):
        return "elements of the result overlap"
    return None


def _matrix(operand: Operand, numbers: list[int], rows: int, columns: int) -> Matrix:
    """The matrix of an operand whose dims are the loop dims ``numbers``."""
    walks = dict(zip(numbers, zip(operand.shape, operand.steps, strict=True), strict=True))
    return Matrix(walks[rows], walks[columns])


def _why_no_epilogue(call: LibraryCall) -> str | None:
    epilogue, result = call.epilogue, call.operands[-1]
    if epilogue is None:
        return None
    places = [place for place in (epilogue.addend, epilogue.bias) if place is not None]
    if sorted(places) != list(range(2, 2 + len(places))) or len(call.operands) != 3 + len(places):
        return f"the epilogue names the operands {places} of {len(call.operands)}"
    reason = why_no_epilogue(
        call.routine,
        bias=epilogue.bias is not None,
        addend=epilogue.addend is not None,
        scale=epilogue.alpha != 1.0,
        activation="" if epilogue.activation == "none" else epilogue.activation,
        batch_dims=len(result.shape) - 2,
    )
    if reason:
        return reason
    if (epilogue.addend is None) != (epilogue.beta == 0.0):
        return f"beta is {epilogue.beta}, but the step has {'no' if epilogue.addend is None else 'an'} addend"
    return _why_no_addend(call, epilogue.addend, result) or _why_no_bias(call, epilogue.bias, result)


def _why_no_addend(call: LibraryCall, place: int | None, result: Operand) -> str | None:
    if place is None:
        return None
    addend = call.operands[place]
    if addend.shape != result.shape:
        return f"the addend has shape {list(addend.shape)}, the result {list(result.shape)}"
    if addend.dtype != result.dtype:
        return f"the addend is {addend.dtype}, the result {result.dtype}"
    if math.prod(result.shape) and adjacent_dim(call, addend) != adjacent_dim(call, result):
        return "the addend lies transposed to the result"
    return None


def _why_no_bias(call: LibraryCall, place: int | None, result: Operand) -> str | None:
    if place is None:
        return None
    bias, wanted = call.operands[place], result.shape[adjacent_dim(call, result)]
    if bias.shape != (wanted,) or (bias.steps != (1,) and wanted > 1):
        return f"the bias must be {wanted} adjacent elements, one for each along the adjacent elements of the result"
    if bias.dtype != result.dtype:
        return f"the bias is {bias.dtype}, the result {result.dtype}"
    return None
