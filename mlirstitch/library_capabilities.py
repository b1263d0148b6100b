"""What a library routine can do beyond its contraction: the one table that compiler, validator and emulation share.

The rows are cuBLASLt's matrix product (cuBLAS documentation, sections "cublasLtMatmul" and "cublasLtEpilogue_t"),
``D = activation(alpha * A B + beta * C + bias)``, and, where one stride cannot walk the batch, the product of arrays of
pointers (section "cublasGemmBatchedEx"), which scales and adds ``beta * C`` but has no other epilogue.
Not in the table, and so never a library step: GELU by the error function, gates (products of two results), sums over
the rows of the result. Convolutions are generated kernels. This module holds data alone and imports nothing of the
package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))


@dataclass(frozen=True)
class RoutineCapability:
    """What one routine takes.

    Attributes:
        types: (both operands', the result's) element types that the routine multiplies.
        activations: what it applies last; "" is nothing.
        bias: a vector along the contiguous dim of the result may be added.
        addend: ``beta * C`` may be added, C a matrix oriented as the result is.
        scale: the product may be scaled by ``alpha``.
        strided_batch_dims: most dims of a batch for all of that; a longer one is addressed by an array of pointers,
            which leaves scale and addend.
    """

    types: frozenset[tuple[str, str]]
    activations: frozenset[str]
    bias: bool
    addend: bool
    scale: bool
    strided_batch_dims: int


_PRODUCT = RoutineCapability(
    types=frozenset((kind, kind) for kind in FLOATS) | {("float16", "float32"), ("bfloat16", "float32")},
    activations=frozenset(("", "relu", "gelu_tanh")),
    bias=True,
    addend=True,
    scale=True,
    strided_batch_dims=1,
)
CAPABILITIES = {"matmul": _PRODUCT, "batch_matmul": _PRODUCT}
"""By routine. One that is not here has no strides, no epilogue and no restriction of types."""


@dataclass(frozen=True)
class Matrix:
    """One matrix, or batch of them, as a routine addresses it: strides in elements.

    ``rows`` and ``columns`` are (extent, stride); ``batch`` holds (extent, stride) from the outermost dim inwards.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    batch: tuple[tuple[int, int], ...] = ()


def why_not_typed(routine: str, operand: str, result: str) -> str | None:
    """None if the routine multiplies operands of the one element type into a result of the other."""
    if (operand, result) not in CAPABILITIES[routine].types:
        return f"{routine} does not multiply {operand} into {result}"
    return None


def why_not_addressed(matrix: Matrix) -> str | None:
    """None if one leading dimension describes the matrix: elements of one dim adjacent, the other's apart."""
    dims = [dim for dim in (matrix.rows, matrix.columns) if dim[0] != 1]
    if any(stride < 1 for _, stride in dims):
        return "a row or column of the matrix is a broadcast, which no leading dimension describes"
    if len(dims) == 2:
        (inner, step), (_, leading) = sorted(dims, key=lambda dim: (dim[1], dim[0]))
        if step != 1:
            return f"the matrix has strides {leading} and {step}; one of them must be 1"
        if leading < inner:
            return f"its leading dimension {leading} is less than {inner}, so that rows overlap"
    return None


def is_apart(dims: Sequence[tuple[int, int]]) -> bool:
    """No two indices of the (extent, stride) dims name the same element."""
    if any(extent == 0 for extent, _ in dims):
        return True
    reach = 0
    for extent, stride in sorted((dim for dim in dims if dim[0] > 1), key=lambda dim: dim[1]):
        if stride <= reach:
            return False
        reach += (extent - 1) * stride
    return True


def runs_along_rows(matrix: Matrix) -> bool:
    """The adjacent elements of the matrix are those of a row: the bias then has one element a column."""
    if matrix.columns[0] == 1 or matrix.rows[0] == 1:
        return matrix.columns[0] != 1 or matrix.rows[0] == 1
    return matrix.columns[1] < matrix.rows[1]


def why_no_epilogue(
    routine: str, *, bias: bool, addend: bool, scale: bool, activation: str, batch_dims: int
) -> str | None:
    """None if the routine's epilogue does all that is asked for, on a batch of so many dims."""
    known = CAPABILITIES[routine]
    if batch_dims > known.strided_batch_dims and (bias or activation):
        return "a batch of pointers has no bias and no activation in its epilogue"
    if activation not in known.activations:
        return f"{routine} has no epilogue {activation!r}"
    for wanted, there, name in (
        (bias, known.bias, "bias"),
        (addend, known.addend, "addend"),
        (scale, known.scale, "scale"),
    ):
        if wanted and not there:
            return f"{routine} has no {name} in its epilogue"
    return None
