"""Tuning: the cheapest of the schedules tried is taken, the same one each time, and never one that costs more."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from mlir import ir

import mlirstitch
from mlirstitch.dialects import parse_module, stitch
from mlirstitch.dialects.schedule import Schedule
from mlirstitch.driver.cache import Store
from mlirstitch.driver.compile import compile
from mlirstitch.driver.stages import run_stages
from mlirstitch.driver.tuning import Tuner, costs, tuner_of
from mlirstitch.driver.tuning.costs import COUNTED, ESTIMATED, counted_seconds, weighed
from mlirstitch.driver.tuning.isolated import cluster_text
from mlirstitch.driver.tuning.tuner import Tried, Tuning
from mlirstitch.errors import MlirstitchError, PassError
from mlirstitch.options import CompileOptions
from mlirstitch.passes.stitching.template import Cluster, find_candidates
from mlirstitch.passes.structured import functions
from mlirstitch.target import TARGETS, Target


def softmax_like(rows: int = 16, columns: int = 96, element: str = "f32") -> str:
    wide, row = f"tensor<{rows}x{columns}x{element}>", f"tensor<{rows}x{element}>"
    return f"""func.func @main(%x: {wide}) -> {row} {{
  %e = tensor.empty() : {wide}
  %0 = linalg.exp ins(%x : {wide}) outs(%e : {wide}) -> {wide}
  %z = arith.constant dense<0.0> : {row}
  %1 = linalg.reduce {{ arith.addf }} ins(%0 : {wide}) outs(%z : {row}) dimensions = [1]
  return %1 : {row}
}}"""


@cache
def stitched_text(text: str, **options: str) -> str:
    return run_stages(text, CompileOptions(to_level="stitched", **options)).texts["stitched"]


def stitched(text: str, **options: str) -> ir.Module:
    return parse_module(stitched_text(text, **options))


def cluster_function(module: ir.Module) -> ir.Operation:
    (found,) = [f for f in functions(module.operation) if stitch.SCHEDULE.get(f) is not None]
    return found


@dataclass
class Planted:
    """Counts as the tuner's cost: 1 s for every schedule but those planted. Remembers what it was asked."""

    seconds: dict[Schedule, float] = field(default_factory=dict)
    asked: list[Schedule] = field(default_factory=list)

    def __call__(self, function: ir.Operation, schedule: Schedule, target: Target) -> float:
        self.asked.append(schedule)
        return self.seconds.get(schedule, 1.0)


def tune(module: ir.Module, cost: Callable[..., float], limit: int = 3, store: Store | None = None) -> Schedule:
    Tuner(limit, store, lambda text: None, cost)(module)
    return stitch.SCHEDULE.require(cluster_function(module))


def tried_by(module: ir.Module) -> tuple[str, int]:
    """The cost that was compared, and of how many schedules."""
    entries = stitch.TUNED.require(cluster_function(module))
    (cost,) = {ir.StringAttr(entry["cost"]).value for entry in entries}
    return cost, len(entries)


@cache
def tried() -> list[Schedule]:
    planted = Planted()
    tune(stitched(softmax_like()), planted)
    return planted.asked


def test_the_better_of_two_planted_schedules_is_taken() -> None:
    own, first, second = tried()
    assert len({own, first, second}) == 3
    for better, worse in ((first, second), (second, first)):
        assert tune(stitched(softmax_like()), Planted({own: 3e-6, better: 1e-6, worse: 2e-6})) == better


def test_ties_go_to_the_compilers_own_choice_and_nothing_that_costs_more_is_taken() -> None:
    own, first, second = tried()
    assert tune(stitched(softmax_like()), Planted()) == own
    assert tune(stitched(softmax_like()), Planted({own: 1e-6, first: 2e-6, second: 3e-6})) == own


def test_an_estimate_must_be_lower_by_more_than_it_is_exact() -> None:
    own, other, _ = tried()
    close, clear = (Tuning(ESTIMATED, (Tried(own, 1000), Tried(other, cost))) for cost in (960, 900))
    assert close.best.schedule == own
    assert clear.best.schedule == other
    assert Tuning(COUNTED, (Tried(own, 1000), Tried(other, 999))).best.schedule == other


