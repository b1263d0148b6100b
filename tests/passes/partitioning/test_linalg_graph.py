"""The graph of a function: loops, accesses, combiners, linearity."""

from __future__ import annotations

import pytest
from graph_harness import FILL, GATHER, SCAN, function, graph, main_of, only

from mlirstitch.errors import PassError
from mlirstitch.passes.partitioning.access import Affine, Whole
from mlirstitch.passes.partitioning.graph import GraphOp
from mlirstitch.passes.partitioning.linalg_graph import loops_of
from mlirstitch.passes.structured import block_ops

MAP = """%e = tensor.empty() : tensor<4x8xf32>
%r = linalg.generic {{indexing_maps = [#id2, #id2, #id2], iterator_types = ["parallel", "parallel"]}}
    ins(%x, %y : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    {body}
    linalg.yield %v : f32
}} -> tensor<4x8xf32>
return %r : tensor<4x8xf32>"""


def _map(body: str) -> GraphOp:
    text = function(MAP.format(body=body), "tensor<4x8xf32>", x="tensor<4x8xf32>", y="tensor<4x8xf32>")
    return only(graph(text), "linalg.generic")


@pytest.mark.parametrize(
    ("body", "linear"),
    [
        ("%v = arith.addf %a, %b : f32", ((0, 1),)),
        ("%v = arith.subf %b, %a : f32", ((0, 1),)),
        ("%v = arith.mulf %a, %b : f32", ((0,), (1,))),
        ("%v = arith.divf %a, %b : f32", ((0,),)),
        ("%n = arith.negf %a : f32\n%v = arith.divf %b, %n : f32", ((1,),)),
        ("%p = arith.mulf %a, %a : f32\n%v = arith.addf %p, %b : f32", ()),
        ("%p = arith.mulf %a, %b : f32\n%v = arith.addf %p, %b : f32", ((1,),)),
        ("%c = arith.constant 2.0 : f32\n%p = arith.mulf %a, %c : f32\n%v = arith.addf %p, %b : f32", ((0, 1),)),
        ("%c = arith.constant 2.0 : f32\n%v = arith.addf %a, %c : f32", ()),
        ("%c = arith.constant 0.0 : f32\n%v = arith.addf %a, %c : f32", ((0,),)),
        ("%v = math.fma %a, %b, %a : f32", ((0,),)),
        ("%v = math.exp %a : f32", ()),
        ("%v = arith.maximumf %a, %b : f32", ()),
        ("%c = arith.cmpf ogt, %b, %b : f32\n%v = arith.select %c, %a, %a : f32", ((0,),)),
        (
            "%z = arith.constant -0.0 : f32\n%c = arith.cmpf ogt, %b, %z : f32\n%v = arith.select %c, %a, %z : f32",
            ((0,),),
        ),
        ("%z = arith.constant 0.0 : f32\n%c = arith.cmpf ogt, %a, %z : f32\n%v = arith.select %c, %a, %z : f32", ()),
        ("%w = arith.extf %a : f32 to f64\n%v = arith.truncf %w : f64 to f32", ((0,),)),
        ("%h = arith.truncf %a : f32 to f16\n%v = arith.extf %h : f16 to f32", ()),
    ],
)
def test_linear_sets_follow_from_the_body(body: str, linear: tuple[tuple[int, ...], ...]) -> None:
    op = _map(body)
    used = [position for position, name in enumerate(("%a", "%b")) if name in body]
    assert tuple(tuple(used[i] for i in found) for found in op.linear) == linear


def _matmul(init: str) -> GraphOp:
    body = f"""{init}
    %r = linalg.matmul ins(%x, %y : tensor<4x8xf32>, tensor<8x6xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
    return %r : tensor<4x6xf32>"""
    text = function(body, "tensor<4x6xf32>", x="tensor<4x8xf32>", y="tensor<8x6xf32>", c="tensor<4x6xf32>")
    return only(graph(text), "linalg.matmul")


VIEW = """%g = tensor.collapse_shape %c [[0, 1]] : tensor<4x6xf32> into tensor<24xf32>
%f = tensor.expand_shape %g [[0, 1]] output_shape [4, 6] : tensor<24xf32> into tensor<4x6xf32>"""


def test_a_contraction_is_linear_in_each_factor_and_its_zero_init_is_no_init() -> None:
    op = _matmul(FILL.format(value="0.0"))
    assert (op.loops, op.kinds, op.combiner) == ((4, 6, 8), ("parallel", "parallel", "reduction"), "add")
    assert [len(op.inputs), op.inits, op.linear, op.flops] == [3, (), ((0,), (1,)), 2 * 4 * 6 * 8]
    assert op.inputs[0].access == (Affine(((0, 1),)), Affine(((2, 1),)))


