"""Memory that the generated code and the engine share: byte offsets of the fields of its structures.

A worker (one thread of the host that runs a range of thread blocks) has one *context*; a warp of the thread block that
it runs has one *warp* structure, reused from block to block; every memory instruction has one *site* in each context.
All fields are 8 bytes unless said otherwise.
"""

from __future__ import annotations

from enum import IntEnum


class Context(IntEnum):
    """The structure of a worker."""

    PARAMETERS = 0
    """Address of the kernel parameters."""
    SHARED = 8
    """Address of the shared memory of the block."""
    LOCAL = 16
    """Address of the local memory of the block: ``LOCAL_STRIDE`` bytes a thread."""
    WARPS = 24
    """Address of the first warp structure; the others follow at a distance of ``WARP_STRIDE``."""
    SITES = 32
    EXECUTED = 40
    """Address of one counter a basic block: how often a warp has executed it."""
    ALLOCATIONS = 48
    ALLOCATION_COUNT = 56
    RUN_WARP = 64
    """Address of the kernel's code: ``(context, warp) -> i32``, 0, or 1 after a finding."""
    WARP_COUNT = 72
    WARP_STRIDE = 80
    SHARED_SIZE = 88
    LOCAL_SIZE = 96
    LOCAL_STRIDE = 104
    GRID_X = 112
    """32-bit: ``%nctaid.x``; y and z follow."""
    BLOCK_ID_X = 128
    """32-bit: ``%ctaid.x``; y and z follow."""
    BLOCK_NUMBER = 144
    BUDGET = 152
    WAITING = 160
    """Not 0 if a thread of the block waits at a barrier."""
    BARRIERS = 168
    """Address of the table of barriers."""
    BARRIER_COUNT = 176
    THREADS = 184
    """Threads of a block."""
    UNINITIALISED = 192
    """Bytes at the start of the frame that are zeroed when a block starts."""
    LAST_ALLOCATION = 200
    """Address of the allocation that was accessed last."""
    COUNTING = 208
    CLOCK = 216
    FAULT = 224
    """A :class:`Fault`, or 0."""
    FAULT_SITE = 232
    FAULT_LANE = 240
    FAULT_WARP = 248
    FAULT_ADDRESS = 256
    DIVERGENT_BRANCHES = 264
    LOAD_REQUESTS = 272
    STORE_REQUESTS = 280
    ATOMIC_REQUESTS = 288
    BYTES_LOADED = 296
    BYTES_STORED = 304
    SECTORS_LOADED = 312
    SECTORS_STORED = 320
    SHARED_REQUESTS = 328
    SHARED_WAVEFRONTS = 336
    SHARED_CONFLICTS = 344
    FUNCTIONS = 352
    """Addresses of the functions of the support library, see :data:`support.FUNCTIONS`."""


class Fault(IntEnum):
    """What a run can end with."""

    OUTSIDE = 1
    MISALIGNED = 2
    READ_ONLY = 3
    SHARED = 4
    LOCAL = 5
    MISSING_SHARED = 6
    MISSING_LOCAL = 7
    MIXED_SPACES = 8
    TRAP = 9
    SWITCH = 10
    BUDGET = 11
    DEADLOCK = 12
    LOCAL_ATOMIC = 13


class Warp(IntEnum):
    """The structure of a warp."""

    LIVE = 0
    """32-bit mask of the threads that run: neither exited nor waiting at a barrier."""
    EXITED = 4
    FULL = 8
    """32-bit mask of the threads that exist."""
    NUMBER = 16
    ISSUED = 24
    """Instructions of basic blocks inside loops."""
    FRAME = 32
    """Offset of the frame in this structure."""
    THREAD_IDS = 64
    """32 times ``%tid.x``, then y and z, 32 bits each."""
    ADDRESSES = 448
    """64 bits a thread: operand of the memory functions."""
    VALUES = 704
    """Up to 8 elements a thread: element k of thread t at ``256 k + width t``."""
    SECOND = 2752
    """Second operand of an atomic, results of shuffles: 32 elements."""
    MASKS = 3008
    """32-bit masks: threads that wait at each barrier instruction, then threads that are to run each basic block."""


class Site(IntEnum):
    """State of a memory instruction. The allocation accessed last is kept: an access is inside of it if the distance
    from ``BASE`` is at most ``LIMIT`` as an unsigned number."""

    BASE = 0
    LIMIT = 8
    DELTA = 16
    """Host address minus device address."""
    ALLOCATION = 24
    HITS = 32
    """Accesses of a whole warp inside the kept allocation, not yet added to the counters."""
    SECTORS = 40
    LANES = 48
    FAST_BYTES = 56
    """Bytes that must lie in one allocation for it to be kept."""
    WIDTH = 64
    COUNT = 72
    SPACE = 80
    """0 global, 1 shared, 2 local, 3 generic."""
    KIND = 88
    """0 load, 1 store, 2 atomic."""


SITE_BYTES = 96
SPACES = {"global": 0, "shared": 1, "local": 2, "generic": 3}


class Allocation(IntEnum):
    """An array argument or a module variable. The table is sorted by ``BASE``."""

    BASE = 0
    SIZE = 8
    DELTA = 16
    WRITABLE = 24
    LOADED = 32
    STORED = 40


ALLOCATION_BYTES = 48


class Barrier(IntEnum):
    """A barrier instruction."""

    NUMBER = 0
    THREADS = 8
    """Threads that must arrive."""
    TARGET = 16
    """Basic block behind it."""


BARRIER_BYTES = 24
