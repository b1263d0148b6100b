"""Random programs on linalg whose results are exact integers, so that every plan must give the same bits.

Run as a script it prints a digest of the stitched module and the PTX of the programs with the given numbers.
"""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np
from linalg_text import Text

FACTORS = {"x": "8x16", "y": "8x16", "w": "16x16", "h": "8x16", "column": "16x1", "row": "1x16"}
ARGUMENTS = {**FACTORS, "low": "1x1", "high": "1x1"}
KINDS = ("unary", *("binary",) * 2, "product", "rows", "columns", "matmul", "vector", "outer", "turned", "half")


def random_program(seed: int) -> str:
    """A module of 4 to 14 ops: element-wise, reductions of rows or columns, transposes, halves, products of matrices
    and vectors.

    Sums are clamped at once, and only arguments are factors, so that no number outgrows the 24 bits of an f32.
    """
    source = random.Random(seed)
    text = Text(**ARGUMENTS)
    values = ["%x", "%y"]
    for _ in range(source.randint(4, 14)):
        values.append(_op(text, source, values))
    read = {value for line in text.lines for value in _operands(line)}
    results = [value for value in values[2:] if value not in read] or values[-1:]
    extra = source.choice(values[2:])
    return text.module(*dict.fromkeys([*results, extra]))


def random_inputs(seed: int) -> list[np.ndarray]:
    """Small integers as f32, in the order of the arguments."""
    source = np.random.default_rng(seed)
    shapes = [tuple(map(int, shape.split("x"))) for shape in FACTORS.values()]
    found = [source.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    return [*found, np.full((1, 1), -3, np.float32), np.full((1, 1), 3, np.float32)]


def _op(text: Text, source: random.Random, values: list[str]) -> str:
    value = source.choice(values[-5:])
    kind = source.choice(KINDS)
    if kind == "unary":
        return text.map(source.choice(("math.absf", "arith.negf")), value)
    if kind == "binary":
        op = source.choice(("arith.addf", "arith.subf", "arith.maximumf", "arith.minimumf"))
        return text.map(op, value, source.choice(values))
    if kind == "product":
        return text.map("arith.mulf", value, source.choice(("%x", "%y")))
    if kind in ("rows", "columns"):
        total = text.reduce("arith.addf", value, 1 if kind == "rows" else 0)
        return text.map("arith.addf", value, _clamped(text, total))
    if kind == "matmul":
        return _clamped(text, text.matmul(value, "%w"))
    if kind == "vector":
        return text.map("arith.addf", value, _clamped(text, text.matmul(value, "%column")))
    if kind == "outer":
        total = _clamped(text, text.reduce("arith.addf", value, 1))
        return text.map("arith.subf", value, _clamped(text, text.matmul(total, "%row")))
    if kind == "half":
        half = text.op(
            f"tensor.extract_slice {value}[0, 0] [8, 8] [1, 1] : tensor<8x16xf32> to tensor<8x8xf32>", "tensor<8x8xf32>"
        )
        products = (text.matmul(half, "%h"), text.matmul(half, source.choice(("%x", "%y"))))
        return text.map("arith.subf", *(_clamped(text, product) for product in products))
    turned = text.transpose(text.map("arith.negf", text.transpose(value)))
    return text.map("arith.maximumf", turned, source.choice(values))


def _clamped(text: Text, value: str) -> str:
    return text.map("arith.minimumf", text.map("arith.maximumf", value, "%low"), "%high")


def _operands(line: str) -> list[str]:
    """The values that the op on a line reads."""
    if "extract_slice" in line:
        return [line.partition("extract_slice ")[2].partition("[")[0]]
    inputs = line.partition("ins(")[2].partition(":")[0]
    return [value.strip() for value in inputs.split(",")]


if __name__ == "__main__":
    import mlirstitch

    digest = hashlib.sha256()
    for number in sys.argv[1:]:
        compiled = mlirstitch.compile(random_program(int(number)))
        digest.update(compiled.text("stitched").encode())
        digest.update(compiled.ptx.encode())
    sys.stdout.write(digest.hexdigest())
