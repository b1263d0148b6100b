"""Kernels of other compilers, Triton and nvcc, from the PTX in ``foreign/``, with and without the sanitizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mlirstitch.runtime import emulator

_FOLDER = Path(__file__).parent / "foreign"
_RANDOM = np.random.default_rng(7)
_SANITIZE = pytest.mark.parametrize("sanitize", [False, True], ids=["plain", "sanitized"])


def _load(name: str) -> emulator.EmulatedModule:
    return emulator.load((_FOLDER / f"{name}.ptx").read_text())


def _unwritten(*arrays: Any, outputs: int) -> list[Any]:
    """For every argument the flags of the sanitizer: the array at position ``outputs`` was never written."""
    return [np.zeros(a.nbytes, bool) if position == outputs else None for position, a in enumerate(arrays)]


def _softmax(x: Any) -> Any:
    wide = x.astype(np.float64)
    power = np.exp(wide - wide.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


def _triton(name: str, entry: str, grid: Any, args: list[Any], output: int, sanitize: bool) -> emulator.LaunchCounters:
    """Launch as Triton does: two pointers to scratch memory come last, dynamic shared memory as the first line says."""
    text = (_FOLDER / f"{name}.ptx").read_text()
    shared = int(text.splitlines()[0].split()[-1])
    module = emulator.load(text)
    block = module.entries[entry].required_block
    assert block is not None
    scratch = [np.zeros(1, np.uint8)] * (len(module.entries[entry].parameters) - len(args))
    full = [*args, *scratch]
    defined = _unwritten(*full, outputs=output) if sanitize else None
    return module.launch(entry, grid, block, full, shared, sanitize=sanitize, defined=defined)


@_SANITIZE
@pytest.mark.parametrize("columns", [1024, 777])
def test_triton_softmax(columns: int, sanitize: bool) -> None:
    x = _RANDOM.standard_normal((12, columns)).astype(np.float32)
    y = np.zeros_like(x)
    _triton("triton_softmax", "softmax", 12, [x, y, np.int32(columns)], 1, sanitize)
    np.testing.assert_allclose(y, _softmax(x), rtol=1e-5, atol=1e-8)


@_SANITIZE
@pytest.mark.parametrize("columns", [512, 700])
def test_triton_layernorm(columns: int, sanitize: bool) -> None:
    x = _RANDOM.standard_normal((9, columns)).astype(np.float32)
    scale, shift = (_RANDOM.standard_normal(columns).astype(np.float32) for _ in range(2))
    y = np.zeros_like(x)
    args = [x, y, scale, shift, np.int32(columns), np.float32(1e-5)]
    _triton("triton_layernorm", "layernorm", 9, args, 1, sanitize)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * scale + shift
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@_SANITIZE
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("fp16", np.float16, 1e-4), ("bf16", ml_dtypes.bfloat16, 1e-4), ("fp32", np.float32, 2e-2)],
)
def test_triton_matmul_on_tensor_cores(name: str, dtype: Any, tolerance: float, sanitize: bool) -> None:
    m, n, k = 48, 64, 80
    a, b = (_RANDOM.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float32)
    sizes = [np.int32(size) for size in (m, n, k)]
    counters = _triton(f"triton_matmul_{name}", "matmul", (2, 2), [a, b, c, *sizes], 2, sanitize)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, expected, rtol=tolerance, atol=tolerance)
    assert counters.instructions["matrix"] > 0


@_SANITIZE
def test_cuda_tiled_matmul(sanitize: bool) -> None:
    m, n, k = 40, 33, 50
    a, b = (_RANDOM.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float32)
    args = [a, b, c, *(np.int32(size) for size in (m, n, k))]
    defined = _unwritten(*args, outputs=2) if sanitize else None
    _load("kernels").launch("matmul", (3, 3), (16, 16), args, sanitize=sanitize, defined=defined)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


@_SANITIZE
def test_cuda_softmax_of_halves_by_warp_reductions(sanitize: bool) -> None:
    x = _RANDOM.standard_normal((7, 300)).astype(np.float16)
    y = np.zeros_like(x)
    args = [x, y, np.int32(300)]
    defined = _unwritten(*args, outputs=1) if sanitize else None
    _load("kernels").launch("softmax", 7, 128, args, sanitize=sanitize, defined=defined)
    np.testing.assert_allclose(y.astype(np.float64), _softmax(x), rtol=2e-3, atol=1e-6)


@_SANITIZE
def test_cuda_histogram_with_atomics_in_shared_and_global_memory(sanitize: bool) -> None:
    x = _RANDOM.integers(0, 1000, 5000, dtype=np.uint32)
    counts = np.zeros(64, np.uint32)
    _load("kernels").launch("histogram", 6, 128, [x, counts, np.int32(x.size)], 256, sanitize=sanitize)
    assert counts.tolist() == np.bincount(x % 64, minlength=64).tolist()


@_SANITIZE
def test_cuda_sum_by_the_block_that_comes_last(sanitize: bool) -> None:
    x = _RANDOM.integers(-1000, 1000, 3000).astype(np.float64)
    parts, result = np.zeros(5), np.zeros(1)
    args = [x, parts, result, np.int32(x.size)]
    module = _load("kernels")
    for _ in range(2):
        defined = _unwritten(*args, outputs=1) if sanitize else None
        module.launch("total", 5, 256, args, sanitize=sanitize, defined=defined)
        assert result[0] == x.sum()
        result[0] = 0


def test_what_llvm_prints_for_its_intrinsics_is_known_to_the_engine() -> None:
    assert _load("llvm_intrinsics").engine("a").program.source
