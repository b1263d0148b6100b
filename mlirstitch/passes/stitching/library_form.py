"""Whether one call of a library routine computes a cluster, and how it then addresses every operand.

The cluster holds one contraction, what moves its operands or its result, and element-wise ops on the result. Every
tensor is followed back to the tensors in memory as a strided layout; the element-wise ops become a polynomial that must
be ``activation(alpha * product + beta * C + bias)``. What the routine takes stands in ``library_capabilities``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.library_capabilities import (
    Matrix,
    is_apart,
    runs_along_rows,
    why_no_epilogue,
    why_not_addressed,
    why_not_typed,
)
from mlirstitch.passes.op_kind import MATMUL_OPS
from mlirstitch.passes.stitching.epilogue import PRODUCT, Applied, Leaf, NoEpilogue, Poly, activation, scalar_code
from mlirstitch.passes.stitching.strided_layout import (
    JointDigit,
    NotStrided,
    blocks,
    collapsed,
    expanded,
    joint,
    merged,
    row_major,
    sliced,
)
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import (
    Structured,
    defining_op,
    element_type,
    shape_of,
    splat_scalar,
    structured,
)

_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


@dataclass(frozen=True)
class FormOperand:
    """One operand of the call.

    Attributes:
        value: the tensor in memory (an input or the output of the cluster).
        offset: first element.
        dims: loop dims of the call, in the order in which memory holds them.
        shape, strides: extents and strides in elements, in the order of ``dims``.
    """

    value: ir.Value
    offset: int
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class LibraryForm:
    """One call: ``result = activation(alpha * left right + beta * addend + bias)``.

    Loop dims are numbered: those of the batch, rows, columns, and the dim that is summed.
    """

    routine: str
    left: FormOperand
    right: FormOperand
    result: FormOperand
    addend: FormOperand | None
    bias: FormOperand | None
    alpha: float
    beta: float
    activation: str


@dataclass(frozen=True)
class _Sum:
    """``alpha * product + beta * addend + bias``, each as a leaf over the dims of the cluster's output."""

    product: Leaf
    alpha: float
    addend: Leaf | None
    beta: float
    bias: Leaf | None


def library_form(cluster: Cluster, *, exact: bool) -> LibraryForm | str:
    """The call that computes ``cluster``, or the reason why there is none.

    ``exact``: the call must round as the ops do, so that it has no epilogue of several operations.
    """
    try:
        return _Matcher(cluster, exact).form()
    except (NotStrided, NoEpilogue) as error:
        return str(error)


def rounds_exactly(function: ir.Operation) -> bool:
    """The module of a function asks for strict numerics: no operation is reordered or rounded later."""
    module = function.parent
    return module is not None and stitch.NUMERICS.get(module.operation) == "strict"


