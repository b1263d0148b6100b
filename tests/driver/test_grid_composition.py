"""The option that lets blocks wait for each other: one cooperative launch where there were several kernels."""

from __future__ import annotations

import numpy as np
import pytest

import mlirstitch
from mlirstitch.runtime import Executor, open_device
from mlirstitch.runtime.program import Launch

SHARE_OF_SUM = """
func.func @main(%x: tensor<{size}xf32>) -> tensor<{size}xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>],
      iterator_types = ["reduction"]}} ins(%x : tensor<{size}xf32>) outs(%i : tensor<f32>) {{
  ^bb0(%a: f32, %acc: f32):
    %r = arith.addf %a, %acc : f32
    linalg.yield %r : f32
  }} -> tensor<f32>
  %o = tensor.empty() : tensor<{size}xf32>
  %y = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}} ins(%x, %s : tensor<{size}xf32>, tensor<f32>) outs(%o : tensor<{size}xf32>) {{
  ^bb0(%a: f32, %t: f32, %old: f32):
    %r = arith.divf %a, %t : f32
    linalg.yield %r : f32
  }} -> tensor<{size}xf32>
  return %y : tensor<{size}xf32>
}}
"""


def _launches(compiled: mlirstitch.Compiled) -> list[Launch]:
    return [step for step in compiled.launch_plan.steps if isinstance(step, Launch)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_what_every_element_needs_is_one_cooperative_launch(target: str) -> None:
    size = 2_200_000
    text = SHARE_OF_SUM.format(size=size)
    apart = _launches(mlirstitch.compile(text, target=target))
    compiled = mlirstitch.compile(text, target=target, grid_composition="on")
    (launch,) = _launches(compiled)
    assert len(apart) == 2
    assert not any(step.cooperative for step in apart)
    assert launch.cooperative
    assert launch.grid[0] > 100
    traffic = {argument.access: argument.traffic for argument in launch.arguments[:2]}
    assert traffic == {"read": size * 4, "write": size * 4}
    x = np.random.default_rng(0).random(size, np.float32)
    executor = Executor(compiled.bundle, open_device("emulator"))
    first, second = (executor.run([x])[0] for _ in range(2))  # the second finds the ticket as the first did
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, x / x.sum(dtype=np.float64), rtol=1e-6)


def test_the_sanitizer_finds_nothing_in_a_cooperative_program() -> None:
    size = 30_011
    compiled = mlirstitch.compile(SHARE_OF_SUM.format(size=size), grid_composition="on")
    (launch,) = _launches(compiled)
    assert launch.cooperative
    x = np.random.default_rng(0).random(size, np.float32)
    (got,) = Executor(compiled.bundle, open_device("emulator", sanitize=True)).run([x])
    np.testing.assert_allclose(got, x / x.sum(dtype=np.float64), rtol=1e-6)
