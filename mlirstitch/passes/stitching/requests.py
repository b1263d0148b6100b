"""What a user asks of clustering, as ``stitch-control`` wrote it on the ops: the one place that says what it forbids.

``stitch.keep_together = ["exp,sum #0"]``: ops that name the same set become one kernel, with what lies between them;
others may join. ``stitch.keep_apart = ["left of exp|sum"]``: no kernel holds an op on the left and one on the right.
``stitch.never_fuse = "exp"``: the op is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mlirstitch.dialects import stitch
from mlirstitch.passes.stitching.graph import Graph

LEFT, RIGHT = "left of ", "right of "


@dataclass(frozen=True)
class Requests:
    """The requests on the ops of one graph.

    Attributes:
        together: name of every set -> its nodes, ascending.
        sides: node -> the sides it stands on, :data:`LEFT` or :data:`RIGHT` and the request.
        alone: node -> the request that wants it to be a kernel of its own.
    """

    together: dict[str, tuple[int, ...]]
    sides: dict[int, tuple[str, ...]]
    alone: dict[int, str]

    @classmethod
    def of(cls, graph: Graph) -> Requests:
        """Read them off the ops. Raises :class:`PassError` for an attribute of another type."""
        together: dict[str, tuple[int, ...]] = {}
        sides: dict[int, tuple[str, ...]] = {}
        alone: dict[int, str] = {}
        for node, op in enumerate(graph.ops):
            for name in stitch.KEEP_TOGETHER.get(op) or ():
                together[name] = (*together.get(name, ()), node)
            stands = stitch.KEEP_APART.get(op)
            if stands:
                sides[node] = stands
            request = stitch.NEVER_FUSE.get(op)
            if request is not None:
                alone[node] = request
        return cls(together, sides, alone)

    def why_apart(self, nodes: Collection[int]) -> str:
        """The request that forbids one kernel for all nodes, "" if none does."""
        if len(nodes) < 2 or not (self.sides or self.alone):
            return ""
        met: set[str] = set()
        for node in sorted(nodes):
            if node in self.alone:
                return f"never fuse {self.alone[node]}"
            for side in self.sides.get(node, ()):
                other = side.replace(LEFT, RIGHT, 1) if side.startswith(LEFT) else side.replace(RIGHT, LEFT, 1)
                if other in met:
                    return f"keep apart {side.removeprefix(LEFT).removeprefix(RIGHT)}"
                met.add(side)
        return ""


def clear_requests(graph: Graph) -> None:
    """Take the requests off the ops: equal clusters must not differ by who asked for them."""
    for op in graph.ops:
        for attribute in (stitch.KEEP_TOGETHER, stitch.KEEP_APART, stitch.NEVER_FUSE):
            attribute.remove(op)
