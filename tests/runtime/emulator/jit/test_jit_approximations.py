"""ex2 and lg2 have one definition: both engines give its bits, which are within one unit in the last place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_pairs import run_both
from ptx_text import kernel

from mlirstitch.runtime.emulator.reference import floats

_EXACT = {"ex2": np.exp2, "lg2": np.log2, "rsqrt": lambda x: 1.0 / np.sqrt(x)}
_DEFINED = {"ex2": floats.exp2_f32, "lg2": floats.log2_f32, "rsqrt": floats.rsqrt_f32}


def _kernel(op: str) -> str:
    return kernel(
        f"""mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %d0, %r3, 4;
add.u64 %d1, %a0, %d0; add.u64 %d2, %a1, %d0; ld.global.b32 %r4, [%d1]; {op}.approx.f32 %r4, %r4;
st.global.b32 [%d2], %r4;""",
        2,
    )


def _samples(op: str) -> Any:
    """Bits of all signs and exponents with 4,000 mantissas each, and where the function is not trivial."""
    rng = np.random.default_rng(11)
    everywhere = np.repeat(np.arange(512, dtype=np.uint32), 4096) << np.uint32(23)
    bits = everywhere | rng.integers(0, 1 << 23, everywhere.size, dtype=np.uint32)
    usual = rng.uniform(-150, 130, 1 << 20) if op == "ex2" else np.exp(rng.normal(0, 1, 1 << 20))
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 128.0, 127.99999, -126.0, -149.0, -149.5, -150.0]
    whole = np.arange(-160, 140)
    count = 4096 - (len(special) + whole.size)
    parts = [bits.view(np.float32), usual, np.array(special), whole, 1.0 + rng.uniform(-1e-4, 1e-4, count)]
    return np.concatenate([np.asarray(part, np.float32) for part in parts])


@pytest.mark.parametrize("op", sorted(_EXACT))
def test_millions_of_samples_have_the_same_bits_in_both_engines(op: str) -> None:
    x = _samples(op)
    assert x.size % 256 == 0
    one, other = run_both(_kernel(op), [x, np.zeros_like(x)], grid=x.size // 256, block=256)
    nan = np.isnan(other[1])
    np.testing.assert_array_equal(np.isnan(one[1]), nan)
    np.testing.assert_array_equal(one[1].view(np.uint32)[~nan], other[1].view(np.uint32)[~nan])


@pytest.mark.parametrize("op", sorted(_EXACT))
def test_definition_is_within_half_a_unit_and_a_trace(op: str) -> None:
    x = _samples(op)[None, :]
    with np.errstate(all="ignore"):
        got = _DEFINED[op](x)
        exact = _EXACT[op](x.astype(np.longdouble))
    nan = np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(got), nan)
    finite = np.isfinite(exact) & (np.abs(exact) < np.finfo(np.float32).max)
    np.testing.assert_array_equal(got[np.isinf(exact)], exact[np.isinf(exact)].astype(np.float32))
    unit = np.spacing(np.abs(got[finite])).astype(np.longdouble)
    error = np.abs(got[finite].astype(np.longdouble) - exact[finite]) / unit
    assert error.max() <= 0.5001
