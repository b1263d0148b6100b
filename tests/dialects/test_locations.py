"""Source lines of locations: the user's line, not the library's."""

from __future__ import annotations

import pytest
from mlir import ir

from mlirstitch.dialects import new_context, parse_module
from mlirstitch.dialects.locations import describe, location_of, refusal, source_line, source_lines
from mlirstitch.dialects.walk import walk

LIBRARY = '"/venv/lib/python3.11/site-packages/torch/nn/modules/normalization.py":228:0'


@pytest.mark.parametrize(
    ("location", "lines"),
    [
        ("unknown", ()),
        ('"m.mlir":3:7', ("m.mlir:3:7",)),
        ('"user.py":3:0', ("user.py:3",)),
        (f'callsite({LIBRARY} at "user.py":7:0)', ("user.py:7",)),
        (f'callsite({LIBRARY} at callsite("model.py":5:0 at "train.py":9:0))', ("model.py:5",)),
        (LIBRARY, (LIBRARY[1:].replace('":228:0', ":228"),)),
        ('"relu"("user.py":3:0)', ("user.py:3",)),
        ('fused["a.py":1:0, "b.py":2:0, "a.py":1:0]', ("a.py:1", "b.py:2")),
        (f'fused[callsite({LIBRARY} at "u.py":1:0), callsite({LIBRARY} at "u.py":2:0)]', ("u.py:1", "u.py:2")),
        ('fused["only a name"]', ()),
    ],
)
def test_a_location_names_the_lines_the_user_wrote(location: str, lines: tuple[str, ...]) -> None:
    module = parse_module(f"func.func @f() {{ return loc({location}) }}")
    op = list(walk(module.operation))[-1]
    assert source_lines(op.location) == lines
    assert source_line(op.location) == (lines[0] if lines else "")


def test_a_source_line_leads_back_to_a_location() -> None:
    context = new_context()
    assert str(location_of("a.py:3", context)) == 'loc("a.py":3:0)'
    assert str(location_of("C:\\m.mlir:3:9", context)) == 'loc("C:\\\\m.mlir":3:9)'
    assert location_of("", context) is None
    assert location_of("<pipeline>", context) is None


def test_a_refusal_says_what_and_where() -> None:
    module = parse_module("func.func @f(%x: f32) -> f32 {\n  %0 = math.exp %x : f32\n  return %0 : f32\n}", "m.mlir")
    ops = {op.name: op for op in walk(module.operation)}
    assert describe(ops["math.exp"]) == "math.exp (f32) -> (f32)"
    assert describe(ops["func.func"]) == "func.func @f"
    error = refusal(ops["math.exp"], "no", "yes")
    assert str(error) == "m.mlir:2:8: math.exp (f32) -> (f32): no\n  hint: yes"
    assert isinstance(error.op, str)
    del module, ops
    assert "math.exp" in str(error), "the error keeps text, not handles into IR that is gone"


def test_the_context_of_a_location_is_the_callers() -> None:
    context = new_context()
    location = location_of("a.py:3", context)
    assert location is not None
    assert location.context == context
    assert isinstance(location, ir.Location)