class _Matcher:
    """One cluster."""

    def __init__(self, cluster: Cluster, exact: bool) -> None:
        self.cluster = cluster
        self.exact = exact
        self.inputs = list(cluster.inputs)
        self.known: dict[ir.Value, Poly] = {}

    def form(self) -> LibraryForm:
        products = [op for op in self.cluster.ops if op.name in MATMUL_OPS]
        if len(products) != 1:
            raise NoEpilogue("a routine computes one contraction")
        op = products[0]
        scalar = splat_scalar(op.operands[2])
        if scalar is None or getattr(scalar, "value", None) != 0:
            raise NoEpilogue("a library call cannot add to a tensor")
        view = structured(op)
        if view is None:
            raise NoEpilogue(f"{op.name} has no loops")
        if len(self.cluster.outputs) != 1:
            raise NoEpilogue("a value that the routine computes on the way is read by others too")
        if any(0 in shape_of(value) for value in view.operands):
            raise NotStrided("the product is empty")
        self.product = op.results[0]
        self.routine = op.name.removeprefix("linalg.")
        self._check_types(view)
        return self._assemble(view)

    def _check_types(self, view: Structured) -> None:
        left, right, result = (str(element_type(v)) for v in (*view.inputs, self.cluster.outputs[0]))
        sums = str(element_type(self.product))
        named = [_NAMES.get(kind, kind) for kind in (left, result)]
        reason = why_not_typed(self.routine, *named)
        if reason is None and left != right:
            reason = f"{self.routine} does not multiply {left} by {right}"
        if reason is None and sums not in (result, "f32"):
            reason = f"{self.routine} does not add up {sums} for a result of {result}"
        if reason is None and self.exact and sums != result:
            reason = "strict numerics: the routine rounds once where the ops round twice"
        if reason:
            raise NoEpilogue(reason)

    # Values as polynomials

    def _poly(self, value: ir.Value) -> Poly:
        if value not in self.known:
            self.known[value] = self._compute(value)
        return self.known[value]

    def _compute(self, value: ir.Value) -> Poly:
        shape = shape_of(value)
        if value == self.product:
            return Poly.atom(Leaf(PRODUCT, 0, row_major(shape)))
        if value in self.inputs:
            return Poly.atom(Leaf(self.inputs.index(value), 0, row_major(shape)))
        scalar = splat_scalar(value)
        if isinstance(scalar, ir.FloatAttr):
            return Poly.constant(scalar.value)
        op = defining_op(value)
        if op is None or op not in self.cluster.ops:
            raise NotStrided("an operand is in no memory")
        if op.name == "tensor.collapse_shape":
            groups = _groups(op)
            return self._poly(op.operands[0]).moved(lambda leaf: replace(leaf, layout=collapsed(leaf.layout, groups)))
        if op.name == "tensor.expand_shape":
            groups = _groups(op)
            return self._poly(op.operands[0]).moved(
                lambda leaf: replace(leaf, layout=expanded(leaf.layout, groups, shape))
            )
        if op.name == "tensor.extract_slice":
            return self._poly(op.operands[0]).moved(lambda leaf: _slice(op, leaf))
        view = structured(op)
        if view is None or op.name == "linalg.fill":
            raise NotStrided(f"no routine addresses the result of {op.name}")
        return self._generic(op, view)

    def _generic(self, op: ir.Operation, view: Structured) -> Poly:
        if not view.is_parallel or len(view.inits) != 1 or not view.init_maps[0].is_permutation:
            raise NoEpilogue(f"no epilogue computes this {op.name}")
        sizes = view.loop_sizes()
        order = [ir.AffineDimExpr(expr).position for expr in view.init_maps[0].results]
        arguments: list[Poly] = []
        for value, affine_map in zip(view.inputs, view.maps, strict=False):
            if not shape_of(value) and not isinstance(value.type, ir.RankedTensorType):
                raise NoEpilogue("no epilogue reads a scalar of its own")
            arguments.append(self._poly(value).moved(lambda leaf, m=affine_map: _through(leaf, m, sizes, order)))
        return scalar_code(view.body, arguments)

    # The call

    def _assemble(self, view: Structured) -> LibraryForm:
        output = self.cluster.outputs[0]
        name, inner = activation(self._poly(output))
        total = _linear(inner, shape_of(output))
        left, right = (self._leaf(value) for value in view.inputs)
        self._check_exact(name, total)
        stored = _stored(total, shape_of(output), shape_of(self.product))
        letters = _letters(view, stored, left, right)
        call = self._build(letters, left, right, total, output)
        self._check(call, name, total)
        return LibraryForm(self.routine, *call.operands, total.alpha, total.beta, name)

    def _check_exact(self, name: str, total: _Sum) -> None:
        steps = (total.alpha != 1.0) + (total.addend is not None) + (total.bias is not None)
        if self.exact and (steps > 1 or total.alpha != 1.0 or total.beta not in (0.0, 1.0) or name == "gelu_tanh"):
            raise NoEpilogue("strict numerics: the routine rounds once where the ops round twice")

    def _leaf(self, value: ir.Value) -> Leaf:
        leaf = self._poly(value).single()
        if not isinstance(leaf, Leaf) or leaf.source == PRODUCT:
            raise NoEpilogue("a routine computes nothing on its operands")
        return leaf

    def _build(self, letters: _Letters, left: Leaf, right: Leaf, total: _Sum, output: ir.Value) -> _Call:
        batch = len(letters.batch)
        rows, columns, inner = batch, batch + 1, batch + 2
        numbers = range(batch)

        def operand(value: ir.Value, offset: int, dims: list[tuple[int, int, int]]) -> FormOperand:
            ordered = sorted(dims, key=lambda dim: -dim[2])
            return FormOperand(value, offset, *(tuple(part) for part in zip(*ordered, strict=True)))

        def matrix(
            place: int, one: tuple[int, JointDigit, int], two: tuple[int, JointDigit, int]
        ) -> tuple[Matrix, list[tuple[int, int, int]]]:
            (d, (e, s), i), (f, (g, t), j) = one, two
            walked = [(letters.batch[n][0], letters.batch[n][1][place]) for n in numbers]
            found = Matrix((e, s[i]), (g, t[j]), tuple(walked))
            strides = _strides_of_units(found)
            dims = [(n, *walked[n]) for n in numbers if walked[n][1]]
            return found, [*dims, (d, e, strides[0]), (f, g, strides[1])]

        m, n, k = letters.rows, letters.columns, letters.inner
        a, a_dims = matrix(0, (rows, m, 0), (inner, k, 0))
        b, b_dims = matrix(1, (inner, k, 1), (columns, n, 0))
        d, d_dims = matrix(2, (rows, m, 1), (columns, n, 1))
        c, c_dims = matrix(3, (rows, m, 2), (columns, n, 2))
        addend = bias = None
        result = operand(output, 0, d_dims)
        if total.addend is not None:
            places = {dim: (extent, stride) for dim, extent, stride in c_dims}
            walks = [places.get(dim, (extent, 0)) for dim, extent in zip(result.dims, result.shape, strict=True)]
            extents, strides = (tuple(part) for part in zip(*walks, strict=True))
            source = self.inputs[total.addend.source]
            addend = FormOperand(source, total.addend.offset, result.dims, extents, strides)
        bias_strides = ((m[0], m[1][3]), (n[0], n[1][3]))
        if total.bias is not None:
            across = runs_along_rows(d)
            dim, (extent, stride) = (columns, bias_strides[1]) if across else (rows, bias_strides[0])
            bias = operand(
                self.inputs[total.bias.source], total.bias.offset, [(dim, extent, stride if extent > 1 else 1)]
            )
        return _Call(
            (
                operand(self.inputs[left.source], left.offset, a_dims),
                operand(self.inputs[right.source], right.offset, b_dims),
                result,
                addend,
                bias,
            ),
            (a, b, d, c),
            bias_strides,
            any(digit[1][4] for digit in letters.batch),
        )

    def _check(self, call: _Call, name: str, total: _Sum) -> None:
        a, b, d, c = call.matrices
        for what, matrix in (("left operand", a), ("right operand", b), ("result", d)):
            reason = why_not_addressed(matrix)
            if reason:
                raise NotStrided(f"{what}: {reason}")
        if not is_apart((d.rows, d.columns, *d.batch)):
            raise NotStrided("elements of the result overlap")
        reason = why_no_epilogue(
            self.routine,
            bias=total.bias is not None,
            addend=total.addend is not None,
            scale=total.alpha != 1.0,
            activation=name,
            batch_dims=len(d.batch),
        )
        if total.addend is not None and reason is None:
            reason = why_not_addressed(c)
            if reason is None and runs_along_rows(c) != runs_along_rows(d):
                reason = "what is added lies transposed to the result"
        if total.bias is not None and reason is None:
            along, across = call.bias_strides[::-1] if runs_along_rows(d) else call.bias_strides
            if call.bias_varies_in_batch or across[1] or (along[1] != 1 and along[0] != 1):
                reason = "a bias is one vector, along the adjacent elements of the result"
        for leaf in (total.addend, total.bias):
            if leaf is not None and element_type(self.inputs[leaf.source]) != element_type(call.operands[2].value):
                reason = reason or "what is added has another type than the result"
        if reason:
            raise NoEpilogue(reason)


