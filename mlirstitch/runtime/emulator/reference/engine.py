"""The reference engine: kernels of the instruction IR compiled to numpy code and run chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.ptx.ir import Kernel
from mlirstitch.runtime.emulator.reference import (
    arithmetic,
    comparison,
    conversion,
    floats,
    integers,
    logic,
    matrix,
    memory_unit,
    transfer,
)
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory
from mlirstitch.runtime.emulator.reference.chunk import WARP, both, merge
from mlirstitch.runtime.emulator.reference.clusters import by_cluster
from mlirstitch.runtime.emulator.reference.emit import Handler, Program, emit
from mlirstitch.runtime.emulator.reference.launch import BlockFunction, Launch
from mlirstitch.runtime.emulator.reference.machine import Machine
from mlirstitch.runtime.emulator.reference.sanitizer import Sanitizer

_CHUNK_LANES = 16384
"""Threads of a chunk: enough to hide the cost of a numpy call, few enough for a register to stay in the L2 cache."""
_CHUNK_BYTES = 16 << 20
"""Shared and local memory of a chunk, bytes."""

HANDLERS: dict[str, Handler] = {
    **arithmetic.HANDLERS,
    **comparison.HANDLERS,
    **conversion.HANDLERS,
    **logic.HANDLERS,
    **matrix.HANDLERS,
    **transfer.HANDLERS,
}
"""Emitter of every opcode but those that end a block."""


def _half(word: np.ndarray[Any, Any], shift: int, bf16: bool) -> np.ndarray[Any, Any]:
    """Lower or upper half of a packed word, as float16 or decoded bfloat16."""
    bits = (word >> np.uint32(shift)).astype(np.uint16)
    return floats.decode_bf16(bits) if bf16 else bits.view(np.float16)


def _join_halves(low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], bf16: bool) -> np.ndarray[Any, Any]:
    if bf16:
        low, high = floats.encode_bf16(low), floats.encode_bf16(high)
    else:
        low, high = low.view(np.uint16), high.view(np.uint16)
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def _round_tf32(bits: np.ndarray[Any, Any], away: bool) -> np.ndarray[Any, Any]:
    """Round single precision to 10 explicit mantissa bits: ties away from zero, or to even."""
    tie = np.uint32(0x1000) if away else ((bits >> np.uint32(13)) & np.uint32(1)) + np.uint32(0xFFF)
    finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    return np.where(finite, (bits + tie) & np.uint32(0xFFFFE000), bits)


FUNCTIONS: dict[str, Any] = {
    "np": np, "where": np.where, "merge": merge, "both": both,
    "half": _half, "join_halves": _join_halves, "round_tf32": _round_tf32,
    "SHARED_WINDOW": np.uint64(memory_unit.SHARED_WINDOW), "LOCAL_WINDOW": np.uint64(memory_unit.LOCAL_WINDOW),
    "decode_bf16": floats.decode_bf16, "encode_bf16": floats.encode_bf16, "flush": floats.flush,
    "saturate": floats.saturate, "minimum": floats.minimum, "maximum": floats.maximum, "narrow": floats.narrow,
    "fma_f32": floats.fma_f32, "fma_f64": floats.fma_f64, "fma_small": floats.fma_small,
    "divide_float": floats.divide, "square_root": floats.square_root, "gross_f64": floats.gross_f64,
    "to_integer": floats.to_integer, "from_integer": floats.from_integer, "ROUND_INTEGRAL": floats.ROUND_INTEGRAL,
    "exp2_f32": floats.exp2_f32, "log2_f32": floats.log2_f32, "sin_f32": floats.sin_f32, "cos_f32": floats.cos_f32,
    "tanh_f32": floats.tanh_f32, "rsqrt_f32": floats.rsqrt_f32,
    "multiply_wide": integers.multiply_wide, "multiply_high": integers.multiply_high, "divide": integers.divide,
    "remainder": integers.remainder, "shift_left": integers.shift_left, "shift_right": integers.shift_right,
    "funnel_shift": integers.funnel_shift, "permute": integers.permute, "extract_field": integers.extract_field,
    "insert_field": integers.insert_field, "leading_zeros": integers.leading_zeros,
    "find_leading": integers.find_leading, "reverse_bits": integers.reverse_bits, "logic3": integers.logic3,
    "low_bits": integers.low_bits, "multiply_24": integers.multiply_24, "dot_bytes": integers.dot_bytes,
    "bit_mask": integers.bit_mask, "extend": integers.extend,
    "add_saturated": integers.add_saturated, "clamp_cast": integers.clamp_cast,
}  # fmt: skip
"""Names the generated code may use."""


class ReferenceEngine:
    """Executes one kernel; compiled once, launched any number of times."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.program: Program = emit(kernel, HANDLERS, FUNCTIONS)
        names = dict(self.program.constants)
        exec(self.program.code, names)
        self._functions: list[BlockFunction] = [names[f"block_{block.index}"] for block in kernel.blocks]

    def run(
        self,
        memory: GlobalMemory,
        parameters: bytes,
        symbols: dict[str, int],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        *,
        checks: bool,
        budget: int,
        cooperative: bool,
        tally: Tally | None,
        cluster: tuple[int, int, int] = (1, 1, 1),
        dynamic_shared_bytes: int = 0,
        seed: int | None = None,
        defined: Mapping[int, np.ndarray[Any, Any]] | None = None,
    ) -> dict[str, int]:
        """Run the whole grid; warp instructions by class (empty without ``tally``).

        ``shared_bytes`` is static and dynamic shared memory together. ``seed`` draws the order of blocks and warps;
        ``defined`` turns the sanitizer on (see :class:`Sanitizer`). Raises :class:`LaunchError` for every finding.
        """
        executed = [0] * len(self.kernel.blocks)
        total = grid[0] * grid[1] * grid[2]
        threads = block[0] * block[1] * block[2]
        sanitizer = None
        if defined is not None:
            warps = -(-threads // WARP)
            sanitizer = Sanitizer(memory, total, warps, self._grain("global"), defined)
        random = None if seed is None else np.random.default_rng(seed)
        launch = Launch(
            program=self.program,
            functions=self._functions,
            memory=memory,
            parameters=parameters,
            symbols=symbols,
            grid=grid,
            block=block,
            cluster=cluster,
            shared_bytes=shared_bytes,
            dynamic_shared_bytes=dynamic_shared_bytes,
            checks=checks,
            budget=budget,
            cooperative=cooperative,
            tally=tally,
            executed=executed,
            sanitizer=sanitizer,
            random=random,
        )
        groups = by_cluster(grid, cluster)
        if random is not None and not cooperative:
            groups = groups[random.permutation(len(groups))]
        numbers, size = groups.reshape(-1), groups.shape[1]
        on_chip = shared_bytes + threads * self.kernel.local_bytes
        step = total if cooperative else max(1, min(_CHUNK_LANES // threads, _CHUNK_BYTES // max(on_chip, 1)))
        step = max(step // size, 1) * size
        with np.errstate(all="ignore"):
            for first in range(0, total, step):
                Machine(launch, numbers[first : first + step]).run()
        return self._by_class(executed) if tally is not None else {}

    def _grain(self, space: str) -> int:
        """Least width of an access to the space, in bytes."""
        return min((s.width for s in self.program.sites if s.space in (space, "generic")), default=4)

    def _by_class(self, executed: list[int]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for block, times in zip(self.kernel.blocks, executed, strict=True):
            kinds = [i.kind for i in block.instructions if i.op != "implicit"]
            if block.terminator.instruction is not None:
                kinds.append(block.terminator.instruction.kind)
            for kind in kinds:
                totals[kind] = totals.get(kind, 0) + times
        return {kind: totals[kind] for kind in sorted(totals) if totals[kind]}
