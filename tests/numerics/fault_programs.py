"""Kernels with inputs that show kinds of faults, and what is checked of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kernel_harness import build, random_array, reference
from row_column_programs import scaled_rows
from row_programs import argmax, fold, softmax
from scan_programs import scan
from tile_programs import permuted, transposed_softmax

from mlirstitch.passes.stitching.template import Schedule


def _random(*shape: int, element: str = "f32") -> np.ndarray:
    return random_array(np.random.default_rng(0), shape, element)


@dataclass(frozen=True)
class Program:
    """A kernel with inputs that show a kind of fault.

    Attributes:
        text, inputs: the cluster and what it is run on.
        template: who emits it, None for whoever applies.
        tolerance: error that results may have, relative to the largest; None: the bits of the IR.
        schedule: how it runs, None for the best.
        ptx: what its PTX must not hold.
        sanitize: whether the sanitizer watches.
        expected: the results, where the reference refuses the inputs.
    """

    text: str
    inputs: Sequence[np.ndarray]
    template: str | None = None
    tolerance: float | None = 1e-5
    schedule: Schedule | None = None
    ptx: str = ""
    sanitize: bool = True
    expected: Sequence[np.ndarray] = ()

    def check(self) -> None:
        """Raise AssertionError or LaunchError if the kernel is wrong."""
        built = build(self.text, self.template, schedule=self.schedule)
        found = re.search(self.ptx, built.ptx) if self.ptx else None
        assert found is None, f"PTX has {found}"
        results = built.run(self.inputs, sanitize=self.sanitize, seed=1)
        expected = self.expected or reference(self.text, self.inputs, "ir" if self.tolerance is None else "float64")
        for got, want in zip(results, expected, strict=True):
            assert self._agree(got, want), f"numbers: {got.ravel()[:4]} instead of {want.ravel()[:4]}"

    def _agree(self, got: np.ndarray, want: np.ndarray) -> bool:
        if self.tolerance is None:
            return np.array_equal(got, want, equal_nan=got.dtype.kind == "f")
        got, want = got.astype(np.float64), want.astype(np.float64)
        scale = np.abs(want[np.isfinite(want)]).max(initial=0)
        return np.allclose(got, want, self.tolerance, self.tolerance * scale, equal_nan=True)


def _pointwise(body: str, element: str, result: str, count: int, inputs: int = 2) -> str:
    names = [f"%{name}" for name in "abc"[:inputs]]
    kind, out = f"tensor<{count}x{element}>", f"tensor<{count}x{result}>"
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (inputs + 1))
    arguments = ", ".join(f"{name}: {kind}" for name in names)
    block = ", ".join(f"%x{number}: {element}" for number in range(inputs))
    return f"""func.func @f({arguments}) -> {out} {{
  %e = tensor.empty() : {out}
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
      ins({", ".join(names)} : {", ".join([kind] * inputs)}) outs(%e : {out}) {{
  ^bb0({block}, %o: {result}):
    {body}
    linalg.yield %y : {result}
  }} -> {out}
  return %r : {out}
}}"""


def two_staged_rows(rows: int, cols: int) -> str:
    """Softmax of the sum of two bf16 tensors, both read in every pass."""
    kind, row = f"tensor<{rows}x{cols}xbf16>", f"tensor<{rows}x1xf32>"
    added = f"""%eb = tensor.empty() : {kind}
  %p = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %b : {kind}, {kind}) outs(%eb : {kind}) {{
  ^bb0(%x: bf16, %y: bf16, %o: bf16):
    %r = arith.addf %x, %y : bf16
    linalg.yield %r : bf16
  }} -> {kind}
  %er = tensor.empty() : {row}"""
    text = softmax(rows, cols, "bf16").replace(f"@f(%a: {kind})", f"@f(%a: {kind}, %b: {kind})")
    return text.replace("ins(%a", "ins(%p").replace(f"%er = tensor.empty() : {row}", added)


def _rows(mode: str, lanes: int, rows: int, **fields: Any) -> Schedule:
    """A schedule of template row with a block a row (or ``splits`` of them)."""
    splits = fields.pop("splits", 1)
    parameters = [("lanes", lanes), ("mode", mode), ("rows_per_block", 1), ("unroll", fields.pop("unroll", 1))]
    parameters += [("splits", splits)] * (splits > 1)
    return Schedule("row", (rows * splits, 1, 1), (lanes, 1, 1), parameters=tuple(parameters), **fields)


GATHER = """func.func @f(%t: tensor<10x8xf32>, %i: tensor<6xi64>) -> tensor<6x8xf32> {
  %e = tensor.empty() : tensor<6x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%i : tensor<6xi64>) outs(%e : tensor<6x8xf32>) {
  ^bb0(%n: i64, %o: f32):
    %k = arith.index_cast %n : i64 to index
    %c = linalg.index 1 : index
    %v = tensor.extract %t[%k, %c] : tensor<10x8xf32>
    linalg.yield %v : f32
  } -> tensor<6x8xf32>
  return %r : tensor<6x8xf32>
}"""
SHIFTED = """func.func @f(%a: tensor<4x1024xf32>) -> tensor<4x1016xf32> {
  %s = tensor.extract_slice %a[0, 2] [4, 1016] [1, 1] : tensor<4x1024xf32> to tensor<4x1016xf32>
  %e = tensor.empty() : tensor<4x1016xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%s : tensor<4x1016xf32>) outs(%e : tensor<4x1016xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.negf %x : f32
    linalg.yield %y : f32
  } -> tensor<4x1016xf32>
  return %r : tensor<4x1016xf32>
}"""
MATMUL = """func.func @f(%a: tensor<4x40xf32>, %b: tensor<40x4xf32>) -> tensor<4x4xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x4xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = linalg.matmul ins(%a, %b : tensor<4x40xf32>, tensor<40x4xf32>) outs(%i : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}"""

TABLE_ROWS = _random(10, 8)
TIES = np.random.default_rng(0).integers(0, 3, (3, 300)).astype(np.float32)
NANS = np.where(_random(64) > 0, np.float32(np.nan), np.float32(1))
NARROWED = """%n = arith.truncf %x0 : f32 to bf16
    %w = arith.extf %n : bf16 to f32
    %y = arith.addf %w, %x1 : f32"""
CLUSTER_OF_8: dict[str, Any] = {"vector": 4, "thread_block_cluster": (8, 1, 1)}
DOUBLE_FUNCTIONS = """%l = math.log %x0 : f64
    %p = math.exp %x0 : f64
    %y = arith.subf %p, %l : f64"""
DOUBLES = 1 + np.abs(_random(64, element="f64"))

PROGRAMS = {
    "rows by a block": Program(softmax(3, 600), [_random(3, 600)], "row", schedule=_rows("resident", 128, 3)),
    "rows of 33": Program(softmax(3, 33), [_random(3, 33) - 30], "row"),
    "rows of 5": Program(softmax(7, 5), [_random(7, 5) - 30], "row"),
    "sum of 33": Program(fold((3, 33), (1,), "f32", "arith.addf", "0.0"), [_random(3, 33)], "row"),
    "product of 33": Program(fold((3, 33), (1,), "f32", "arith.mulf", "1.0"), [1 + _random(3, 33) / 9], "row"),
    "smallest of 33": Program(
        fold((3, 33), (1,), "i32", "arith.minsi", "2147483647"), [50 + _random(3, 33, element="i32")], "row"
    ),
    "largest of 33": Program(fold((3, 33), (1,), "f32", "arith.maximumf", "0xFF800000"), [_random(3, 33) - 30], "row"),
    "sum from 2.5": Program(fold((3, 33), (1,), "f32", "arith.addf", "2.5"), [_random(3, 33)], "row"),
    "columns by warps": Program(fold((64, 128), (0,), "f32", "arith.addf", "0.0"), [_random(64, 128)], "column"),
    "rows, columns and totals": Program(scaled_rows(40, 100), [_random(40, 100)], "row_column", 1e-4),
    "long row split over blocks": Program(
        fold((2, 60000), (1,), "f32", "arith.addf", "0.0"),
        [_random(2, 60000)],
        "row",
        1e-3,
        _rows("loop", 256, 2, unroll=2, splits=7, vector=4, scratch=(("f32", 14),), tickets=2),
    ),
    "rows shared by a cluster of blocks": Program(
        softmax(2, 4096), [_random(2, 4096)], "row", 1e-5, _rows("resident", 128, 2, splits=8, **CLUSTER_OF_8)
    ),
    "first of equal maxima": Program(argmax(3, 300), [TIES], "row", None),
    "NaN among maxima": Program(
        _pointwise("%y = arith.maximumf %x0, %x1 : f32", "f32", "f32", 64), [NANS, _random(64)], tolerance=None
    ),
    "product and sum": Program(
        _pointwise("%p = arith.mulf %x0, %x1 : f32\n    %y = arith.addf %p, %x0 : f32", "f32", "f32", 1024),
        [_random(1024), _random(1024)[::-1]],
        tolerance=None,
    ),
    "fused multiply-add": Program(
        _pointwise("%y = math.fma %x0, %x1, %x2 : f32", "f32", "f32", 1024, 3),
        [_random(1024), _random(1024)[::-1], -_random(1024) * _random(1024)[::-1]],
        tolerance=None,
    ),
    "narrowed and widened": Program(_pointwise(NARROWED, "f32", "f32", 64), [_random(64)] * 2, tolerance=None),
    "logarithm and exponential of doubles": Program(
        _pointwise(DOUBLE_FUNCTIONS, "f64", "f64", 64, 1), [DOUBLES], tolerance=1e-15
    ),
    "root": Program(
        _pointwise("%y = math.sqrt %x0 : f32", "f32", "f32", 64, 1), [np.abs(_random(64))], None, None, ptx="approx"
    ),
    "two long rows side by side": Program(
        two_staged_rows(2, 20000),
        [_random(2, 20000, element="bf16"), _random(2, 20000, element="bf16") / 8],
        "row",
        1e-2,
        _rows("staged", 512, 2, vector=8, shared_bytes=65536),
    ),
    "remainder of a vector": Program(
        _pointwise("%y = arith.addf %x0, %x1 : f32", "f32", "f32", 5003), [_random(5003)] * 2, "elementwise", None
    ),
    "fewer elements than threads": Program(
        _pointwise("%y = arith.addf %x0, %x1 : f32", "f32", "f32", 37), [_random(37)] * 2, "elementwise", None
    ),
    "rows that start off 16 bytes": Program(SHIFTED, [_random(4, 1024)], "elementwise", None),
    "indices outside the table": Program(
        GATHER,
        [TABLE_ROWS, np.array([0, 9, 10, -1, 2**40, 3])],
        "elementwise",
        expected=[TABLE_ROWS[[0, 9, 9, 0, 9, 3]]],
    ),
    "bytes that are not 0 or 1": Program(
        _pointwise("%y = arith.xori %x0, %x1 : i1", "i1", "i1", 4),
        [np.array([2, 1, 0, 4], np.uint8).view(np.bool_), np.array([0, 0, 2, 1], np.uint8).view(np.bool_)],
        tolerance=None,
    ),
    "unsigned extrema": Program(
        _pointwise("%y = arith.maxui %x0, %x1 : i8", "i8", "i8", 64),
        [_random(64, element="i8"), _random(64, element="i8")[::-1]],
        tolerance=None,
    ),
    "unsigned quotients": Program(
        _pointwise("%y = arith.divui %x0, %x1 : i8", "i8", "i8", 64),
        [_random(64, element="i8"), np.full(64, 3, np.int8)],
        tolerance=None,
    ),
    "matrix product": Program(MATMUL, [_random(4, 40), _random(40, 4)], "loop_nest"),
    "scan by a block": Program(scan((3, 1000), 1), [_random(3, 1000)], "scan", 1e-4),
    "scan by a warp": Program(scan((3, 20), 1), [_random(3, 20)], "scan"),
    "transposed": Program(permuted((64, 96), (1, 0), "f32")[0], [_random(96, 64), _random(64, 96)], "tile"),
    "rows of a transposed input": Program(
        transposed_softmax(64, 96)[0], [_random(1, 96, 64), _random(1, 64, 96)], "row_tile"
    ),
}
