"""Passes of the three primitives refuse what they cannot do, with the reason and a way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlirstitch.dialects import parse_module
from mlirstitch.dialects.bindings import print_op
from mlirstitch.errors import MlirstitchError
from mlirstitch.passes.pipeline import run_pipeline

TEXT = """
module attributes {dist.mesh = [["dp", 2], ["tp", 2]], dist.devices = array<i64: 0, 1, 2, 3>} {
  func.func @main(%x: tensor<8x16xf32> {stitch.name = "x", stitch.role = "input"},
                  %u: tensor<16x32xf32> {stitch.name = "up", stitch.role = "weight"},
                  %d: tensor<32x16xf32> {stitch.name = "down", stitch.role = "weight"}) -> tensor<8x16xf32> {
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<8x32xf32>
    %f = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>

    %h = linalg.matmul {stitch.kind = "compute"} ins(%x, %u : tensor<8x16xf32>, tensor<16x32xf32>)
        outs(%f : tensor<8x32xf32>) -> tensor<8x32xf32>
    %e2 = tensor.empty() : tensor<8x16xf32>
    %f2 = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e2 : tensor<8x16xf32>) -> tensor<8x16xf32>
    %y = linalg.matmul {stitch.kind = "compute"} ins(%h, %d : tensor<8x32xf32>, tensor<32x16xf32>)
        outs(%f2 : tensor<8x16xf32>) -> tensor<8x16xf32>
    return %y : tensor<8x16xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("dist-op-trans{dims=batch/9 space=dp}", "dist-op-trans: no dim is named 'batch/9'"),
        ("dist-op-trans{dims=x/0 space=pp}", "the mesh has no axis 'pp'"),
        ("dist-op-trans{dims=x/0 time=dp=2}", "time axis 'dp' with 2 parts: its name or size is taken"),
        ("dist-op-trans{dims=x/0}", "op-trans of 'x/0' names no axis"),
        ("dist-op-trans{space=dp}", "op-trans takes either dims or a loop"),
        ("dist-op-trans{ops=7 loop=0 space=dp}", "no op is '7'"),
        ("dist-drop-plan,dist-op-trans{dims=x/0 space=dp}", "the module has no mesh"),
        ("dist-op-assign{ops=0 at=pp=0}", "the mesh has no axis 'pp'"),
        ("dist-op-assign{ops=0 at=dp=2}", "axis dp has 2 places, 2 is none of them"),
        ("dist-op-assign{ops=0 at=dp}", "place 'dp': cannot read 'dp'"),
        ("dist-op-assign{at=dp=0}", "op-assign takes one of ops, argument and stages"),
        ("dist-op-order{first=1 then=3 then-at=micro=0}", "there is no time micro=0"),
        ("dist-op-order{first=linalg.softmax then=3}", "no op is 'linalg.softmax'"),
        ("dist-plan{plan=tq}", "'tq'"),
    ],
)
def test_refusals_say_why(pipeline: str, message: str) -> None:
    with pytest.raises(MlirstitchError) as caught:
        run_pipeline(parse_module(TEXT), pipeline)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('stitch.name = "x"', 'dist.store = [["pp"], []], stitch.name = "x"', "dist.store names the axis 'pp'"),
        ('stitch.name = "x"', 'dist.store = [["dp"], ["dp"]], stitch.name = "x"', "names the axis 'dp' twice"),
        ('{stitch.kind = "compute"}', '{dist.cuts = [["dp"]]}', "dist.cuts has 1 entries, the op 3 loops"),
        ('{stitch.kind = "compute"}', '{dist.cuts = [["up"], [], []]}', "dist.cuts names the axis 'up'"),
        ('{stitch.kind = "compute"}', "{dist.cuts = 3 : i64}", "dist.cuts must be of type array of arrays of names"),
        ('{stitch.kind = "compute"}', "{dist.cut = 3 : i64}", "the attribute dist.cut is unknown"),
        ('{stitch.kind = "compute"}', '{dist.time = [["micro", 2]]}', "dist.time may not stand on linalg.matmul"),
        ('{stitch.kind = "compute"}', "{dist.devices = array<i64: 0>}", "the attribute dist.mesh is missing"),
        (
            '{stitch.kind = "compute"}',
            "{dist.devices = array<i64: 7>, dist.mesh = []}",
            "device 7 is not in the mesh",
        ),
        ("{dist.mesh =", '{dist.time = [["dp", 2]], dist.mesh =', "axis 'dp' is one of the mesh and one of time"),
        ("{dist.mesh =", '{dist.time = [["micro", 0]], dist.mesh =', "axis 'micro' has size 0"),
        (
            "{dist.mesh =",
            "{dist.orders = [{first = 0 : i64, first_at = [], then = 1 : i64, then_at = []}], dist.mesh =",
            "dist.orders names group 0, which no op is in",
        ),
        ("{dist.mesh =", "{dist.orders = [3 : i64], dist.mesh =", "which has not the fields first, first_at, then"),
    ],
)
def test_attributes_edited_by_hand_are_refused(old: str, new: str, message: str) -> None:
    module = parse_module(TEXT.replace(old, new, 1))
    with pytest.raises(MlirstitchError) as caught:
        run_pipeline(module, "dist-op-assign{ops=0 at=dp=0}")
    assert message in str(caught.value)


def test_the_example_of_the_documentation_gives_what_it_shows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "partitioning.md").read_text()
    section = page.partition("## Plans in the IR")[2].partition("\n## ")[0]
    command = re.search(r"--pass-pipeline='([^']*)'", section)
    shown = re.search(r"```mlir\n(.*?)```", section, re.DOTALL)
    assert command is not None
    assert shown is not None
    module = parse_module(TEXT)
    run_pipeline(module, command[1])
    text = print_op(module.operation)
    lines = [line for line in shown[1].splitlines() if line]
    assert lines
    for line in lines:
        assert line in text
    assert text.count("func.func") == 1
