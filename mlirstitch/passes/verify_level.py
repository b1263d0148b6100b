"""Check the promises of a level in the middle of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlirstitch.dialects import invariants, plan_attributes, stitch
from mlirstitch.dialects.locations import refusal
from mlirstitch.options import LEVELS, option
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import Kind
from mlirstitch.passes.scan import keeps_reduced_dim, scan_form, scan_problem
from mlirstitch.passes.scatter import scatter_form
from mlirstitch.passes.structured import block_ops, functions, structured

if TYPE_CHECKING:
    from mlir import ir

_LINALG_LEVELS = ("linalg", "partitioned", "stitched")


@register_pass
@dataclass(frozen=True)
class VerifyLevel(Pass):
    """Refuse a module that breaks the promises of a level (docs/architecture.md); change nothing.

    On the levels of linalg ops, a result indexed by a reduced dim must be a scan (``passes/scan.py``), and an op whose
    ``stitch.kind`` says scan or scatter must have that form.

    Without a level only attributes are checked: each ``stitch.*`` and ``dist.*`` is known, stands where it may, and has
    a legal value of its type; and the ops of device programs.
    """

    NAME = "stitch-verify"

    level: str = option("", "level whose promises to check, or input", ("", "input", *LEVELS))

    def run(self, op: ir.Operation) -> None:
        if self.level:
            invariants.check(op, self.level)
            if self.level in _LINALG_LEVELS:
                for function in functions(op):
                    for child in block_ops(function):
                        _check_form(child)
        else:
            stitch.verify(op)
            plan_attributes.verify(op)


def _check_form(op: ir.Operation) -> None:
    """Refuse an op that would be a scan or scatter but has not its form."""
    view = structured(op)
    if view is None:
        return
    if keeps_reduced_dim(view) and scan_form(view) is None:
        problem = f"a result is indexed by a reduced dim, but {scan_problem(view)}"
        raise refusal(op, problem, "write a scan as docs/architecture.md says")
    kind = stitch.KIND.get(op)
    wrong = (kind == Kind.SCAN and scan_form(view) is None) or (kind == Kind.SCATTER and scatter_form(view) is None)
    if wrong:
        raise refusal(op, f"stitch.kind is {kind}, but the op has not that form", "run normalize-classify")
