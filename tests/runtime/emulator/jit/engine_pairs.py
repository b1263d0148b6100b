"""Both engines on the same kernel: arrays and counters must agree."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mlirstitch.runtime import emulator

_NAN = {"f16": (0x7C00, 0x8000), "bf16": (0x7F80, 0x8000), "f32": (0x7F800000, 1 << 31), "f64": (0x7FF << 52, 1 << 63)}
"""Bits of infinity and of the sign of every floating-point format."""


def expand(pattern: str) -> Iterator[str]:
    """``add.{rn,rz}.f32`` as ``add.rn.f32`` and ``add.rz.f32``; an alternative may be empty."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    for chosen in itertools.product(*choices):
        yield "".join(chosen)


def without_nan_payloads(bits: Any, kind: str) -> Any:
    """Results as unsigned integers, every NaN as the same one; payloads are not specified."""
    if kind.endswith("x2"):
        low = without_nan_payloads(bits & np.uint64(0xFFFF), kind[:-2])
        high = without_nan_payloads((bits >> np.uint64(16)) & np.uint64(0xFFFF), kind[:-2])
        return low | (high << np.uint64(16))
    if kind not in _NAN:
        return bits
    infinity, sign = _NAN[kind]
    return np.where((bits & ~np.uint64(sign)) > np.uint64(infinity), np.uint64(infinity + 1), bits)


def run_both(text: str, arguments: Sequence[Any], **options: Any) -> tuple[list[Any], list[Any]]:
    """Launch kernel ``k`` with the JIT and with the reference engine on copies of the arguments.

    Checks that the JIT engine ran and that counters agree; the arguments after each run.
    """
    grid, block = options.pop("grid", 1), options.pop("block", 32)
    module = emulator.load(text)
    after: list[list[Any]] = []
    counters = []
    for engine in ("jit", "reference"):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        counters.append(module.launch("k", grid, block, copies, checks=False, engine=engine, **options))
        assert module.engine_of("k") == engine, module.fallback("k")
        after.append(copies)
    assert counters[0].to_dict() == counters[1].to_dict()
    return after[0], after[1]


def assert_same(text: str, arguments: Sequence[Any], **options: Any) -> list[Any]:
    """Both engines leave the same bits in all arguments; what they left."""
    one, other = run_both(text, arguments, **options)
    for a, b in zip(one, other, strict=True):
        if isinstance(a, np.ndarray):
            assert a.tobytes() == b.tobytes()
    return one
