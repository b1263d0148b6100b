"""Random functions under random legal plans: all devices together compute what the whole function computes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from random_plans import random_function, random_rules

from mlirstitch.dialects import parse_module
from mlirstitch.driver.partition import partition
from mlirstitch.driver.reference import run
from mlirstitch.mesh import Mesh

MESHES = ("a=2", "a=3", "a=2,b=2", "a=4", "a=2,b=3")
TOLERANCE = 1e-4
"""Of the largest element: chains of products in float32, summed in another order."""


def check(seed: int) -> None:
    rng = random.Random(seed)
    text, shapes = random_function(rng, rng.randint(2, 9))
    module = parse_module(text)
    mesh = Mesh.parse(rng.choice(MESHES))
    made = partition(module, lambda plan: random_rules(rng, plan), mesh)
    numbers = np.random.default_rng(seed)
    arguments = [numbers.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    got, wanted = made.run(arguments), run(module, arguments)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        scale = max(float(np.abs(other).max(initial=0.0)), 1e-3)
        error = float(np.abs(one - other).max(initial=0.0))
        assert error <= TOLERANCE * scale, f"seed {seed}, mesh {mesh}, result {number}: off by {error}\n{text}"


@pytest.mark.parametrize("seed", range(60))
def test_a_random_plan_computes_what_the_function_computes(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_plans_compute_what_the_functions_compute(part: int) -> None:
    for seed in range(1_000 + 100 * part, 1_100 + 100 * part):
        check(seed)
