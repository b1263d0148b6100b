"""Clusters that templates take and then cannot emit: plans are cut until the code generator has a kernel for each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fake_templates import FakeLoopNest, FakeRow
from linalg_text import Text
from mlir import ir
from random_graphs import random_inputs, random_program
from text_graphs import graph_of, nodes_of

import mlirstitch
from mlirstitch.dialects import stitch
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.column import ColumnTemplate
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate
from mlirstitch.lowering.kernel.row import RowTemplate
from mlirstitch.lowering.kernel.row_column import RowColumnTemplate
from mlirstitch.passes.stitching.cluster import CLUSTERERS
from mlirstitch.passes.stitching.fusion_plan import FusionPlan, Rule, check_plan
from mlirstitch.passes.stitching.graph import Graph, build_graph
from mlirstitch.passes.stitching.judge import Limits
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

TARGET = Target.parse("sm_90")
EXPLORERS = pytest.mark.parametrize("explorer", CLUSTERERS)

Says = Callable[[Cluster], "str | None"]


def _graph(text: str, mark: Callable[[ir.Operation], None] = lambda op: None, marked: Sequence[int] = ()) -> Graph:
    """The graph of a module, some of whose nodes were marked before."""
    graph = graph_of(text)
    for node in marked:
        mark(graph.ops[node])
    return build_graph(graph.function)


def _plan(graph: Graph, explorer: str) -> FusionPlan:
    plan = CLUSTERERS[explorer](Limits()).plan(graph, TARGET, "none")
    check_plan(graph, plan)
    return plan


def _computed(cluster: Cluster) -> list[str]:
    """Names of the ops that are no constants, fills or empty tensors."""
    return [op.name for op in cluster.ops if op.name not in ("arith.constant", "linalg.fill", "tensor.empty")]


@pytest.fixture
def take_back(fake_templates: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Says], None]:
    """Let the templates refuse every schedule of clusters that they said they would take."""

    def patch(says: Says) -> None:
        def refusal(self: object, cluster: Cluster, schedule: Schedule, target: Target) -> str | None:
            return says(cluster)

        monkeypatch.setattr(FakeRow, "refusal", refusal)
        monkeypatch.setattr(FakeLoopNest, "refusal", refusal)

    return patch


def _at_most(count: int) -> Says:
    return lambda cluster: f"more than {count}" if len(_computed(cluster)) > count else None


def _chain(count: int) -> Text:
    text = Text(x="4x8")
    for number in range(count):
        text.map("math.exp", f"%v{2 * number - 1}" if number else "%x")
    return text


@EXPLORERS
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_cluster_is_cut_until_every_part_can_be_emitted(
    explorer: str, most: int, take_back: Callable[[Says], None]
) -> None:
    graph = _graph(_chain(7).module("%v13"))
    assert nodes_of(_plan(graph, explorer)) == [tuple(range(7))]
    take_back(_at_most(most))
    graph = _graph(_chain(7).module("%v13"))
    plan = _plan(graph, explorer)
    assert max(map(len, nodes_of(plan))) <= most
    assert sorted(node for nodes in nodes_of(plan) for node in nodes) == list(range(7))
    assert {(pair.rule, pair.detail.split("; ")[0]) for pair in plan.apart} == {
        (Rule.TEMPLATE, f"row: more than {most}")
    }


@EXPLORERS
def test_what_is_wanted_together_stays_together(explorer: str, take_back: Callable[[Says], None]) -> None:
    def mark(op: ir.Operation) -> None:
        stitch.KEEP_TOGETHER.set(op, ("exp #0",))

    take_back(_at_most(3))
    assert (2, 3, 4) in nodes_of(_plan(_graph(_chain(6).module("%v11"), mark, (2, 3, 4)), explorer))
    take_back(_at_most(2))
    with pytest.raises(PassError, match=r"keep together exp .*: no kernel template can compute them together"):
        _plan(_graph(_chain(6).module("%v11"), mark, (2, 3, 4)), explorer)


@EXPLORERS
def test_ops_with_one_number_that_cannot_be_emitted_together_are_refused(
    explorer: str, take_back: Callable[[Says], None]
) -> None:
    take_back(_at_most(1))
    graph = _graph(_chain(3).module("%v5"), lambda op: stitch.MEMBER.set(op, (7,)), (0, 1))
    with pytest.raises(PassError, match=r"keeps 2 ops together as 7 .*: no kernel template can compute them together"):
        _plan(graph, explorer)


def _products_of_a_half() -> str:
    """0 is returned; 1 is half of it, which the products 2 and 3 read."""
    text = Text(x="8x8", w="4x8")
    whole = text.map("math.exp", "%x")
    half = text.op(
        f"tensor.extract_slice {whole}[0, 0] [8, 4] [1, 1] : tensor<8x8xf32> to tensor<8x4xf32>", "tensor<8x4xf32>"
    )
    return text.module(text.matmul(half, "%w"), text.matmul(half, "%w"), whole)


@EXPLORERS
def test_what_kernels_cannot_compute_for_themselves_they_read(explorer: str, take_back: Callable[[Says], None]) -> None:
    assert nodes_of(_plan(_graph(_products_of_a_half()), explorer)) == [(0,), (1, 2), (1, 3)]
    take_back(_at_most(1))
    plan = _plan(_graph(_products_of_a_half()), explorer)
    assert nodes_of(plan) == [(0,), (1,), (2,), (3,)]
    assert [(pair.producer, pair.consumer) for pair in plan.apart] == [(0, 1), (1, 2), (1, 3)]


@EXPLORERS
def test_a_single_op_that_cannot_be_emitted_is_refused_by_name(
    explorer: str, take_back: Callable[[Says], None]
) -> None:
    take_back(_at_most(0))
    with pytest.raises(PassError, match=r"linalg.generic .*: no kernel template can compute this op: row: more than 0"):
        _plan(_graph(_chain(2).module("%v3")), explorer)


@EXPLORERS
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_whose_clusters_are_refused_at_random(
    explorer: str, seed: int, take_back: Callable[[Says], None]
) -> None:
    def says(cluster: Cluster) -> str | None:
        if len(_computed(cluster)) == 1:
            return None
        return (
            "bad luck" if random.Random(f"{seed} {len(cluster.inputs)} {_computed(cluster)}").random() < 0.6 else None
        )

    take_back(says)
    graph = _graph(random_program(seed))
    plan = _plan(graph, explorer)
    assert {node for nodes in nodes_of(plan) for node in nodes} == set(range(len(graph.ops)))
    for nodes in nodes_of(plan):
        assert says(graph.cluster(nodes, plan.duplicated())) is None


def _kernels(program: mlirstitch.Compiled, template: str) -> int:
    """How many kernels with several reductions a template computes."""
    return sum(
        cluster["template"] == template and sum(op["kind"] == "reduction" for op in cluster["ops"]) > 1
        for cluster in program.report["clusters"]
    )


@pytest.mark.parametrize(("template", "seed"), [(RowTemplate, 9), (ColumnTemplate, 6), (RowColumnTemplate, 27)])
def test_a_template_that_takes_and_never_emits_costs_no_result(
    template: type[KernelTemplate[Any, Any]], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real templates: one of them refuses all its schedules of several reductions. Others do, or parts."""
    before = mlirstitch.compile(random_program(seed))
    emits = template.refusal

    def refusal(self: KernelTemplate[Any, Any], cluster: Cluster, schedule: Schedule, target: Target) -> str | None:
        several = sum(stitch.KIND.get(op) == "reduction" for op in cluster.ops) > 1
        return "it took back its word" if several else emits(self, cluster, schedule, target)

    monkeypatch.setattr(template, "refusal", refusal)
    after = mlirstitch.compile(random_program(seed))
    assert _kernels(after, template().name) < _kernels(before, template().name)
    wanted, found = (program(*random_inputs(seed)) for program in (before, after))
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(other, one)
