"""Chip limits and cost constants. Everything a pass may know about the device stands here."""

from __future__ import annotations

import builtins
import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from mlirstitch.errors import TargetError

GRID_YZ_LIMIT = 65_535
GRID_X_LIMIT = 2**31 - 1
MAX_KERNEL_ARGUMENT_BYTES = 4_096
FIRST_WITH_CLUSTERS = 90
"""Compute capability (times ten) from which on there are thread-block clusters."""
PORTABLE_CLUSTER_BLOCKS = 8


@dataclass(frozen=True)
class IssueCycles:
    """Cycles of one multiprocessor for one warp instruction of a class; the classes are those of docs/counters.md.

    32 divided by the results per clock and multiprocessor of the CUDA C++ Best Practices Guide, "Throughput of Native
    Arithmetic Instructions" (13.x; the table stood in the programming guide before). ``double`` is what the counters
    count as ``float`` but is 64 bits wide.
    """

    integer: float
    float: float
    double: float
    special: float
    convert: float
    move: float
    shuffle: float
    barrier: float
    fence: float
    control: float
    matrix: float
    atomic: float
    load_global: float
    store_global: float
    load_shared: float
    store_shared: float
    load_local: float
    store_local: float

    def of(self, name: str) -> builtins.float:
        """The cycles of a class by its name; generic loads and stores cost what global ones do."""
        return getattr(self, name.replace("generic", "global"))


