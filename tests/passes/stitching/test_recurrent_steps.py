"""Which contractions are steps of a sequence, and that no library call computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from linalg_text import Text
from text_graphs import graph_of

from mlirstitch.passes.stitching.explorer import BeamClusterer
from mlirstitch.passes.stitching.fusion_plan import check_plan
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.recurrent_steps import FEWEST_STEPS, recurrent_steps
from mlirstitch.target import Target

TARGET = Target.parse("sm_90")
pytestmark = pytest.mark.usefixtures("fake_templates")


def _sequence(steps: int, rows: int = 4, width: int = 16, shared: bool = True) -> Graph:
    """``state = tanh(state @ w)``, as often as there are steps; with weights of its own for every step, or one."""
    weights = {f"w{number}": f"{width}x{width}" for number in range(1 if shared else steps)}
    text = Text(x=f"{rows}x{width}", **weights)
    state = "%x"
    for number in range(steps):
        state = text.map("math.tanh", text.matmul(state, f"%w{0 if shared else number}"))
    return graph_of(text.module(state))


def test_short_contractions_that_share_weights_are_steps() -> None:
    assert recurrent_steps(_sequence(FEWEST_STEPS), TARGET) == {2 * step for step in range(FEWEST_STEPS)}


@pytest.mark.parametrize(
    "graph",
    [
        lambda: _sequence(FEWEST_STEPS - 1),
        lambda: _sequence(FEWEST_STEPS, shared=False),
        lambda: _sequence(FEWEST_STEPS, rows=256, width=512),
    ],
    ids=["few", "weights of their own", "long"],
)
def test_others_are_not(graph: Callable[[], Graph]) -> None:
    assert recurrent_steps(graph(), TARGET) == frozenset()


def test_a_step_takes_up_its_gate_where_other_contractions_are_library_calls() -> None:
    graph = _sequence(FEWEST_STEPS)
    plan = BeamClusterer().plan(graph, TARGET, "auto")
    check_plan(graph, plan)
    assert [cluster.nodes for cluster in plan.clusters] == [(2 * step, 2 * step + 1) for step in range(FEWEST_STEPS)]
    assert {cluster.library for cluster in plan.clusters} == {""}
    few = BeamClusterer().plan(_sequence(FEWEST_STEPS - 1), TARGET, "auto")
    assert [cluster.library for cluster in few.clusters] == ["matmul", ""] * (FEWEST_STEPS - 1)
