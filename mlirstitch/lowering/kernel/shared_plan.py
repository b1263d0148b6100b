"""Where the shared buffers of a kernel lie: planned once, when the body is complete.

Buffers are views of one block of memory. Two of them may lie at the same place if one is dead before the other is
first touched, and every thread passes a barrier in between: then no thread still reads the one while another writes
the other. Only barriers that stand at the top of the body count, for every thread passes those; accesses count where
the outermost op around them stands, so that a loop is one place.

Over the budget of 48 KB that a kernel can declare, barriers are added where one would let a buffer take the place of
dead ones. What still does not fit goes to dynamic shared memory, of which a block can have more.

Source: FusionStitching (arXiv 2009.10924), section on shared memory: a buffer is reused where its readers dominate the
next writer; that a barrier must stand between is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlir import ir

ALIGNMENT = 16
"""Every buffer starts at a multiple of so many bytes: the widest access."""


@dataclass(frozen=True)
class Buffer:
    """One buffer.

    Attributes:
        size: bytes.
        first, last: places of the first and the last access, as numbers of ops at the top of the body.
    """

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class SharedPlan:
    """Offsets of the buffers, bytes they take together, and places before which a barrier must be added."""

    offsets: tuple[int, ...]
    bytes: int
    barriers: tuple[int, ...] = ()


def plan_shared(buffers: Sequence[Buffer], barriers: Sequence[int], budget: int) -> SharedPlan:
    """Lay out ``buffers``. ``barriers`` are the places of barriers that all threads pass.

    The bytes may exceed ``budget`` (bytes) if so much is in use at one time.
    """
    plan = _lay_out(buffers, barriers)
    if plan.bytes <= budget:
        return plan
    added = sorted({buffer.first for buffer in buffers if _would_reuse(buffer, buffers, barriers)})
    # A barrier added before the op at a place separates it from all ops before it.
    denser = replace(_lay_out(buffers, [*barriers, *(place - 0.5 for place in added)]), barriers=tuple(added))
    return denser if denser.bytes < plan.bytes else plan


def _would_reuse(buffer: Buffer, buffers: Sequence[Buffer], barriers: Sequence[int]) -> bool:
    """Whether some buffer is dead before ``buffer`` is touched, but no barrier stands between."""
    return any(other.last < buffer.first and not separated(other, buffer, barriers) for other in buffers)


def separated(one: Buffer, other: Buffer, barriers: Sequence[float]) -> bool:
    """Whether all threads pass a barrier between the accesses to one buffer and those to the other."""
    early, late = (one, other) if one.last < other.first else (other, one)
    return any(early.last < barrier < late.first for barrier in barriers)


def _lay_out(buffers: Sequence[Buffer], barriers: Sequence[float]) -> SharedPlan:
    """First fit, in the order of first accesses."""
    offsets: dict[int, int] = {}
    for number in sorted(range(len(buffers)), key=lambda number: (buffers[number].first, number)):
        own = buffers[number]
        taken = sorted(
            (offsets[other], offsets[other] + buffers[other].size)
            for other in offsets
            if not separated(buffers[other], own, barriers)
        )
        start = 0
        for low, high in taken:
            if start + own.size <= low:
                break
            start = max(start, -(-high // ALIGNMENT) * ALIGNMENT)
        offsets[number] = start
    total = max((offsets[number] + buffer.size for number, buffer in enumerate(buffers)), default=0)
    return SharedPlan(tuple(offsets[number] for number in range(len(buffers))), total)


# Reading a kernel, and changing it --------------------------------------------------------------------------------


_BARRIERS = frozenset(("gpu.barrier", "nvvm.barrier"))
"""The second waits for the threads of a part of a packed kernel, which are all that run the part's body."""

_ACCESSES = frozenset(("memref.load", "memref.store", "vector.load", "vector.store"))


def place_buffers(entry: ir.Block, views: Sequence[ir.Operation], budget: int) -> int:
    """Plan the buffers that ``views`` (``memref.view`` at a constant offset, one each) make in the body ``entry``.

    Sets the offsets, adds barriers where the plan asks for them, and returns the bytes that all take together.
    """
    places = {op.operation: number for number, op in enumerate(entry.operations)}
    barriers = [number for op, number in places.items() if op.name in _BARRIERS]
    buffers = [_buffer(view, places, entry) for view in views]
    plan = plan_shared(buffers, barriers, budget)
    for view, offset in zip(views, plan.offsets, strict=True):
        constant = ir.OpResult(view.operands[1]).owner
        constant.attributes["value"] = ir.IntegerAttr.get(ir.IndexType.get(view.context), offset)
    ops = list(places)
    for place in plan.barriers:
        ir.Operation.create("gpu.barrier", loc=ops[place].location, ip=ir.InsertionPoint(ops[place]))
    return plan.bytes


def _buffer(view: ir.Operation, places: dict[ir.Operation, int], entry: ir.Block) -> Buffer:
    """Size and range of a buffer; one that is used other than by accesses is in use all the time."""
    size = _bytes(view.results[0].type)
    found: list[int] = []
    for use in view.results[0].uses:
        user = use.owner.operation
        if user.name not in _ACCESSES:
            return Buffer(size, 0, len(places))
        while user.block != entry and user.parent is not None:
            user = user.parent.operation
        found.append(places[user])
    return Buffer(size, min(found, default=0), max(found, default=0))


def _bytes(kind: ir.Type) -> int:
    memref = ir.MemRefType(kind)
    element = memref.element_type
    return memref.shape[0] * -(-element.width // 8)  # pyright: ignore[reportAttributeAccessIssue]
