"""Contexts and parsing: locations, and clear errors for text that is no IR."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlir import ir

from mlirstitch.dialects import new_context, parse_file, parse_module
from mlirstitch.dialects.bindings import print_op
from mlirstitch.dialects.walk import nested, walk
from mlirstitch.errors import MlirstitchError


def test_ops_are_located_in_the_named_source() -> None:
    module = parse_module("func.func @f() {\n  return\n}\n", "model.mlir")
    locations = {op.name: str(op.location) for op in walk(module.operation)}
    assert locations["func.func"] == 'loc("model.mlir":1:1)'
    assert locations["func.return"] == 'loc("model.mlir":2:3)'


def test_locations_in_the_text_win() -> None:
    module = parse_module('func.func @f() { return loc("user.py":7:0) }', "model.mlir")
    assert [str(op.location) for op in walk(module.operation)][-1] == 'loc("user.py":7:0)'


@pytest.mark.parametrize(
    ("text", "source", "message", "hint"),
    [
        ("func.func @f(", "m.mlir:1:13", "expected non-function type", ""),
        ("\n%", "m.mlir:2:1", "invalid SSA name", ""),
        ("func.func @f() {}", "m.mlir:1:16", "expected non-empty function body", ""),
        ("func.func @f() -> f32 {\n  return\n}", "m.mlir:2:3", "has 0 operands, but enclosing function", ""),
        ("%0 = torch.aten.relu %1", "m.mlir:1:6", "unknown dialect 'torch'", "hand over the nn.Module"),
        ('\n"foo.bar"() : () -> ()', "m.mlir:2:10", "unknown dialect 'foo'", "lower to linalg"),
        ("func.func @f(%x: !foo.bar) { return }", "m.mlir:1:", "unknown dialect 'foo'", "lower to linalg"),
        ("func.func @f() attributes {a = #foo.x} { return }", "m.mlir:1:", "unknown dialect 'foo'", ""),
        ("module {\n}\0", "m.mlir:2", "NUL byte", "bytecode"),
    ],
)
def test_malformed_text_is_refused_at_its_line(text: str, source: str, message: str, hint: str) -> None:
    with pytest.raises(MlirstitchError) as caught:
        parse_module(text, "m.mlir")
    assert caught.value.source.startswith(source)
    assert message in caught.value.message
    assert hint in caught.value.hint


GENERIC = """
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %0 = linalg.generic {indexing_maps = [MAP, affine_map<(i)->(i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<8xf32>) outs(%y : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    } -> tensor<8xf32>
  return %0 : tensor<8xf32>
}"""


@pytest.mark.parametrize(
    "result", ["i mod 0", "i floordiv 0", "i ceildiv 0", "i mod -2", "i + 2 * (i floordiv (1 - 1))", "i mod (3 mod 0)"]
)
def test_a_map_that_divides_by_nothing_is_refused_before_mlir_dies_of_it(result: str) -> None:
    with pytest.raises(MlirstitchError, match="divides by zero or by a negative number") as caught:
        parse_module(GENERIC.replace("MAP", f"affine_map<(i) -> ({result})>"), "m.mlir")
    assert caught.value.source == "m.mlir:3"


def test_a_map_that_divides_by_a_positive_number_is_read() -> None:
    parse_module(GENERIC.replace("MAP", "affine_map <(i) -> ((i ceildiv 2) mod 4 + i floordiv 3)>"))


CONSTANT = (
    "func.func @main() -> tensor<8xf32> {{\n  %0 = arith.constant {} : tensor<8xf32>\n  return %0 : tensor<8xf32>\n}}"
)


@pytest.mark.parametrize(
    "value", ["dense<__elided__>", "dense_resource<__elided__>", "dense_resource<elided>", "dense_resource<w>"]
)
def test_a_constant_without_its_data_is_refused(value: str) -> None:
    with pytest.raises(MlirstitchError, match=r"elided when this text was printed|has no data") as caught:
        parse_module(CONSTANT.format(value), "m.mlir")
    assert caught.value.source == "m.mlir:2"
    assert "print the module again without a limit" in caught.value.hint


def test_text_that_only_speaks_of_elided_data_is_accepted() -> None:
    text = '// dense<__elided__>\nmodule attributes {u.a = "dense<__elided__> \\" dense_resource<__elided__>"} {}'
    assert "u.a =" in str(parse_module(text))


def test_a_resource_with_its_data_is_accepted() -> None:
    data = '\n{-# dialect_resources: { builtin: { w: "0x04000000' + "0000803f" * 8 + '" } } #-}'
    assert "dense_resource<w>" in str(parse_module(CONSTANT.format("dense_resource<w>") + data))


def test_large_constants_survive_printing_and_parsing() -> None:
    numbers = ", ".join(str(float(i)) for i in range(5000))
    text = CONSTANT.replace("8x", "5000x").format(f"dense<[{numbers}]>")
    printed = print_op(parse_module(text).operation, locations=True)
    assert print_op(parse_module(printed).operation, locations=True) == printed
    values = ir.DenseElementsAttr(nested(parse_module(printed).operation, ("func.func", "any"))[0].attributes["value"])
    assert len(values) == 5000


def test_unregistered_ops_are_accepted_on_request() -> None:
    assert "foo.bar" in str(parse_module('"foo.bar"() : () -> ()', context=new_context(allow_unregistered=True)))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MlirstitchError, match="No such file"):
        parse_file(tmp_path / "none.mlir")
    with pytest.raises(MlirstitchError, match="cannot read"):
        parse_file(tmp_path)
    (tmp_path / "bytes.mlir").write_bytes(b"ML\xefR\x0d\xff\xfe")
    with pytest.raises(MlirstitchError, match="not UTF-8"):
        parse_file(tmp_path / "bytes.mlir")


def test_a_module_of_five_thousand_ops_is_parsed_and_walked() -> None:
    lines = [f"  %{i + 1} = arith.addf %{i}, %{i} : f32" for i in range(5000)]
    text = "func.func @f(%0: f32) -> f32 {\n" + "\n".join(lines) + "\n  return %5000 : f32\n}"
    assert sum(op.name == "arith.addf" for op in walk(parse_module(text, "long.mlir").operation)) == 5000


def test_ops_nested_as_deep_as_pythons_stack_are_walked_in_order() -> None:
    depth = 1000
    module = parse_module("module {\n" * depth + "}" * depth, "deep.mlir")
    lines = [op.location.start_line for op in walk(module.operation)]
    assert lines == list(range(1, depth + 1))


def test_an_op_may_be_erased_once_the_walk_is_past_it() -> None:
    module = parse_module("module { func.func @f() { return } func.func @g() { return } func.func @h() { return } }")
    seen = []
    previous = None
    for op in walk(module.operation):
        if previous is not None and op.name == "func.func":
            previous.erase()
        previous = op if op.name == "func.func" else previous
        seen.append(op.name)
    assert seen == ["builtin.module", *["func.func", "func.return"] * 3]
    assert str(module).count("func.func") == 1


@pytest.mark.parametrize(
    "text",
    [
        "module {\n" * 30_000 + "}" * 30_000,
        "func.func @f(%x: " + "tuple<" * 200_000,
        "module attributes {a.b = " + "[" * 200_000,
    ],
)
def test_text_that_would_overflow_the_native_stack_is_refused(text: str) -> None:
    with pytest.raises(MlirstitchError, match="nested more than 1000 deep"):
        parse_module(text)


def test_many_brackets_are_fine_where_they_do_not_nest() -> None:
    lines = "".join(
        f'func.func @f{i}(%x: f32) -> f32 {{ "a.b"() {{c = "[{{<("}} : () -> () // <<[[\n return %x : f32 }}\n'
        for i in range(1500)
    )
    parse_module(lines, context=new_context(allow_unregistered=True))