def test_the_own_choice_is_tried_first_and_the_limit_counts_it() -> None:
    module = stitched(softmax_like())
    own = stitch.SCHEDULE.require(cluster_function(module))
    for limit in (1, 4):
        planted = Planted()
        tune(stitched(softmax_like()), planted, limit)
        assert planted.asked[0] == own
        assert len(set(planted.asked)) == len(planted.asked) == limit


def test_a_schedule_that_does_not_run_is_passed_over_and_estimates_serve_if_the_own_choice_does_not() -> None:
    own, first, second = tried()

    def failing(schedule: Schedule) -> Callable[..., float]:
        def cost(function: ir.Operation, asked: Schedule, target: Target) -> float:
            if asked == schedule:
                raise PassError("does not run")
            return 1e-6 if asked == second else 2e-6

        return cost

    module = stitched(softmax_like())
    assert tune(module, failing(first)) == second
    assert tried_by(module) == (COUNTED, 2)
    module = stitched(softmax_like())
    tune(module, failing(own))
    assert tried_by(module) == (ESTIMATED, 3)


def test_what_was_found_is_kept_and_not_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9, pytest.fail)
    own, first, _ = tried()
    planted = Planted({own: 2e-6, first: 1e-6})
    one, two = stitched(softmax_like()), stitched(softmax_like())
    assert tune(one, planted, store=store) == first
    asked = len(planted.asked)
    assert tune(two, planted, store=store) == first
    assert len(planted.asked) == asked
    assert str(one) == str(two)


@pytest.mark.parametrize(
    "changed",
    [
        lambda: (softmax_like(rows=17), {}, 3),
        lambda: (softmax_like(columns=97), {}, 3),
        lambda: (softmax_like(element="f16"), {}, 3),
        lambda: (softmax_like().replace("linalg.exp", "linalg.abs"), {}, 3),
        lambda: (softmax_like(), {"target": "sm_80"}, 3),
        lambda: (softmax_like(), {"numerics": "strict"}, 3),
        lambda: (softmax_like(), {"library": "auto"}, 3),
        lambda: (softmax_like(), {"grid_composition": "on"}, 3),
        lambda: (softmax_like(), {}, 2),
    ],
    ids=["rows", "columns", "dtype", "op", "chip", "numerics", "library", "grid composition", "limit"],
)
def test_what_was_found_for_another_cluster_chip_or_option_is_not_used(changed, tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9, pytest.fail)
    tune(stitched(softmax_like()), Planted(), store=store)
    text, options, limit = changed()
    planted = Planted()
    tune(stitched(text, **options), planted, limit, store)
    assert planted.asked


def test_a_calibrated_chip_is_another_chip(tmp_path: Path, monkeypatch) -> None:
    store = Store(tmp_path, 10**9, pytest.fail)
    tune(stitched(softmax_like()), Planted(), store=store)
    monkeypatch.setitem(TARGETS, "sm_90", TARGETS["sm_90"].override(bandwidth=1e12))
    planted = Planted()
    tune(stitched(softmax_like()), planted, store=store)
    assert planted.asked


def test_the_same_cluster_elsewhere_in_another_file_is_the_same() -> None:
    modules = [stitched("\n" * lines + softmax_like()) for lines in (0, 5)]
    assert len({cluster_text(cluster_function(module)) for module in modules}) == 1


def test_counted_cost_is_the_longer_of_issuing_and_memory() -> None:
    target = TARGETS["sm_90"]
    counters = {"instructions": {"float": 1000, "special": 10}, "sectors_loaded": 3, "sectors_stored": 4}
    cycles = 1000 * target.cycles.float + 10 * target.cycles.special
    assert weighed(counters, target.sms, target) == pytest.approx(cycles / (target.sms * target.clock))
    assert weighed(counters, 1, target) == pytest.approx(cycles / target.clock)  # all of it on one multiprocessor
    counters = {"instructions": {}, "sectors_loaded": 10**6, "sectors_stored": 0}
    assert weighed(counters, 1, target) == pytest.approx(32e6 / target.bandwidth)


