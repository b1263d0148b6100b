"""Figures of kernels, which nothing was run for, against what the emulated device counts.

Bytes are exact, sectors nearly, instructions within :data:`INSTRUCTIONS`. Where a thread computes several chunks, LLVM
may find that two of them load the same: then fewer bytes move than predicted.
"""

from __future__ import annotations

from collections.abc import Callable

import mlir.ir as ir
import numpy as np
import pytest
from kernel_harness import DTYPES, build, moved_bytes, random_array
from packed_programs import mapped, reduced, together
from row_column_programs import scaled_rows
from row_programs import argmax, fold, softmax, softmax_over
from scan_programs import scan
from test_elementwise import binary
from test_loop_nest import matmul
from tile_programs import both_ways, permuted, row_totals

import mlirstitch.lowering  # noqa: F401  (registers templates)
from mlirstitch.dialects import new_context
from mlirstitch.passes.stitching.cost import SECTOR, KernelFigures
from mlirstitch.passes.stitching.template import Cluster, Schedule, find_template
from mlirstitch.target import Target

INSTRUCTIONS = 0.25
"""By how much the sum of all warp instructions may be off."""

SECTORS = 0.02
TAIL_SECTORS = 0.1
"""By how much the number of sectors may be off; and where rows do not begin at sectors, for not all are sampled."""

FEW = 8

Program = tuple[str, list[tuple[int, ...]], str]
"""Text, shapes of inputs, element type."""


def predict(text: str, template: str, limit: int, chip: str = "sm_90") -> list[tuple[Schedule, KernelFigures]]:
    """Candidates of a template for the only function of ``text``, and their figures."""
    target = Target.parse(chip)
    context = new_context()
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        cluster = Cluster.of_function(module.body.operations[0].operation)
        found, why = find_template(cluster, target, [template])
        assert found is not None, why
        return [(each, found.figures(cluster, each, target)) for each in found.candidates(cluster, target, limit)]


def check(program: Program, template: str, limit: int = 3, chip: str = "sm_90") -> None:
    """Predict, then run and compare."""
    text, shapes, element = program
    inputs = [random_array(np.random.default_rng(0), shape, element) for shape in shapes]
    predicted = predict(text, template, limit, chip)
    assert predicted
    for schedule, figures in predicted:
        built = build(text, template, chip, schedule=schedule)
        built.run(inputs)
        counted = built.counted[-1]
        moved = tuple(argument.moved for argument in figures.arguments)
        several = template == "elementwise" and schedule.parameters != (("unroll", 1),)
        assert moved == moved_bytes(built) or (several and sum(moved) > sum(moved_bytes(built))), schedule
        sectors = counted.sectors_loaded + counted.sectors_stored
        bound = (
            SECTORS if all(shape[-1] * DTYPES[element]().itemsize % SECTOR == 0 for shape in shapes) else TAIL_SECTORS
        )
        assert abs(figures.sectors - sectors) <= max(FEW, bound * sectors), (schedule, figures.sectors, sectors)
        instructions = sum(counted.instructions.values())
        off = figures.warp_instructions / instructions - 1
        assert abs(off) <= INSTRUCTIONS, (schedule, off, dict(figures.instructions), dict(counted.instructions))
        barriers = figures.instructions.get("barrier", 0.0)
        assert barriers == pytest.approx(counted.instructions.get("barrier", 0), rel=0.02, abs=1), schedule
        assert figures.warps == counted.warps


def rows(element: str, count: int, columns: int) -> Program:
    return softmax(count, columns, element), [(count, columns)], element


def element_wise(element: str, *shape: int) -> Program:
    text, shapes = binary(shape, range(len(shape)), [len(shape) - 1], element)
    return text, shapes, element


def transposed(element: str, count: int, columns: int) -> Program:
    text, shapes = permuted((count, columns), (1, 0), element)
    return text, shapes, element


def transposed_rows(element: str, count: int, columns: int) -> Program:
    text, shapes = row_totals(count, columns, element, True)
    return text, shapes, element


def columns(element: str, count: int, width: int) -> Program:
    return fold((count, width), (0,), element, "arith.addf", "0.0"), [(count, width)], element


def rows_and_columns(element: str, count: int, width: int) -> Program:
    return scaled_rows(count, width, element), [(count, width)], element


def scanned(element: str, count: int, width: int) -> Program:
    return scan((count, width), 1, element=element), [(count, width)], element


def contraction(element: str, m: int, n: int, k: int) -> Program:
    return matmul(m, n, k, element), [(m, k), (k, n)], element


def normalised_columns(element: str, count: int, width: int) -> Program:
    return softmax_over((count, width), 0, element), [(count, width)], element


MAKERS: list[tuple[Callable[..., Program], str, tuple[int, ...]]] = [
    (rows, "row", (64, 128)),
    (rows, "row", (37, 260)),
    (rows, "row", (9, 1000)),
    (rows, "row", (5, 77)),
    (element_wise, "elementwise", (64, 256)),
    (element_wise, "elementwise", (33, 67)),
    (element_wise, "elementwise", (7, 31, 24)),
    (transposed, "tile", (64, 96)),
    (transposed, "tile", (70, 132)),
    (transposed_rows, "row_tile", (64, 128)),
    (columns, "column", (300, 64)),
    (columns, "column", (77, 129)),
    (normalised_columns, "column", (64, 96)),
    (rows_and_columns, "row_column", (64, 128)),
    (rows_and_columns, "row_column", (50, 100)),
    (scanned, "scan", (16, 256)),
    (scanned, "scan", (9, 1001)),
    (contraction, "loop_nest", (32, 48, 64)),
    (contraction, "loop_nest", (17, 33, 130)),
]


@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize(("make", "template", "sizes"), MAKERS)
def test_predictions_are_what_is_counted(
    make: Callable[..., Program], template: str, sizes: tuple[int, ...], element: str
) -> None:
    check(make(element, *sizes), template)


def test_a_value_and_its_place_reduced_together() -> None:
    check((argmax(20, 300), [(20, 300)], "f32"), "row")


def test_outputs_that_lie_in_two_directions() -> None:
    text, shapes = both_ways(64, 96, "f32")
    check((text, shapes, "f32"), "tile")


def test_parts_of_a_packed_kernel_count_for_their_blocks() -> None:
    pieces = [reduced((70, 200), [1]), mapped((333, 50)), reduced((90, 64), [0])]
    check((together(pieces), [(70, 200), (333, 50), (90, 64)], "f32"), "packed")


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_100"])
def test_other_chips(chip: str) -> None:
    check(rows("f32", 37, 260), "row", 3, chip)
    check(columns("f32", 77, 129), "column", 3, chip)
