"""Plans that only orders in time make: co-shard, with what the model of the machine says of memory."""

from __future__ import annotations

import functools

import pytest
from plan_harness import CASES, TOLERANCE, Judged, judged, planned, worst_error

from mlirstitch.driver.bench import training_models as models
from mlirstitch.errors import PlanError

CASES.setdefault("wide", functools.partial(models.mlp, batch=64, width=8, hidden=512))


@pytest.fixture(scope="module")
def wide() -> Judged:
    return judged("wide")


def test_co_shard_in_16_parts_takes_at_most_two_fifths_of_the_memory(wide: Judged) -> None:
    whole = planned(wide, "dp", "dp=1").timeline.peak_bytes[0]
    parts = planned(wide, "co-shard", "dp=1", micro_batches=16)
    assert parts.timeline.peak_bytes[0] <= 0.4 * whole
    assert worst_error(wide, parts) <= TOLERANCE


@pytest.mark.parametrize("name", ["mlp", "block"])
def test_co_shard_trains_as_in_torch(name: str) -> None:
    case = judged(name)
    assert worst_error(case, planned(case, "co-shard", "dp=1")) <= TOLERANCE


def test_co_shard_joins_data_parallelism() -> None:
    case = judged("mlp")
    assert worst_error(case, planned(case, "dp+co-shard", "dp=2")) <= TOLERANCE


def test_co_shard_without_an_inner_width_is_refused() -> None:
    with pytest.raises(PlanError, match="no heads and no hidden width"):
        planned(judged("tied"), "co-shard", "dp=1")
