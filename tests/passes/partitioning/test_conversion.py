"""Conversions between layouts: right for every pair of layouts, and the ones everybody knows."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
from layout_harness import LINKS, all_layouts, check, judge, layout, names, on_one, pieces_in

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.collectives import apply_step
from mlirstitch.passes.partitioning.exchange import make_exchange
from mlirstitch.passes.partitioning.graph import COMBINERS
from mlirstitch.passes.partitioning.layout import DimSplit, Layout, replicated
from mlirstitch.passes.partitioning.link_cost import LinkCost
from mlirstitch.passes.partitioning.steps import (
    Accumulate,
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    ReduceScatter,
    Slice,
)

GRIDS = [
    pytest.param(Mesh.of(a=2), {}, (4, 6), id="2 devices"),
    pytest.param(Mesh.of(a=3), {}, (5, 1), id="3 devices, uneven and empty parts"),
    pytest.param(Mesh.of(a=2, b=2), {}, (4, 6), id="2x2"),
    pytest.param(Mesh.of(a=2, b=2), {}, (1, 3), id="2x2, empty parts"),
    pytest.param(Mesh.of(a=2, b=3), {}, (5, 7), id="2x3, uneven"),
    pytest.param(Mesh.of(a=2), {"t": 3}, (5, 7), id="2 devices in time"),
    pytest.param(Mesh.of(a=2, b=2), {"t": 2}, (5,), id="2x2 in time", marks=pytest.mark.slow),
    pytest.param(Mesh.of(a=2), {"t": 2, "u": 2}, (7,), id="two axes of time", marks=pytest.mark.slow),
    pytest.param(Mesh.of(a=2, b=2, c=2), {}, (6,), id="2x2x2", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mesh", "time", "shape"), GRIDS)
def test_every_pair_of_layouts_is_converted(mesh: Mesh, time: dict[str, int], shape: tuple[int, ...]):
    converter = on_one(mesh, time)
    found = list(all_layouts(shape, (*mesh.names, *time)))
    for source in found:
        for wanted in found:
            judge(converter, source, wanted, shape)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("shape", [(3,), (2, 5)], ids=str)
def test_every_combiner_combines(combiner: str, shape: tuple[int, ...]):
    converter = on_one(Mesh.of(a=2), {"t": 2})
    found = list(all_layouts(shape, ("a", "t"), combiner))
    for seed, source in enumerate(found):
        for wanted in found:
            if source.partial or combiner not in ("argmax", "argmin", "and", "or"):
                judge(converter, source, wanted, shape, seed=seed)


@pytest.mark.parametrize("shape", [(4, 6), (5, 7)], ids=str)
def test_sends_and_receives_give_the_same_for_every_pair(shape: tuple[int, ...]):
    sizes = {"a": 2, "b": 2}
    found = list(all_layouts(shape, tuple(sizes)))
    for source in found:
        pieces, value = pieces_in(source, shape, sizes, 1)
        for wanted in found:
            if set(wanted.partial) <= set(source.partial):
                step = make_exchange(source, wanted, shape, sizes)
                check(wanted, apply_step(step, pieces, shape, sizes), shape, sizes, value)


@pytest.mark.parametrize("element_bytes", [4, 4 * 10**6])
@pytest.mark.parametrize("mesh", [Mesh.of(a=2, b=2), Mesh((("a", 2), ("b", 2)), (0, 8, 1, 9))], ids=["host", "hosts"])
def test_nothing_costs_more_than_gathering_all_or_than_sends(mesh: Mesh, element_bytes: int):
    shape = (4, 6)
    converter, cost = on_one(mesh), LinkCost(mesh, LINKS)
    found = list(all_layouts(shape, mesh.names))
    for source in found:
        whole = converter.convert(source, replicated(2), shape, element_bytes)
        for wanted in found:
            conversion = converter.convert(source, wanted, shape, element_bytes)
            if not wanted.partial:
                assert conversion.seconds <= whole.seconds + 1e-8, (str(source), str(wanted))
            if set(wanted.partial) <= set(source.partial):
                step = make_exchange(source, wanted, shape, mesh.sizes, host=cost.host_of)
                sent = (
                    (dict(zip(step.axes, s, strict=True)), dict(zip(step.axes, t, strict=True)), n * element_bytes)
                    for s, t, n in step.messages()
                )
                direct = cost.exchange(step.axes, sent).seconds
                assert conversion.seconds <= direct + 1e-8, (str(source), str(wanted))


def test_known_collectives():
    shape, mesh = (8, 16), Mesh.of(tp=4)
    converter = on_one(mesh)
    whole, rows, columns = (layout(shape, cut) for cut in (["", ""], [["tp"], ""], ["", ["tp"]]))
    partial = layout(shape, ["", ""], ["tp"])

    def steps(source: Layout, wanted: Layout):
        return judge(converter, source, wanted, shape).steps

    assert [(type(s), getattr(s, "combiner", "")) for s in steps(partial, whole)] == [(AllReduce, "add")]
    (scatter,) = steps(partial, columns)
    assert isinstance(scatter, ReduceScatter)
    assert (scatter.dim, scatter.axes) == (1, ("tp",))
    (gather,) = steps(rows, whole)
    assert isinstance(gather, AllGather)
    assert (gather.dim, gather.axes) == (0, ("tp",))
    (turn,) = steps(rows, columns)
    assert isinstance(turn, AllToAll)
    assert (turn.dim_from, turn.dim_to) == (0, 1)
    (cut,) = steps(whole, rows)
    assert isinstance(cut, Slice)
    assert cut.seconds == 0
    assert cut.bytes == 0
    assert steps(rows, rows) == ()
    assert steps(partial, partial) == ()


def test_a_gradient_is_reduced_once_after_the_last_micro_batch():
    shape = (64, 64)
    source = layout(shape, ["", ""], ["dp", "t"])
    accumulate, reduce = judge(on_one(Mesh.of(dp=4), {"t": 8}), source, replicated(2), shape).steps
    assert isinstance(accumulate, Accumulate)
    assert accumulate.axes == ("t",)
    assert accumulate.bytes == 0
    assert isinstance(reduce, AllReduce)
    assert reduce.axes == ("dp",)
    assert reduce.times == 1
    sharded = judge(on_one(Mesh.of(dp=4), {"t": 8}), source, layout(shape, [["dp"], ""]), shape)
    assert names(sharded) == ["Accumulate", "ReduceScatter"]
    assert sharded.steps[1].times == 1


def test_a_step_inside_of_time_is_executed_at_every_place_of_it():
    shape = (16, 64)
    source, wanted = layout(shape, [["t"], ""], ["tp"]), layout(shape, [["t"], ""])
    (step,) = judge(on_one(Mesh.of(tp=4), {"t": 8}), source, wanted, shape).steps
    whole = judge(on_one(Mesh.of(tp=4), {"t": 8}), layout(shape, ["", ""], ["tp"]), replicated(2), shape).steps[0]
    assert isinstance(step, AllReduce)
    assert step.times == 8
    assert step.bytes * 8 == whole.bytes


def test_time_that_appears_is_sliced_after_the_communication():
    shape = (16, 64)
    source, wanted = layout(shape, ["", ["tp"]]), layout(shape, [["t"], ""])
    conversion = judge(on_one(Mesh.of(tp=4), {"t": 8}), source, wanted, shape)
    assert names(conversion) == ["AllGather", "Slice"]
    assert conversion.steps[0].times == 1


def test_micro_batches_outside_of_data_parallel_parts_are_gathered_before_they_are_joined():
    shape = (16, 4)
    conversion = judge(on_one(Mesh.of(dp=2), {"t": 4}), layout(shape, [["t", "dp"], ""]), replicated(2), shape)
    assert names(conversion) == ["AllGather", "Concat"]


def test_sequence_parallel_turns_an_all_reduce_into_its_halves():
    shape = (4, 32, 64)
    converter = on_one(Mesh.of(dp=2, tp=4))
    partial = layout(shape, [["dp"], "", ""], ["tp"])
    sequence = layout(shape, [["dp"], ["tp"], ""])
    whole = layout(shape, [["dp"], "", ""])
    scatter = judge(converter, partial, sequence, shape)
    gather = judge(converter, sequence, whole, shape)
    assert names(scatter) == ["ReduceScatter"]
    assert names(gather) == ["AllGather"]
    reduce = judge(converter, partial, whole, shape)
    assert names(reduce) == ["AllReduce"]
    assert scatter.bytes + gather.bytes == reduce.bytes


def test_heads_and_sequence_change_places_in_one_all_to_all():
    shape = (4, 32, 8, 16)
    conversion = judge(
        on_one(Mesh.of(dp=2, sp=4)),
        layout(shape, [["dp"], ["sp"], "", ""]),
        layout(shape, [["dp"], "", ["sp"], ""]),
        shape,
    )
    assert [(type(step), getattr(step, "axes", ())) for step in conversion.steps] == [(AllToAll, ("sp",))]


def test_a_linear_reader_leaves_a_sum_partial():
    shape = (8, 8)
    source, wanted = layout(shape, ["", ["b"]], ["a"]), layout(shape, ["", ""], ["a"])
    conversion = judge(on_one(Mesh.of(a=2, b=2)), source, wanted, shape)
    assert names(conversion) == ["AllGather"]


def test_a_replicated_value_becomes_partial_once():
    shape = (4,)
    conversion = judge(on_one(Mesh.of(a=4)), replicated(1), layout(shape, [""], ["a"]), shape)
    assert names(conversion) == ["Neutralize"]
    assert conversion.bytes == 0


def windows(shape: tuple[int, ...], axes: tuple[str, ...], dim: int, taps: int, stride: int = 1) -> Layout:
    """What a convolution over ``dim`` reads whose output rows are cut over ``axes``."""
    out = (shape[dim] - taps) // stride + 1
    cut = DimSplit(axes, out, stride, 0, taps)
    return Layout(tuple(cut if d == dim else DimSplit() for d in range(len(shape))))


def test_a_padded_convolution_sends_one_row_each_way():
    shape = (2, 16, 8)
    source = layout(shape, ["", ["sp"], ""])
    wanted = Layout((DimSplit(), DimSplit(("sp",), 16, 1, -1, 3), DimSplit()))
    (step,) = judge(on_one(Mesh.of(sp=4)), source, wanted, shape).steps
    assert isinstance(step, Exchange)
    row = 2 * 8
    pairs = [((0,), (1,)), ((1,), (0,)), ((1,), (2,)), ((2,), (1,)), ((2,), (3,)), ((3,), (2,))]
    assert sorted(step.messages()) == [(sender, receiver, row) for sender, receiver in pairs]
    own = step.receives[1].fragments[0]
    assert own.sources == ((1,),)
    assert own.box[1] == (4, 8)


def test_a_halo_inside_of_data_parallel_parts_and_micro_batches_names_neither():
    shape = (8, 16, 8)
    source = layout(shape, [["dp", "t"], ["sp"], ""])
    wanted = dataclasses.replace(source, dims=(source.dims[0], DimSplit(("sp",), 16, 1, -1, 3), DimSplit()))
    (step,) = judge(on_one(Mesh.of(dp=2, sp=4), {"t": 2}), source, wanted, shape).steps
    assert isinstance(step, Exchange)
    assert step.axes == ("sp",)
    assert step.times == 2
    assert {size for _, _, size in step.messages()} == {2 * 8}


@pytest.mark.parametrize("shape", [(2, 16), (2, 11), (3, 5)], ids=str)
@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (2, 2), (1, 2), (5, 1)])
def test_windows_of_all_sorts_are_filled_from_all_layouts(shape: tuple[int, ...], taps: int, stride: int):
    mesh = Mesh.of(a=2, b=2)
    converter = on_one(mesh)
    for axes in (("a",), ("a", "b"), ("b", "a")):
        wanted = windows(shape, axes, 1, taps, stride)
        for source in all_layouts(shape, mesh.names):
            judge(converter, source, wanted, shape)


@pytest.mark.parametrize("taps", [1, 3])
def test_overlapping_parts_are_a_source_too(taps: int):
    shape, mesh = (2, 12), Mesh.of(a=2, b=2)
    source = Layout((DimSplit(), DimSplit(("a",), 12, 1, -(taps // 2), taps)))
    for wanted in all_layouts(shape, mesh.names):
        judge(on_one(mesh), source, wanted, shape)
    (cut,) = judge(on_one(mesh), source, layout(shape, ["", ["a"]]), shape).steps if taps > 1 else (None,)
    assert cut is None or isinstance(cut, Slice)


def test_a_device_sends_itself_what_it_has_of_an_overlap():
    source = Layout((DimSplit(("a",), 12, 1, -1, 3),))
    step = make_exchange(source, layout((12,), ["a"]), (12,), {"a": 4})
    assert list(step.messages()) == []


def test_time_is_over_before_a_part_is_taken():
    shape = (8, 8)
    source, wanted = layout(shape, [["t"], ""]), layout(shape, ["", ["a"]])
    assert names(judge(on_one(Mesh.of(a=2), {"t": 4}), source, wanted, shape)) == ["Concat", "Slice"]


def test_time_of_one_place_comes_and_goes_by_steps():
    shape = (8,)
    converter = on_one(Mesh.of(a=2), {"t": 1})
    assert names(judge(converter, layout(shape, [["t"]]), replicated(1), shape)) == ["Concat"]
    assert names(judge(converter, replicated(1), layout(shape, [["t"]]), shape)) == ["Slice"]


def test_parts_of_different_granules_need_sends_only_where_they_differ():
    shape, mesh = (12,), Mesh.of(a=4)
    pairs = Layout((DimSplit(("a",), 6, 2, 0, 2),))
    even = Layout((DimSplit(("a",), 4, 3, 0, 3),))
    assert names(judge(on_one(mesh), layout(shape, [["a"]]), even, shape)) == []
    assert names(judge(on_one(mesh), pairs, even, shape)) == ["Exchange"]
    assert names(judge(on_one(mesh), pairs, replicated(1), shape)) == ["AllGather"]


def test_replicas_between_which_no_host_lies_share_what_crosses_hosts():
    shape = (1024, 1024)
    mesh = Mesh.of(dp=2, tp=8)
    partial = layout(shape, ["", ""], ["dp"])
    conversion = judge(on_one(mesh), partial, replicated(2), shape, element_bytes=64)
    assert names(conversion) == ["Slice", "ReduceScatter", "AllGather"]
    alone = LinkCost(mesh, LINKS).all_reduce(("dp",), 1024 * 1024 * 64)
    assert conversion.seconds < alone.seconds / 4
    assert names(judge(on_one(Mesh.of(dp=2, tp=4)), partial, replicated(2), shape)) == ["AllReduce"]


def test_replicas_take_turns_in_sending():
    sizes = {"a": 2, "r": 4}
    source = layout((8,), ["a"])
    step = make_exchange(source, layout((8,), ["r"]), (8,), sizes)
    sent: dict[tuple[int, ...], int] = {}
    for sender, _, size in step.messages():
        sent[sender] = sent.get(sender, 0) + size
    assert max(sent.values()) <= 2


def test_a_mesh_of_one_place_needs_no_steps():
    shape = (4,)
    converter = on_one(Mesh.of(a=1, b=1))
    for source in all_layouts(shape, ("a", "b")):
        for wanted in all_layouts(shape, ("a", "b")):
            assert judge(converter, source, wanted, shape).steps == ()


def test_scalars_are_combined():
    conversion = judge(on_one(Mesh.of(a=2, b=2)), layout((), [], ["a", "b"]), replicated(0), ())
    assert names(conversion) == ["AllReduce"]


def test_axes_by_factors_of_two_are_one_axis():
    axes = {f"a{n}": 2 for n in range(10)}
    shape = (4096, 4096)
    converter = on_one(Mesh.of(**axes))
    partial = layout(shape, ["", ""], list(axes))
    assert names(converter.convert(partial, replicated(2), shape, 4)) == ["AllReduce"]
    (turn,) = converter.convert(layout(shape, [list(axes), ""]), layout(shape, ["", list(axes)]), shape, 4).steps
    assert isinstance(turn, AllToAll)
    assert turn.axes == tuple(axes)


def test_an_order_of_devices_that_nothing_merges_is_found_in_bounded_time():
    axes = {f"a{n}": 2 for n in range(6)}
    shape = (64, 4)
    backwards = layout(shape, [list(reversed(axes)), ""])
    (step,) = judge(on_one(Mesh.of(**axes)), layout(shape, [list(axes), ""]), backwards, shape).steps
    assert isinstance(step, Exchange)
    assert all(len(r.fragments) == 1 for r in step.receives)


def test_the_same_question_is_answered_from_memory():
    shape = (8, 8)
    converter = on_one(Mesh.of(a=2))
    first = converter.convert(layout(shape, ["a", ""]), replicated(2), shape, 4)
    assert converter.convert(layout(shape, ["a", ""]), replicated(2), shape, 4) is first


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (layout((4,), ["x"]), "names axis 'x'"),
        (layout((4,), ["aa"]), "names axis 'a' twice"),
        (layout((4,), ["a"], ["a"]), "names axis 'a' twice"),
        (layout((4, 4), ["a", ""]), "has 2 dims"),
        (Layout((DimSplit(),), (("a", "add"), ("b", "max"))), "add and max"),
        (Layout((DimSplit(),), (("a", "mean"),)), "unknown combiner 'mean'"),
        (Layout((DimSplit(("a",), 2),)), "no device has positions 2 to 4 of dim 0"),
    ],
)
def test_layouts_that_mean_nothing_are_refused(source: Layout, reason: str):
    with pytest.raises(PlanError, match=reason):
        on_one(Mesh.of(a=2, b=2)).convert(source, replicated(1), (4,), 4)


def test_an_axis_of_time_has_a_name_of_its_own():
    with pytest.raises(PlanError, match="one of the mesh and one of time"):
        on_one(Mesh.of(a=2), {"a": 2})


SCRIPT = """
from layout_harness import all_layouts, on_one
from mlirstitch.mesh import Mesh
converter = on_one(Mesh.of(a=2, b=3), {"t": 2})
found = list(all_layouts((5, 3), ("a", "b", "t")))
print([converter.convert(s, w, (5, 3), 4) for s in found[::7] for w in found[::11]])
"""


def test_every_process_finds_the_same_steps():
    def steps(seed: str) -> bytes:
        paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True).stdout

    first = steps("1")
    assert first == steps("2")
    assert b"AllToAll" in first