def test_more_blocks_are_counted_as_cheaper_than_one_block_that_does_it_all() -> None:
    module = stitched(softmax_like(rows=256))
    function = cluster_function(module)
    target = stitch.target_of(module.operation)
    with module.context, ir.Location.unknown():
        found = find_candidates(Cluster.of_function(function), target)
        by_blocks = sorted((s for s in found if s.parameters and s.scratch == ()), key=lambda s: s.grid[0])
        few, many = by_blocks[0], by_blocks[-1]
        assert few.grid[0] < many.grid[0] <= target.sms * 2
        assert counted_seconds(function, many, target) < counted_seconds(function, few, target)
        assert counted_seconds(function, many, target) == counted_seconds(function, many, target)


def test_large_clusters_are_estimated_and_not_run() -> None:
    large = stitched(softmax_like(rows=4096, columns=4096))
    planted = Planted()
    tune(large, planted)
    assert not planted.asked
    assert tried_by(large) == (ESTIMATED, 3)


TWO_RESULTS = """func.func @main(%x: tensor<12x40xf32>, %i: tensor<40xi64>) -> (tensor<12x40xf32>, tensor<12xf32>) {
  %e = tensor.empty() : tensor<12x40xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (b)>,
      affine_map<(a, b) -> (a, b)>], iterator_types = ["parallel", "parallel"]}
      ins(%x, %i : tensor<12x40xf32>, tensor<40xi64>) outs(%e : tensor<12x40xf32>) {
    ^bb0(%p: f32, %q: i64, %o: f32):
      %f = arith.sitofp %q : i64 to f32
      %m = arith.mulf %p, %f : f32
      linalg.yield %m : f32
  } -> tensor<12x40xf32>
  %z = arith.constant dense<0.0> : tensor<12xf32>
  %1 = linalg.reduce { arith.addf } ins(%0 : tensor<12x40xf32>) outs(%z : tensor<12xf32>) dimensions = [1]
  return %0, %1 : tensor<12x40xf32>, tensor<12xf32>
}"""


def test_a_tuned_program_computes_the_same_and_the_report_tells_what_was_tried(call, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x, i = random.standard_normal((12, 40)).astype(np.float32), random.integers(-9, 9, 40)
    program = compile(TWO_RESULTS, tune="on", tune_limit="3", cache="off")
    scaled, sums = program(x, i)
    expected = x.astype(np.float64) * i
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)
    np.testing.assert_allclose(sums, expected.sum(1), rtol=1e-5, atol=1e-4)
    (cluster,) = program.report["clusters"]
    assert [entry["cost"] for entry in cluster["tuned"]] == ["counted"] * 3
    taken = [entry for entry in cluster["tuned"] if entry["chosen"]]
    assert [entry["picoseconds"] for entry in taken] == [min(entry["picoseconds"] for entry in cluster["tuned"])]
    program.save(tmp_path / "b")
    code, out, _ = call("explain", tmp_path / "b")
    assert code == 0
    assert "counted: " in out
    assert "of 3 schedules; the others: " in out


def test_without_the_option_nothing_is_tuned_and_with_it_bytes_are_the_same_each_time(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(mlirstitch, "loaded_at", float("inf"))
    assert "stitch.tuned" not in compile(softmax_like(), cache="off").text("stitched")
    options = {"tune": "on", "tune_limit": "2"}
    programs = [compile(softmax_like(), cache=folder, **options) for folder in ("off", str(tmp_path), str(tmp_path))]
    assert "stitch.tuned" in programs[0].text("stitched")
    assert len({program.text("stitched") + program.ptx for program in programs}) == 1
    monkeypatch.setattr(costs, "counted_seconds", pytest.fail)
    moved = compile("\n" + softmax_like(), cache=str(tmp_path), **options)  # another program with the same cluster
    assert "tune" in moved.timings
    assert moved.ptx == programs[0].ptx


@pytest.mark.parametrize("text", ["", "0", "-1", "all"])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(MlirstitchError, match="tune_limit"):
        tuner_of(CompileOptions(tune="on", tune_limit=text), None, print)


def test_names_of_keys_are_digests(tmp_path: Path) -> None:
    tune(stitched(softmax_like()), Planted(), store=Store(tmp_path, 10**9, pytest.fail))
    (path,) = tmp_path.rglob("*.entry")
    assert path.parts[-3] == "tuning"
    assert len(path.stem) == len(hashlib.sha256().hexdigest())
