"""The judge: linalg-on-tensors IR evaluated with numpy, op by op, as the IR says.

``run(module_or_text, inputs)`` executes ``@main`` (or another function) without compiling anything, so that the IR can
be compared before and after a pass, and against eager PyTorch. It needs neither torch nor a code generator.

What it promises:

* every op is evaluated in the types the IR gives it. A bf16 accumulator is rounded after every addition, serially, so
  that a program whose accumulator is too narrow *looks* wrong here. f32 and f64 sums are pairwise.
* transcendental functions of f16, bf16 and f32 are computed in f64 and rounded once.
* ``precision="float64"`` evaluates every floating-point value in f64 instead (casts between floats become no-ops): the
  yardstick for errors.
* reading outside a tensor, a failing ``cf.assert`` and an op it does not know are errors, never a guess.
"""

from mlirstitch.driver.reference.interpreter import run

__all__ = ["run"]
