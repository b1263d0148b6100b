"""Conversions between random layouts: up to four dims, meshes of up to three axes, time, windows and granules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_harness import judge, on_one

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.layout import DimSplit, Layout
from mlirstitch.passes.partitioning.link_cost import LinkCost
from mlirstitch.target import LINKS, Links


@st.composite
def cut(draw: st.DrawFn, size: int, axes: tuple[str, ...], *, covers: bool) -> DimSplit:
    if not axes:
        return DimSplit()
    granule = draw(st.sampled_from([g for g in (1, 2, 3) if size % g == 0]))
    if covers or draw(st.booleans()):
        return DimSplit(axes, size // granule, granule, 0, granule)
    span = draw(st.integers(1, 4))
    return DimSplit(axes, size, 1, draw(st.integers(-2, 1)), span)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], axes: tuple[str, ...], *, covers: bool) -> Layout:
    rank = len(shape)
    order = draw(st.permutations(axes))
    roles = [draw(st.integers(0, rank + 1)) for _ in order]
    dims = tuple(
        draw(cut(size, tuple(a for a, role in zip(order, roles, strict=True) if role == dim), covers=covers))
        for dim, size in enumerate(shape)
    )
    combiner = draw(st.sampled_from(["add", "mul", "max", "min"]))
    partial = sorted((axis, combiner) for axis, role in zip(order, roles, strict=True) if role == rank)
    return Layout(dims, tuple(partial))


@st.composite
def questions(draw: st.DrawFn):
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=0, max_size=4)))
    names = ("a", "b", "c")[: draw(st.integers(1, 3))]
    sizes = {name: draw(st.integers(1, 3)) for name in names}
    time = {"t": draw(st.integers(1, 3))} if draw(st.booleans()) else {}
    devices = draw(st.permutations(range(math.prod(sizes.values()))))
    hosts = draw(st.sampled_from([1, 2, 8]))
    links = draw(st.sampled_from(sorted(LINKS)))
    axes = (*names, *time)
    source = draw(layouts(shape, axes, covers=True))
    wanted = draw(layouts(shape, axes, covers=False))
    mesh = Mesh(tuple(sizes.items()), tuple(devices))
    return mesh, time, LINKS[links].override(devices_per_host=hosts), source, wanted, shape


def judge_and_repeat(
    question: tuple[Mesh, dict[str, int], Links, Layout, Layout, tuple[int, ...]], seed: int, element_bytes: int
) -> None:
    mesh, time, links, source, wanted, shape = question
    converter = on_one(mesh, time, links)
    conversion = judge(converter, source, wanted, shape, seed=seed, element_bytes=element_bytes)
    again = on_one(mesh, time, links).convert(source, wanted, shape, element_bytes)
    assert conversion == again
    cost = LinkCost(mesh, links)
    for step in conversion.steps:
        assert step.seconds >= 0
        assert step.times >= 1
        assert (step.bytes == 0) or cost.group(mesh.names).size > 1


CASES = given(questions(), st.integers(0, 5), st.sampled_from([1, 4, 10**6]))


@CASES
@settings(max_examples=80, deadline=None, derandomize=True)
def test_random_layouts_are_converted(
    question: tuple[Mesh, dict[str, int], Links, Layout, Layout, tuple[int, ...]], seed: int, element_bytes: int
):
    judge_and_repeat(question, seed, element_bytes)


@pytest.mark.slow
@CASES
@settings(max_examples=2000, deadline=None, derandomize=True)
def test_many_random_layouts_are_converted(
    question: tuple[Mesh, dict[str, int], Links, Layout, Layout, tuple[int, ...]], seed: int, element_bytes: int
):
    judge_and_repeat(question, seed, element_bytes)
