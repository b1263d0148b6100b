"""Layouts to try, values in them, and whether pieces are those of a value: the judge of conversions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.collectives import Array, Pieces, apply_step, apply_transfer, combine, pair
from mlirstitch.passes.partitioning.conversion import Conversion, Converter
from mlirstitch.passes.partitioning.layout import Layout, coordinates, split
from mlirstitch.passes.partitioning.steps import Transfer
from mlirstitch.target import Links

LINKS = Links.parse("dgx-h100")


def layout(shape: Sequence[int], cuts: Sequence[Sequence[str]], partial: Sequence[str] = (), combiner: str = "add"):
    """A layout with plain cuts: ``layout((4, 6), ["ab", ""])``, axes having names of one letter or being lists."""
    dims = tuple(split(tuple(axes), size) for axes, size in zip(cuts, shape, strict=True))
    return Layout(dims, tuple(sorted((axis, combiner) for axis in partial)))


def on_one(mesh: Mesh, time: Mapping[str, int] | None = None, links: Links = LINKS) -> Converter:
    """Conversions on one mesh."""
    return Converter(mesh, mesh, time or {}, links)


def all_layouts(shape: Sequence[int], axes: Sequence[str], combiner: str = "add") -> Iterator[Layout]:
    """Every layout with plain cuts, in every order of the axes of a dim."""
    rank = len(shape)
    for roles in itertools.product(range(rank + 2), repeat=len(axes)):
        users = [[axis for axis, role in zip(axes, roles, strict=True) if role == dim] for dim in range(rank + 1)]
        for cuts in itertools.product(*(itertools.permutations(names) for names in users[:rank])):
            yield layout(shape, cuts, users[rank], combiner)


def values(shape: Sequence[int], combiner: str, rng: np.random.Generator) -> Array:
    """A whole tensor whose sums and products are exact."""
    if combiner in ("argmax", "argmin"):
        return pair(rng.integers(0, 3, shape).astype(np.float64), rng.integers(0, 9, shape))
    if combiner in ("and", "or"):
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.integers(1, 4, shape).astype(np.float64)


def pieces_in(layout: Layout, shape: Sequence[int], sizes: Mapping[str, int], seed: int) -> tuple[Pieces, Array]:
    """Random pieces in a layout, and the whole value they stand for."""
    rng = np.random.default_rng(seed)
    combiner = layout.partial[0][1] if layout.partial else "add"
    partial = tuple(axis for axis, _ in layout.partial)
    parts = {tuple(at.values()): values(shape, combiner, rng) for at in coordinates(partial, sizes)}
    pieces: Pieces = {}
    for at in coordinates(tuple(sizes), sizes):
        part = parts[tuple(at[axis] for axis in partial)]
        box = layout.box(tuple(shape), at, sizes)
        pieces[tuple(at.values())] = part[tuple(slice(low, high) for low, high in box)]
    return pieces, functools.reduce(lambda a, b: combine(a, b, combiner), parts.values())


def check(layout: Layout, pieces: Pieces, shape: Sequence[int], sizes: Mapping[str, int], value: Array) -> None:
    """Fail unless the pieces, combined where they are partial, are exactly the boxes of the value."""
    partial = tuple(axis for axis, _ in layout.partial)
    combiner = layout.partial[0][1] if layout.partial else ""
    assert len(pieces) == np.prod(list(sizes.values()), dtype=int)
    for at in coordinates(tuple(sizes), sizes):
        others = ({**at, **change} for change in coordinates(partial, sizes))
        parts = [pieces[tuple(other[axis] for axis in sizes)] for other in others]
        found = functools.reduce(lambda a, b: combine(a, b, combiner), parts)
        expected = value[tuple(slice(low, high) for low, high in layout.box(tuple(shape), at, sizes))]
        np.testing.assert_array_equal(found, expected, err_msg=f"{layout} at {at}")


def run(conversion: Conversion, pieces: Pieces, shape: Sequence[int], mesh: Mesh, time: Mapping[str, int]) -> Pieces:
    """Apply the steps; each starts from the layout the one before it ended in."""
    current = conversion.steps[0].before if conversion.steps else None
    for step in conversion.steps:
        sizes = {**mesh.sizes, **time}
        assert current is not None
        assert step.before.same_boxes(current, tuple(shape), sizes)
        if isinstance(step, Transfer):
            pieces = apply_transfer(step, pieces, shape, time)
            mesh = step.wanted_mesh
        else:
            pieces = apply_step(step, pieces, shape, sizes)
        current = step.after
    return pieces


def judge(
    converter: Converter,
    source: Layout,
    wanted: Layout,
    shape: tuple[int, ...],
    *,
    element_bytes: int = 4,
    seed: int = 0,
) -> Conversion:
    """Find the conversion, run it, and fail unless it gives the wanted pieces."""
    conversion = converter.convert(source, wanted, shape, element_bytes)
    time = converter.time_axes
    pieces, value = pieces_in(source, shape, {**converter.source_mesh.sizes, **time}, seed)
    after = run(conversion, pieces, shape, converter.source_mesh, time)
    check(wanted, after, shape, {**converter.wanted_mesh.sizes, **time}, value)
    return conversion


def names(conversion: Conversion) -> list[str]:
    """Kinds of the steps."""
    return [type(step).__name__ for step in conversion.steps]
