"""The greedy clusterer, with templates of known behaviour."""

from __future__ import annotations

import random
import time

import pytest
from linalg_text import Text
from mlir import ir
from text_graphs import graph_of, nodes_of

from mlirstitch.dialects import stitch
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.cluster import write_plan
from mlirstitch.passes.stitching.fusion_plan import Apart, FusionPlan, PlannedCluster, Rule, check_plan
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.greedy import GreedyClusterer
from mlirstitch.passes.stitching.judge import Limits
from mlirstitch.target import Target

TARGET = Target.parse("sm_90")
pytestmark = pytest.mark.usefixtures("fake_templates")


def _plan(text: str, limits: Limits = Limits(), library: str = "none") -> tuple[Graph, FusionPlan]:  # noqa: B008
    graph = graph_of(text)
    plan = GreedyClusterer(limits).plan(graph, TARGET, library)
    check_plan(graph, plan)
    return graph, plan


def _softmax(text: Text, value: str) -> str:
    highest = text.reduce("arith.maximumf", value, 1)
    powers = text.map("math.exp", text.map("arith.subf", value, highest))
    return text.map("arith.divf", powers, text.reduce("arith.addf", powers, 1))


def test_a_softmax_is_one_cluster() -> None:
    text = Text(x="4x8")
    _, plan = _plan(text.module(_softmax(text, "%x")))
    assert nodes_of(plan) == [(0, 1, 2, 3, 4)]
    assert plan.apart == ()


def test_a_matmul_takes_its_transpose_and_its_epilogue_and_rows_stay_apart() -> None:
    text = Text(x="4x16", w="8x16", b="4x8")
    product = text.matmul("%x", text.transpose("%w"), line="7")
    biased = text.map("arith.addf", product, "%b", line="8")
    _, plan = _plan(text.module(_softmax(text, text.map("math.exp", biased))))
    assert nodes_of(plan) == [(0, 1), (2, 3, 4, 5, 6, 7, 8)]
    assert plan.apart == (Apart(1, 2, 2, Rule.COMPUTE, "", "tensor<4x8xf32>", 128),)


def test_an_element_wise_tail_goes_into_the_matmul() -> None:
    text = Text(x="4x16", w="16x8", b="4x8")
    tail = text.map("math.exp", text.map("arith.addf", text.matmul("%x", "%w"), "%b"))
    _, plan = _plan(text.module(tail))
    assert nodes_of(plan) == [(0, 1, 2)]


def test_an_expensive_producer_is_not_recomputed_by_a_matmul() -> None:
    text = Text(x="4x16", w="16x8")
    _, plan = _plan(text.module(text.matmul(text.map("math.exp", "%x"), "%w")))
    assert nodes_of(plan) == [(0,), (1,)]
    assert [pair.rule for pair in plan.apart] == [Rule.RECOMPUTE]


def test_a_library_adds_a_tensor_to_its_product() -> None:
    text = Text(x="4x16", w="16x8", b="4x8")
    _, plan = _plan(text.module(text.map("arith.addf", text.matmul("%x", "%w"), "%b")), library="auto")
    assert plan.clusters == (PlannedCluster((0, 1), "matmul"),)
    assert plan.apart == ()


def test_what_no_epilogue_computes_stays_apart_with_the_reason() -> None:
    text = Text(x="4x16", w="16x8")
    _, plan = _plan(text.module(text.map("math.erf", text.matmul("%x", "%w"))), library="auto")
    assert plan.clusters == (PlannedCluster((0,), "matmul"), PlannedCluster((1,)))
    assert [(pair.rule, pair.detail) for pair in plan.apart] == [(Rule.LIBRARY, "no epilogue computes math.erf")]


def test_a_matmul_onto_a_tensor_is_no_library_call() -> None:
    text = Text(x="4x16", w="16x8", c="4x8")
    result = text.op(
        "linalg.matmul ins(%x, %w : tensor<4x16xf32>, tensor<16x8xf32>) outs(%c : tensor<4x8xf32>) -> tensor<4x8xf32>",
        "tensor<4x8xf32>",
    )
    _, plan = _plan(text.module(result), library="auto")
    assert plan.clusters == (PlannedCluster((0,)),)


