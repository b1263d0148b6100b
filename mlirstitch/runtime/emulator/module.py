"""Loading PTX and launching its kernels on the emulated device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.counters import LaunchCounters, Tally
from mlirstitch.runtime.emulator.engines import Engines
from mlirstitch.runtime.emulator.ptx.ir import Kernel
from mlirstitch.runtime.emulator.ptx.lower import lower_kernel
from mlirstitch.runtime.emulator.ptx.parser import parse
from mlirstitch.runtime.emulator.ptx.syntax import Parameter
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory
from mlirstitch.runtime.emulator.reference.engine import ReferenceEngine

DEFAULT_BUDGET = 50_000_000
"""Instructions a chunk of thread blocks may issue before a launch is given up as endless."""

_MAX_THREADS = 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_SHARED = 227 * 1024
_MAX_CLUSTER = 16

Extent = int | Sequence[int]


@dataclass(frozen=True)
class ParameterInfo:
    """A kernel parameter: name, size in bytes, and kind "pointer", "integer", "float", "bits" or "bytes"."""

    name: str
    bytes: int
    kind: str


@dataclass(frozen=True)
class KernelInfo:
    """What a caller needs to know to launch a kernel.

    Attributes:
        shared_bytes: static shared memory, bytes.
        dynamic_shared: whether it uses dynamic shared memory.
        local_bytes: local memory per thread, bytes.
        max_threads: limit declared by the kernel (``.maxntid``), or 1024.
        required_block: the only block size allowed (``.reqntid``), or None.
    """

    name: str
    parameters: tuple[ParameterInfo, ...]
    shared_bytes: int
    dynamic_shared: bool
    local_bytes: int
    max_threads: int
    required_block: tuple[int, int, int] | None


class EmulatedModule:
    """A PTX module on the emulated device. Module variables keep their values from launch to launch."""

    def __init__(self, ptx: str, engine: str = "auto") -> None:
        module = parse(ptx)
        self.target = module.target
        self.version = module.version
        self._kernels: dict[str, Kernel] = {
            name: lower_kernel(module, name) for name, f in module.functions.items() if f.entry and f.body is not None
        }
        self._engines = Engines(self._kernels, ptx, engine)
        self._variables: dict[str, np.ndarray[Any, Any]] = {}
        for variable in module.variables.values():
            if variable.space in ("global", "const"):
                self._variables[variable.name] = _aligned_bytes(variable.size, variable.initial)
        self.entries: Mapping[str, KernelInfo] = {name: _info(kernel) for name, kernel in self._kernels.items()}

    def engine(self, entry: str) -> ReferenceEngine:
        """The compiled kernel; raises :class:`LaunchError` if there is no such entry."""
        if entry not in self._kernels:
            raise LaunchError(
                f"no kernel {entry!r} in this module", hint=f"it has {', '.join(sorted(self._kernels)) or 'none'}"
            )
        return self._engines.reference(entry)

    def engine_of(self, entry: str) -> str:
        """Which engine ran the kernel last: "jit", "reference", or "" if it was not launched."""
        return self._engines.used.get(entry, "")

    def fallback(self, entry: str) -> str:
        """Why the reference engine ran the kernel although the JIT engine was to, or ""."""
        return self._engines.reasons.get(entry, "")

    def launch(
        self,
        entry: str,
        grid: Extent,
        block: Extent,
        args: Sequence[Any],
        shared_bytes: int = 0,
        checks: bool | None = True,
        *,
        counters: bool = True,
        budget: int = DEFAULT_BUDGET,
        cooperative: bool = False,
        cluster: Extent | None = None,
        sanitize: bool = False,
        seed: int | None = None,
        defined: Sequence[np.ndarray[Any, Any] | None] | None = None,
        engine: str | None = None,
    ) -> LaunchCounters:
        """Run a kernel.

        Args:
            entry: name of the kernel.
            grid, block: blocks and threads along x, y, z; missing ones are 1.
            args: for every parameter a C-contiguous numpy array, passed as a pointer and written in place, or a numpy
                scalar of the parameter's size. Each array is one allocation.
            shared_bytes: dynamic shared memory, bytes.
            checks: look for uninitialised reads, races, divergent barriers and bad shuffles; bounds and alignment are
                checked always. None: if the reference engine runs the kernel.
            counters: fill the counters; without, all but threads and warps are 0.
            budget: instructions a chunk of blocks may issue, against endless loops.
            cooperative: keep all blocks resident and let every one proceed, for kernels that wait for other blocks.
            cluster: thread blocks of a cluster along x, y, z; the default is what the kernel declares, or 1.
            sanitize: also look for uninitialised global memory and for races in shared and global memory, whatever the
                order of execution; slow. Turns ``checks`` on; blocks and warps run in an order drawn from ``seed``.
            seed: run blocks and warps in an order drawn from it, with or without ``sanitize`` (then default 0).
            defined: with ``sanitize``, for every argument None or a boolean array with one entry a byte: whether the
                byte was ever written. It is updated in place.
            engine: "auto", "jit" or "reference"; None is what the module was loaded with. The JIT engine looks for what
                is checked always; "auto" takes it if nothing else is asked for and ``mlir`` is installed.

        Raises :class:`LaunchError` for arguments that do not fit and for every finding, with PTX line and thread.
        """
        kernel = self.engine(entry).kernel
        grid3, block3 = _extent("grid", grid), _extent("block", block)
        _check_shape(self.entries[entry], grid3, block3)
        cluster3 = _cluster(kernel, grid3, cluster)
        shared = _shared_size(kernel, shared_bytes)
        memory = GlobalMemory()
        parameters = _pack(kernel, args, memory)
        symbols: dict[str, int] = {}
        for name, variable in kernel.variables.items():
            if name not in self._variables:
                self._variables[name] = _aligned_bytes(variable.size, variable.initial)
            symbols[name] = memory.add(f"variable {name!r}", self._variables[name]).base
        tally = Tally() if counters else None
        if sanitize and seed is None:
            seed = 0
        instructions = self._engines.run(
            entry,
            (memory, parameters, symbols, grid3, block3, shared),
            engine,
            checks=True if sanitize else checks,
            budget=budget,
            cooperative=cooperative,
            tally=tally,
            cluster=cluster3,
            dynamic_shared_bytes=shared_bytes,
            seed=seed,
            defined=_defined(kernel, args, defined) if sanitize else None,
        )
        loaded, stored = [0] * len(args), [0] * len(args)
        for allocation in memory.allocations:
            if allocation.argument >= 0:
                loaded[allocation.argument] = allocation.loaded
                stored[allocation.argument] = allocation.stored
        blocks, threads = grid3[0] * grid3[1] * grid3[2], block3[0] * block3[1] * block3[2]
        return LaunchCounters(
            threads=blocks * threads,
            warps=blocks * -(-threads // 32),
            instructions=instructions,
            argument_bytes_loaded=tuple(loaded),
            argument_bytes_stored=tuple(stored),
            **vars(tally or Tally()),
        )


def load(ptx: str, engine: str = "auto") -> EmulatedModule:
    """Parse a PTX module and check every kernel in it. ``engine`` is that of launches that name none.

    Raises :class:`LaunchError` with the line of malformed text, and with kernel, line and mnemonic of an instruction
    that the emulated device does not know.
    """
    return EmulatedModule(ptx, engine)


def launch(
    ptx: str,
    entry: str,
    grid: Extent,
    block: Extent,
    args: Sequence[Any],
    shared_bytes: int = 0,
    checks: bool = True,
    engine: str = "auto",
    **options: Any,
) -> LaunchCounters:
    """Load and run in one step; ``options`` are the further ones of :meth:`EmulatedModule.launch`."""
    return load(ptx, engine).launch(entry, grid, block, args, shared_bytes, checks, **options)


def _info(kernel: Kernel) -> KernelInfo:
    declared = kernel.directives.get("maxntid", ())
    limit = int(np.prod(declared)) if declared else _MAX_THREADS
    required = kernel.directives.get("reqntid", ())
    return KernelInfo(
        name=kernel.name,
        parameters=tuple(ParameterInfo(p.name, p.size, p.kind) for p in kernel.parameters),
        shared_bytes=kernel.shared_bytes,
        dynamic_shared=kernel.dynamic_shared is not None,
        local_bytes=kernel.local_bytes,
        max_threads=limit,
        required_block=_extent("block", required) if required else None,
    )


def _aligned_bytes(size: int, initial: bytes | None) -> np.ndarray[Any, Any]:
    data = np.zeros(size, np.uint8)
    if initial is not None:
        data[:] = np.frombuffer(initial, np.uint8)
    return data


def _defined(
    kernel: Kernel, args: Sequence[Any], defined: Sequence[np.ndarray[Any, Any] | None] | None
) -> dict[int, np.ndarray[Any, Any]]:
    """The flags of the arguments that have some, by position."""
    if defined is None:
        return {}
    if len(defined) != len(args):
        raise LaunchError(f"kernel {kernel.name!r}: `defined` has {len(defined)} entries for {len(args)} arguments")
    found: dict[int, np.ndarray[Any, Any]] = {}
    for position, (flags, value) in enumerate(zip(defined, args, strict=True)):
        if flags is None:
            continue
        if not isinstance(value, np.ndarray) or flags.dtype != np.bool_ or flags.shape != (value.nbytes,):
            which = _which(kernel, position, kernel.parameters[position])
            raise LaunchError(f"{which}: `defined` needs one boolean for every byte of an array")
        found[position] = flags
    return found


def _extent(what: str, value: Extent) -> tuple[int, int, int]:
    parts = [value] if isinstance(value, int | np.integer) else list(value)
    if not 1 <= len(parts) <= 3 or not all(isinstance(p, int | np.integer) and p >= 1 for p in parts):
        raise LaunchError(f"{what} must be one to three positive integers, not {value!r}")
    x, y, z = [int(p) for p in parts] + [1] * (3 - len(parts))
    return x, y, z


def _check_shape(info: KernelInfo, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    threads = block[0] * block[1] * block[2]
    if any(g > most for g, most in zip(grid, _MAX_GRID, strict=True)):
        raise LaunchError(f"kernel {info.name!r}: grid {grid} exceeds {_MAX_GRID}")
    if threads > _MAX_THREADS or any(b > most for b, most in zip(block, _MAX_BLOCK, strict=True)):
        raise LaunchError(f"kernel {info.name!r}: block {block} exceeds {_MAX_BLOCK} or {_MAX_THREADS} threads")
    if threads > info.max_threads:
        raise LaunchError(
            f"kernel {info.name!r}: {threads} threads a block, but it is compiled for at most {info.max_threads}"
        )
    if info.required_block is not None and block != info.required_block:
        raise LaunchError(f"kernel {info.name!r}: block {block}, but it is compiled for {info.required_block}")


def _cluster(kernel: Kernel, grid: tuple[int, int, int], cluster: Extent | None) -> tuple[int, int, int]:
    """Blocks of a cluster: as asked for, or as the kernel declares (``.reqnctapercluster``)."""
    declared = kernel.directives.get("reqnctapercluster", ())
    chosen = _extent("cluster", cluster if cluster is not None else declared or 1)
    if declared and chosen != _extent("cluster", declared):
        raise LaunchError(f"kernel {kernel.name!r}: cluster {chosen}, but it is compiled for {declared}")
    if chosen[0] * chosen[1] * chosen[2] > _MAX_CLUSTER:
        raise LaunchError(f"kernel {kernel.name!r}: cluster {chosen} has more than {_MAX_CLUSTER} blocks")
    if any(g % c for g, c in zip(grid, chosen, strict=True)):
        raise LaunchError(f"kernel {kernel.name!r}: grid {grid} is not made of clusters {chosen}")
    return chosen


def _shared_size(kernel: Kernel, dynamic: int) -> int:
    if dynamic < 0:
        raise LaunchError(f"kernel {kernel.name!r}: {dynamic} bytes of dynamic shared memory")
    total = (kernel.dynamic_shared if kernel.dynamic_shared is not None else kernel.shared_bytes) + dynamic
    if total > _MAX_SHARED:
        raise LaunchError(
            f"kernel {kernel.name!r}: {total} bytes of shared memory, at most {_MAX_SHARED} are available"
        )
    return total


def _pack(kernel: Kernel, args: Sequence[Any], memory: GlobalMemory) -> bytes:
    """Lay out the parameters; map every array."""
    if len(args) != len(kernel.parameters):
        raise LaunchError(f"kernel {kernel.name!r} takes {len(kernel.parameters)} arguments, not {len(args)}")
    size = max((p.offset + p.size for p in kernel.parameters), default=0)
    packed = bytearray(size)
    for position, (value, parameter) in enumerate(zip(args, kernel.parameters, strict=True)):
        if isinstance(value, np.ndarray):
            data = _pointer(kernel, position, value, parameter, memory)
        elif isinstance(value, np.generic):
            data = _scalar(kernel, position, value, parameter)
        else:
            raise LaunchError(
                f"{_which(kernel, position, parameter)}: got {type(value).__name__}",
                hint="pass a numpy array or a numpy scalar such as np.int64(3)",
            )
        packed[parameter.offset : parameter.offset + parameter.size] = data
    return bytes(packed)


def _which(kernel: Kernel, position: int, parameter: Parameter) -> str:
    return f"kernel {kernel.name!r}, argument {position} ({parameter.name}, .{parameter.type})"


def _pointer(
    kernel: Kernel, position: int, array: np.ndarray[Any, Any], parameter: Parameter, memory: GlobalMemory
) -> bytes:
    what = f"{array.dtype}{list(array.shape)}"
    if parameter.size != 8 or parameter.kind in ("float", "bytes"):
        raise LaunchError(f"{_which(kernel, position, parameter)} is no pointer: got an array {what}")
    if not array.flags.c_contiguous:
        raise LaunchError(f"{_which(kernel, position, parameter)}: array {what} is not contiguous")
    if array.dtype.hasobject:
        raise LaunchError(f"{_which(kernel, position, parameter)}: array of Python objects")
    allocation = memory.add(f"argument {position}, {what}", array, position)
    return allocation.base.to_bytes(8, "little")


def _scalar(kernel: Kernel, position: int, value: np.generic, parameter: Parameter) -> bytes:
    which = _which(kernel, position, parameter)
    if parameter.kind == "pointer":
        raise LaunchError(f"{which} is a pointer: got a scalar {value.dtype}", hint="pass a numpy array")
    if value.dtype.itemsize != parameter.size:
        raise LaunchError(f"{which} has {parameter.size} bytes: got a scalar {value.dtype} of {value.dtype.itemsize}")
    whole = value.dtype.kind in "iub"
    if (parameter.kind == "float" and whole) or (parameter.kind == "integer" and value.dtype.kind == "f"):
        raise LaunchError(f"{which} is of kind {parameter.kind}: got a scalar {value.dtype}")
    return value.tobytes()
