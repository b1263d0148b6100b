"""A pass of your own in a pipeline beside ours and MLIR's.

A pass is a frozen dataclass: its fields are its options (``max_ops`` is written ``max-ops`` in pipeline texts), its
docstring is its documentation, and ``run`` rewrites the op it is given. Run this file: ``python own_pass.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

import mlirstitch
from mlirstitch.dialects import parse_module
from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.walk import walk
from mlirstitch.passes.pipeline import run_pipeline


@mlirstitch.register_pass
@dataclass(frozen=True)
class CountOps(mlirstitch.Pass):
    """Write on every function how many ops of one kind it holds, and refuse functions that hold too many."""

    NAME = "example-count-ops"
    ANCHOR = "func.func"

    name: str = mlirstitch.option("arith.addf", "the op to count")
    limit: int = mlirstitch.option(100, "the largest number that is accepted")

    def run(self, op: ir.Operation) -> None:
        count = sum(1 for inner in walk(op) if inner.name == self.name)
        if count > self.limit:
            raise refusal(op, f"{count} {self.name} ops, more than {self.limit}", "raise the option limit")
        op.attributes["example.count"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)


SOURCE = """
func.func @twice(%x: f32, %y: f32) -> f32 {
  %a = arith.addf %x, %y : f32
  %b = arith.addf %x, %y : f32
  %c = arith.mulf %a, %b : f32
  return %c : f32
}
"""


def main() -> None:
    """Count before and after common subexpressions are merged; then show a refusal."""
    module = parse_module(SOURCE, "example.mlir")
    run_pipeline(module, "func.func(example-count-ops)")
    print(module)
    run_pipeline(module, "func.func(cse,example-count-ops{name=arith.addf})")
    print(module)
    try:
        run_pipeline(module, "func.func(example-count-ops{name=arith.mulf limit=0})")
    except mlirstitch.PassError as error:
        print(f"refused as it should be: {error}")


if __name__ == "__main__":
    main()