def test_a_matmul_of_a_constant_is_no_library_call() -> None:
    text = Text(w="16x8")
    zero = text.op("arith.constant 0.0 : f32", "f32")
    empty = text.empty("tensor<4x16xf32>")
    zeros = text.op(
        f"linalg.fill ins({zero} : f32) outs({empty} : tensor<4x16xf32>) -> tensor<4x16xf32>", "tensor<4x16xf32>"
    )
    _, plan = _plan(text.module(text.matmul(zeros, "%w")), library="auto")
    assert plan.clusters == (PlannedCluster((0,)),)


def test_a_transpose_that_two_matmuls_read_is_computed_by_both() -> None:
    text = Text(x="4x16", y="4x16", w="8x16")
    turned = text.transpose("%w")
    _, plan = _plan(text.module(text.matmul("%x", turned), text.matmul("%y", turned)))
    assert nodes_of(plan) == [(0, 1), (0, 2)]
    assert plan.duplicated() == {0}


def test_every_kernel_that_computes_a_movement_for_itself_tells_why_it_reads_its_source() -> None:
    text = Text(x="8x8", w="4x8")
    whole = text.map("math.exp", "%x")
    half = text.op(
        f"tensor.extract_slice {whole}[0, 0] [8, 4] [1, 1] : tensor<8x8xf32> to tensor<8x4xf32>", "tensor<8x4xf32>"
    )
    graph, plan = _plan(text.module(text.matmul(half, "%w"), text.matmul(half, "%w"), whole))
    assert nodes_of(plan) == [(0,), (1, 2), (1, 3)]
    assert [(pair.producer, pair.consumer, pair.reader) for pair in plan.apart] == [(0, 1, 2), (0, 1, 3)]
    assert {pair.rule for pair in plan.apart} == {Rule.RECOMPUTE}  # no third kernel is between
    write_plan(graph, plan)
    told = stitch.APART.require(graph.function)
    assert [list(ir.DenseI64ArrayAttr(entry["clusters"])) for entry in told] == [[0, 1], [0, 2]]
    assert [list(ir.DenseI64ArrayAttr(entry["positions"])) for entry in told] == [[0, 0], [0, 0]]


def test_a_kernel_takes_no_movement_that_only_another_one_needs() -> None:
    text = Text(x="4x16", y="4x16", w="16x16")
    turned = text.transpose("%w")
    back = text.transpose(turned)
    _, plan = _plan(text.module(text.matmul("%x", turned), text.matmul("%y", back)))
    assert nodes_of(plan) == [(0, 2), (0, 1, 3)]


def test_a_returned_transpose_is_stored_once() -> None:
    text = Text(x="4x16", y="4x16", w="8x16")
    turned = text.transpose("%w")
    _, plan = _plan(text.module(text.matmul("%x", turned), text.matmul("%y", turned), turned))
    assert nodes_of(plan) == [(0,), (1,), (2,)]
    assert {pair.rule for pair in plan.apart} == {Rule.TEMPLATE}  # the kernel would store two shapes


def test_a_path_through_a_matmul_keeps_rows_apart() -> None:
    # x + matmul(norm(x)): the addition may join neither the norm nor anything that would make a cycle
    text = Text(x="8x8", w="8x8")
    normed = text.map("arith.divf", "%x", text.reduce("arith.addf", "%x", 1))
    summed = text.map("arith.addf", normed, text.matmul(normed, "%w"))
    graph, plan = _plan(text.module(_softmax(text, summed)))
    assert nodes_of(plan)[0] == (0, 1)
    assert Rule.CYCLE in {pair.rule for pair in plan.apart}
    assert len(graph.ops) == sum(len(nodes) for nodes in nodes_of(plan))


def test_rows_and_columns_are_cut_with_the_rows_together() -> None:
    text = Text(x="4x8", g="4x8")
    normed = text.map("arith.subf", "%x", text.reduce("arith.addf", "%x", 1))
    tail = text.map("arith.mulf", normed, text.reduce("arith.addf", text.map("arith.mulf", normed, "%g"), 1))
    total = text.reduce("arith.addf", text.reduce("arith.addf", tail, 1), 0)
    _, plan = _plan(text.module(tail, total))
    assert len(plan.clusters) == 2
    assert plan.clusters[1].nodes == (6,)


