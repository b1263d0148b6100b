"""Texts of functions around one op of every kind, with drawn shapes. The op is the last before the return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Draw = Callable[..., Any]


def _extent(most: int) -> st.SearchStrategy[int]:
    """An extent up to ``most``; one that can be split is tried before 1."""
    return st.sampled_from([*range(2, most + 1), 1])


def _map(loops: int, results: Sequence[str]) -> str:
    return f"affine_map<({', '.join(f'd{i}' for i in range(loops))}) -> ({', '.join(results)})>"


def _type(shape: Sequence[int], element: str = "f32") -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def _function(arguments: Sequence[str], lines: str, results: Sequence[str]) -> str:
    signature = ", ".join(f"%a{i}: {t}" for i, t in enumerate(arguments))
    names = ["%r"] if len(results) == 1 else [f"%r#{i}" for i in range(len(results))]
    listed = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"func.func @main({signature}) -> {listed} {{\n{lines}\nreturn {', '.join(names)} : {', '.join(results)}\n}}"


def generic(
    maps: Sequence[str], kinds: str, inputs: Sequence[str], inits: Sequence[str], body: str, names: Sequence[str] = ()
) -> str:
    """``%r = linalg.generic`` over arguments %a0, %a1 ... and inits %i0 ...; the body names them %x0 ..., %o0 ..."""
    iterators = ", ".join(f'"{"parallel" if kind == "p" else "reduction"}"' for kind in kinds)
    scalars = [f"%x{i}: {t[7:-1].split('x')[-1]}" for i, t in enumerate(inputs)]
    scalars += [f"%o{i}: {t[7:-1].split('x')[-1]}" for i, t in enumerate(inits)]
    ins = f"ins({', '.join(names or [f'%a{i}' for i in range(len(inputs))])} : {', '.join(inputs)})" if inputs else ""
    outs = f"outs({', '.join(f'%i{i}' for i in range(len(inits)))} : {', '.join(inits)})"
    results = inits[0] if len(inits) == 1 else f"({', '.join(inits)})"
    count = "" if len(inits) == 1 else f":{len(inits)}"
    return (
        f"%r{count} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{iterators}]}} "
        f"{ins} {outs} {{\n^bb0({', '.join(scalars)}):\n{body}\n}} -> {results}"
    )


def _init(number: int, type_: str, value: str | None) -> str:
    element = type_[7:-1].split("x")[-1]
    empty = f"%e{number} = tensor.empty() : {type_}"
    if value is None:
        return empty.replace("%e", "%i")
    fill = f"%i{number} = linalg.fill ins(%s{number} : {element}) outs(%e{number} : {type_}) -> {type_}"
    return f"{empty}\n%s{number} = arith.constant {value} : {element}\n{fill}"


@st.composite
def element_wise(draw: Draw) -> str:
    """Broadcast, transposed and shifted operands."""
    a, b, c = (draw(_extent(6)) for _ in range(3))
    types = [_type((b, a)), _type((c,)), _type((a, 1, c)), _type((a + 2,))]
    maps = [_map(3, r) for r in (("d1", "d0"), ("d2",), ("d0", "0", "d2"), ("d0 + 2",), ("d0", "d1", "d2"))]
    body = """%p = arith.mulf %x0, %x1 : f32
    %q = arith.subf %p, %x2 : f32
    %v = arith.addf %q, %x3 : f32
    linalg.yield %v : f32"""
    out = _type((a, b, c))
    return _function(types, _init(0, out, None) + "\n" + generic(maps, "ppp", types, [out], body), [out])


@st.composite
def positions(draw: Draw) -> str:
    """No operand: positions of two loops."""
    a, b = (draw(_extent(6)) for _ in range(2))
    body = """%i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %k = arith.muli %i, %j : index
    %v = arith.index_cast %k : index to i64
    linalg.yield %v : i64"""
    out = _type((a, b), "i64")
    return _function([], _init(0, out, None) + "\n" + generic([_map(2, ("d0", "d1"))], "pp", [], [out], body), [out])


@st.composite
def reduction(draw: Draw) -> str:
    """One or two reduced dims, any combiner, from a neutral init, another one, or an argument."""
    a, b, c = (draw(_extent(6)) for _ in range(3))
    name, value = draw(
        st.sampled_from(
            [
                *(("addf", v) for v in ("0.0", "2.0")),
                *(("mulf", v) for v in ("1.0", "3.0")),
                *((n, v) for n in ("maximumf", "minimumf") for v in ("0xFF800000", "0.0")),
                *((n, v) for n in ("andi", "ori", "addi", "maxsi") for v in ("0", "-1", "5")),
            ]
        )
    )
    element = "f32" if name.endswith("f") else "i64"
    given = draw(st.booleans())
    kept = draw(st.sampled_from([("d1",), ("d1", "0"), ("d2", "d1"), ()]))
    sizes = {"d0": a, "d1": b, "d2": c, "0": 1}
    out, source = _type([sizes[k] for k in kept], element), _type((a, b, c), element)
    kinds = "".join("p" if f"d{i}" in kept else "r" for i in range(3))
    body = f"%v = arith.{name} %o0, %x0 : {element}\nlinalg.yield %v : {element}"
    text = generic([_map(3, ("d0", "d1", "d2")), _map(3, kept)], kinds, [source], [out], body)
    if given:
        return _function([source, out], text.replace("%i0", "%a1"), [out])
    return _function([source], _init(0, out, value) + "\n" + text, [out])


@st.composite
def arg(draw: Draw) -> str:
    """The largest or smallest element of a row and its place."""
    a, b = draw(_extent(5)), draw(_extent(9))
    combine, compare, start = draw(
        st.sampled_from([("maximumf", "ogt", "0xFF800000"), ("minimumf", "olt", "0x7F800000")])
    )
    body = f"""%i = linalg.index 1 : index
    %k = arith.index_cast %i : index to i64
    %v = arith.{combine} %x0, %o0 : f32
    %c = arith.cmpf {compare}, %x0, %o0 : f32
    %s = arith.select %c, %k, %o1 : i64
    linalg.yield %v, %s : f32, i64"""
    outs = [_type((a,)), _type((a,), "i64")]
    maps = [_map(2, r) for r in (("d0", "d1"), ("d0",), ("d0",))]
    lines = [_init(0, outs[0], start), _init(1, outs[1], "0"), generic(maps, "pr", [_type((a, b))], outs, body)]
    return _function([_type((a, b))], "\n".join(lines), outs)


@st.composite
def contraction(draw: Draw) -> str:
    """A batch_matmul, on an init of zeros or an argument; its right factor may be transposed."""
    b, m, n, k = (draw(_extent(5)) for _ in range(4))
    left, out = _type((b, m, k)), _type((b, m, n))
    if draw(st.booleans()):
        right, maps = _type((b, k, n)), ""
    else:
        right = _type((b, n, k))
        listed = ", ".join(_map(4, r) for r in (("d0", "d1", "d3"), ("d0", "d2", "d3"), ("d0", "d1", "d2")))
        maps = f" indexing_maps = [{listed}]"
    given = draw(st.booleans())
    init = "%a2" if given else "%i0"
    line = f"%r = linalg.batch_matmul{maps} ins(%a0, %a1 : {left}, {right}) outs({init} : {out}) -> {out}"
    if given:
        return _function([left, right, out], line, [out])
    return _function([left, right], _init(0, out, "0.0") + "\n" + line, [out])


@st.composite
def convolution(draw: Draw) -> str:
    """Strides and dilations; the taps may be more than the rows (as in the gradient of a weight)."""
    n, c, f, oh, ow, kh, kw = (draw(_extent(4)) for _ in range(7))
    sh, sw, dh, dw = (draw(st.integers(1, 2)) for _ in range(4))
    h, w = (oh - 1) * sh + (kh - 1) * dh + 1, (ow - 1) * sw + (kw - 1) * dw + 1
    x, k, out = _type((n, c, h, w)), _type((f, c, kh, kw)), _type((n, f, oh, ow))
    windows = f"{{strides = dense<[{sh}, {sw}]> : vector<2xi64>, dilations = dense<[{dh}, {dw}]> : vector<2xi64>}}"
    line = f"%r = linalg.conv_2d_nchw_fchw {windows} ins(%a0, %a1 : {x}, {k}) outs(%i0 : {out}) -> {out}"
    return _function([x, k], _init(0, out, "0.0") + "\n" + line, [out])


@st.composite
def pooling(draw: Draw) -> str:
    """Sums or maxima of windows."""
    n, c, oh, ow, kh, kw = (draw(_extent(4)) for _ in range(6))
    s = draw(st.integers(1, 3))
    name, value = draw(st.sampled_from([("sum", "0.0"), ("max", "0xFF800000")]))
    x, out = _type((n, c, (oh - 1) * s + kh, (ow - 1) * s + kw)), _type((n, c, oh, ow))
    window = _type((kh, kw))
    line = f"""%w = tensor.empty() : {window}
    %r = linalg.pooling_nchw_{name} {{strides = dense<{s}> : vector<2xi64>, dilations = dense<1> : vector<2xi64>}}
      ins(%a0, %w : {x}, {window}) outs(%i0 : {out}) -> {out}"""
    return _function([x], _init(0, out, value) + "\n" + line, [out])


@st.composite
def gather(draw: Draw) -> str:
    """Rows of a table of 8 rows at places that an operand gives, shifted columns."""
    a, b, shift = draw(_extent(6)), draw(_extent(5)), draw(st.integers(0, 2))
    table, index, out = _type((8, b + shift)), _type((a,), "i64"), _type((a, b))
    body = f"""%p = arith.index_cast %x0 : i64 to index
    %j = linalg.index 1 : index
    %c = arith.constant {shift} : index
    %k = arith.addi %j, %c : index
    %v = tensor.extract %a1[%p, %k] : {table}
    linalg.yield %v : f32"""
    line = generic([_map(2, ("d0",)), _map(2, ("d0", "d1"))], "pp", [index], [out], body)
    return _function([index, table], _init(0, out, None) + "\n" + line, [out])


@st.composite
def scatter(draw: Draw) -> str:
    """Rows added into the rows of a destination that an operand names."""
    rows, c, n = (draw(_extent(6)) for _ in range(3))
    body = """%i = linalg.index 0 : index
    %k = arith.index_cast %i : index to i64
    %h = arith.cmpi eq, %x0, %k : i64
    %z = arith.constant -0.0 : f32
    %t = arith.select %h, %x1, %z : f32
    %v = arith.addf %o0, %t : f32
    linalg.yield %v : f32"""
    types, out = [_type((n,), "i64"), _type((n, c))], _type((rows, c))
    maps = [_map(3, r) for r in (("d2",), ("d2", "d1"), ("d0", "d1"))]
    line = generic(maps, "ppr", types, [out], body).replace("%i0 ", "%a2 ")
    return _function([*types, out], line, [out])


@st.composite
def scan(draw: Draw) -> str:
    """Prefix sums along the second dim."""
    a, b = (draw(_extent(6)) for _ in range(2))
    body = "%v = arith.addf %o1, %x0 : f32\nlinalg.yield %v, %v : f32, f32"
    outs = [_type((a, b)), _type((a,))]
    maps = [_map(2, r) for r in (("d0", "d1"), ("d0", "d1"), ("d0",))]
    lines = [_init(0, outs[0], None), _init(1, outs[1], "0.0"), generic(maps, "pr", [_type((a, b))], outs, body)]
    return _function([_type((a, b))], "\n".join(lines), outs)


@st.composite
def view(draw: Draw) -> str:
    """Expand or collapse of three dims into two groups, units among them."""
    a, b, c, d = (draw(_extent(5)) for _ in range(4))
    large, small = _type((a, b, c, d)), _type((a, b * c * d))
    groups = "[[0], [1, 2, 3]]"
    if draw(st.booleans()):
        line = f"%r = tensor.collapse_shape %a0 {groups} : {large} into {small}"
        return _function([large], line, [small])
    line = f"%r = tensor.expand_shape %a0 {groups} output_shape [{a}, {b}, {c}, {d}] : {small} into {large}"
    return _function([small], line, [large])


@st.composite
def window(draw: Draw) -> str:
    """A slice with a stride, or an insert of it into an argument; the first dim is dropped."""
    offset, size, after = (draw(st.integers(0, 4)) for _ in range(3))
    size, stride = size + 1, draw(st.integers(1, 2))
    other = draw(_extent(5))
    large, small = _type((3, offset + stride * (size - 1) + 1 + after, other)), _type((size, other))
    box = f"[1, {offset}, 0] [1, {size}, {other}] [1, {stride}, 1]"
    if draw(st.booleans()):
        return _function([large], f"%r = tensor.extract_slice %a0{box} : {large} to {small}", [small])
    line = f"%r = tensor.insert_slice %a0 into %a1{box} : {small} into {large}"
    return _function([small, large], line, [large])


@st.composite
def joined(draw: Draw) -> str:
    """A concat of three parts along the first or second dim."""
    a, b, c, other = (draw(_extent(5)) for _ in range(4))
    dim = draw(st.integers(0, 1))
    shapes = [(n, other) if dim == 0 else (other, n) for n in (a, b, c)]
    out = _type((a + b + c, other) if dim == 0 else (other, a + b + c))
    types = [_type(shape) for shape in shapes]
    line = f"%r = tensor.concat dim({dim}) %a0, %a1, %a2 : ({', '.join(types)}) -> {out}"
    return _function(types, line, [out])


@st.composite
def padding(draw: Draw) -> str:
    """Zeros or ones around a matrix."""
    a, b = draw(_extent(5)), draw(_extent(5))
    low, high = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    value = draw(st.sampled_from(["0.0", "1.0"]))
    small, large = _type((a, b)), _type((a + low + high, b + high))
    line = f"""%z = arith.constant {value} : f32
    %r = tensor.pad %a0 low[{low}, 0] high[{high}, {high}] {{
      ^bb0(%i: index, %j: index):
        tensor.yield %z : f32
    }} : {small} to {large}"""
    return _function([small], line, [large])


@st.composite
def read_oddly(draw: Draw) -> str:
    """Reads that must not be split: a diagonal, backwards; and a collapsed dim read by a generic."""
    a, b = draw(_extent(5)), draw(st.integers(2, 5))
    types = [_type((a, a)), _type((a,)), _type((a * b,))]
    maps = [
        _map(2, ("d0", "d0")),
        _map(2, (f"-d0 + {a - 1}",)),
        _map(2, (f"d0 * {b} + d1",)),
        _map(2, ("d0", "d1")),
    ]
    chosen = [number for number in range(3) if draw(st.booleans())]
    body = "\n".join(f"%y{i + 1} = arith.addf %x{i}, %{'y' if i else 'x'}{i} : f32" for i in range(len(chosen)))
    body += (
        f"\nlinalg.yield %y{len(chosen)} : f32" if chosen else "\n%z = arith.constant 1.0 : f32\nlinalg.yield %z : f32"
    )
    out = _type((a, b))
    used = [types[number] for number in chosen]
    line = generic([*(maps[number] for number in chosen), maps[3]], "pp", used, [out], body)
    return _function(used, _init(0, out, None) + "\n" + line, [out])


KINDS = {
    strategy.__name__: strategy
    for strategy in (
        *(element_wise, positions, reduction, arg, contraction, convolution, pooling, gather, scatter, scan, view),
        *(window, joined, padding, read_oddly),
    )
}
