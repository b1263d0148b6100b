"""``explain --why`` answers for every producer and consumer of a program, from the bundle's report alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from mlir import ir

import mlirstitch
from mlirstitch.dialects import parse_module
from mlirstitch.driver.bench.workloads import get
from mlirstitch.driver.report.why import Op, Pair, all_ops, all_pairs, matching, why
from mlirstitch.driver.report.why_text import cluster_text, why_text
from mlirstitch.errors import MlirstitchError
from mlirstitch.passes.stitching.graph import build_graph, root
from mlirstitch.passes.structured import block_ops, functions, main_function, symbol_name

import torch  # isort: skip

WORKLOADS = ("bert_layer", "swin_block", "xent_fwd_bwd")


@cache
def compiled(name: str) -> mlirstitch.Compiled:
    """A small workload, contractions given to a library."""
    program = get(name).traced("small", torch.float32)
    return mlirstitch.compile(program.module, program.inputs, library="auto")


def report(name: str) -> Mapping[str, Any]:
    return compiled(name).report


def edges(name: str) -> set[tuple[str, str, str]]:
    """(producer, tensor, consumer) of the program before clustering; ops by name."""
    module = parse_module(compiled(name).text("partitioned"))
    main = main_function(module.operation)
    assert main is not None
    graph = build_graph(main)
    return {
        (graph.ops[graph.producer[value]].name, str(value.type), op.name)
        for op, values in zip(graph.ops, graph.reads, strict=True)
        for value in values
        if value in graph.producer
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_tensor_between_two_ops_is_a_pair_with_a_reason(name: str) -> None:
    pairs = all_pairs(report(name))
    assert {(pair.producer.name, pair.tensor, pair.consumer.name) for pair in pairs} >= edges(name)
    for pair in pairs:
        assert pair.reason
        assert pair.bytes > 0
        assert pair.together == (pair.producer.cluster == pair.consumer.cluster)


def between_kernels(name: str) -> set[tuple[str, str, str]]:
    """(producer, tensor, consumer) of every tensor that a kernel reads from another, ops by number."""
    module = parse_module(compiled(name).text("stitched"))
    main = main_function(module.operation)
    assert main is not None
    bodies = {symbol_name(function): function for function in functions(module.operation)}
    made: dict[ir.Value, str] = {}
    found: set[tuple[str, str, str]] = set()
    for number, call in enumerate(op for op in block_ops(main) if op.name == "func.call"):
        function = bodies[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
        graph = build_graph(function)
        given = dict(zip(function.regions[0].blocks[0].arguments, map(root, call.operands), strict=True))
        for consumer, values in enumerate(graph.reads):
            for value in values:
                if given.get(value) in made:
                    found.add((made[given[value]], str(given[value].type), f"{number}.{consumer}"))
        for result, returned in zip(call.results, block_ops(function)[-1].operands, strict=True):
            made[result] = f"{number}.{graph.producer[root(returned)]}"
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_kernel_that_reads_a_tensor_has_an_answer_of_its_own(name: str) -> None:
    """Also where several kernels compute the op that reads it."""
    apart = [pair for pair in all_pairs(report(name)) if not pair.together]
    expected = between_kernels(name)
    assert bool(expected) == (len(report(name)["clusters"]) > 1)
    assert {(pair.producer.id, pair.tensor, pair.consumer.id) for pair in apart} == expected
    assert len(apart) == len(expected)


@pytest.mark.parametrize("name", WORKLOADS)
def test_asking_for_two_ops_by_number_answers_with_their_pair(name: str) -> None:
    pairs = all_pairs(report(name))
    for pair in pairs:
        answer = why(report(name), pair.producer.id, pair.consumer.id)
        assert pair in answer.pairs
        assert why(report(name), pair.consumer.id, pair.producer.id).pairs == answer.pairs


@pytest.mark.parametrize("name", WORKLOADS)
def test_text_names_scheme_or_rule_of_every_pair(name: str) -> None:
    for pair in all_pairs(report(name)):
        text = why_text(report(name), pair.producer.id, pair.consumer.id)
        assert str(pair.producer) in text
        assert pair.rule in text
        assert pair.reason in text


def test_ops_are_found_by_label_line_and_cluster() -> None:
    ops = all_ops(report("bert_layer"))
    sums = matching(ops, "sum")
    assert sums
    assert all(op.label == "sum" for op in sums)
    line = next(op.line for op in ops if op.line)
    path, number, *_ = line.rsplit(":", 2)
    assert all(op.line.startswith(path) for op in matching(ops, f"{path.rsplit('/', 1)[-1]}:{number}"))
    assert matching(ops, "0") == [op for op in ops if op.cluster == 0]


def test_an_op_that_is_not_there_is_refused_with_the_labels_that_are() -> None:
    with pytest.raises(MlirstitchError, match="no op of the program matches 'conv'") as refused:
        why(report("bert_layer"), "conv", "sum")
    assert "sum" in str(refused.value.hint)


def _op(cluster: int, position: int, label: str) -> dict[str, Any]:
    return {"label": label, "name": f"x.{label}", "line": f"model.py:{position + 1}", "kind": "light", "scheme": ""}


def _cluster(number: int, *labels: str, pairs: tuple[tuple[int, int], ...] = ()) -> dict[str, Any]:
    return {
        "number": number,
        "function": f"cluster_{number}",
        "library": "",
        "ops": [_op(number, position, label) for position, label in enumerate(labels)],
        "pairs": [
            {"producer": p, "consumer": c, "tensor": "tensor<4xf32>", "bytes": 16, "scheme": "block"} for p, c in pairs
        ],
    }


CHAIN = {
    "clusters": [_cluster(0, "a", "b", pairs=((0, 1),)), _cluster(1, "c"), _cluster(2, "d")],
    "apart": [
        {
            "producer": 0,
            "producer_position": 1,
            "consumer": 1,
            "consumer_position": 0,
            "tensor": "tensor<4xf32>",
            "bytes": 16,
            "rule": "limit",
            "reason": "too many",
            "detail": "row: no; column: never",
        }
    ],
}


def test_ops_far_apart_are_answered_by_the_way_between_them() -> None:
    answer = why(CHAIN, "a", "c")
    assert not answer.pairs
    assert [(pair.producer.id, pair.consumer.id) for pair in answer.path] == [("0.0", "0.1"), ("0.1", "1.0")]
    text = why_text(CHAIN, "c", "a")
    assert "shortest way" in text
    assert "behind a barrier" in text
    assert "\n              column: never" in text


def test_independent_ops_are_answered_as_such() -> None:
    answer = why(CHAIN, "c", "d")
    assert not answer.pairs
    assert not answer.path
    assert "neither of c and d depends on the other" in why_text(CHAIN, "c", "d")


def test_a_pair_inside_a_library_call_is_together_by_the_routine() -> None:
    given = {"clusters": [{**_cluster(0, "a", "b", pairs=((0, 1),)), "library": "matmul"}], "apart": []}
    (pair,) = why(given, "a", "b").pairs
    assert pair == Pair(
        Op(0, 0, "a", "x.a", "model.py:1"),
        Op(0, 1, "b", "x.b", "model.py:2"),
        "tensor<4xf32>",
        16,
        True,
        "matmul",
        "the library routine matmul computes both",
        "",
    )


def test_one_cluster_is_told_with_its_ops_and_neighbours() -> None:
    text = cluster_text(report("xent_fwd_bwd"), 0)
    assert "0.0" in text
    assert "schedule  row" in text
    with pytest.raises(MlirstitchError, match="no cluster 99"):
        cluster_text(report("xent_fwd_bwd"), 99)
