"""Folding across vector lanes, threads and warps: signs of zero, pairs of reductions, how often threads meet."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import build
from row_programs import fold


@pytest.mark.parametrize(("rows", "cols"), [(4, 4096), (512, 1024), (3, 37), (2, 8)])
def test_zeros_of_both_signs_sum_up_to_plus_zero(rows, cols):
    """What a chunk starts from must not show: eager's sum of -0.0 is +0.0, and so is that of idle threads."""
    built = build(fold((rows, cols), (1,), "f32", "arith.addf", "0.0"), "row")
    x = np.full((rows, cols), -0.0, np.float32)
    x[0, ::2] = 0.0
    (got,) = built.run([x], sanitize=True)
    assert not got.any()
    assert not np.signbit(got).any()