def test_ops_that_read_one_tensor_at_the_same_shape_share_a_kernel() -> None:
    text = Text(x="64")
    _, plan = _plan(text.module(*(text.map("math.exp", "%x") for _ in range(5))))
    assert len(plan.clusters) == 1


def test_limits_bound_a_kernel() -> None:
    text = Text(x="64")
    value = "%x"
    for _ in range(10):
        value = text.map("math.exp", value)
    _, plan = _plan(text.module(value), Limits(ops=4))
    assert max(len(nodes) for nodes in nodes_of(plan)) <= 4
    assert {pair.rule for pair in plan.apart} == {Rule.LIMIT}
    wide = Text(x="64")
    _, plan = _plan(wide.module(*(wide.map("math.exp", "%x") for _ in range(20))), Limits(arguments=6))
    assert all(len(nodes) <= 5 for nodes in nodes_of(plan))


def test_an_op_without_template_is_refused_with_its_line() -> None:
    text = Text(i="1x2x8x8", k="3x2x3x3", o="1x3x6x6")
    value = text.op(
        "linalg.conv_2d_nchw_fchw ins(%i, %k : tensor<1x2x8x8xf32>, tensor<3x2x3x3xf32>) "
        'outs(%o : tensor<1x3x6x6xf32>) -> tensor<1x3x6x6xf32> loc("model.py":42:0)',
        "tensor<1x3x6x6xf32>",
    )
    with pytest.raises(PassError) as caught:
        _plan(text.module(value))
    assert caught.value.source == "model.py:42"
    assert "no convolutions here" in str(caught.value)
    assert "linalg.conv_2d_nchw_fchw" in str(caught.value)


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_get_a_plan_that_covers_and_runs(seed: int) -> None:
    source = random.Random(seed)
    text = Text(x="8x8", y="8x8")
    values = ["%x", "%y"]
    for _ in range(source.randint(3, 25)):
        kind = source.randint(0, 9)
        first, second = source.choice(values), source.choice(values)
        if kind == 0:
            values.append(text.matmul(first, second))
        elif kind == 1:
            values.append(text.map("arith.subf", first, text.reduce("arith.addf", first, source.randint(0, 1))))
        elif kind == 2:
            values.append(text.transpose(first))
        else:
            values.append(text.map("arith.addf", first, second))
    returned = {values[-1], *source.sample(values[2:], min(2, len(values) - 2))}
    module = text.module(*sorted(returned))
    graph, plan = _plan(module)
    again = GreedyClusterer().plan(graph_of(module), TARGET, "none")
    assert again == plan
    pairs = {(pair.producer, pair.consumer) for pair in plan.apart}
    homes = {node: cluster for cluster in plan.clusters for node in cluster.nodes}
    assert all(homes[producer] != homes[consumer] for producer, consumer in pairs)
    assert len(graph.ops) <= sum(len(nodes) for nodes in nodes_of(plan))


def test_a_plan_that_misses_a_node_or_runs_backwards_is_refused() -> None:
    text = Text(x="8")
    graph = graph_of(text.module(text.map("math.exp", text.map("math.sqrt", "%x"))))
    with pytest.raises(PassError, match="leaves out node 1"):
        check_plan(graph, FusionPlan((PlannedCluster((0,)),), ()))
    with pytest.raises(PassError, match="runs node 1 before node 0"):
        check_plan(graph, FusionPlan((PlannedCluster((1,)), PlannedCluster((0,))), ()))
    with pytest.raises(PassError, match="duplicates node 1, which is returned"):
        check_plan(graph, FusionPlan((PlannedCluster((0, 1)), PlannedCluster((0, 1))), ()))


@pytest.mark.parametrize(("shape", "count"), [("chain", 3000), ("wide", 2000)])
def test_thousands_of_ops_take_seconds(shape: str, count: int) -> None:
    text = Text(x="64")
    value, values = "%x", []
    for _ in range(count):
        value = text.map("math.absf", "%x" if shape == "wide" else value)
        values.append(value)
    graph = graph_of(text.module(*(values if shape == "wide" else values[-1:])))
    start = time.perf_counter()
    plan = GreedyClusterer().plan(graph, TARGET, "none")
    assert time.perf_counter() - start < 20  # a quadratic clusterer takes minutes
    check_plan(graph, plan)
    assert len(plan.clusters) < 40
