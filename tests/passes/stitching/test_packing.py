"""Kernel packing: independent clusters share a launch where that pays, in the same way in every layer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from linalg_text import Text
from text_graphs import graph_of

import mlirstitch.lowering  # noqa: F401  (registers templates)
from mlirstitch.lowering.kernel.packed import PackedTemplate
from mlirstitch.passes.stitching.fusion_plan import FusionPlan, PlannedCluster, check_plan
from mlirstitch.passes.stitching.graph import Graph, tensor_bytes
from mlirstitch.passes.stitching.independent import independent_parts
from mlirstitch.passes.stitching.judge import Limits
from mlirstitch.passes.stitching.packing import pack_independent
from mlirstitch.passes.stitching.packing_cost import Load, seconds_lost
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.target import Target

TARGET = Target.parse("sm_90")
DEFAULTS = Limits()


def packed(
    graph: Graph,
    clusters: Sequence[Sequence[int]],
    limits: Limits = DEFAULTS,
    fixed: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """Nodes of the clusters after packing."""
    plan = FusionPlan(tuple(PlannedCluster(tuple(nodes)) for nodes in clusters), ())
    check_plan(graph, plan)
    with graph.function.context, graph.function.location:
        found = pack_independent(graph, plan, TARGET, limits, fixed)
        again = pack_independent(graph, plan, TARGET, limits, fixed)
    check_plan(graph, found)
    assert argument_bytes(graph, found) <= argument_bytes(graph, plan)
    assert found == again
    return [cluster.nodes for cluster in found.clusters]


def argument_bytes(graph: Graph, plan: FusionPlan) -> int:
    made = [graph.cluster(cluster.nodes, plan.duplicated()) for cluster in plan.clusters]
    return sum(tensor_bytes(value) for cluster in made for value in (*cluster.inputs, *cluster.outputs))


def each_alone(graph: Graph) -> list[tuple[int, ...]]:
    return [(node,) for node in range(len(graph.ops))]


def three_maps() -> Graph:
    text = Text(x="8x16", y="4x32", z="64x2")
    return graph_of(text.module(*(text.map("math.exp", f"%{name}") for name in "xyz")))


def test_independent_clusters_share_a_launch() -> None:
    graph = three_maps()
    assert packed(graph, each_alone(graph)) == [(0, 1, 2)]


def test_one_part_at_most_turns_packing_off() -> None:
    graph = three_maps()
    assert packed(graph, each_alone(graph), Limits(parts=1)) == [(0,), (1,), (2,)]


def test_no_more_parts_arguments_or_ops_than_allowed() -> None:
    graph = three_maps()
    assert packed(graph, each_alone(graph), Limits(parts=2)) == [(0, 1), (2,)]
    assert packed(graph, each_alone(graph), Limits(arguments=5)) == [(0, 1), (2,)]
    assert packed(graph, each_alone(graph), Limits(ops=2)) == [(0, 1), (2,)]


def test_parts_whose_kernel_the_chip_cannot_run_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part alone may have registers that the largest block of all parts leaves it not."""
    monkeypatch.setattr(PackedTemplate, "refusal", lambda *_: "a thread needs about 217 registers")
    graph = three_maps()
    assert packed(graph, each_alone(graph)) == [(0,), (1,), (2,)]


def test_clusters_that_depend_on_each_other_stay_apart() -> None:
    text = Text(x="8x16")
    first = text.map("math.exp", "%x")
    graph = graph_of(text.module(text.map("math.tanh", first), first))
    assert packed(graph, each_alone(graph)) == [(0,), (1,)]


def test_no_path_through_a_third_cluster_joins_parts() -> None:
    """y depends on x by way of the product: equal to neither its depth from the start nor from the end."""
    text = Text(x="16x16", w="16x16")
    x = text.map("math.exp", "%x")
    y = text.map("math.tanh", text.matmul(x, "%w"))
    graph = graph_of(text.module(x, y))
    assert packed(graph, each_alone(graph)) == [(0,), (1,), (2,)]


def test_nodes_that_are_kept_as_they_are_are_not_packed() -> None:
    graph = three_maps()
    assert packed(graph, each_alone(graph), fixed=(1,)) == [(1,), (0, 2)]


def layers(count: int) -> tuple[Graph, list[tuple[int, ...]]]:
    """Layers of three products of one tensor with an exp after each, and a sum of the three."""
    text = Text(x="16x16", w="16x16")
    value, clusters, node = "%x", [], 0
    for _ in range(count):
        branches = []
        for _ in range(3):
            branches.append(text.map("math.exp", text.matmul(value, "%w")))
            clusters += [(node,), (node + 1,)]
            node += 2
        value = text.map("arith.addf", text.map("arith.addf", branches[0], branches[1]), branches[2])
        clusters.append((node, node + 1))
        node += 2
    return graph_of(text.module(value)), clusters


