"""Check the promises of a level in the middle of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlirstitch.dialects import invariants, stitch
from mlirstitch.options import LEVELS, option
from mlirstitch.passes.base import Pass, register_pass

if TYPE_CHECKING:
    from mlir import ir


@register_pass
@dataclass(frozen=True)
class VerifyLevel(Pass):
    """Refuse a module that breaks the promises of a level (docs/architecture.md); change nothing.

    Without a level only the ``stitch.*`` attributes are checked: each is known, stands where it may, and has a legal
    value of its type.
    """

    NAME = "stitch-verify"

    level: str = option("", "level whose promises to check, or input", ("", "input", *LEVELS))

    def run(self, op: ir.Operation) -> None:
        if self.level:
            invariants.check(op, self.level)
        else:
            stitch.verify(op)