@dataclass(frozen=True)
class _Call:
    """Operands of a call (left, right, result, addend, bias) and how the matrices (A, B, D, C) lie."""

    operands: tuple[FormOperand, FormOperand, FormOperand, FormOperand | None, FormOperand | None]
    matrices: tuple[Matrix, Matrix, Matrix, Matrix]
    bias_strides: tuple[tuple[int, int], tuple[int, int]]
    bias_varies_in_batch: bool


@dataclass(frozen=True)
class _Letters:
    """Extents and strides of the loops: batch in (A, B, D, C, bias), rows in (A, D, C, bias), columns in
    (B, D, C, bias), the summed dim in (A, B)."""

    batch: tuple[JointDigit, ...]
    rows: JointDigit
    columns: JointDigit
    inner: JointDigit


def _groups(op: ir.Operation) -> list[list[int]]:
    return [
        [ir.IntegerAttr(dim).value for dim in ir.ArrayAttr(group)]
        for group in ir.ArrayAttr(op.attributes["reassociation"])
    ]


def _slice(op: ir.Operation, leaf: Leaf) -> Leaf:
    offsets, sizes, steps = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("offsets", "sizes", "strides")
    )
    if len(op.operands) > 1:
        raise NotStrided("a slice at a place that is computed")
    start, layout = sliced(leaf.layout, offsets, sizes, steps)
    shape = shape_of(op.results[0])
    kept = _kept_dims(sizes, shape)
    return replace(leaf, offset=leaf.offset + start, layout=tuple(layout[dim] for dim in kept))