def test_identical_layers_are_packed_alike() -> None:
    graph, clusters = layers(4)
    found = packed(graph, clusters)
    packs = [nodes for nodes in found if len(nodes) == 3]
    assert packs == [tuple(first + layer * 8 for first in (1, 3, 5)) for layer in range(4)]


def test_a_result_does_not_wait_long_for_a_pack() -> None:
    """Each step makes 4 MB that only its sum reads; packing the sums would keep all of them."""
    text = Text(x="1024x1024")
    value, sums = "%x", []
    for _ in range(4):
        value = text.map("math.exp", value)
        wide = text.map("arith.mulf", value, value)
        sums.append(text.reduce("arith.addf", wide, 1))
    graph = graph_of(text.module(*sums))
    alone = each_alone(graph)
    assert packed(graph, alone) == alone


def test_an_argument_is_still_overwritten_in_place() -> None:
    """What reads the old contents of an argument is not packed with what makes the new ones."""
    text = Text(x="8x16", y="8x16")
    read, made = text.map("math.exp", "%x"), text.map("math.tanh", "%y")
    whole = text.module(read, made)
    graph = graph_of(whole)
    assert packed(graph, each_alone(graph)) == [(0, 1)]
    named = whole.replace("%x: tensor<8x16xf32>", '%x: tensor<8x16xf32> {stitch.name = "x"}')
    results = "(tensor<8x16xf32>, tensor<8x16xf32>)"
    assert named.count(f"-> {results}") == 1
    named = named.replace(f"-> {results}", '-> (tensor<8x16xf32>, tensor<8x16xf32> {stitch.mutates = "x"})')
    graph = graph_of(named)
    assert packed(graph, each_alone(graph)) == [(0,), (1,)]


def test_a_light_part_does_not_pay_for_a_heavy_one() -> None:
    light = Load(400 << 20, (400 << 20) / TARGET.bandwidth, 256, 100_000, 32, 0)
    heavy = Load(400 << 20, (400 << 20) / TARGET.bandwidth, 256, 100_000, 200, 0)
    small = Load(1 << 10, (1 << 10) / TARGET.bandwidth, 256, 1, 32, 0)
    assert seconds_lost([light, light], TARGET) == 0
    assert seconds_lost([light, heavy], TARGET) > TARGET.launch_seconds
    assert seconds_lost([small, heavy], TARGET) < TARGET.launch_seconds


def map_beside_rows(rows: int) -> Graph:
    """An exp over ``rows`` x 1024 elements, and rows of 8192 that are kept in registers."""
    text = Text(x=f"{rows}x1024", y="4096x8192")
    powers = text.map("math.exp", "%y")
    scaled = text.map("arith.divf", powers, text.reduce("arith.addf", powers, 1))
    return graph_of(text.module(text.map("math.tanh", "%x"), scaled))


def test_a_large_part_keeps_a_launch_of_its_own_beside_a_greedy_one() -> None:
    clusters = [(0, 1, 2), (3,)]
    assert packed(map_beside_rows(8), clusters) == [(0, 1, 2, 3)]
    assert packed(map_beside_rows(1 << 18), clusters) == clusters


def test_dynamic_shared_memory_of_one_part_costs_the_others() -> None:
    plain = Load(400 << 20, (400 << 20) / TARGET.bandwidth, 256, 100_000, 32, 0)
    staged = Load(400 << 20, (400 << 20) / TARGET.bandwidth, 1024, 100_000, 32, 120 << 10)
    assert seconds_lost([plain, staged], TARGET) > TARGET.launch_seconds


def parts_of(text: str, nodes: Sequence[int]) -> list[Cluster]:
    return list(independent_parts(graph_of(text).cluster(nodes)))


def test_what_parts_only_move_joins_nothing() -> None:
    text = Text(x="8x16")
    turned = text.transpose("%x")
    parts = parts_of(text.module(text.map("math.exp", turned), text.map("math.tanh", turned)), (0, 1, 2))
    assert len(parts) == 2
    assert all(len(part.inputs) == len(part.outputs) == 1 for part in parts)


def test_what_parts_compute_joins_them() -> None:
    text = Text(x="8x16")
    square = text.map("arith.mulf", "%x", "%x")
    parts = parts_of(text.module(text.map("math.exp", square), text.map("math.tanh", square)), (0, 1, 2))
    assert len(parts) == 1


def test_a_movement_that_is_returned_is_computed_once() -> None:
    text = Text(x="8x16")
    turned = text.transpose("%x")
    parts = parts_of(text.module(text.map("math.exp", turned), turned), (0, 1))
    assert len(parts) == 1


@pytest.mark.parametrize("count", [40])
def test_packing_takes_as_many_launches_as_the_argument_limit_allows(count: int) -> None:
    text = Text(**{f"a{i}": f"{8 + i}x16" for i in range(count)})
    graph = graph_of(text.module(*(text.map("math.exp", f"%a{i}") for i in range(count))))
    assert len(packed(graph, each_alone(graph), Limits(arguments=2 * 32))) == 2
