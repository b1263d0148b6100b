"""The explorer's parts: windows, candidates, the beam, and how much work a whole function takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from linalg_text import Text
from text_graphs import graph_of, nodes_of

from mlirstitch.passes.stitching import greedy, template
from mlirstitch.passes.stitching.explorer import BeamClusterer
from mlirstitch.passes.stitching.explorer.beam import beam_search
from mlirstitch.passes.stitching.explorer.partition import Partition
from mlirstitch.passes.stitching.explorer.window import Pattern, Window, mask_of, places
from mlirstitch.passes.stitching.fusion_plan import FusionPlan, PlannedCluster, Rule, check_plan
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.judge import Judge, Limits
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.target import Target

TARGET = Target.parse("sm_90")
pytestmark = pytest.mark.usefixtures("fake_templates")


def _plan(text: str) -> tuple[Graph, FusionPlan]:
    graph = graph_of(text)
    plan = BeamClusterer().plan(graph, TARGET, "none")
    check_plan(graph, plan)
    return graph, plan


def _norm(text: Text, value: str) -> str:
    centred = text.map("arith.subf", value, text.reduce("arith.addf", value, 1))
    return text.map("math.exp", centred)


def _two_branches() -> Graph:
    """0 feeds 1 and 2, 3 reads both; 4 reads 3, and 5 is on its own."""
    text = Text(x="4x8")
    first = text.map("math.absf", "%x")
    left, right = text.map("math.exp", first), text.map("math.tanh", first)
    joined = text.map("arith.addf", left, right)
    return graph_of(text.module(text.map("math.absf", joined), text.map("math.cos", "%x")))


# Windows --------------------------------------------------------------------------------------------------------------


def test_the_closure_of_a_set_takes_in_every_path_between_its_members() -> None:
    window = Window(_two_branches(), range(6))
    assert list(places(window.closure(mask_of([0, 3])))) == [0, 1, 2, 3]
    assert list(places(window.closure(mask_of([0, 5])))) == [0, 5]


def test_producers_join_whose_every_reader_is_inside() -> None:
    window = Window(_two_branches(), range(6))
    assert list(places(window.with_producers(mask_of([3])))) == [0, 1, 2, 3]
    assert list(places(window.with_producers(mask_of([1])))) == [1]


def test_producers_that_others_outside_the_window_read_may_stay_out() -> None:
    window = Window(_two_branches(), range(4))  # 4 reads 3 outside
    assert window.leaving == mask_of([3])
    assert list(places(window.with_producers(mask_of([3]), leaving=False))) == [0, 1, 2, 3]
    window = Window(_two_branches(), [0, 1, 3, 4])  # 2 reads 0 outside
    assert window.leaving == mask_of([0, 3])
    assert list(places(window.with_producers(mask_of([1])))) == [0, 1]
    assert list(places(window.with_producers(mask_of([1]), leaving=False))) == [1]


def test_reachability_holds_in_a_window_of_some_nodes() -> None:
    window = Window(_two_branches(), [1, 3, 4])
    assert window.nodes == (1, 3, 4)
    assert window.reach(mask_of([0])) == (mask_of([0, 1, 2]), mask_of([0]))
    assert window.reach(mask_of([1])) == (mask_of([1, 2]), mask_of([0, 1]))


def test_a_window_sees_dependences_through_ops_that_every_reader_computes() -> None:
    window = Window(_two_branches(), [0, 3, 4], hidden=[1, 2])
    assert window.successors == ((1,), (2,), ())
    assert window.reach(mask_of([0])) == (mask_of([0, 1, 2]), mask_of([0]))


# The beam -------------------------------------------------------------------------------------------------------------


def _pattern(window: Window, members: list[int], gain: float) -> Pattern:
    mask = mask_of(members)
    return Pattern(mask, *window.reach(mask), gain)


def _crossed() -> Window:
    """0 feeds 2, 1 feeds 3: {0, 3} and {1, 2} are convex, but each needs the other."""
    text = Text(x="4x8", y="4x8")
    first, second = text.map("math.absf", "%x"), text.map("math.absf", "%y")
    return Window(graph_of(text.module(text.map("math.exp", first), text.map("math.exp", second))), range(4))


def test_two_convex_patterns_that_need_each_other_are_in_no_plan() -> None:
    window = _crossed()
    alone = [[_pattern(window, [place], 0.0)] for place in range(4)]
    one, other = _pattern(window, [0, 3], 2.0), _pattern(window, [1, 2], 1.0)
    assert one.is_convex
    assert other.is_convex
    best = beam_search([[one, *alone[0]], [other, *alone[1]], *alone[2:]])
    assert best[0].gain == 2.0
    assert all({one, other} - set(plan.patterns) for plan in best)


def test_a_plan_that_leaves_a_node_to_a_better_pattern_is_not_crowded_out() -> None:
    text = Text(x="4x8")
    value = "%x"
    for _ in range(4):
        value = text.map("math.exp", value)
    window = Window(graph_of(text.module(value)), range(4))
    alone = [_pattern(window, [place], 0.0) for place in range(4)]
    candidates = [
        [_pattern(window, [0, 1], 3.0), alone[0]],
        [_pattern(window, [1, 2, 3], 5.0), alone[1]],
        [alone[2]],
        [alone[3]],
    ]
    assert beam_search(candidates, width=1)[0].gain == 5.0


def test_clusters_around_another_are_not_convex_without_it() -> None:
    partition = Partition(_two_branches(), [[0], [1], [2], [3, 4], [5]])
    assert not partition.is_convex([0, 3])
    assert not partition.is_convex([0, 1, 3])
    assert partition.is_convex([0, 1, 2, 3])
    added = partition.replace([0, 1, 2, 3], [[0, 1], [2], [3], [4]])
    assert [partition.clusters[number] for number in added] == [(0, 1), (2,), (3,), (4,)]
    assert partition.is_convex([added[0], added[1]])
    assert not partition.is_convex([added[0], added[2]])


def test_a_path_through_what_every_reader_computes_counts() -> None:
    text = Text(x="4x8")
    value = "%x"
    for op in ("math.exp", "arith.negf", "math.exp", "math.exp"):
        value = text.map(op, value)
    partition = Partition(graph_of(text.module(value)), [[0], [2], [3]])  # node 1 is in every cluster that reads it
    assert partition.neighbours(0) == [1]
    assert not partition.is_convex([0, 2])


def _read_twice() -> Graph:
    """0 feeds 1, which moves data and which two ops read that share no kernel: 2 and 3."""
    text = Text(x="8x8", w="4x8")
    whole = text.map("math.exp", "%x")
    half = text.op(
        f"tensor.extract_slice {whole}[0, 0] [8, 4] [1, 1] : tensor<8x8xf32> to tensor<8x4xf32>", "tensor<8x4xf32>"
    )
    return graph_of(text.module(text.matmul(half, "%w"), text.matmul(half, "%w"), whole))


def test_clusters_that_share_a_node_or_need_each_other_are_no_partition() -> None:
    with pytest.raises(ValueError, match="share 1 nodes"):
        Partition(_read_twice(), [[0], [1, 2], [1, 3]])
    with pytest.raises(ValueError, match="need each other's results"):
        Partition(_two_branches(), [[0, 3], [1], [2], [4, 5]])


def test_a_node_that_two_kernels_compute_is_in_no_cluster_though_they_share_a_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = _read_twice()
    assert nodes_of(BeamClusterer().plan(graph, TARGET, "none")) == [(0,), (1, 2), (1, 3)]

    def pack_products(_: Graph, plan: FusionPlan, *rest: object) -> FusionPlan:
        first, *others = plan.clusters
        return FusionPlan((first, PlannedCluster(tuple(sorted({n for c in others for n in c.nodes})))), plan.apart)

    monkeypatch.setattr(greedy, "pack_independent", pack_products)
    assert nodes_of(BeamClusterer().plan(graph, TARGET, "none")) == [(0,), (1, 2, 3)]


def test_a_node_that_two_kernels_compute_may_lie_between_two_of_a_cluster() -> None:
    graph = _read_twice()
    run = greedy.GreedyRun(graph, Judge(graph, TARGET, "none", Limits()), TARGET)
    assert run.restart([(3,), (0, 2)]) == [0, 3]
    assert run.contraction.predecessors(3) == [0]


# Whole functions ------------------------------------------------------------------------------------------------------


def test_a_residual_that_is_read_again_is_added_where_the_product_is_made() -> None:
    text = Text(x="4x16", w="16x16", rest="4x16")
    total = text.map("arith.addf", text.matmul("%x", "%w"), "%rest")
    _, plan = _plan(text.module(_norm(text, total), total))
    assert nodes_of(plan) == [(0, 1), (2, 3, 4)]
    assert [pair.rule for pair in plan.apart] == [Rule.COMPUTE, Rule.COMPUTE]


def test_nothing_changes_where_the_greedy_plan_is_as_good() -> None:
    text = Text(x="4x16", w="16x16")
    _, plan = _plan(text.module(_norm(text, text.matmul("%x", "%w"))))
    assert nodes_of(plan) == [(0,), (1, 2, 3)]


# Work -----------------------------------------------------------------------------------------------------------------


def _layers(count: int) -> str:
    """Equal layers: a matmul, a residual and a norm."""
    text = Text(x="8x16", w="16x16")
    value = "%x"
    for _ in range(count):
        value = _norm(text, text.map("arith.addf", text.matmul(value, "%w"), value))
    return text.module(value)


def _chain(count: int) -> str:
    text = Text(x="8x16")
    value = "%x"
    for number in range(count):
        value = text.map(("math.exp", "math.absf", "math.tanh")[number % 3], value)
    return text.module(value)


def _independent(count: int) -> str:
    text = Text(**{f"x{number}": "8x16" for number in range(count)})
    return text.module(*(text.map("math.exp", f"%x{number}") for number in range(count)))


def _asked(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many ops the templates were asked about, all questions together."""
    asked = 0

    def counted(applies: Callable[..., str | None]) -> Callable[..., str | None]:
        def count(self: object, cluster: Cluster, target: Target) -> str | None:
            nonlocal asked
            asked += len(cluster.ops)
            return applies(self, cluster, target)

        return count

    with monkeypatch.context() as patch:
        for known in {type(found) for found in template.templates()}:
            patch.setattr(known, "applies", counted(known.applies))
        _plan(text)
    return asked


@pytest.mark.parametrize("make", [_layers, _chain, _independent])
def test_twice_the_ops_take_little_more_than_twice_the_questions(
    make: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _asked(make(160), monkeypatch) <= 2.5 * _asked(make(80), monkeypatch)


def test_equal_layers_are_explored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _asked(_layers(32), monkeypatch) <= 1.2 * _asked(_layers(16), monkeypatch)
