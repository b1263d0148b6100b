"""plan-buffers: homes, copies, liveness."""

from __future__ import annotations

from itertools import pairwise

import pytest
from mlir import ir

from mlirstitch.errors import PassError
from mlirstitch.lowering.buffers import BufferPlan, annotate, host_function, read_plan
from mlirstitch.lowering.plan_buffers import plan_buffers

CLUSTERS = """
  func.func private @c(tensor<8xf32>) -> tensor<8xf32>
  func.func private @two(tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
"""


def planned(main: str) -> BufferPlan:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse("module {" + CLUSTERS + main + "}")
        function = host_function(module.operation)
        plan = plan_buffers(function)
        annotate(function, plan)
        assert module.operation.verify()
        assert read_plan(function) == plan
        return plan


def roles(plan: BufferPlan) -> list[str]:
    return [buffer.role for buffer in plan.buffers]


def test_the_last_call_writes_straight_into_the_output() -> None:
    plan = planned("""
      func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %a = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32>
        %b = call @c(%a) : (tensor<8xf32>) -> tensor<8xf32>
        return %b : tensor<8xf32>
      }""")
    assert roles(plan) == ["input", "output", "temporary"]
    assert plan.reads == ((0,), (2,))
    assert plan.writes == ((2,), (1,))
    assert plan.copies == ()
    assert plan.arena_bytes == 256


def test_a_reshape_shares_the_buffer_of_its_source() -> None:
    plan = planned("""
      func.func @main(%x: tensor<8xf32>) -> tensor<2x4xf32> {
        %a = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32>
        %b = tensor.expand_shape %a [[0, 1]] output_shape [2, 4] : tensor<8xf32> into tensor<2x4xf32>
        return %b : tensor<2x4xf32>
      }""")
    assert plan.writes == ((1,),)
    assert plan.buffers[1].shape == (2, 4)
    assert plan.copies == ()


def test_results_that_are_arguments_or_repeat_a_value_are_copied() -> None:
    plan = planned("""
      func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<4x2xf32>) {
        %a = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32>
        %v = tensor.expand_shape %a [[0, 1]] output_shape [4, 2] : tensor<8xf32> into tensor<4x2xf32>
        return %x, %a, %v : tensor<8xf32>, tensor<8xf32>, tensor<4x2xf32>
      }""")
    assert plan.results == (1, 2, 3)
    assert plan.writes == ((2,),)
    assert plan.copies == ((0, 1), (2, 3))


def test_new_contents_of_an_argument_are_copied_after_its_last_reader() -> None:
    plan = planned("""
      func.func @main(%x: tensor<8xf32>, %state: tensor<8xf32> {stitch.name = "state", stitch.role = "weight"})
          -> (tensor<8xf32> {stitch.mutates = "state"}, tensor<8xf32>) {
        %n:2 = call @two(%x, %state) : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
        return %n#0, %n#1 : tensor<8xf32>, tensor<8xf32>
      }""")
    assert roles(plan) == ["input", "weight", "output", "temporary"]
    assert plan.results == (1, 2)
    assert plan.copies == ((3, 1),)
    assert [buffer.mutated for buffer in plan.buffers] == [False, True, False, False]


def test_new_contents_go_straight_into_an_argument_that_nobody_reads_any_more() -> None:
    plan = planned("""
      func.func @main(%x: tensor<8xf32>, %state: tensor<8xf32> {stitch.name = "state"})
          -> (tensor<8xf32> {stitch.mutates = "state"}, tensor<8xf32>) {
        %a = call @c(%state) : (tensor<8xf32>) -> tensor<8xf32>
        %b = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %b, %a : tensor<8xf32>, tensor<8xf32>
      }""")
    assert plan.writes == ((2,), (1,))
    assert plan.copies == ()


def test_an_output_that_is_the_old_argument_is_copied_before_the_argument_is_overwritten() -> None:
    plan = planned("""
      func.func @main(%x: tensor<8xf32>, %state: tensor<8xf32> {stitch.name = "state"})
          -> (tensor<8xf32> {stitch.mutates = "state"}, tensor<8xf32>) {
        %b = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %b, %state : tensor<8xf32>, tensor<8xf32>
      }""")
    assert plan.copies == ((1, 2), (3, 1))


def test_arguments_that_swap_contents_pass_through_a_temporary() -> None:
    plan = planned("""
      func.func @main(%a: tensor<8xf32> {stitch.name = "a"}, %b: tensor<8xf32> {stitch.name = "b"})
          -> (tensor<8xf32> {stitch.mutates = "a"}, tensor<8xf32> {stitch.mutates = "b"}) {
        return %b, %a : tensor<8xf32>, tensor<8xf32>
      }""")
    memory = {0: "a", 1: "b"}
    for source, target in plan.copies:
        memory[target] = memory[source]
    assert (memory[0], memory[1]) == ("b", "a")


