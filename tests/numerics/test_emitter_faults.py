"""Faults put back into the code generator are found: one row a kind, with the program that shows it and the finding.

Every program first passes with the sound generator: results agree with the reference, and the sanitizer finds nothing.
A kind that no program shows would be a hole in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import emitter_faults as faults
import pytest
from fault_programs import PROGRAMS

from mlirstitch.errors import LaunchError


@dataclass(frozen=True)
class Row:
    """A kind of fault, what puts it back, and how which program shows it."""

    kind: str
    fault: Callable[[pytest.MonkeyPatch], None]
    program: str
    finding: str


RACE, NUMBERS = "race|uninitialised|nobody has written", "numbers"
NO_CLUSTER_BARRIER = faults.without("nvvm.cluster.arrive", "nvvm.cluster.wait")
TABLE = (
    Row("barrier: none, within a row", faults.without("gpu.barrier"), "rows by a block", RACE),
    Row("barrier: none, between warps of columns", faults.without("gpu.barrier"), "columns by warps", RACE),
    Row("barrier: none, between rows", faults.without("gpu.barrier"), "rows, columns and totals", RACE),
    Row("barrier: shared memory reused behind the first", faults.only_barrier(1), "rows by a block", RACE),
    Row("barrier: none, before the ticket", faults.without("gpu.barrier"), "long row split over blocks", RACE),
    Row("barrier: none, within a cluster of blocks", NO_CLUSTER_BARRIER, "rows shared by a cluster of blocks", RACE),
    Row("barrier: none, between warps of a scan", faults.without("gpu.barrier"), "scan by a block", RACE),
    Row("barrier: none, within a transposed tile", faults.without("gpu.barrier"), "transposed", RACE),
    Row("barrier: none, between tiles of rows", faults.without("gpu.barrier"), "rows of a transposed input", RACE),
    Row("fence: none, between blocks", faults.without("llvm.fence"), "long row split over blocks", "race"),
    Row("order of blocks: the first folds", faults.FIRST_BLOCK_FOLDS, "long row split over blocks", RACE),
    Row("ticket: not put back", faults.TICKET_KEPT, "long row split over blocks", "tickets are not put back"),
    Row("mask: idle lanes count, rows longer than a warp", faults.IDLE_LANES_COUNT, "rows of 33", NUMBERS),
    Row("mask: idle lanes count, rows shorter", faults.IDLE_LANES_COUNT, "rows of 5", NUMBERS),
    Row("mask: idle lanes count in a product", faults.IDLE_LANES_COUNT, "product of 33", NUMBERS),
    Row("mask: idle lanes read and write", faults.UNGUARDED_ACCESS, "rows of 33", "outside|out of bounds|past"),
    Row("tail: remainder of a vector left out", faults.NO_REMAINDER, "remainder of a vector", NUMBERS),
    Row("neutral element of a maximum", faults.neutral("arith.maximumf", 0.0), "largest of 33", NUMBERS),
    Row("neutral element of a product", faults.neutral("arith.mulf", 0.0), "product of 33", NUMBERS),
    Row("neutral element of a minimum", faults.neutral("arith.minsi", 0), "smallest of 33", NUMBERS),
    Row("initial value once a thread", faults.INITIAL_PER_THREAD, "sum from 2.5", NUMBERS),
    Row("shuffle: wrong lane", faults.WRONG_LANE, "sum of 33", NUMBERS),
    Row("shuffle: wrong lane of a scan", faults.WRONG_LANE, "scan by a warp", NUMBERS),
    Row("shuffle: half a warp", faults.NARROW_SHUFFLE, "sum of 33", f"{NUMBERS}|lane|shfl"),
    Row("ties: not the first index", faults.LAST_INDEX_WINS, "first of equal maxima", f"{NUMBERS}|race"),
    Row("NaN: lost in a maximum", faults.renamed("arith.maximumf", "arith.maxnumf"), "NaN among maxima", NUMBERS),
    Row("rounding: LLVM contracts", faults.CONTRACTED, "product and sum", NUMBERS),
    Row("rounding: fused multiply-add rounds twice", faults.PRODUCT_ROUNDED, "fused multiply-add", NUMBERS),
    Row("rounding: narrowing cast left out", faults.cast_elided, "narrowed and widened", NUMBERS),
    Row("precision: double by single", faults.DOUBLE_BY_SINGLE, "logarithm and exponential of doubles", NUMBERS),
    Row("alignment overstated", faults.OVERSTATED_ALIGNMENT, "rows that start off 16 bytes", "not aligned"),
    Row("index: not clamped", faults.UNCLAMPED_INDEX, "indices outside the table", "outside|out of bounds|past"),
    Row("bool: low bit of its byte", faults.BOOL_IS_ITS_LOW_BIT, "bytes that are not 0 or 1", NUMBERS),
    Row("sign: unsigned compared as signed", faults.renamed("arith.maxui", "arith.maxsi"), "unsigned extrema", NUMBERS),
    Row(
        "sign: unsigned divided as signed", faults.renamed("arith.divui", "arith.divsi"), "unsigned quotients", NUMBERS
    ),
    Row("precision: root left to LLVM", faults.root_by_llvm, "root", "PTX has"),
    Row("shared memory: two tensors in one place", faults.STAGED_TOGETHER, "two long rows side by side", NUMBERS),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_sound_generator_passes(name: str) -> None:
    PROGRAMS[name].check()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind)
def test_the_fault_is_found(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    row.fault(monkeypatch)
    with pytest.raises((AssertionError, LaunchError), match=row.finding):
        PROGRAMS[row.program].check()
