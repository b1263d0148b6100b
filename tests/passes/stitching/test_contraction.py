"""The contracted graph: acyclicity of merges, kept order."""

from __future__ import annotations

import graphlib
import random
import time

import pytest

from mlirstitch.passes.stitching.contraction import Contraction


def _random_graph(source: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    count = source.randint(2, 24)
    successors = [
        sorted(source.sample(range(node + 1, count), min(count - node - 1, source.randint(0, 3))))
        for node in range(count)
    ]
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for node, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(node)
    return predecessors, successors


def _is_acyclic(owner: list[int], successors: list[list[int]]) -> bool:
    graph: dict[int, set[int]] = {}
    for node, targets in enumerate(successors):
        for target in targets:
            if owner[node] != owner[target]:
                graph.setdefault(owner[target], set()).add(owner[node])
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError:
        return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_a_merge_is_allowed_exactly_if_the_contracted_graph_stays_acyclic(seed: int) -> None:
    source = random.Random(seed)
    predecessors, successors = _random_graph(source)
    contraction = Contraction(predecessors, successors)
    for _ in range(20):
        names = contraction.clusters()
        if len(names) < 2:
            break
        first, second = source.sample(names, 2)
        merged = [min(first, second) if name in (first, second) else name for name in contraction.owner]
        expected = _is_acyclic(merged, successors)
        assert contraction.can_merge(first, second) is expected
        if not expected:
            with pytest.raises(ValueError, match="cycle"):
                contraction.merge(first, second)
            continue
        assert contraction.merge(first, second) == min(first, second)
        if source.random() < 0.3:
            contraction.compact()
        for order in (contraction.clusters(), contraction.in_program_order()):
            place = {name: position for position, name in enumerate(order)}
            assert all(
                contraction.owner[node] == contraction.owner[target]
                or place[contraction.owner[node]] < place[contraction.owner[target]]
                for node, targets in enumerate(successors)
                for target in targets
            )


def test_two_convex_clusters_may_not_depend_on_each_other() -> None:
    # 0 -> 2, 1 -> 3: {0, 3} and {1, 2} are convex one by one, together they wait for each other
    contraction = Contraction([[], [], [0], [1]], [[2], [3], [], []])
    contraction.merge(0, 3)
    assert not contraction.can_merge(1, 2)


def test_a_version_changes_with_the_cluster_only() -> None:
    contraction = Contraction([[], [0], [1]], [[1], [2], []])
    contraction.merge(0, 1)
    assert (contraction.version[0], contraction.version[2]) == (1, 0)


def test_a_chain_of_3000_nodes_merges_in_a_second() -> None:
    count = 3000
    contraction = Contraction(
        [[node - 1] if node else [] for node in range(count)],
        [[node + 1] if node + 1 < count else [] for node in range(count)],
    )
    start = time.perf_counter()
    for node in range(1, count):
        contraction.merge(0, node)
    assert contraction.members[0] == list(range(count))
    assert time.perf_counter() - start < 3
