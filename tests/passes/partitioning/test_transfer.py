"""Conversions between meshes: every pair of layouts, and the patterns of pipelines."""

from __future__ import annotations

import pytest
from layout_harness import LINKS, all_layouts, judge, layout, names

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.conversion import Converter
from mlirstitch.passes.partitioning.layout import DimSplit, Layout, replicated
from mlirstitch.passes.partitioning.steps import Transfer

WHOLE = Mesh.of(pp=2, dp=2, tp=2)
PAIRS = [
    pytest.param(WHOLE.at(pp=0), WHOLE.at(pp=1), {}, (4, 6), id="stages of a pipeline"),
    pytest.param(Mesh.of(a=2), Mesh((("a", 2),), (2, 3)), {"t": 3}, (5, 7), id="in time"),
    pytest.param(Mesh.of(a=2), Mesh((("a", 2),), (1, 0)), {}, (3, 2), id="the same devices in another order"),
    pytest.param(Mesh.of(a=4), Mesh((("b", 2),), (4, 5)), {}, (4, 3), id="four devices to two"),
    pytest.param(
        Mesh.of(a=2), Mesh((("b", 2), ("c", 2)), (4, 5, 6, 7)), {"t": 2}, (5,), id="two devices to four in time"
    ),
    pytest.param(Mesh.of(a=1), Mesh((("b", 3),), (0, 1, 2)), {}, (4, 5), id="one device to three"),
    pytest.param(Mesh.of(a=3), Mesh((("a", 1),), (7,)), {}, (4, 5), id="three devices to one"),
]


@pytest.mark.parametrize(("source_mesh", "wanted_mesh", "time", "shape"), PAIRS)
def test_every_pair_of_layouts_is_converted(
    source_mesh: Mesh, wanted_mesh: Mesh, time: dict[str, int], shape: tuple[int, ...]
):
    converter = Converter(source_mesh, wanted_mesh, time, LINKS)
    for source in all_layouts(shape, (*source_mesh.names, *time)):
        for wanted in all_layouts(shape, (*wanted_mesh.names, *time)):
            conversion = judge(converter, source, wanted, shape)
            assert names(conversion).count("Transfer") == 1


@pytest.mark.parametrize("combiner", ["mul", "max", "and", "argmax"])
def test_partial_values_are_combined_on_the_way(combiner: str):
    shape = (2, 3)
    converter = Converter(Mesh.of(a=4), Mesh((("b", 2),), (4, 5)), {"t": 2}, LINKS)
    for partial in (["a"], ["a", "t"]):
        for wanted in all_layouts(shape, ("b", "t"), combiner):
            judge(converter, layout(shape, ["", ""], partial, combiner), wanted, shape)


def between(source: Mesh, wanted: Mesh, left: Layout, right: Layout, shape: tuple[int, ...], time: dict[str, int]):
    return judge(Converter(source, wanted, time, LINKS), left, right, shape)


def transfers(steps: tuple[object, ...]) -> list[str]:
    return [step.kind for step in steps if isinstance(step, Transfer)]


