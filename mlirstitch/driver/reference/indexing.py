"""Affine indexing maps as numpy views."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mlir import ir

from mlirstitch.errors import LaunchError


@dataclass(frozen=True)
class Linear:
    """One map result ``sum(coefficients[d] * d) + constant``."""

    coefficients: tuple[int, ...]
    constant: int


@dataclass(frozen=True)
class Space:
    """A box of loop indices, ``lower <= index < upper`` for every loop."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(u - lo for lo, u in zip(self.lower, self.upper, strict=True))

    def restrict(self, loop: int, lower: int, upper: int) -> Space:
        """The same box with one loop's range replaced."""
        lo, up = list(self.lower), list(self.upper)
        lo[loop], up[loop] = lower, upper
        return Space(tuple(lo), tuple(up))

    def grid(self, loop: int) -> np.ndarray:
        """Indices of one loop, shaped to broadcast over the box."""
        shape = [1] * len(self.lower)
        shape[loop] = -1
        return np.arange(self.lower[loop], self.upper[loop], dtype=np.int64).reshape(shape)


def linear(expr: ir.AffineExpr, loops: int) -> Linear | None:
    """The expression as a linear form, or None if it holds floordiv, ceildiv or mod."""
    if isinstance(expr, ir.AffineConstantExpr):
        return Linear((0,) * loops, expr.value)
    if isinstance(expr, ir.AffineDimExpr):
        return Linear(tuple(int(d == expr.position) for d in range(loops)), 0)
    if isinstance(expr, (ir.AffineAddExpr, ir.AffineMulExpr)):
        a, b = linear(expr.lhs, loops), linear(expr.rhs, loops)
        if a is None or b is None:
            return None
        if isinstance(expr, ir.AffineAddExpr):
            total = tuple(x + y for x, y in zip(a.coefficients, b.coefficients, strict=True))
            return Linear(total, a.constant + b.constant)
        if any(a.coefficients):
            a, b = b, a
        return Linear(tuple(a.constant * x for x in b.coefficients), a.constant * b.constant)
    return None


def evaluate(expr: ir.AffineExpr, dims: list[np.ndarray]) -> np.ndarray:
    """Any affine expression on arrays of indices."""
    if isinstance(expr, ir.AffineConstantExpr):
        return np.asarray(expr.value, dtype=np.int64)
    if isinstance(expr, ir.AffineDimExpr):
        return dims[expr.position]
    if not isinstance(expr, ir.AffineBinaryExpr):
        raise LaunchError(f"the reference cannot evaluate the affine expression {expr}")
    a, b = evaluate(expr.lhs, dims), evaluate(expr.rhs, dims)
    if isinstance(expr, ir.AffineAddExpr):
        return a + b
    if isinstance(expr, ir.AffineMulExpr):
        return a * b
    if isinstance(expr, ir.AffineModExpr):
        return a % b
    return -((-a) // b) if isinstance(expr, ir.AffineCeilDivExpr) else a // b


def loop_extents(maps: list[ir.AffineMap], shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Extents of all loops, read off the operands that a loop indexes directly.

    Raises LaunchError if operands disagree (shapes that do not fit the maps).
    """
    loops = maps[0].n_dims
    extents: list[int | None] = [None] * loops
    for map_, shape in zip(maps, shapes, strict=True):
        for expr, size in zip(map_.results, shape, strict=True):
            if isinstance(expr, ir.AffineDimExpr):
                known = extents[expr.position]
                if known not in (None, size):
                    raise LaunchError(f"loop d{expr.position} runs over {known} and over {size} elements")
                extents[expr.position] = size
    if None in extents:
        raise LaunchError(f"loop d{extents.index(None)} indexes no operand directly; its extent is unknown")
    return tuple(e for e in extents if e is not None)


def view(array: np.ndarray, map_: ir.AffineMap, space: Space) -> np.ndarray:
    """What a structured op reads of ``array`` in ``space``: one axis a loop, 1 wide where the map ignores the loop.

    Linear maps give a writeable view of ``array``; others a copy. Raises LaunchError when an index leaves the array.
    """
    loops = len(space.lower)
    forms = [linear(e, loops) for e in map_.results]
    if any(f is None for f in forms):
        dims = [space.grid(d) for d in range(loops)]
        index = [evaluate(e, dims) for e in map_.results]
        check_bounds(index, array.shape)
        picked = array[tuple(index)]
        return picked.reshape((1,) * (loops - picked.ndim) + picked.shape)
    used = [any(f.coefficients[d] for f in forms if f is not None) for d in range(loops)]
    shape = tuple(n if used[d] else 1 for d, n in enumerate(space.shape))
    if 0 in shape:
        return np.empty(shape, array.dtype)
    first: list[int] = []
    for form, size in zip(forms, array.shape, strict=True):
        assert form is not None
        ends = [(c * lo, c * (up - 1)) for c, lo, up in zip(form.coefficients, space.lower, space.upper, strict=True)]
        least, most = (form.constant + sum(pick(e) for e in ends) for pick in (min, max))
        if least < 0 or most >= size:
            raise LaunchError(f"index range {least}..{most} leaves a dim of {size} elements (map {map_})")
        first.append(form.constant + sum(e[0] for e in ends))
    strides = tuple(
        sum(f.coefficients[d] * s for f, s in zip(forms, array.strides, strict=True) if f is not None)
        for d in range(loops)
    )
    start = array[(..., *(slice(i, None) for i in first))]  # the ellipsis keeps a view when the rank is 0
    return np.lib.stride_tricks.as_strided(start, shape, strides)


def check_bounds(index: list[np.ndarray], shape: tuple[int, ...]) -> None:
    """Raise LaunchError unless all indices lie inside ``shape``."""
    for axis, (i, size) in enumerate(zip(index, shape, strict=True)):
        if i.size and (i.min() < 0 or i.max() >= size):
            raise LaunchError(f"index {int(i.min())}..{int(i.max())} leaves dim {axis} of {size} elements")
