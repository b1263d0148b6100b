"""Faults put back into the normalisation: each repair is missed by a program of the numerics contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from emitter_faults import wrapped

import mlirstitch
from mlirstitch.passes.normalize import form_fma
from mlirstitch.passes.normalize.accumulators import WidenAccumulators

Patch = Callable[[pytest.MonkeyPatch], None]


def switched_off(kind: type) -> Patch:
    """The pass does nothing."""
    return lambda patch: patch.setattr(kind, "run", lambda self, op: None)


def total(count: int, element: str) -> str:
    """The sum of ``count`` elements, in their type."""
    return f"""func.func @main(%x: tensor<{count}x{element}>) -> tensor<{element}> {{
  %z = arith.constant 0.0 : {element}
  %e = tensor.empty() : tensor<{element}>
  %f = linalg.fill ins(%z : {element}) outs(%e : tensor<{element}>) -> tensor<{element}>
  %s = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>],
      iterator_types = ["reduction"]}} ins(%x : tensor<{count}x{element}>) outs(%f : tensor<{element}>) {{
  ^bb0(%a: {element}, %acc: {element}):
    %r = arith.addf %a, %acc : {element}
    linalg.yield %r : {element}
  }} -> tensor<{element}>
  return %s : tensor<{element}>
}}"""


DIFFERENCE = """func.func @main(%x: tensor<64xf32>, %y: tensor<64xf32>) -> tensor<64xf32> {
  %e = tensor.empty() : tensor<64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>,
      affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%x, %y : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    %q = arith.mulf %b, %a : f32
    %d = arith.subf %p, %q : f32
    linalg.yield %d : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}"""
NUMBERS = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)


@dataclass(frozen=True)
class Row:
    """What is taken away, the program that misses it, its inputs and the one right answer."""

    fault: Patch
    text: str
    inputs: tuple[np.ndarray, ...]
    answer: float


CANCELLING = np.tile(np.array([2048, 1, -2048, 0], np.float32), 1024)
"""Even a tree of narrow sums loses the ones beside 2048."""

ROWS = {
    f"narrow accumulator: {element}": Row(
        switched_off(WidenAccumulators), total(4096, element), (CANCELLING.astype(dtype),), 1024
    )
    for element, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16))
}
ROWS["contraction: equal products do not cancel"] = Row(
    wrapped(form_fma, "_fused_operand", lambda original, view, op, everywhere: original(view, op, True)),
    DIFFERENCE,
    (NUMBERS[0], NUMBERS[1]),
    0,
)


def _wrong(row: Row) -> bool:
    result = mlirstitch.compile(row.text)(*row.inputs)
    return bool((np.asarray(result, np.float64) != row.answer).any())


@pytest.mark.parametrize("kind", ROWS)
def test_a_repair_taken_away_is_missed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS[kind]
    assert not _wrong(row)
    row.fault(monkeypatch)
    assert _wrong(row)
