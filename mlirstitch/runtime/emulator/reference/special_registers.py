"""Values of the read-only special registers, kept at broadcast shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk
from mlirstitch.runtime.emulator.reference.launch import Extent3, Launch

_AXES = "xyz"


class SpecialRegisters:
    """``%tid`` and its relatives for a chunk, as 32-bit unsigned integers [blocks | 1, threads | 1].

    The machine has one multiprocessor; clocks count the readings.
    """

    def __init__(self, chunk: Chunk, launch: Launch) -> None:
        self._ticks = 0
        thread = np.arange(chunk.threads, dtype=np.int64)[None, :]
        number = chunk.numbers[:, None]
        lane = thread % WARP
        own = np.uint32(1) << lane.astype(np.uint32)
        below = own - np.uint32(1)
        grid, block, cluster = chunk.grid, chunk.block, launch.cluster
        clusters = (grid[0] // cluster[0], grid[1] // cluster[1], grid[2] // cluster[2])
        place = _split(number, grid)
        inside = tuple(p % c for p, c in zip(place, cluster, strict=True))
        outside = tuple(p // c for p, c in zip(place, cluster, strict=True))
        self._values: dict[str, Any] = {
            **_vector("%tid", _split(thread, block)), **_vector("%ntid", block), **_vector("%ctaid", place),
            **_vector("%nctaid", grid), **_vector("%clusterid", outside), **_vector("%nclusterid", clusters),
            **_vector("%cluster_ctaid", inside), **_vector("%cluster_nctaid", cluster),
            "%cluster_ctarank": _join(inside, cluster), "%cluster_nctarank": launch.cluster_size,
            "%is_explicit_cluster": int(launch.cluster_size > 1),
            "%laneid": lane, "%warpid": thread // WARP, "%nwarpid": chunk.warps,
            "%smid": 0, "%nsmid": 1, "%gridid": 0, "WARP_SZ": WARP,
            "%lanemask_eq": own, "%lanemask_lt": below, "%lanemask_le": below | own,
            "%lanemask_gt": ~(below | own), "%lanemask_ge": ~below,
            "%dynamic_smem_size": launch.dynamic_shared_bytes, "%total_smem_size": launch.shared_bytes,
            "%clock_hi": 0, "%globaltimer_hi": 0,
        }  # fmt: skip
        self._cache: dict[str, Array] = {}

    def read(self, name: str) -> Array:
        """The value of a register of this name."""
        if name not in self._values:
            self._ticks += 1
            return np.array([[self._ticks & 0xFFFFFFFF]], np.uint32)
        found = self._cache.get(name)
        if found is None:
            value = np.asarray(self._values[name]).astype(np.uint32)
            found = self._cache[name] = _short(value.reshape(1, 1) if value.ndim == 0 else value)
        return found


def _split(number: Array, extent: Extent3) -> tuple[Array, Array, Array]:
    x, y, _ = extent
    return number % x, number // x % y, number // (x * y)


def _join(place: tuple[Any, ...], extent: Extent3) -> Any:
    return place[0] + extent[0] * (place[1] + extent[1] * place[2])


def _vector(name: str, parts: tuple[Any, ...]) -> dict[str, Any]:
    return {f"{name}.{axis}": part for axis, part in zip(_AXES, parts, strict=True)}


def _short(value: Array) -> Array:
    """[1, 1] if all values are equal."""
    return value[:1, :1] if (value == value[0, 0]).all() else value
