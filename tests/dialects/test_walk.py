"""Walking IR as a generator: textual order, erasing behind the walk, any depth; stepping inwards by names."""

from __future__ import annotations

from mlir import ir

from mlirstitch.dialects import new_context
from mlirstitch.dialects.walk import nested, walk

TEXT = """
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %0 = linalg.exp ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @g() {
  return
}
"""


def names(op: ir.Operation) -> list[str]:
    return [found.name for found in walk(op)]


def test_ops_come_in_textual_order_outermost_first() -> None:
    with new_context() as context:
        module = ir.Module.parse(TEXT, context)
        function = ["func.func", "tensor.empty", "linalg.exp", "math.exp", "linalg.yield", "func.return"]
        assert names(module.operation) == ["builtin.module", *function, "func.func", "func.return"]


def test_an_op_may_be_erased_once_the_walk_is_past_it() -> None:
    with new_context() as context:
        module = ir.Module.parse(TEXT, context)
        passed: list[ir.Operation] = []
        for op in walk(module.operation):
            if op.name == "func.func":
                for function in passed:
                    function.erase()
                passed = [op]
        assert len(passed) == 1
        assert names(module.operation) == ["builtin.module", "func.func", "func.return"]


def test_nesting_deeper_than_pythons_stack_is_walked() -> None:
    depth = 3000
    with new_context(allow_unregistered=True) as context, ir.Location.unknown(context):
        module = ir.Module.create()
        block = module.body
        for _ in range(depth):
            with ir.InsertionPoint(block):
                block = ir.Operation.create("test.nest", regions=1).regions[0].blocks.append()
        assert names(module.operation).count("test.nest") == depth


def test_stepping_inwards_by_names() -> None:
    with new_context() as context:
        module = ir.Module.parse(TEXT, context).operation
        assert len(nested(module, ("func.func",))) == 2
        assert [op.name for op in nested(module, ("func.func", "func.return"))] == ["func.return"] * 2
        assert [op.name for op in nested(module, ("any", "linalg.exp", "math.exp"))] == ["math.exp"]
        assert nested(module, ("linalg.exp",)) == []
