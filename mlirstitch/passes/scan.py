"""Prefix scans as ``linalg.generic``: how one is recognised.

A scan combines every element with all that come before it along one dim. It is written with two results, the scanned
tensor, which is indexed by every loop, and the running total, which the scanned dim reduces::

    %scan:2 = linalg.generic {indexing_maps = [(d0, d1) -> (d0, d1), (d0, d1) -> (d0, d1), (d0, d1) -> (d0)],
                              iterator_types = ["parallel", "reduction"]}
        ins(%x) outs(%empty, %zeros) {
      ^bb0(%element, %unread, %total):
        %next = arith.addf %total, %element
        linalg.yield %next, %next          // an exclusive scan yields %total, %next
    }

Run as the loops that linalg defines, in order along the reduced dim, this computes the scan: the form needs no op, no
attribute and no meaning of our own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.structured import REDUCTION, Structured, has_uses

SCANNED, TOTAL = 0, 1
"""Result numbers."""


@dataclass(frozen=True)
class ScanForm:
    """A scan along loop ``dim``; ``inclusive``: an element counts for its own place."""

    dim: int
    inclusive: bool


def keeps_reduced_dim(view: Structured) -> bool:
    """Whether some result is indexed by a reduced loop, which among linalg ops only a scan may do."""
    reduced = {dim for dim, kind in enumerate(view.iterators) if kind == REDUCTION}
    return any(reduced & set(_plain_dims(affine_map)) for affine_map in view.init_maps)


def scan_form(view: Structured) -> ScanForm | None:
    """What scan an op is, or None."""
    return _form(view) if not scan_problem(view) else None


def scan_problem(view: Structured) -> str:
    """Why an op is no scan, or ""."""
    reduced = [dim for dim, kind in enumerate(view.iterators) if kind == REDUCTION]
    if len(reduced) != 1:
        return f"a scan runs along one dim, not along {len(reduced)}"
    if len(view.inits) != 2:
        return f"a scan has two results, the scanned tensor and its total, not {len(view.inits)}"
    loops = list(range(len(view.iterators)))
    if sorted(_plain_dims(view.init_maps[SCANNED])) != loops or view.init_maps[SCANNED].n_symbols:
        return "the first result of a scan is indexed by every loop dim, once"
    rest = [dim for dim in loops if dim != reduced[0]]
    if sorted(_plain_dims(view.init_maps[TOTAL])) != rest or len(view.init_maps[TOTAL].results) != len(rest):
        return "the second result of a scan, its total, is indexed by every loop dim but the scanned one"
    if has_uses(view.running[SCANNED]):
        return "the body of a scan does not read what the scanned tensor held before"
    if view.yielded[SCANNED] not in (view.yielded[TOTAL], view.running[TOTAL]):
        return "the body of a scan yields the new total twice, or the total before and the new one"
    return ""


def _form(view: Structured) -> ScanForm:
    (dim,) = (dim for dim, kind in enumerate(view.iterators) if kind == REDUCTION)
    return ScanForm(dim, view.yielded[SCANNED] == view.yielded[TOTAL])


def _plain_dims(affine_map: ir.AffineMap) -> list[int]:
    """Positions of the results that are plain dims."""
    return [expr.position for expr in affine_map.results if isinstance(expr, ir.AffineDimExpr)]
