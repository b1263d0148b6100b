"""The stitch dialect: accessors, verifier, and that its text needs no dialect of ours."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from mlir import ir

from mlirstitch.dialects import new_context, parse_module, stitch
from mlirstitch.dialects.schedule import Schedule
from mlirstitch.dialects.walk import nested
from mlirstitch.errors import PassError

PACKAGE = Path(stitch.__file__).parent.parent

STITCHED = """
#map = affine_map<(d0) -> (d0)>
module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {
  func.func private @cluster_0(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster,
      stitch.schedule = {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>,
        parameters = {mode = "warp", rows = 2 : i64}, schemes = [[0, "warp"]]}} {
    %0 = tensor.empty() : tensor<8xf32>
    %1 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]}
        ins(%x : tensor<8xf32>) outs(%0 : tensor<8xf32>) attrs = {stitch.kind = "expensive"} {
      ^bb0(%a: f32, %b: f32):
        %2 = math.exp %a : f32
        linalg.yield %2 : f32
    } -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
  func.func @main(%x: tensor<8xf32> {stitch.dtype = "float32", stitch.name = "x", stitch.role = "input"})
      -> (tensor<8xf32> {stitch.dtype = "float32", stitch.mutates = "x", stitch.name = "y"}) {
    %0 = call @cluster_0(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
"""


def test_accessors_read_what_the_text_says() -> None:
    module = parse_module(STITCHED)
    cluster, main = nested(module.operation, ("func.func",))
    assert stitch.TARGET.get(module.operation) == "sm_90"
    assert stitch.CLUSTER.get(cluster) is True
    assert stitch.CLUSTER.get(main) is None
    assert stitch.SCHEDULE.get(cluster) == Schedule(
        "elementwise",
        (1, 1, 1),
        (32, 1, 1),
        parameters=(("mode", "warp"), ("rows", 2)),
        schemes=((0, "warp"),),
    )
    assert stitch.ROLE.of_argument(main, 0) == "input"
    assert stitch.MUTATES.of_result(main, 0) == "x"
    assert stitch.ROLE.of_argument(cluster, 0) is None
    stitch.verify(module.operation)


def test_what_accessors_write_reads_back_and_survives_text() -> None:
    module = parse_module("func.func @main(%x: tensor<8xi8>) -> tensor<8xi8> { return %x : tensor<8xi8> }")
    main = nested(module.operation, ("func.func",))[0]
    schedule = Schedule("row", (4, 2, 1), (64, 1, 1), 4, 128, (("a", 1), ("b", "x")), ((2, "block"),))
    stitch.NUMERICS.set(module.operation, "strict")
    stitch.SCHEDULE.set(main, schedule)
    stitch.CLUSTER.set(main, True)
    stitch.ARENA_BYTES.set(main, 256)
    stitch.COPIES.set(main, ((0, 1), (2, 3)))
    stitch.NAME.set_argument(main, 0, "x")
    stitch.DTYPE.set_argument(main, 0, "uint8")
    stitch.MUTATES.set_result(main, 0, "x")
    again = parse_module(str(module))
    main = nested(again.operation, ("func.func",))[0]
    stitch.verify(again.operation)
    assert stitch.NUMERICS.require(again.operation) == "strict"
    assert stitch.SCHEDULE.get(main) == schedule
    assert stitch.ARENA_BYTES.get(main) == 256
    assert stitch.COPIES.get(main) == ((0, 1), (2, 3))
    assert (stitch.NAME.of_argument(main, 0), stitch.DTYPE.of_argument(main, 0)) == ("x", "uint8")
    assert stitch.MUTATES.of_result(main, 0) == "x"
    stitch.CLUSTER.remove(main)
    assert stitch.CLUSTER.get(main) is None


def test_an_illegal_value_cannot_be_written() -> None:
    module = parse_module("module {}")
    with pytest.raises(PassError, match=r"stitch.target = 'sm_1' is not one of sm_75"):
        stitch.TARGET.set(module.operation, "sm_1")
    assert stitch.TARGET.get(module.operation) is None


def test_a_missing_attribute_is_an_error_only_where_it_is_required() -> None:
    module = parse_module("module {}", "m.mlir")
    with pytest.raises(PassError, match=r"the attribute stitch\.target is missing") as caught:
        stitch.TARGET.require(module.operation)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('stitch.target = "sm_90"', "stitch.target = 90 : i64", "stitch.target must be of type string but is 90"),
        ('stitch.target = "sm_90"', 'stitch.target = "h100"', "'h100' is not one of sm_75"),
        ('stitch.numerics = "default"', 'stitch.numerics = "fast"', "'fast' is not one of default, strict"),
        ("no_inline, stitch.cluster,", 'no_inline, stitch.cluster = "a",', "stitch.cluster must be of type unit"),
        ('template = "elementwise", ', "", "lacks 'template'"),
        ("grid = array<i64: 1, 1, 1>", "grid = array<i64: 1>", "grid is not array<i64: x, y, z>"),
        ('schemes = [[0, "warp"]]', "schemes = 3", "schemes is not an array"),
        ('parameters = {mode = "warp", rows = 2 : i64}', "parameters = []", "parameters is not a dictionary"),
        ('stitch.kind = "expensive"', 'stitch.kind = "costly"', "'costly' is not one of light, expensive"),
        ('stitch.kind = "expensive"', "stitch.arena", "may not stand on linalg.generic"),
        ('stitch.kind = "expensive"', 'stitch.knid = "light"', "the attribute stitch.knid is unknown"),
        ('stitch.role = "input"', 'stitch.role = "bias"', "'bias' is not one of input, weight, constant"),
        ('stitch.role = "input"', 'stitch.mutates = "x"', "stitch.mutates may not stand on argument of func.func"),
        ('stitch.mutates = "x"', 'stitch.mutates = "z"', "result 0 mutates"),
        ('stitch.mutates = "x"', 'stitch.role = "input"', "stitch.role may not stand on result of func.func"),
        ('{stitch.dtype = "float32", stitch.name = "x"', '{stitch.dtype = "uint8", stitch.name = "x"', "is uint8, but"),
        ('{stitch.dtype = "float32", stitch.mutates', '{stitch.dtype = "f32", stitch.mutates', "not one of float32"),
    ],
)
def test_the_verifier_refuses_a_misplaced_or_illegal_attribute(old: str, new: str, message: str) -> None:
    assert STITCHED.count(old) == 1
    module = parse_module(STITCHED.replace(old, new), "m.mlir")
    with pytest.raises(PassError) as caught:
        stitch.verify(module.operation)
    assert message in caught.value.message
    assert re.match(r"m\.mlir:\d+:\d+$", caught.value.source)


def test_an_unknown_attribute_is_met_with_the_closest_known_one() -> None:
    module = parse_module('module attributes {stitch.targett = "sm_90"} {}')
    with pytest.raises(PassError) as caught:
        stitch.verify(module.operation)
    assert "did you mean stitch.target?" in caught.value.hint


def test_attributes_of_others_are_left_alone() -> None:
    stitch.verify(parse_module("module attributes {other.target = 3, stitches.target = 4} {}").operation)


def test_every_attribute_the_sources_name_is_in_the_table() -> None:
    known = {attribute.name for attribute in stitch.ATTRIBUTES}
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "stitch.py"]
    named = {(path, name) for path in files for name in re.findall(r'"(stitch\.[a-z_]+)"', path.read_text())}
    assert {(path.name, name) for path, name in named if name not in known} == set()
    assert named, "the search finds nothing any more"


def test_no_two_attributes_of_one_name_share_a_place() -> None:
    pairs = [(attribute.name, place) for attribute in stitch.ATTRIBUTES for place in attribute.places]
    assert len(pairs) == len(set(pairs))


def mlir_opt() -> Path:
    spec = importlib.util.find_spec("mlir")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "bin" / "mlir-opt"


@pytest.mark.parametrize("arguments", [[], ["--canonicalize", "--cse"], ["--mlir-print-op-generic"]])
def test_a_stock_mlir_opt_parses_stitched_ir_and_keeps_its_attributes(arguments: list[str]) -> None:
    done = subprocess.run(
        [str(mlir_opt()), "-", *arguments], input=STITCHED, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    ours = parse_module(done.stdout, context=new_context())
    stitch.verify(ours.operation)
    cluster, main = nested(ours.operation, ("func.func",))
    assert stitch.SCHEDULE.get(cluster) is not None
    assert stitch.KIND.get(next(op for op in nested(cluster, ("any",)) if op.name == "linalg.generic")) == "expensive"
    assert stitch.MUTATES.of_result(main, 0) == "x"
    assert isinstance(ours, ir.Module)