@dataclass(frozen=True)
class Target:
    """One chip: limits from NVIDIA's CUDA C programming guide ("Compute capabilities"), rates from data sheets.

    Attributes:
        chip: ``sm_90`` and so on, as LLVM spells it.
        ptx_version: the PTX ISA version LLVM 22.1.8 prints for the chip by default.
        sms: streaming multiprocessors of the reference part.
        warp_size: lanes of a warp.
        max_threads_per_block, max_threads_per_sm, registers_per_sm, max_registers_per_thread: limits, counts.
        shared_bytes_static: static shared memory a block may declare, bytes.
        shared_bytes_block: shared memory a block may opt in to, bytes.
        shared_bytes_sm: shared memory of one multiprocessor, bytes.
        l2_bytes: size of the level-2 cache, bytes.
        bandwidth: global memory, bytes per second.
        launch_seconds: cost of one kernel launch, seconds.
        l2_bandwidth: bytes per second that the level-2 cache delivers.
        clock: cycles per second of a multiprocessor, boost.
        matrix_flops: flops per second of the matrix units on 16-bit floats with 32-bit sums, dense, by data sheets.
        memory_seconds: from a load to its value, if global memory has to deliver it.
        barrier_seconds: from the last arrival at a barrier of a block to the next instruction.
        cycles: what warp instructions cost.
        cluster_blocks: blocks of the largest thread-block cluster that every part of the chip can run (the portable
            size), 1 where there are no clusters.
        grid_composition: whether the compiler may let blocks wait for each other through global memory (an option of
            the compilation, not a property of the chip).
    """

    chip: str
    ptx_version: str
    sms: int
    max_threads_per_sm: int
    shared_bytes_block: int
    shared_bytes_sm: int
    l2_bytes: int
    bandwidth: float
    l2_bandwidth: float
    clock: float
    memory_seconds: float
    cycles: IssueCycles
    matrix_flops: float
    warp_size: int = 32
    max_threads_per_block: int = 1024
    registers_per_sm: int = 65_536
    max_registers_per_thread: int = 255
    shared_bytes_static: int = 48 * 1024
    launch_seconds: float = 3e-6
    barrier_seconds: float = 2e-8
    cluster_blocks: int = 1
    grid_composition: bool = False

    @staticmethod
    def parse(text: str | Target) -> Target:
        """Look a chip up by name. Raises :class:`TargetError` for an unknown one."""
        if isinstance(text, Target):
            return text
        name = text.strip().lower()
        if re.fullmatch(r"\d+", name):
            name = f"sm_{name}"
        if name not in TARGETS:
            raise TargetError(f"unknown target {text!r}", hint=f"known targets: {', '.join(sorted(TARGETS))}")
        return TARGETS[name]

    def override(self, **changes: Any) -> Target:
        """The same chip with some fields replaced, for tests and calibration files."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class _Part:
    """A reference part, by data sheets: multiprocessors, GB/s, MB of level-2 cache, boost MHz, TFLOPS of matrices.

    ``l2``: GB/s of the level-2 cache. ``latency``: cycles of a load from global memory. ``rates``: results per clock
    and multiprocessor.
    """

    sms: int
    bandwidth: float
    l2_megabytes: float
    l2: float
    megahertz: float
    latency: float
    rates: _Rates
    teraflops: float


@dataclass(frozen=True)
class _Rates:
    """Results per clock and multiprocessor; a warp instruction has 32."""

    integer: float
    float: float
    double: float
    convert: float
    memory: float


def _cycles(rates: _Rates) -> IssueCycles:
    """The documented rates as cycles, and our estimates for the classes that no document has."""
    issue = 32 / 128  # four schedulers issue a warp instruction a clock each
    memory = 32 / rates.memory
    return IssueCycles(
        integer=32 / rates.integer,
        float=32 / rates.float,
        double=32 / rates.double,
        special=32 / 16,  # all chips, same table
        convert=32 / rates.convert,
        move=issue,
        shuffle=32 / 32,  # all chips, same table
        barrier=32 / 16,  # programming guide, "Synchronization instruction", 7.x and 8.x
        fence=16,  # ours
        control=2 * issue,  # ours
        matrix=8,  # ours; no generated kernel has any
        atomic=4 * memory,  # ours
        load_global=memory,
        store_global=memory,
        load_shared=memory,
        store_shared=memory,
        load_local=memory,
        store_local=memory,
    )


def _chip(chip: str, ptx: str, threads_sm: int, kb_block: int, kb_sm: int, part: _Part) -> Target:
    generation = int(chip.removeprefix("sm_").rstrip("af"))
    return Target(
        chip,
        ptx,
        sms=part.sms,
        max_threads_per_sm=threads_sm,
        shared_bytes_block=kb_block * 1024,
        shared_bytes_sm=kb_sm * 1024,
        l2_bytes=int(part.l2_megabytes * 2**20),
        bandwidth=part.bandwidth * 1e9,
        l2_bandwidth=part.l2 * 1e9,
        clock=part.megahertz * 1e6,
        memory_seconds=part.latency / (part.megahertz * 1e6),
        cycles=_cycles(part.rates),
        matrix_flops=part.teraflops * 1e12,
        cluster_blocks=PORTABLE_CLUSTER_BLOCKS if generation >= FIRST_WITH_CLUSTERS else 1,
    )


# Rates. `integer`, `float`, `double`, `convert`: the table that IssueCycles names, columns 7.5, 8.0, 8.6, 8.9, 9.0,
# 10.0, 12.0. Its rows differ by op; where they do, ours: integer on 12.0 is between additions (128) and logic (64);
# conversions are those between float types and to integers (16), except that 8.6 and 8.9 have 64. `memory`: load/store
# units of the architecture white papers (Turing 16, others 32).
_TURING = _Rates(integer=64, float=64, double=2, convert=16, memory=16)
_A100 = _Rates(integer=64, float=64, double=32, convert=16, memory=32)
_AMPERE_ADA = _Rates(integer=64, float=128, double=2, convert=64, memory=32)
_HOPPER = _Rates(integer=64, float=128, double=64, convert=16, memory=32)
_BLACKWELL = _Rates(integer=64, float=128, double=64, convert=16, memory=32)
_BLACKWELL_GEFORCE = _Rates(integer=96, float=128, double=2, convert=16, memory=32)

# Parts. Multiprocessors, bandwidth, cache size, clock: data sheets and architecture white papers. Cache bandwidth: T4
# measured by Jia et al. (arXiv 1903.07486), A100 its white paper (5,120 bytes per clock), the others ours. Latency: T4
# Jia et al.; A100, 4090 (for L4) and H100 Luo et al. (arXiv 2402.13499); A10, B200 and 5090 ours.
_T4 = _Part(40, 320, 4, 1_270, 1590, 300, _TURING, 65)
_A100_40G = _Part(108, 1_555, 40, 7_200, 1410, 466, _A100, 312)
_A10 = _Part(72, 600, 6, 2_500, 1695, 500, _AMPERE_ADA, 125)
_L4 = _Part(58, 300, 48, 2_000, 2040, 541, _AMPERE_ADA, 121)
_H100_SXM = _Part(132, 3_350, 50, 7_000, 1980, 479, _HOPPER, 989)
_B200 = _Part(148, 8_000, 126, 12_000, 1965, 550, _BLACKWELL, 2_250)
_RTX_5090 = _Part(170, 1_792, 96, 6_000, 2407, 600, _BLACKWELL_GEFORCE, 209)

TARGETS: dict[str, Target] = {
    t.chip: t
    for t in (
        _chip("sm_75", "6.3", 1024, 64, 64, _T4),
        _chip("sm_80", "7.0", 2048, 163, 164, _A100_40G),
        _chip("sm_86", "7.1", 1536, 99, 100, _A10),
        _chip("sm_89", "7.8", 1536, 99, 100, _L4),
        _chip("sm_90", "7.8", 2048, 227, 228, _H100_SXM),
        _chip("sm_90a", "8.0", 2048, 227, 228, _H100_SXM),
        _chip("sm_100", "8.6", 2048, 227, 228, _B200),
        _chip("sm_120", "8.7", 1536, 99, 100, _RTX_5090),
    )
}


@dataclass(frozen=True)
class Link:
    """What it costs one device to send to another.

    Attributes:
        alpha: seconds from the start of a message to its first byte at the receiver, launch of the transfer included.
        bandwidth: bytes per second, one way, of one device.
    """

    alpha: float
    bandwidth: float


@dataclass(frozen=True)
class Links:
    """How devices are connected: hosts of equally many devices, numbered host by host.

    Attributes:
        name: what :meth:`parse` knows it by.
        inside: between devices of one host.
        between: between devices of different hosts; every device has a network port of its own.
        devices_per_host: devices ``h * devices_per_host`` and following are those of host h.
        memory_bandwidth: bytes per second of a device's own memory, for copies that cross no link.
    """

    name: str
    inside: Link
    between: Link
    devices_per_host: int
    memory_bandwidth: float

    @staticmethod
    def parse(text: str | Links) -> Links:
        """Look links up by name. Raises :class:`TargetError` for unknown ones."""
        if isinstance(text, Links):
            return text
        if text.strip().lower() not in LINKS:
            raise TargetError(f"unknown links {text!r}", hint=f"known links: {', '.join(sorted(LINKS))}")
        return LINKS[text.strip().lower()]

    def override(self, **changes: Any) -> Links:
        """The same links with some fields replaced, for tests and calibration files."""
        return dataclasses.replace(self, **changes)


# Bandwidths: data sheets, which give both directions together for NVLink and PCIe, so half of it. NVLink 2: 300 GB/s
# (V100), NVLink 3: 600 GB/s (A100), NVLink 4: 900 GB/s (H100). PCIe 4.0 x16: 64 GB/s. InfiniBand: EDR 100, HDR 200, NDR
# 400 Gb/s a port, and a port a device in the reference systems (DGX H100 user guide: eight ConnectX-7 for eight GPUs;
# DGX A100: eight ConnectX-6); hosts of eight V100 share one EDR port here, as clusters of that time did. Latencies:
# ours, in the order of what NCCL's tuning tables assume for a hop.
_NVLINK_2, _NVLINK_3, _NVLINK_4 = Link(4e-6, 150e9), Link(4e-6, 300e9), Link(3e-6, 450e9)
_PCIE_4 = Link(6e-6, 32e9)
_EDR_OF_EIGHT, _HDR, _NDR = Link(1e-5, 12.5e9 / 8), Link(1e-5, 25e9), Link(8e-6, 50e9)

LINKS: dict[str, Links] = {
    links.name: links
    for links in (
        Links("dgx-h100", _NVLINK_4, _NDR, 8, _H100_SXM.bandwidth * 1e9),
        Links("dgx-a100", _NVLINK_3, _HDR, 8, _A100_40G.bandwidth * 1e9),
        Links("dgx-v100", _NVLINK_2, _EDR_OF_EIGHT, 8, 900e9),
        Links("pcie-l4", _PCIE_4, _HDR, 8, _L4.bandwidth * 1e9),
    )
}
