"""Rows whose length is no multiple of 16 bytes are read and written as wide as every row's start allows."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import build, random_array, reference
from row_programs import softmax

from mlirstitch.driver.bench.ptx_figures import figures_of, kernel_texts


@pytest.mark.parametrize(
    ("element", "cols", "bits"),
    [
        *[("f32", 1024, 128), ("f32", 1028, 128), ("f32", 1022, 64), ("f32", 1021, 32)],
        *[("f16", 1024, 128), ("f16", 1028, 64), ("f16", 1026, 32), ("f16", 1021, 16)],
        *[("bf16", 1032, 128), ("bf16", 1030, 32), ("bf16", 1023, 16)],
    ],
)
def test_rows_take_the_widest_access_that_every_row_allows(element, cols, bits):
    text = softmax(6, cols, element)
    built = build(text, "row")
    accesses = figures_of(kernel_texts(built.ptx)["kernel"]).accesses
    assert {access.bits for access in accesses} == {bits}
    assert {access.argument for access in accesses} == {0, 1}
    assert all(access.read_only for access in accesses if not access.store)
    x = random_array(np.random.default_rng(cols), (6, cols), element)
    (got,) = built.run([x], sanitize=True)
    expected = reference(text, [x])[0]
    tolerance = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[element]
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)