@pytest.mark.parametrize("init", [VIEW, FILL.format(value="1.0")])
def test_an_init_that_is_not_neutral_is_added_by_one_part_unless_it_is_partial_too(init: str) -> None:
    op = _matmul(init)
    assert op.inits == (2,)
    assert op.linear == ((0,), (1,), (0, 2), (1, 2))


def _reduction(body: str, type: str = "f32", value: str = "0.0") -> GraphOp:
    lines = f"""%z = arith.constant {value} : {type}
    %e = tensor.empty() : tensor<4x{type}>
    %f = linalg.fill ins(%z : {type}) outs(%e : tensor<4x{type}>) -> tensor<4x{type}>
    %r = linalg.generic {{indexing_maps = [#id2, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%x : tensor<4x8x{type}>) outs(%f : tensor<4x{type}>) {{
      ^bb0(%a: {type}, %o: {type}):
        {body}
        linalg.yield %v : {type}
    }} -> tensor<4x{type}>
    return %r : tensor<4x{type}>"""
    return only(graph(function(lines, f"tensor<4x{type}>", x=f"tensor<4x8x{type}>")), "linalg.generic")


@pytest.mark.parametrize(
    ("body", "combiner", "linear"),
    [
        ("%v = arith.addf %a, %o : f32", "add", ((0,),)),
        ("%v = arith.subf %o, %a : f32", "add", ((0,),)),
        ("%v = arith.subf %a, %o : f32", "", ()),
        ("%s = arith.addf %o, %a : f32\n%v = arith.addf %s, %a : f32", "add", ((0,),)),
        ("%v = math.fma %a, %a, %o : f32", "add", ()),
        ("%v = math.fma %o, %a, %a : f32", "", ()),
        ("%v = arith.mulf %a, %o : f32", "mul", ()),
        ("%v = arith.maximumf %a, %o : f32", "max", ()),
        ("%v = arith.minnumf %a, %o : f32", "min", ()),
        ("%s = arith.addf %a, %o : f32\n%v = arith.mulf %s, %a : f32", "", ()),
        ("%s = arith.mulf %a, %o : f32\n%v = arith.addf %s, %o : f32", "", ()),
        ("%s = arith.addf %o, %a : f32\n%v = math.exp %s : f32", "", ()),
    ],
)
def test_combiners_are_read_off_the_body(body: str, combiner: str, linear: tuple[tuple[int, ...], ...]) -> None:
    op = _reduction(body)
    assert (op.combiner, op.linear) == (combiner, linear)


def test_unsigned_maxima_have_no_combiner_and_signed_ones_have() -> None:
    assert _reduction("%v = arith.maxui %a, %o : i8", "i8", "0").combiner == ""
    assert _reduction("%v = arith.maxsi %a, %o : i8", "i8", "-128").combiner == "max"


def test_a_product_that_does_not_start_from_one_has_an_init() -> None:
    assert _reduction("%v = arith.mulf %a, %o : f32", value="1.0").inits == ()
    assert _reduction("%v = arith.mulf %a, %o : f32", value="3.0").inits == (1,)
    assert _reduction("%v = arith.maximumf %a, %o : f32", value="3.0").inits == ()  # once more changes nothing


ARG = """%z = arith.constant 0xFF800000 : f32
%n = arith.constant 0 : i64
%e = tensor.empty() : tensor<4xf32>
%g = tensor.empty() : tensor<4xi64>
%f = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
%h = linalg.fill ins(%n : i64) outs(%g : tensor<4xi64>) -> tensor<4xi64>
%r:2 = linalg.generic {{indexing_maps = [#id2, #row, #row], iterator_types = ["parallel", "reduction"]}}
  ins(%x : tensor<4x8xf32>) outs(%f, %h : tensor<4xf32>, tensor<4xi64>) {{
  ^bb0(%a: f32, %o: f32, %p: i64):
    %d = linalg.index {loop} : index
    %k = arith.index_cast %d : index to i64
    %v = arith.{combine} %a, %o : f32
    %c = arith.cmpf {compare} : f32
    %s = arith.select %c, %k, %p : i64
    linalg.yield %v, %s : f32, i64
}} -> (tensor<4xf32>, tensor<4xi64>)
return %r#0, %r#1 : tensor<4xf32>, tensor<4xi64>"""


