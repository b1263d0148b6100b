"""The fit finds the constants of a machine from counted kernels, from wherever it starts, and leaves others alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mlirstitch.driver.calibration.command import displaced
from mlirstitch.driver.calibration.fit import FITTED, TIED, fit
from mlirstitch.driver.calibration.measure import Measurement
from mlirstitch.errors import MlirstitchError
from mlirstitch.passes.stitching.cost import latency_seconds, latency_terms
from mlirstitch.target import Target
from mlirstitch.target_file import constants_of, with_constants

TABLE = Target.parse("sm_90")
FOUND = {
    *("bandwidth", "l2_bandwidth", "memory_seconds", "launch_seconds", "barrier_seconds"),
    *(f"cycles.{name}" for name in ("integer", "float", "double", "special", "convert", "move", "shuffle", "control")),
    *(f"cycles.{name}" for name in ("load_global", "store_global", "load_shared", "store_shared")),
}
"""What the kernels determine."""

CLOSE = 0.02
Measure = Callable[[Target], list[Measurement]]


def perturbed(target: Target, seed: int, spread: float) -> Target:
    """Every constant multiplied by a random factor; tied ones by the same."""
    random = np.random.default_rng(seed)
    factors = {name: float(np.exp(random.uniform(-spread, spread))) for name in FITTED}
    factors.update({name: factors[other] for name, other in TIED.items()})
    values = constants_of(target)
    return with_constants(target, {name: values[name] * factor for name, factor in factors.items()})


def worst(found: Target, wanted: Target, names: tuple[str, ...]) -> float:
    have, want = constants_of(found), constants_of(wanted)
    return max(abs(have[name] / want[name] - 1) for name in names)


@pytest.mark.parametrize("seed", range(6))
def test_perturbed_constants_are_found_again(counted: list[Measurement], seed: int) -> None:
    result = fit(counted, perturbed(TABLE, seed, 0.6))
    assert set(result.fitted) >= FOUND
    assert worst(result.target, TABLE, result.fitted) < CLOSE


@pytest.mark.parametrize("seed", range(3))
def test_constants_of_another_machine_are_found_from_the_table(measured_on: Measure, seed: int) -> None:
    machine = perturbed(TABLE, 100 + seed, 0.3)
    result = fit(measured_on(machine), TABLE)
    assert set(result.fitted) >= FOUND
    assert worst(result.target, machine, result.fitted) < CLOSE


def test_what_no_kernel_determines_keeps_its_value(counted: list[Measurement]) -> None:
    result = fit(counted, displaced(TABLE, 0.8))
    kept = [name for name in constants_of(TABLE) if name not in result.fitted]
    assert {"clock", "matrix_flops", "cycles.matrix", "cycles.fence", "cycles.load_local"} <= set(kept)
    assert all(constants_of(result.target)[name] == constants_of(displaced(TABLE, 0.8))[name] for name in kept)


def test_measuring_errors_show_as_errors_of_their_size(counted: list[Measurement]) -> None:
    random = np.random.default_rng(0)
    noisy = [replace(found, seconds=found.seconds * (1 + 0.01 * random.standard_normal())) for found in counted]
    result = fit(noisy, TABLE)
    errors = [p / found.seconds - 1 for p, found in zip(result.predicted, noisy, strict=True)]
    assert np.sqrt(np.mean(np.square(errors))) < 0.01
    strong = ("bandwidth", "launch_seconds", "cycles.special", "cycles.load_global")
    assert worst(result.target, TABLE, strong) < 0.1


def test_a_cost_below_zero_is_never_the_answer(counted: list[Measurement]) -> None:
    """Selections are faster than what else is in their kernel costs elsewhere: the best fit would pay for each."""
    fast = [replace(f, seconds=f.seconds * (0.7 if f.name == "selections" else 1.0)) for f in counted]
    result = fit(fast, TABLE)
    move = constants_of(result.target)["cycles.move"]
    assert 0 < move < 0.01 * TABLE.cycles.move
    relative = [p / f.seconds for p, f in zip(result.predicted, fast, strict=True) if f.name != "selections"]
    assert max(relative) < 1.1
    assert min(relative) > 0.8


def test_predictions_are_those_of_the_fitted_chip(counted: list[Measurement]) -> None:
    result = fit(counted, displaced(TABLE, 0.9))
    assert result.predicted == tuple(latency_seconds(found.figures, result.target) for found in counted)


def test_every_term_of_the_evaluator_limits_some_kernel(counted: list[Measurement]) -> None:
    def limit(found: Measurement) -> str:
        terms = latency_terms(found.figures, TABLE)
        return max(("memory", "issue", "latency"), key=lambda name: getattr(terms, name))

    assert {limit(found) for found in counted} == {"memory", "issue", "latency"}


def test_kernels_of_double_precision_count_as_such(counted: list[Measurement]) -> None:
    (found,) = (measured for measured in counted if measured.name == "double arithmetic")
    assert found.figures.instructions["double"] > 100 * found.figures.warps
    assert "float" not in found.figures.instructions


@pytest.mark.parametrize("seconds", [0.0, -1e-6, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(counted: list[Measurement], seconds: float) -> None:
    with pytest.raises(MlirstitchError, match=r"kernel 'nothing but a launch' took .* seconds"):
        fit([replace(counted[0], seconds=seconds), *counted[1:]], TABLE)


def test_no_kernels_determine_nothing() -> None:
    with pytest.raises(MlirstitchError, match="determine no constant"):
        fit([], TABLE)
