"""Indices past 2^31 elements and offsets past 2 GiB: the last block of a launch touches the last elements.

The tensors are virtual memory of which a test touches some pages. The launch is cut to its last block: the kernel's
block number is replaced by that block's, everything else runs as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import kernel_harness
import numpy as np
import pytest
from kernel_harness import DTYPES, build
from row_programs import fold, tensor

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import emulator

PAST_2_31 = 2**31 + 4096
PAST_2_GIB_OF_F32 = 2**29 + 4096


def doubled(count: int, element: str) -> str:
    op = "arith.addi" if element.startswith("i") else "arith.addf"
    kind = tensor((count,), element)
    return f"""func.func @f(%a: {kind}) -> {kind} {{
  %e = tensor.empty() : {kind}
  %r = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}} ins(%a : {kind}) outs(%e : {kind}) {{
  ^bb0(%x: {element}, %o: {element}):
    %y = {op} %x, %x : {element}
    linalg.yield %y : {element}
  }} -> {kind}
  return %r : {kind}
}}"""


def transposed(rows: int, cols: int, element: str) -> str:
    kind, out = tensor((rows, cols), element), tensor((cols, rows), element)
    return f"""func.func @f(%a: {kind}) -> {out} {{
  %e = tensor.empty() : {out}
  %r = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]}} ins(%a : {kind}) outs(%e : {out}) {{
  ^bb0(%x: {element}, %o: {element}):
    %y = arith.addi %x, %x : {element}
    linalg.yield %y : {element}
  }} -> {out}
  return %r : {out}
}}"""


@dataclass(frozen=True)
class Large:
    """A cluster that ends past the limit: its text, shape and element type, and who emits it."""

    text: str
    shape: tuple[int, ...]
    element: str
    template: str

    def last_elements(self) -> tuple[np.ndarray, np.ndarray]:
        """The last elements of input and output after the last block has run; the last row of the input counts up."""
        built = build(self.text, self.template)
        ptx, blocks = re.subn(r"(mov\.u32\s+%r\d+, )%ctaid\.x;", rf"\g<1>{built.schedule.grid[0] - 1};", built.ptx)
        assert blocks > 0
        ((shape, dtype),) = built.results
        source, out = np.zeros(self.shape, DTYPES[self.element]), np.zeros(shape, dtype)
        last = source.reshape(-1)[-self.shape[-1] :][-64:]
        last[:] = np.arange(len(last)) % 50 + 1
        emulator.load(ptx).launch("kernel", (1, 1, 1), built.schedule.block, [source.reshape(-1), out.reshape(-1)])
        return last, out.reshape(-1)[-len(last) :]


LARGE = {
    "2^31 elements": Large(doubled(PAST_2_31, "i8"), (PAST_2_31,), "i8", "elementwise"),
    "2 GiB": Large(doubled(PAST_2_GIB_OF_F32, "f32"), (PAST_2_GIB_OF_F32,), "f32", "elementwise"),
    "rows past 2^31 elements": Large(
        fold((2**21 + 8, 1024), (1,), "i8", "arith.maxsi", "-128"), (2**21 + 8, 1024), "i8", "row"
    ),
    "columns past 2^31 elements": Large(
        fold((2**21 + 8, 8, 128), (1,), "i8", "arith.maxsi", "-128"), (2**21 + 8, 8, 128), "i8", "column"
    ),
    "loops past 2^32 elements": Large(
        fold((2**22 + 8, 1024), (1,), "i8", "arith.maxsi", "-128"), (2**22 + 8, 1024), "i8", "loop_nest"
    ),
    "transposed, 2^31 elements": Large(transposed(2**26 + 64, 32, "i8"), (2**26 + 64, 32), "i8", "elementwise"),
}


def _check(name: str) -> None:
    large = LARGE[name]
    source, out = large.last_elements()
    if large.template == "elementwise":
        expected = 2 * source[-1:] if "transposed" in name else 2 * source
        np.testing.assert_array_equal(out[-len(expected) :], expected)
    elif large.template == "column":
        np.testing.assert_array_equal(out, source)
    else:
        assert out[-1] == source.max()


@pytest.mark.parametrize("name", LARGE)
def test_the_last_block_reaches_the_last_elements(name: str) -> None:
    _check(name)


@pytest.mark.parametrize("name", [name for name, large in LARGE.items() if large.element == "i8"])
def test_indices_of_32_bits_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = tuple(passes.replace("index-bitwidth=64", "index-bitwidth=32") for passes in kernel_harness.GPU_TO_NVVM)
    assert narrow != kernel_harness.GPU_TO_NVVM
    monkeypatch.setattr(kernel_harness, "GPU_TO_NVVM", narrow)
    with pytest.raises((AssertionError, LaunchError)):
        _check(name)


def test_a_slice_past_2_gib_is_read_where_it_lies() -> None:
    kind, part = tensor((PAST_2_GIB_OF_F32,), "f32"), tensor((64,), "f32")
    text = f"""func.func @f(%a: {kind}) -> {part} {{
  %s = tensor.extract_slice %a[{PAST_2_GIB_OF_F32 - 64}] [64] [1] : {kind} to {part}
  %e = tensor.empty() : {part}
  %r = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]}} ins(%s : {part}) outs(%e : {part}) {{
  ^bb0(%x: f32, %o: f32):
    %y = arith.negf %x : f32
    linalg.yield %y : f32
  }} -> {part}
  return %r : {part}
}}"""
    built = build(text)
    source, out = np.zeros(PAST_2_GIB_OF_F32, np.float32), np.zeros(64, np.float32)
    source[-64:] = np.arange(64)
    emulator.load(built.ptx).launch("kernel", built.schedule.grid, built.schedule.block, [source, out])
    np.testing.assert_array_equal(out, -np.arange(64, dtype=np.float32))