def test_stages_of_equal_shape_move_each_part_to_its_twin():
    shape = (8, 16)
    here = layout(shape, [["dp"], ["tp"]])
    (step,) = between(WHOLE.at(pp=0), WHOLE.at(pp=1), here, here, shape, {}).steps
    assert isinstance(step, Transfer)
    assert (step.kind, step.bytes) == ("move", 8 * 16 * 4 // 4)


def test_micro_batches_move_one_by_one():
    shape = (16, 4)
    here = layout(shape, [["dp", "t"], ""])
    (step,) = between(WHOLE.at(pp=0), WHOLE.at(pp=1), here, here, shape, {"t": 4}).steps
    assert step.times == 4
    other = Mesh((("dp", 2),), (8, 9))
    conversion = between(WHOLE.at(pp=0), other, here, here, shape, {"t": 4})
    assert all(step.times == 4 for step in conversion.steps)


def test_micro_batches_outermost_move_between_different_meshes_one_by_one():
    shape = (16, 4)
    source, wanted = layout(shape, [["t", "dp"], ""]), layout(shape, [["t", "x"], ""])
    conversion = between(Mesh.of(dp=2), Mesh((("x", 4),), (2, 3, 4, 5)), source, wanted, shape, {"t": 2})
    assert [step.times for step in conversion.steps] == [2]


def test_micro_batches_that_stand_for_other_rows_are_joined_first():
    shape = (16, 4)
    source, wanted = layout(shape, [["dp", "t"], ""]), layout(shape, [["x", "t"], ""])
    conversion = between(Mesh.of(dp=2), Mesh((("x", 4),), (2, 3, 4, 5)), source, wanted, shape, {"t": 2})
    assert names(conversion) == ["Concat", "Transfer", "Slice"]


def test_a_replicated_value_crosses_hosts_in_parts():
    shape = (1024, 1024)
    source, wanted = Mesh.of(tp=8), Mesh((("tp", 8),), tuple(range(8, 16)))
    conversion = between(source, wanted, replicated(2), replicated(2), shape, {})
    assert names(conversion) == ["Slice", "Transfer", "AllGather"]
    assert conversion.steps[1].bytes == 1024 * 1024 * 4 // 8


def test_a_sum_is_reduced_on_one_side_alone():
    shape = (64, 64)
    source, wanted = Mesh.of(tp=2), Mesh((("tp", 2),), (2, 3))
    conversion = between(source, wanted, layout(shape, ["", ""], ["tp"]), replicated(2), shape, {})
    assert sum(name in ("AllReduce", "ReduceScatter") for name in names(conversion)) == 1


@pytest.mark.parametrize(
    ("source", "wanted", "left", "right", "kind"),
    [
        (Mesh.of(a=1), Mesh((("b", 4),), (4, 5, 6, 7)), "", "b", "scatter"),
        (Mesh.of(a=4), Mesh((("b", 1),), (7,)), "a", "", "gather"),
        (Mesh.of(a=1), Mesh((("b", 4),), (4, 5, 6, 7)), "", "", "broadcast"),
        (Mesh.of(a=2), Mesh((("b", 2),), (4, 5)), "a", "b", "move"),
        (Mesh.of(a=2), Mesh((("b", 3),), (4, 5, 6)), "a", "b", "exchange"),
    ],
)
def test_patterns_have_their_names(source: Mesh, wanted: Mesh, left: str, right: str, kind: str):
    shape = (12, 2)
    conversion = between(source, wanted, layout(shape, [left, ""]), layout(shape, [right, ""]), shape, {})
    assert transfers(conversion.steps) == [kind]


def test_replicas_scatter_what_crosses_hosts_and_the_receivers_gather_it():
    shape = (1024, 1024, 16)
    converter = Converter(Mesh.of(a=2), Mesh((("b", 4),), (8, 9, 10, 11)), {}, LINKS)
    conversion = converter.convert(replicated(3), replicated(3), shape, 4)
    assert names(conversion) == ["Transfer", "AllGather"]
    assert conversion.steps[0].bytes == 1024 * 1024 * 16 * 4 // 4


def test_a_halo_is_read_on_another_mesh():
    shape = (2, 16)
    wanted = Layout((DimSplit(), DimSplit(("sp",), 16, 1, -1, 3)))
    for mesh in (Mesh((("sp", 4),), (4, 5, 6, 7)), Mesh((("sp", 2),), (4, 5))):
        between(Mesh.of(sp=4), mesh, layout(shape, ["", ["sp"]]), wanted, shape, {})


def test_parts_that_nobody_has_are_refused():
    holes = Layout((DimSplit(("a",), 2),))
    for mesh in (Mesh((("a", 2),), (2, 3)), Mesh((("b", 3),), (2, 3, 4))):
        with pytest.raises(PlanError, match="no device has positions 2 to 4"):
            Converter(Mesh.of(a=2), mesh, {}, LINKS).convert(holes, replicated(1), (4,), 4)
