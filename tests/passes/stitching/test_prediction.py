"""Predicted time, registers and savings of the clusters in a report."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from linalg_text import Text
from mlir import ir

import mlirstitch.lowering  # noqa: F401  registers the kernel templates
from mlirstitch.dialects import parse_module, stitch
from mlirstitch.passes.normalize import NORMALIZE_PASSES
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.stitching import stitch_pipeline
from mlirstitch.passes.stitching.cost import latency_terms
from mlirstitch.passes.stitching.explain import read_report, report
from mlirstitch.passes.stitching.template import Cluster, templates
from mlirstitch.passes.structured import functions, symbol_name


def stitched(text: str, *attributes: str) -> ir.Module:
    module = parse_module(text)
    settings = f"stitch-set-module-attributes{{{' '.join(attributes)}}}"
    run_pipeline(module, f"builtin.module({settings},{','.join(NORMALIZE_PASSES)})")
    run_pipeline(module, stitch_pipeline())
    return module


def softmax_twice() -> str:
    """Two equal kernels, and a contraction between them."""
    text, value = Text(x="256x256", w="256x256"), "%x"
    for last in (False, True):
        powers = text.map("math.exp", text.map("arith.subf", value, text.reduce("arith.maximumf", value, 1)))
        value = text.map("arith.divf", powers, text.reduce("arith.addf", powers, 1))
        value = value if last else text.matmul(value, "%w")
    return text.module(value)


def test_a_kernel_is_predicted_as_the_evaluators_answer_for_its_schedule() -> None:
    module = stitched(softmax_twice())
    found = {cluster.function: cluster for cluster in read_report(module.operation).clusters}
    target = stitch.target_of(module.operation)
    by_name = {template.name: template for template in templates()}
    kernels = [function for function in functions(module.operation) if stitch.SCHEDULE.get(function) is not None]
    assert len(kernels) == 2
    with module.context:
        for function in kernels:
            schedule = stitch.SCHEDULE.require(function)
            figures = by_name[schedule.template].figures(Cluster.of_function(function), schedule, target)
            cluster, terms = found[symbol_name(function)], latency_terms(figures, target)
            assert cluster.predicted_seconds == terms.seconds
            assert (cluster.registers, cluster.resident_blocks) == (figures.registers, figures.resident_blocks)
            assert getattr(terms, cluster.limited_by) == max(terms.memory, terms.issue, terms.latency)


def test_calls_of_one_kernel_are_predicted_alike_and_totals_add_them_up() -> None:
    found = report(stitched(softmax_twice()).operation)
    first, product, last = found["clusters"]
    assert first["function"] == last["function"]
    assert {**first, "number": 2, "lines": last["lines"]} == last
    assert (first["number"], product["number"], last["number"]) == (0, 1, 2)
    seconds = [cluster["predicted_seconds"] for cluster in found["clusters"]]
    assert found["predicted_seconds"] == math.fsum(seconds)
    saved = math.fsum(cluster["seconds_saved"] for cluster in found["clusters"])
    assert found["predicted_seconds_before"] == pytest.approx(found["predicted_seconds"] + saved)
    assert first["seconds_saved"] > 4 * 3e-6  # four launches less, at least
    assert product["seconds_saved"] == 0


def test_a_library_call_is_not_predicted() -> None:
    found = read_report(stitched(softmax_twice(), "library=auto").operation).clusters[1]
    assert found.library == "matmul"
    assert (found.predicted_seconds, found.limited_by, found.registers, found.resident_blocks) == (None, "", 0, 0)


def test_a_kernel_that_is_never_launched_takes_no_time() -> None:
    text = Text(x="0x8")
    (cluster,) = read_report(stitched(text.module(text.map("math.exp", "%x"))).operation).clusters
    assert (cluster.predicted_seconds, cluster.limited_by) == (0.0, "")


def test_a_schedule_that_fits_nothing_leaves_the_report_without_a_prediction() -> None:
    module = stitched(softmax_twice())
    with module.context:
        for function in functions(module.operation):
            schedule = stitch.SCHEDULE.get(function)
            if schedule is not None:
                stitch.SCHEDULE.set(function, replace(schedule, block=(1, 1, 1)))
    for cluster in read_report(module.operation).clusters:
        assert (cluster.predicted_seconds, cluster.registers) == (None, 0)
