"""Random programs through normalisation, clustering, schedules and code generation, under the sanitizer.

A refusal is a failure, but for what is refused by design and therefore never drawn: sums and products of a scan's
running value in float16 or bfloat16 and the total of a scan (``passes/scan.py``), and scans of one element. MLIR itself
refuses slices of tensors without elements.

A failure prints the smallest program found, and the command that runs it again. ``make test`` always runs the same
cases; the slow test draws others every day, or from ``MLIRSTITCH_RANDOM_SEED``, and has the seed in its name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_check import Case, check
from random_clusters import programs

CASES = st.builds(
    Case,
    programs(),
    st.integers(0, 1 << 16),
    st.sampled_from((0, 0, 0, 0, 0, 1, 2, 3)),
    st.sampled_from((False, True)),
)
"""Half of the cases take any schedule; some have small kernels."""

_COMMON = {
    "database": None,
    "deadline": None,
    "print_blob": False,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
    "suppress_health_check": list(HealthCheck),
}


def _run(cases: int, first: int) -> None:
    test: Callable[[], None] = given(CASES)(check)  # type: ignore[assignment]
    seed(first)(settings(max_examples=cases, **_COMMON)(test))()  # type: ignore[arg-type]


@pytest.mark.parametrize("part", range(4))
def test_a_random_program_computes_what_eager_computes(part: int) -> None:
    _run(60, part)


_FIRST = int(os.environ.get("MLIRSTITCH_RANDOM_SEED", time.strftime("%Y%m%d"))) * 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_FIRST, _FIRST + 20))
def test_many_random_programs_compute_what_eager_computes(part: int) -> None:
    _run(120, part)
