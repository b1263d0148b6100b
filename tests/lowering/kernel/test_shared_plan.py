"""Where shared buffers lie: reuse behind a barrier, added barriers over the budget, dynamic shared memory beyond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_harness import build, random_array, reference

from mlirstitch.driver.compile import compile
from mlirstitch.errors import MlirstitchError
from mlirstitch.lowering.kernel import shared_plan
from mlirstitch.lowering.kernel.shared_plan import ALIGNMENT, Buffer, plan_shared, separated
from mlirstitch.runtime.program import Launch
from mlirstitch.target import Target

BUDGET = 1 << 10


def chained_sums(rows: int, cols: int, levels: int) -> str:
    """Sums of rows, each over the differences from the one before: so many levels of reductions."""
    full, row = f"tensor<{rows}x{cols}xf32>", f"tensor<{rows}xf32>"
    lines = [f"%r0 = linalg.fill ins(%zero : f32) outs(%e : {row}) -> {row}"]
    for level in range(1, levels + 1):
        lines.append(f"""%r{level} = linalg.generic {{indexing_maps = [#id, #row, #row],
        iterator_types = ["parallel", "reduction"]}}
        ins(%a, %r{level - 1} : {full}, {row}) outs(%z : {row}) {{
      ^bb0(%x: f32, %t: f32, %acc: f32):
        %m = arith.mulf %t, %scale : f32
        %d = arith.subf %x, %m : f32
        %s = arith.addf %d, %acc : f32
        linalg.yield %s : f32
      }} -> {row}""")
    text = "\n  ".join(lines)
    return f"""#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @f(%a: {full}) -> {row} {{
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant 0.001 : f32
  %e = tensor.empty() : {row}
  %z = linalg.fill ins(%zero : f32) outs(%e : {row}) -> {row}
  {text}
  return %r{levels} : {row}
}}"""


def column_sums(rows: int, cols: int, count: int) -> str:
    """So many sums over the columns of as many inputs, all in one kernel."""
    full, column = f"tensor<{rows}x{cols}xf32>", f"tensor<{cols}xf32>"
    arguments = ", ".join(f"%a{n}: {full}" for n in range(count))
    names = ", ".join(f"%a{n}" for n in range(count))
    results = ", ".join([column] * count)
    maps = ", ".join(["#id"] * count + ["#col"] * count)
    elements = ", ".join([*(f"%x{n}: f32" for n in range(count)), *(f"%y{n}: f32" for n in range(count))])
    sums = "\n    ".join(f"%s{n} = arith.addf %x{n}, %y{n} : f32" for n in range(count))
    return f"""#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d1)>
func.func @main({arguments}) -> ({results}) {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {column}
  %z = linalg.fill ins(%zero : f32) outs(%e : {column}) -> {column}
  %r:{count} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["reduction", "parallel"]}}
      ins({names} : {", ".join([full] * count)}) outs({", ".join(["%z"] * count)} : {results}) {{
  ^bb0({elements}):
    {sums}
    linalg.yield {", ".join(f"%s{n}" for n in range(count))} : {", ".join(["f32"] * count)}
  }} -> ({results})
  return {", ".join(f"%r#{n}" for n in range(count))} : {results}
}}"""


def test_a_dead_buffer_is_reused_behind_a_barrier_only() -> None:
    early, late = Buffer(256, 0, 2), Buffer(256, 4, 6)
    assert plan_shared([early, late], [3], BUDGET).offsets == (0, 0)
    assert plan_shared([early, late], [1, 5], BUDGET).offsets == (0, 256)
    assert plan_shared([early, Buffer(256, 2, 6)], [3], BUDGET).offsets == (0, 256)


def test_over_the_budget_a_barrier_is_added() -> None:
    buffers = [Buffer(600, 0, 2), Buffer(600, 4, 6)]
    assert plan_shared(buffers, [], BUDGET).barriers == (4,)
    assert plan_shared(buffers, [], BUDGET).bytes == 600
    assert plan_shared(buffers, [], 2 * BUDGET).barriers == ()


def test_what_is_used_together_exceeds_the_budget() -> None:
    plan = plan_shared([Buffer(600, 0, 2), Buffer(600, 1, 3)], [], BUDGET)
    assert plan.bytes > BUDGET
    assert plan.barriers == ()


RANGES = st.tuples(st.integers(1, 400), st.integers(0, 20), st.integers(0, 20))


@given(st.lists(RANGES, max_size=8), st.lists(st.integers(0, 20), max_size=5))
def test_buffers_that_no_barrier_separates_never_overlap(ranges: list[tuple[int, int, int]], at: list[int]) -> None:
    buffers = [Buffer(size, min(a, b), max(a, b)) for size, a, b in ranges]
    plan = plan_shared(buffers, at, BUDGET)
    barriers = [*at, *(place - 0.5 for place in plan.barriers)]
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets)
    for number, one in enumerate(buffers):
        assert plan.offsets[number] + one.size <= plan.bytes
        for other in range(number):
            apart = (
                plan.offsets[number] + one.size <= plan.offsets[other]
                or plan.offsets[other] + buffers[other].size <= plan.offsets[number]
            )
            assert apart or separated(one, buffers[other], barriers)


def test_levels_of_reductions_take_turns_at_two_buffers() -> None:
    """Between the last read of a level and the first write of the level after next stands the barrier of the next."""
    text = chained_sums(3, 2048, 5)
    built = build(text, "row")
    assert built.schedule.block[0] > 32
    one = build(chained_sums(3, 2048, 1), "row").gpu_text
    assert shared_bytes(built.gpu_text) <= 2 * shared_bytes(one)
    inputs = [random_array(np.random.default_rng(0), (3, 2048), "f32")]
    for seed in range(3):
        (found,) = built.run(inputs, seed=seed, sanitize=True)
        np.testing.assert_allclose(found, reference(text, inputs)[0], rtol=1e-4, atol=1e-3)


def shared_bytes(gpu_text: str) -> int:
    """Bytes of the one shared buffer of the kernel."""
    marker = "xi8, #gpu.address_space<workgroup>>"
    return int(gpu_text.partition(marker)[0].rpartition("<")[2])


def test_reuse_without_a_barrier_is_found_by_the_sanitizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(one: Buffer, other: Buffer, barriers: object) -> bool:
        return one.last < other.first or other.last < one.first

    monkeypatch.setattr(shared_plan, "separated", always)
    built = build(chained_sums(3, 2048, 5), "row")
    inputs = [random_array(np.random.default_rng(0), (3, 2048), "f32")]
    with pytest.raises(MlirstitchError, match="race"):
        built.run(inputs, seed=1, sanitize=True)


def test_what_a_kernel_cannot_declare_becomes_dynamic_shared_memory() -> None:
    compiled = compile(column_sums(300, 256, 13))
    (launch,) = [step for step in compiled.launch_plan.steps if isinstance(step, Launch)]
    assert launch.shared_bytes > Target.shared_bytes_static
    inputs = [random_array(np.random.default_rng(n), (300, 256), "f32") for n in range(13)]
    for found, array in zip(compiled(*inputs), inputs, strict=True):
        np.testing.assert_allclose(found, array.astype(np.float64).sum(0), rtol=1e-5, atol=1e-4)