def _kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Dims of a slice that its result keeps: some of extent 1 may be dropped."""
    kept: list[int] = []
    spare = len(sizes) - len(shape)
    for dim, size in enumerate(sizes):
        if spare and size == 1 and (len(kept) == len(shape) or shape[len(kept)] != 1):
            spare -= 1
        else:
            kept.append(dim)
    return kept


def _through(leaf: Leaf, affine_map: ir.AffineMap, sizes: Sequence[int], order: Sequence[int]) -> Leaf:
    """A leaf over the dims of an operand, over those of the result instead. Dims without use have stride 0."""
    loops: list[tuple[tuple[int, int], ...] | None] = [None] * len(sizes)
    for digits, expr in zip(leaf.layout, affine_map.results, strict=True):
        if isinstance(expr, ir.AffineDimExpr):
            if loops[expr.position] is not None:
                raise NotStrided("an op reads the diagonal of a tensor")
            loops[expr.position] = digits
        elif not (isinstance(expr, ir.AffineConstantExpr) and expr.value == 0):
            raise NotStrided(f"an op reads a tensor at {expr}")
    layout: list[tuple[tuple[int, int], ...]] = []
    for dim in order:
        digits = loops[dim]
        layout.append(((sizes[dim], 0),) if digits is None and sizes[dim] > 1 else digits or ())
    return replace(leaf, layout=tuple(layout))


def _linear(total: Poly, shape: Sequence[int]) -> _Sum:
    """The parts of a sum. Raises :class:`NoEpilogue` for what is none."""
    product: Leaf | None = None
    addend: Leaf | None = None
    bias: Leaf | None = None
    alpha, beta = 1.0, 0.0
    for monomial, coefficient in total.terms:
        if len(monomial) != 1:
            raise NoEpilogue("no epilogue multiplies by a tensor" if monomial else "no epilogue adds a constant")
        leaf = monomial[0]
        if isinstance(leaf, Applied):
            raise NoEpilogue(f"no epilogue computes {leaf.name} in this way")
        if leaf.source == PRODUCT:
            if product is not None:
                raise NoEpilogue("no epilogue reads the product at two places")
            product, alpha = leaf, coefficient
        elif _extent(leaf) < math.prod(shape):
            if bias is not None or coefficient != 1.0:
                raise NoEpilogue("an epilogue adds one bias, as it is")
            bias = leaf
        else:
            if addend is not None:
                raise NoEpilogue("an epilogue adds one tensor")
            addend, beta = leaf, coefficient
    if product is None:
        raise NoEpilogue("the product is not used")
    return _Sum(product, alpha, addend, beta, bias)


def _extent(leaf: Leaf) -> int:
    """Number of different elements that the leaf reads."""
    return math.prod(extent for digits in leaf.layout for extent, stride in digits if stride)


def _stored(total: _Sum, shape: Sequence[int], product: Sequence[int]) -> list[list[JointDigit]]:
    """For every dim of the product its digits, with strides in (product, result, addend, bias)."""
    found: list[JointDigit] = []
    plain = tuple(((extent, 0),) if extent > 1 else () for extent in shape)
    result = row_major(shape)
    layouts = [leaf.layout if leaf else plain for leaf in (total.product, None, total.addend, total.bias)]
    layouts[1] = result
    if total.product.offset:
        raise NotStrided("only a part of the product is used")
    for dim in range(len(shape)):
        found += joint([[(extent, (stride,)) for extent, stride in layout[dim]] for layout in layouts])
    return blocks(found, product)


def _letters(view: Structured, stored: list[list[JointDigit]], left: Leaf, right: Leaf) -> _Letters:
    """Put the digits of operands and result together, loop dim by loop dim."""
    dims = [[ir.AffineDimExpr(expr).position for expr in affine_map.results] for affine_map in view.maps]
    sizes = view.loop_sizes()
    lefts = dict(zip(dims[0], left.layout, strict=True))
    rights = dict(zip(dims[1], right.layout, strict=True))
    results = {dim: [(e, s[1:]) for e, s in digits] for dim, digits in zip(dims[2], stored, strict=True)}
    batch: list[JointDigit] = []
    parts: dict[str, JointDigit] = {}
    for dim, size in enumerate(sizes):
        of_left, of_right = _single(lefts.get(dim)), _single(rights.get(dim))
        of_result = results.get(dim)
        if of_left is not None and of_right is not None and of_result is not None:
            batch += joint([of_left, of_right, of_result])
        elif of_result is None and of_left is not None and of_right is not None:
            parts["inner"] = _one(joint([of_left, of_right]), size, 2, "the summed dim")
        elif of_result is not None and of_left is not None:
            parts["rows"] = _one(joint([of_left, of_result]), size, 4, "the rows")
        elif of_result is not None and of_right is not None:
            parts["columns"] = _one(joint([of_right, of_result]), size, 4, "the columns")
    if parts.keys() != {"inner", "rows", "columns"}:
        raise NotStrided("the contraction is no product of matrices")
    return _Letters(tuple(merged(batch)), parts["rows"], parts["columns"], parts["inner"])


def _single(digits: Sequence[tuple[int, int]] | None) -> list[JointDigit] | None:
    return None if digits is None else [(extent, (stride,)) for extent, stride in digits]


def _one(digits: list[JointDigit], size: int, tensors: int, what: str) -> JointDigit:
    if len(digits) > 1:
        raise NotStrided(f"{what} of a matrix would walk memory with several strides")
    return digits[0] if digits else (size, (0,) * tensors)


def _strides_of_units(matrix: Matrix) -> tuple[int, int]:
    """Strides of rows and columns; a dim of one element gets the one it has in a contiguous matrix."""
    (rows, down), (columns, across) = matrix.rows, matrix.columns
    if columns == 1:
        across = 1
    if rows == 1:
        down = max(1, columns * across)
    return down, across


__all__ = ["FormOperand", "LibraryForm", "library_form", "rounds_exactly"]
