"""What the matrix instructions of a warp compute: ``mma.sync``, ``ldmatrix``, ``stmatrix``, ``movmatrix``.

Fragments are laid out as the PTX ISA (section "Matrix fragments for mma") says: with ``g = lane / 4`` and
``t = lane % 4``, rows of A and columns of B follow ``g``, the inner dimension follows ``t``. Products are exact; their
sum with C is formed in double precision in order of k and rounded once to the type of D. Tensor cores keep fewer bits
and add in another order, so results of hardware differ in the last places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.floats import decode_bf16

_LANE = np.arange(WARP)
_G, _T = _LANE >> 2, _LANE & 3


@dataclass(frozen=True)
class _Fragment:
    """Where the elements of a fragment lie in the matrix, [32, elements] each; ``per`` elements to a register."""

    rows: Array
    columns: Array
    per: int


def element_bits(kind: str) -> int:
    """Bits of an element in a fragment."""
    return {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "s8": 8, "u8": 8, "f64": 64}[kind]


@lru_cache(maxsize=64)
def _operand(outer: int, inner: int, kind: str) -> _Fragment:
    """A ([outer, inner]) or, transposed, B: blocks of 8 outer by 4 registers inner, outer blocks first."""
    per = max(32 // element_bits(kind), 1)
    outers: list[Array] = []
    inners: list[Array] = []
    for inner_block in range(inner // (4 * per)):
        for outer_block in range(outer // 8):
            for part in range(per):
                outers.append(_G + 8 * outer_block)
                inners.append(_T * per + part + 4 * per * inner_block)
    return _Fragment(np.stack(outers, axis=1), np.stack(inners, axis=1), per)


@lru_cache(maxsize=16)
def _accumulator(rows: int, kind: str) -> _Fragment:
    """C or D, 8 columns: pairs of neighbouring columns, blocks of 8 rows."""
    row = [_G + 8 * block for block in range(rows // 8) for _ in range(2)]
    column = [_T * 2 + part for _ in range(rows // 8) for part in range(2)]
    return _Fragment(np.stack(row, axis=1), np.stack(column, axis=1), 2 if kind == "f16" else 1)


def _elements(chunk: Chunk, registers: Sequence[Array], kind: str) -> Array:
    """Fragment elements of all warps as numbers, [warps, 32, elements]."""
    stacked = np.stack([_warps(chunk, r) for r in registers], axis=2)
    if kind == "f64":
        return stacked.view(np.float64)
    if kind == "f32":
        return stacked.view(np.float32).astype(np.float64)
    if kind == "tf32":
        return (stacked & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind == "s32":
        return stacked.view(np.int32).astype(np.int64)
    shape = (stacked.shape[0], WARP, -1)
    if kind in ("s8", "u8"):
        return stacked.view("i1" if kind == "s8" else "u1").reshape(shape).astype(np.int64)
    halves = stacked.view(np.uint16).reshape(shape)
    return (decode_bf16(halves) if kind == "bf16" else halves.view(np.float16)).astype(np.float64)


def _warps(chunk: Chunk, value: Array) -> Array:
    """[blocks, threads] as [warps of the chunk, 32]."""
    return np.ascontiguousarray(chunk.by_warp(np.ascontiguousarray(chunk.full(value)), 0)).reshape(-1, WARP)


def _threads(chunk: Chunk, value: Array) -> Array:
    """[warps of the chunk, 32] as [blocks, threads]."""
    return np.ascontiguousarray(value.reshape(chunk.blocks, -1)[:, : chunk.threads])


def _matrix(fragment: _Fragment, elements: Array, rows: int, columns: int) -> Array:
    matrix = np.zeros((elements.shape[0], rows, columns), elements.dtype)
    matrix[:, fragment.rows, fragment.columns] = elements
    return matrix


def multiply_accumulate(
    chunk: Chunk, shape: tuple[int, int, int], kinds: Sequence[str], a: Sequence[Array], b: Sequence[Array],
    c: Sequence[Array], saturate: bool,
) -> list[Array]:  # fmt: skip
    """``mma``: registers of D; ``kinds`` of D, A, B, C."""
    m, n, k = shape
    d_kind, a_kind, b_kind, c_kind = kinds
    left = _matrix(_operand(m, k, a_kind), _elements(chunk, a, a_kind), m, k)
    right = _matrix(_operand(n, k, b_kind), _elements(chunk, b, b_kind), n, k)
    total = _matrix(_accumulator(m, c_kind), _elements(chunk, c, c_kind), m, n)
    for step in range(k):
        total = total + left[:, :, step, None] * right[:, None, :, step]
    place = _accumulator(m, d_kind)
    return [_threads(chunk, r) for r in _registers(total[:, place.rows, place.columns], d_kind, saturate)]


def _registers(elements: Array, kind: str, saturate: bool) -> list[Array]:
    if kind == "s32":
        whole = np.clip(elements, -(2**31), 2**31 - 1) if saturate else elements
        bits = whole.astype(np.int32).view(np.uint32)
    elif kind == "f64":
        bits = elements.astype(np.float64).view(np.uint64)
    elif kind == "f32":
        bits = elements.astype(np.float32).view(np.uint32)
    else:
        bits = np.ascontiguousarray(elements.astype(np.float16)).view(np.uint32)
    return [bits[:, :, register] for register in range(bits.shape[2])]


def spread_matrices(chunk: Chunk, rows: Sequence[Array], count: int, transposed: bool) -> list[Array]:
    """``ldmatrix``: ``rows`` are the four words that lane ``8 j + r`` holds of row r of matrix j; registers of all."""
    words = np.stack([_warps(chunk, r) for r in rows], axis=2)
    halves = words.view(np.uint16).reshape(-1, WARP, 8)
    found: list[Array] = []
    for number in range(count):
        matrix = halves[:, 8 * number : 8 * number + 8]
        if transposed:
            matrix = matrix.transpose(0, 2, 1)
        pairs = np.ascontiguousarray(matrix).view(np.uint32)
        found.append(_threads(chunk, pairs[:, _G, _T]))
    return found


def gather_matrices(chunk: Chunk, registers: Sequence[Array], transposed: bool) -> list[Array]:
    """``stmatrix``: the four words that lane ``8 j + r`` stores as row r of matrix j."""
    words = np.zeros((chunk.blocks * chunk.warps, WARP, 4), np.uint32)
    for number, register in enumerate(registers):
        pairs = np.zeros((words.shape[0], 8, 4), np.uint32)
        pairs[:, _G, _T] = _warps(chunk, register)
        halves = pairs.view(np.uint16)
        if transposed:
            halves = np.ascontiguousarray(halves.transpose(0, 2, 1))
        words[:, 8 * number : 8 * number + 8] = halves.view(np.uint32)
    return [_threads(chunk, words[:, :, place]) for place in range(4)]


class MatrixUnit:
    """Matrix instructions of the warps of a chunk, which must take part as a whole."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def _check_whole(self, site: Site, mask: Mask) -> None:
        chunk = self._chunk
        active = np.ones(chunk.shape, bool) if mask is None else np.ascontiguousarray(chunk.full(mask))
        warps = chunk.by_warp(active, False)
        broken = warps.any(axis=2) & ~warps.all(axis=2)
        if broken.any():
            row, warp = (int(v[0]) for v in np.nonzero(broken))
            lane = int(np.nonzero(~warps[row, warp])[0][0])
            who = f"lane {lane} of warp {warp} of {chunk.describe_block(row)}"
            raise chunk.finding(site, f"{who} does not take part in an instruction of the whole warp")

    def multiply(
        self, site: Site, shape: tuple[int, int, int], kinds: Sequence[str], a: Sequence[Array], b: Sequence[Array],
        c: Sequence[Array], mask: Mask,
    ) -> list[Array]:  # fmt: skip
        """``mma.sync``: registers of D."""
        self._check_whole(site, mask)
        return multiply_accumulate(self._chunk, shape, kinds, a, b, c, "satfinite" in site.instruction.modifiers)

    def rows(self, site: Site, count: int, mask: Mask) -> Array:
        """Threads that hold the address of a row."""
        self._check_whole(site, mask)
        lanes = np.broadcast_to(np.arange(self._chunk.threads) % WARP < 8 * count, self._chunk.shape)
        return lanes if mask is None else lanes & mask

    def transpose(self, site: Site, value: Array, mask: Mask) -> Array:
        """``movmatrix.trans``."""
        self._check_whole(site, mask)
        rows = gather_matrices(self._chunk, [value], False)
        return spread_matrices(self._chunk, rows, 1, True)[0]
