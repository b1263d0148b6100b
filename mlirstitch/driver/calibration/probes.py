"""The kernels that are measured: stitched modules of one cluster each, with a schedule of their own.

Some are limited by memory, some by waiting, and some, of one block that keeps its multiprocessor busy for microseconds,
by issuing instructions mostly of one class. All are emitted by the code generator that the constants are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

THREADS = 1024
"""Of the one block of a kernel that is limited by issuing."""

FEW_THREADS = 128
"""Of the block that waits at barriers more than it issues."""

WARP = 32
COPIED = (1 << 20, 1 << 22, 1 << 23)
"""Elements of float32 of the streaming copies."""

REREAD = 2048
"""Rows of the kernel that reads row vectors again and again."""

VECTORS = 8
"""Row vectors that it reads."""

_IDENTITY = "affine_map<(d0) -> (d0)>"


@dataclass(frozen=True)
class Probe:
    """One kernel.

    Attributes:
        name: what it does, in a few words.
        text: a module at level stitched; its one function besides ``@main`` is the cluster.
        doubles: whether its arithmetic on floats is on 64 bits.
    """

    name: str
    text: str
    doubles: bool = False


def probes(chip: str) -> list[Probe]:
    """All kernels, for a chip."""
    return list(_probes(chip))


def _probes(chip: str) -> Iterator[Probe]:
    yield Probe("nothing but a launch", _chain(chip, "f32", (), 0, threads=WARP))
    for elements in COPIED:
        yield Probe(f"copy of {4 * elements >> 20} MiB", _copy(chip, elements))
    yield Probe(f"{VECTORS} row vectors read {REREAD} times", _vectors(chip))
    constants = ("%x = arith.constant 1.0001 : {t}", "%y = arith.constant 0.123 : {t}")
    scale = ("%m = arith.mulf %v, %x : {t}", "%n = arith.addf %m, %y : {t}")
    yield Probe("float arithmetic", _chain(chip, "f32", scale, 192, constants=constants))
    yield Probe("double arithmetic", _chain(chip, "f64", scale, 64, constants=constants), doubles=True)
    constants = ("%x = arith.constant 1664525 : {t}", "%y = arith.constant 1013904223 : {t}")
    mix = ("%m = arith.muli %v, %x : {t}", "%n = arith.xori %m, %y : {t}")
    yield Probe("integer arithmetic", _chain(chip, "i32", mix, 128, constants=constants))
    constants = ("%y = arith.constant 2.5 : {t}",)
    roots = ("%m = math.sqrt %v : {t}", "%n = arith.addf %m, %y : {t}")
    yield Probe("square roots", _chain(chip, "f32", roots, 96, "expensive", constants))
    there = ("%m = arith.fptosi %v : {t} to i32", "%w = arith.sitofp %m : i32 to {t}", "%n = arith.addf %w, %y : {t}")
    yield Probe("conversions", _chain(chip, "f32", there, 96, constants=constants))
    constants = ("%x = arith.constant 1.7 : {t}", "%y = arith.constant 100.3 : {t}")
    rest = ("%m = arith.addf %v, %y : {t}", "%n = arith.remf %m, %x : {t}")
    yield Probe("remainders", _chain(chip, "f32", rest, 32, "expensive", constants))
    choice = ("%m = arith.cmpi slt, %v, %x : {t}", "%w = arith.select %m, %y, %v : {t}", "%n = arith.addi %w, %v : {t}")
    constants = ("%x = arith.constant 77 : {t}", "%y = arith.constant 1013904223 : {t}")
    yield Probe("selections", _chain(chip, "i32", choice, 128, constants=constants))
    yield Probe("loads", _loads(chip, 160))
    yield Probe("stores", _stores(chip, 48))
    yield Probe("loop of one warp", _loop(chip, WARP, 1024))
    yield Probe("sums inside warps", _sums(chip, rows=THREADS // WARP, columns=WARP, count=32))
    yield Probe("sums inside a block, one after another", _sums(chip, rows=1, columns=FEW_THREADS, count=24))
    yield Probe("sums inside a block, all at once", _many_sums(chip, 48))


# Kernels without reductions ------------------------------------------------------------------------------------------


def _chain(
    chip: str,
    kind: str,
    step: tuple[str, ...],
    times: int,
    label: str = "light",
    constants: tuple[str, ...] = (),
    threads: int = THREADS,
) -> str:
    """A thread takes one element ``%v`` through ``step``, which makes ``%n`` of it, ``times`` times in a row."""
    body = [line.replace("{t}", kind) for line in constants]
    value = "%in0"
    for number in range(times):
        for line in step:
            body.append(_renamed(line, number, value).replace("{t}", kind))
        value = f"%n{number}"
    tensor = f"tensor<{threads}x{kind}>"
    lines = [_generic("%r", [("%a0", tensor)], "%e", tensor, [_IDENTITY] * 2, body, value, label)]
    return _module(chip, [tensor], [tensor], [_empty("%e", tensor), *lines], ["%r"], _flat(1, threads, 1))


def _renamed(line: str, number: int, value: str) -> str:
    """The line of step ``number``: its names are its own, and ``%v`` is the value so far."""
    for name in ("%m", "%w", "%n"):
        line = line.replace(name + " ", f"{name}{number} ").replace(name + ",", f"{name}{number},")
    return line.replace("%v ", value + " ").replace("%v,", value + ",")


def _copy(chip: str, elements: int) -> str:
    """A negation: one tensor in, one out."""
    tensor = f"tensor<{elements}xf32>"
    body = ["%m = arith.negf %in0 : f32"]
    line = _generic("%r", [("%a0", tensor)], "%e", tensor, [_IDENTITY] * 2, body, "%m")
    schedule = _flat(elements // 4 // 256, 256, 4)
    return _module(chip, [tensor], [tensor], [_empty("%e", tensor), line], ["%r"], schedule)


def _vectors(chip: str) -> str:
    """Every row of the result is the sum of the same row vectors: few bytes are touched, many are read."""
    vector, tensor = f"tensor<{THREADS}xf32>", f"tensor<{REREAD}x{THREADS}xf32>"
    body, value = [], "%in0"
    for number in range(1, VECTORS):
        body.append(f"%s{number} = arith.addf {value}, %in{number} : f32")
        value = f"%s{number}"
    maps = ["affine_map<(d0, d1) -> (d1)>"] * VECTORS + ["affine_map<(d0, d1) -> (d0, d1)>"]
    inputs = [(f"%a{number}", vector) for number in range(VECTORS)]
    line = _generic("%r", inputs, "%e", tensor, maps, body, value)
    schedule = _flat(REREAD * THREADS // 4 // 256, 256, 4)
    return _module(chip, [vector] * VECTORS, [tensor], [_empty("%e", tensor), line], ["%r"], schedule)


def _loads(chip: str, count: int) -> str:
    """Every thread reads the same ``count`` bytes, no two of them neighbours: one sector a request."""
    source, tensor = f"tensor<{3 * count}xi8>", f"tensor<{THREADS}xi8>"
    lines = [_empty("%e", tensor)]
    body, value = [], "%in0"
    for number in range(count):
        part = f"%p{number}"
        lines.append(
            f"{part}s = tensor.extract_slice %a1[{3 * number}] [1] [1] : {source} to tensor<1xi8>\n"
            f"    {part} = tensor.collapse_shape {part}s [] : tensor<1xi8> into tensor<i8>"
        )
        body.append(f"%s{number} = arith.xori {value}, %in{number + 1} : i8")
        value = f"%s{number}"
    inputs = [("%a0", tensor), *((f"%p{number}", "tensor<i8>") for number in range(count))]
    maps = [_IDENTITY, *["affine_map<(d0) -> ()>"] * count, _IDENTITY]
    lines.append(_generic("%r", inputs, "%e", tensor, maps, body, value))
    return _module(chip, [tensor, source], [tensor], lines, ["%r"], _flat(1, THREADS, 1))


def _stores(chip: str, count: int) -> str:
    """Every thread stores ``count`` bytes, each to another tensor: one sector a request."""
    tensor = f"tensor<{THREADS}xi8>"
    lines, results = [], []
    for number in range(count):
        body = [f"%c = arith.constant {number + 1} : i8", "%m = arith.xori %in0, %c : i8"]
        lines.append(_empty(f"%e{number}", tensor))
        lines.append(_generic(f"%r{number}", [("%a0", tensor)], f"%e{number}", tensor, [_IDENTITY] * 2, body, "%m"))
        results.append(f"%r{number}")
    return _module(chip, [tensor], [tensor] * count, lines, results, _flat(1, THREADS, 1))


# Reductions ----------------------------------------------------------------------------------------------------------


def _loop(chip: str, threads: int, iterations: int) -> str:
    """A product of a matrix and a vector; a thread computes an element of the result in a loop."""
    left, right, tensor = f"tensor<{iterations}xf32>", f"tensor<{iterations}x{threads}xf32>", f"tensor<{threads}xf32>"
    maps = ["affine_map<(d0, d1) -> (d1)>", "affine_map<(d0, d1) -> (d1, d0)>", "affine_map<(d0, d1) -> (d0)>"]
    body = ["%m = arith.mulf %in0, %in1 : f32", "%n = arith.addf %out, %m : f32"]
    line = _generic("%r", [("%a0", left), ("%a1", right)], "%f", tensor, maps, body, "%n", "reduction", reduced=True)
    schedule = _schedule("loop_nest", 1, threads, 1, "unroll = 1 : i64")
    return _module(chip, [left, right], [tensor], [*_zeros("%f", tensor), line], ["%r"], schedule)


def _sums(chip: str, rows: int, columns: int, count: int) -> str:
    """``x - sum(x)`` of every row, ``count`` times in a row; a thread has one element."""
    tensor, sums = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}xf32>"
    whole, row = "affine_map<(d0, d1) -> (d0, d1)>", "affine_map<(d0, d1) -> (d0)>"
    lines, value = [*_zeros("%f", sums), _empty("%e", tensor)], "%a0"
    for number in range(count):
        body = ["%n = arith.addf %in0, %out : f32"]
        lines.append(
            _generic(f"%s{number}", [(value, tensor)], "%f", sums, [whole, row], body, "%n", "reduction", reduced=True)
        )
        inputs = [(value, tensor), (f"%s{number}", sums)]
        body = ["%n = arith.subf %in0, %in1 : f32"]
        lines.append(_generic(f"%d{number}", inputs, "%e", tensor, [whole, row, whole], body, "%n"))
        value = f"%d{number}"
    parameters = f'lanes = {columns} : i64, mode = "resident", rows_per_block = {rows} : i64, unroll = 1 : i64'
    return _module(chip, [tensor], [tensor], lines, [value], _schedule("row", 1, rows * columns, 1, parameters))


def _many_sums(chip: str, count: int) -> str:
    """``count`` sums of one row, which cross the warps together: few barriers, many accesses to shared memory."""
    tensor, sums = f"tensor<1x{THREADS}xf32>", "tensor<1xf32>"
    whole, row = "affine_map<(d0, d1) -> (d0, d1)>", "affine_map<(d0, d1) -> (d0)>"
    lines = _zeros("%f", sums)
    for number in range(count):
        body = [
            f"%c = arith.constant {number + 1}.0 : f32",
            "%m = arith.mulf %in0, %c : f32",
            "%n = arith.addf %m, %out : f32",
        ]
        lines.append(
            _generic(f"%s{number}", [("%a0", tensor)], "%f", sums, [whole, row], body, "%n", "reduction", reduced=True)
        )
    body, value = [], "%in0"
    for number in range(count):
        body.append(f"%d{number} = arith.subf {value}, %in{number + 1} : f32")
        value = f"%d{number}"
    inputs = [("%a0", tensor), *((f"%s{number}", sums) for number in range(count))]
    lines += [_empty("%e", tensor), _generic("%r", inputs, "%e", tensor, [whole, *[row] * count, whole], body, value)]
    parameters = f'lanes = {THREADS} : i64, mode = "resident", rows_per_block = 1 : i64, unroll = 1 : i64'
    return _module(chip, [tensor], [tensor], lines, ["%r"], _schedule("row", 1, THREADS, 1, parameters))


# Text ----------------------------------------------------------------------------------------------------------------


def _generic(
    result: str,
    inputs: list[tuple[str, str]],
    out: str,
    tensor: str,
    maps: list[str],
    body: list[str],
    yielded: str,
    label: str = "light",
    *,
    reduced: bool = False,
) -> str:
    """One ``linalg.generic``; block arguments are ``%in0``, ``%in1`` ... and ``%out``; the last dim may be reduced."""
    dims = maps[0].split("->")[0].count("d")
    iterators = ["parallel"] * (dims - reduced) + ["reduction"] * reduced
    block = ", ".join(f"%in{number}: {_element(kind)}" for number, (_, kind) in enumerate(inputs))
    statements = "".join(f"      {line}\n" for line in (*body, f"linalg.yield {yielded} : {_element(tensor)}"))
    quoted = ", ".join(f'"{iterator}"' for iterator in iterators)
    return (
        f"{result} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{quoted}]}} "
        f"ins({', '.join(name for name, _ in inputs)} : {', '.join(kind for _, kind in inputs)}) "
        f'outs({out} : {tensor}) attrs = {{stitch.kind = "{label}"}} {{\n'
        f"    ^bb0({block}, %out: {_element(tensor)}):\n{statements}    }} -> {tensor}"
    )


def _element(tensor: str) -> str:
    return tensor.removesuffix(">").removeprefix("tensor<").split("x")[-1]


def _empty(name: str, tensor: str) -> str:
    return f"{name} = tensor.empty() : {tensor}"


def _zeros(name: str, tensor: str) -> list[str]:
    return [
        "%zero = arith.constant 0.0 : f32",
        _empty(f"{name}e", tensor),
        f'{name} = linalg.fill {{stitch.kind = "light"}} ins(%zero : f32) outs({name}e : {tensor}) -> {tensor}',
    ]


def _flat(blocks: int, threads: int, vector: int) -> str:
    return _schedule("elementwise", blocks, threads, vector, "unroll = 1 : i64")


def _schedule(template: str, blocks: int, threads: int, vector: int, parameters: str) -> str:
    return (
        f'{{template = "{template}", grid = array<i64: {blocks}, 1, 1>, block = array<i64: {threads}, 1, 1>, '
        f"vector = {vector} : i64, parameters = {{{parameters}}}}}"
    )


def _module(chip: str, given: list[str], made: list[str], lines: list[str], results: list[str], schedule: str) -> str:
    signature = ", ".join(f"%a{number}: {kind}" for number, kind in enumerate(given))
    kinds = ", ".join(made)
    bound = f"%r:{len(made)}" if len(made) > 1 else "%r"
    values = ", ".join(f"%r#{number}" for number in range(len(made))) if len(made) > 1 else "%r"
    body = "".join(f"    {line}\n" for line in (*lines, f"return {', '.join(results)} : {kinds}"))
    passed = ", ".join(f"%a{number}" for number in range(len(given)))
    return (
        f'module attributes {{stitch.target = "{chip}", stitch.numerics = "default", stitch.library = "none"}} {{\n'
        f"  func.func private @probe({signature}) -> ({kinds}) "
        f"attributes {{no_inline, stitch.cluster, stitch.schedule = {schedule}}} {{\n{body}  }}\n"
        f"  func.func @main({signature}) -> ({kinds}) {{\n"
        f"    {bound} = func.call @probe({passed}) : ({', '.join(given)}) -> ({kinds})\n"
        f"    return {values} : {kinds}\n  }}\n}}\n"
    )
