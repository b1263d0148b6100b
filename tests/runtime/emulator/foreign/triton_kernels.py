"""Triton kernels whose compiled PTX lies next to this file. Run ``python triton_kernels.py`` to compile them again.

Needs the triton package (made with version 3.9.0) and no GPU. Line information is left out of the PTX: it holds paths.
"""


# pyright: basic

from __future__ import annotations

import os
import re
from pathlib import Path

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    value = tl.load(x + row * n + column, mask=inside, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * n + column, power / tl.sum(power, axis=0), mask=inside)


@triton.jit
def layernorm(x, y, scale, shift, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * n + column, mask=column < n, other=0.0)
    mean = tl.sum(total, axis=0) / n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * n + column, mask=column < n, other=0.0)
        total += tl.where(column < n, (value - mean) * (value - mean), 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < n
        value = tl.load(x + row * n + column, mask=inside, other=0.0)
        result = (value - mean) * inverse * tl.load(scale + column, mask=inside) + tl.load(shift + column, mask=inside)
        tl.store(y + row * n + column, result, mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        step = start + inner
        left = tl.load(a + rows[:, None] * k + step[None, :], mask=(rows[:, None] < m) & (step[None, :] < k), other=0.0)
        right = tl.load(
            b + step[:, None] * n + columns[None, :], mask=(step[:, None] < k) & (columns[None, :] < n), other=0.0
        )
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


def _compile(kernel, name: str, target: int, pointers: dict[str, str], constants: dict[str, int], **options) -> None:
    signature = {**pointers, **dict.fromkeys(constants, "constexpr")}
    aligned = {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(signature.values()) if kind[0] == "*"}
    if "matmul" in name:
        aligned |= {
            (index,): [["tt.divisibility", 16]] for index, kind in enumerate(signature.values()) if kind == "i32"
        }
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    text = re.sub(r"^\s*(\.loc|\.file)\b.*\n", "", compiled.asm["ptx"], flags=re.MULTILINE)
    text = re.sub(r"\n\s*\.section[\s\S]*", "\n", text)
    text = f"// shared: {compiled.metadata.shared}\n{text}"
    (Path(__file__).parent / f"{name}.ptx").write_text(text)


if __name__ == "__main__":
    row = {"x": "*fp32", "y": "*fp32", "n": "i32"}
    _compile(softmax, "triton_softmax", 90, row, {"BLOCK": 1024}, num_warps=4)
    norm = {"x": "*fp32", "y": "*fp32", "scale": "*fp32", "shift": "*fp32", "n": "i32", "eps": "fp32"}
    _compile(layernorm, "triton_layernorm", 90, norm, {"BLOCK": 256}, num_warps=4)
    for kind in ("fp16", "bf16", "fp32"):
        product = {"a": f"*{kind}", "b": f"*{kind}", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
        blocks = {"BM": 32, "BN": 32, "BK": 32}
        _compile(matmul, f"triton_matmul_{kind}", 80, product, blocks, num_warps=4, num_stages=3)