@pytest.mark.parametrize(
    ("combine", "compare", "loop", "combiner"),
    [
        ("maximumf", "ogt, %a, %o", 1, "argmax"),
        ("maximumf", "olt, %o, %a", 1, "argmax"),
        ("minimumf", "olt, %a, %o", 1, "argmin"),
        ("maximumf", "oge, %a, %o", 1, ""),  # the last of equals
        ("minimumf", "ogt, %a, %o", 1, ""),
        ("maximumf", "ogt, %a, %o", 0, ""),
    ],
)
def test_pairs_of_value_and_place(combine: str, compare: str, loop: int, combiner: str) -> None:
    text = function(
        ARG.format(combine=combine, compare=compare, loop=loop), "(tensor<4xf32>, tensor<4xi64>)", x="tensor<4x8xf32>"
    )
    op = only(graph(text), "linalg.generic")
    assert (op.combiner, len(op.results)) == (combiner, 2)


def _gather(more: str) -> GraphOp:
    text = function(GATHER.format(more=more), "tensor<5x8xf32>", i="tensor<5xi64>", w="tensor<11x9xf32>")
    return only(graph(text), "linalg.generic")


def test_a_gather_reads_its_table_whole_where_the_index_is_data_and_by_loops_elsewhere() -> None:
    op = _gather("%t = tensor.extract %w[%p, %q] : tensor<11x9xf32>")
    assert op.inputs[1].access == (Whole(), Affine(((1, 1),)))
    assert op.linear == ((1,),)
    more = """%k = arith.constant 1 : index
    %s = arith.addi %q, %k : index
    %t = tensor.extract %w[%p, %s] : tensor<11x9xf32>"""
    assert _gather(more).inputs[1].access == (Whole(), Affine(((1, 1),), 1))


def test_two_reads_of_a_table_at_different_places_count_as_any_place() -> None:
    more = """%k = arith.constant 1 : index
    %s = arith.addi %q, %k : index
    %u = tensor.extract %w[%p, %s] : tensor<11x9xf32>
    %v = tensor.extract %w[%p, %q] : tensor<11x9xf32>
    %t = arith.addf %u, %v : f32"""
    op = _gather(more)
    assert op.inputs[1].access == (Whole(), Whole())
    assert op.linear == ((1,),)


def _tensor(line: str, result: str, **arguments: str) -> GraphOp:
    text = function(
        f"%r = {line} : {result}\nreturn %r : {result.rpartition(' ')[2]}", result.rpartition(" ")[2], **arguments
    )
    (op,) = graph(text).ops
    return op


def test_views_have_the_loops_of_the_larger_shape() -> None:
    op = _tensor(
        "tensor.expand_shape %x [[0, 1, 2]] output_shape [1, 4, 6]",
        "tensor<24xf32> into tensor<1x4x6xf32>",
        x="tensor<24xf32>",
    )
    assert (op.loops, op.inputs[0].access, op.kind) == ((1, 4, 6), (Affine(((1, 6), (2, 1))),), "view")
    op = _tensor(
        "tensor.collapse_shape %x [[0, 1], [2]]", "tensor<2x3x4xf32> into tensor<6x4xf32>", x="tensor<2x3x4xf32>"
    )
    assert (op.loops, op.results[0].access) == ((2, 3, 4), (Affine(((0, 3), (1, 1))), Affine(((2, 1),))))


def test_slices_pads_and_concats_read_at_an_offset() -> None:
    op = _tensor("tensor.extract_slice %x[1, 2] [1, 3] [1, 2]", "tensor<4x8xf32> to tensor<3xf32>", x="tensor<4x8xf32>")
    assert op.inputs[0].access == (Affine((), 1), Affine(((0, 2),), 2))
    op = _tensor(
        "tensor.concat dim(0) %x, %y",
        "(tensor<2x3xf32>, tensor<4x3xf32>) -> tensor<6x3xf32>",
        x="tensor<2x3xf32>",
        y="tensor<4x3xf32>",
    )
    assert op.inputs[1].access == (Affine(((0, 1),), -2), Affine(((1, 1),)))
    assert op.linear == ((0, 1),)
    op = _tensor(
        "tensor.insert_slice %x into %y[0, 1] [2, 3] [1, 1]",
        "tensor<2x3xf32> into tensor<2x5xf32>",
        x="tensor<2x3xf32>",
        y="tensor<2x5xf32>",
    )
    assert [u.access[1] for u in op.inputs] == [Affine(((1, 1),), -1), Affine(((1, 1),))]