def test_an_argument_that_keeps_its_contents_needs_no_copy() -> None:
    plan = planned("""
      func.func @main(%a: tensor<8xf32> {stitch.name = "a"}) -> (tensor<8xf32> {stitch.mutates = "a"}) {
        return %a : tensor<8xf32>
      }""")
    assert plan.copies == ()


def test_empty_scalar_and_unused_tensors_have_buffers() -> None:
    plan = planned("""
      func.func private @s(tensor<f32>) -> tensor<0x4xi1>
      func.func @main(%x: tensor<f32>, %unused: tensor<3xi64>) -> (tensor<0x4xi1>) {
        %a = call @s(%x) : (tensor<f32>) -> tensor<0x4xi1>
        %dead = call @s(%x) : (tensor<f32>) -> tensor<0x4xi1>
        return %a : tensor<0x4xi1>
      }""")
    assert [(buffer.shape, buffer.dtype, buffer.bytes) for buffer in plan.buffers] == [
        ((), "float32", 4),
        ((3,), "int64", 24),
        ((0, 4), "bool", 0),
        ((0, 4), "bool", 0),
    ]
    assert plan.arena_bytes == 0


SCHEDULED = """
  func.func private @s(%x: tensor<8xf32>) -> tensor<8xf32> attributes {stitch.cluster, stitch.schedule = {
      template = "column", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>,
      scratch = [["f32", 64], ["i64", 8]], tickets = 3}} {
    return %x : tensor<8xf32>
  }
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %a = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32>
    %b = call @s(%a) : (tensor<8xf32>) -> tensor<8xf32>
    %d = call @s(%b) : (tensor<8xf32>) -> tensor<8xf32>
    return %d : tensor<8xf32>
  }"""


def test_launches_share_tickets_and_have_scratch_while_they_run() -> None:
    plan = planned(SCHEDULED)
    tickets = plan.buffers[2]
    assert (tickets.role, tickets.shape, tickets.dtype, tickets.offset) == ("persistent", (3,), "int32", None)
    assert plan.workspaces == ((), (5, 6, 2), (7, 8, 2))
    assert [(plan.buffers[n].dtype, plan.buffers[n].elements) for n in (5, 6)] == [("float32", 64), ("int64", 8)]
    spans = [(plan.buffers[n].offset, plan.buffers[n].bytes) for n in (3, 4, 5, 6)]
    spans = sorted((start, size) for start, size in spans if start is not None)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
    assert plan.buffers[7].offset in (plan.buffers[3].offset, plan.buffers[5].offset)


def test_scratch_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(PassError, match="no scratch buffer has the type f8"):
        planned(SCHEDULED.replace('["i64", 8]', '["f8", 8]'))


def test_declared_dtypes_tell_unsigned_bytes_from_signed_ones() -> None:
    plan = planned("""
      func.func @main(%x: tensor<8xi8> {stitch.dtype = "uint8"}) -> (tensor<8xi8> {stitch.dtype = "uint8"}) {
        return %x : tensor<8xi8>
      }""")
    assert [buffer.dtype for buffer in plan.buffers] == ["uint8", "uint8"]


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ("func.func @other() { return }", "no func.func @main"),
        (
            """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
                 %e = tensor.empty() : tensor<8xf32>
                 return %e : tensor<8xf32> }""",
            "tensor.empty",
        ),
        ("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }", "dynamic shape"),
        ("func.func @main(%x: f32) -> f32 { return %x : f32 }", "type f32"),
        (
            """func.func @main(%x: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {
                 return %x : tensor<2xcomplex<f32>> }""",
            "complex",
        ),
        (
            """func.func @main(%x: tensor<8xf16> {stitch.dtype = "float32"}) -> tensor<8xf16> {
                 return %x : tensor<8xf16> }""",
            "declared float32",
        ),
        (
            """func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32> {stitch.mutates = "y"}) {
                 return %x : tensor<8xf32> }""",
            "no argument",
        ),
        (
            """func.func @main(%x: tensor<8xf32> {stitch.name = "x"}, %y: tensor<4xf32>)
                   -> (tensor<4xf32> {stitch.mutates = "x"}) { return %y : tensor<4xf32> }""",
            "cannot become",
        ),
        (
            """func.func @main(%x: tensor<8xf32> {stitch.name = "x"}, %y: tensor<8xf32>)
                   -> (tensor<8xf32> {stitch.mutates = "x"}, tensor<8xf32> {stitch.mutates = "x"}) {
                 return %y, %y : tensor<8xf32>, tensor<8xf32> }""",
            "two results",
        ),
        (
            """func.func @main(%x: tensor<8xf32> {stitch.name = "x"}, %y: tensor<8xf32> {stitch.name = "x"})
                   -> tensor<8xf32> { return %y : tensor<8xf32> }""",
            "named 'x'",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(main: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        planned(main)
