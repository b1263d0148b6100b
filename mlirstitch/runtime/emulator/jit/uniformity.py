"""Which registers may be kept as one number for the whole warp although threads diverge.

A scalar that is shared by the threads of a warp is wrong where some threads write it while others, which took another
way, still need what they had. After a divergent branch the threads of one side run while those of the other wait, on
their side or where the sides meet again, the immediate post-dominator of the branch: lowest block first (see
:class:`ptx.ir.Kernel`) keeps all of them before it. So a register that one side writes must not be live there.
(For values of registers in loops this is the *temporal divergence* of Karrenberg and Hack, "Improving performance of
OpenCL on CPUs", CC 2012, section 3.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlirstitch.runtime.emulator.ptx.ir import Kernel
from mlirstitch.runtime.emulator.ptx.syntax import Register


def diverging_registers(kernel: Kernel, branches: Iterable[int]) -> set[Register]:
    """Registers that differ between threads if the blocks ``branches`` end with a divergent branch."""
    successors = [block.terminator.targets for block in kernel.blocks]
    meeting = _post_dominators(successors)
    written = [{r for i in block.instructions for r in i.defined()} for block in kernel.blocks]
    live = [set(block.live_in) for block in kernel.blocks]
    waits = [block.terminator.kind not in ("jump", "branch", "switch", "exit") for block in kernel.blocks]
    found: set[Register] = set()
    for branch in branches:
        where: int | None = meeting[branch]
        starts = sorted(set(successors[branch]))
        sides = [_reachable(successors, start, where) for start in starts]
        inside = set[int]().union(*sides, {branch})
        if where is not None and (where <= max(inside) or any(waits[block] for block in inside)):
            # Threads do not wait for each other where the sides meet.
            where = None
            sides = [_reachable(successors, start, None) for start in starts]
        for position, side in enumerate(sides):
            others = set[int]().union(*(s for other, s in enumerate(sides) if other != position))
            if where is not None:
                others.add(where)
            needed = set[Register]().union(*(live[block] for block in others))
            found |= needed & set[Register]().union(*(written[block] for block in side))
    return found


def _reachable(successors: Sequence[tuple[int, ...]], start: int, end: int | None) -> set[int]:
    """Blocks on ways from ``start`` that do not enter ``end``."""
    found: set[int] = set()
    stack = [start]
    while stack:
        node = stack.pop()
        if node != end and node not in found:
            found.add(node)
            stack.extend(successors[node])
    return found


def _post_dominators(successors: Sequence[tuple[int, ...]]) -> list[int | None]:
    """The immediate post-dominator of every block, None if only the end of the kernel is."""
    count = len(successors)
    everything = set(range(count))
    after = [set(everything) for _ in range(count)]
    changed = True
    while changed:
        changed = False
        for node in range(count - 1, -1, -1):
            common = set(everything) if successors[node] else set[int]()
            for successor in successors[node]:
                common &= after[successor]
            common = common | {node}
            if common != after[node]:
                after[node], changed = common, True
    nearest: list[int | None] = []
    for node in range(count):
        strict = after[node] - {node}
        # The nearest one is post-dominated by all others.
        nearest.append(next((p for p in sorted(strict) if strict <= after[p]), None))
    return nearest