@pytest.mark.parametrize(("value", "linear"), [("0.0", ((0,),)), ("1.0", ())])
def test_padding_with_zeros_is_linear(value: str, linear: tuple[tuple[int, ...], ...]) -> None:
    body = f"""%z = arith.constant {value} : f32
    %r = tensor.pad %x low[1, 0] high[0, 2] {{
      ^bb0(%i: index, %j: index):
        tensor.yield %z : f32
    }} : tensor<4x8xf32> to tensor<5x10xf32>
    return %r : tensor<5x10xf32>"""
    op = only(graph(function(body, "tensor<5x10xf32>", x="tensor<4x8xf32>")), "tensor.pad")
    assert op.inputs[0].access == (Affine(((0, 1),), -1), Affine(((1, 1),)))
    assert op.linear == linear


def test_a_window_is_a_sum_of_loops_and_a_pooling_does_not_read_its_window() -> None:
    body = """%z = arith.constant 0.0 : f32
    %w = tensor.empty() : tensor<3x3xf32>
    %e = tensor.empty() : tensor<1x2x4x4xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
    %r = linalg.pooling_nchw_sum {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>}
      ins(%x, %w : tensor<1x2x9x9xf32>, tensor<3x3xf32>) outs(%f : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
    return %r : tensor<1x2x4x4xf32>"""
    op = only(graph(function(body, "tensor<1x2x4x4xf32>", x="tensor<1x2x9x9xf32>")), "linalg.pooling_nchw_sum")
    assert op.loops == (1, 2, 4, 4, 3, 3)
    assert op.inputs[0].access[2] == Affine(((2, 2), (4, 1)))
    assert [len(op.inputs), op.linear] == [2, ((0,),)]


def test_the_dim_of_a_scan_is_fixed() -> None:
    op = only(graph(function(SCAN, "tensor<4x8xf32>", x="tensor<4x8xf32>")), "linalg.generic")
    assert [loop for loop, _ in op.fixed] == [1]


def test_names_roles_users_and_mutated_arguments() -> None:
    text = """#id = affine_map<(d0) -> (d0)>
    func.func @main(%w: tensor<4xf32> {stitch.name = "lin.weight", stitch.role = "weight"}, %x: tensor<4xf32>)
        -> (tensor<4xf32> {stitch.name = "out"},
            tensor<4xf32> {stitch.name = "lin.weight", stitch.mutates = "lin.weight"}) {
      %c = arith.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
      %e = tensor.empty() : tensor<4xf32>
      %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"], stitch.kind = "light"}
        ins(%w, %c : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
        ^bb0(%a: f32, %b: f32, %o: f32):
          %v = arith.addf %a, %b : f32
          linalg.yield %v : f32
      } -> tensor<4xf32>
      return %r, %x : tensor<4xf32>, tensor<4xf32>
    }"""
    found = graph(text)
    assert [value.name for value in found.values] == ["lin.weight", "%1", "%2", "out"]
    assert [value.role for value in found.values] == ["weight", "input", "", ""]
    assert [value.users for value in found.values] == [(1,), (), (1,), ()]
    assert (found.arguments, found.returned, found.mutated) == ((0, 1), (3, 1), (-1, 0))
    assert [(op.name, op.kind, op.index) for op in found.ops] == [
        ("arith.constant", "constant", 0),
        ("linalg.generic", "light", 2),
    ]
    assert found.values[3].bytes == 16


def test_reads_of_an_op_are_the_inputs_of_the_graph() -> None:
    main = main_of(
        function(
            GATHER.format(more="%t = tensor.extract %w[%p, %q] : tensor<11x9xf32>"),
            "tensor<5x8xf32>",
            i="tensor<5xi64>",
            w="tensor<11x9xf32>",
        )
    )
    op = next(op for op in block_ops(main) if op.name == "linalg.generic")
    found = loops_of(op)
    assert found is not None
    assert [read.operand for read in found.reads] == [0, -1]
    assert found.reads[1].value == main.regions[0].blocks[0].arguments[1]


def test_an_op_of_another_level_is_refused_with_its_name() -> None:
    text = function(
        "%r = tensor.reshape %x(%s) : (tensor<4xf32>, tensor<2xi64>) -> tensor<2x2xf32>\nreturn %r : tensor<2x2xf32>",
        "tensor<2x2xf32>",
        x="tensor<4xf32>",
        s="tensor<2xi64>",
    )
    with pytest.raises(PassError, match=r"tensor\.reshape"):
        graph(text)


def test_a_returned_tensor_that_nobody_wrote_is_refused() -> None:
    with pytest.raises(PassError, match="nobody wrote"):
        graph(function("%e = tensor.empty() : tensor<4xf32>\nreturn %e : tensor<4xf32>", "tensor<4xf32>"))
