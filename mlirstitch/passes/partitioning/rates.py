"""What an op costs on one device: the model that plans are compared by.

An op takes as long as its flops or its bytes do, whichever is longer; there is no cost of a launch, because kernels are
made from many ops later. Contractions on 16-bit floats run on the matrix units, all else on the vector units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mlirstitch.passes.partitioning.graph import Graph, GraphOp, GraphUse
from mlirstitch.passes.partitioning.placement import Placement
from mlirstitch.passes.partitioning.splits import layout_of
from mlirstitch.target import Target

_LANES_AND_FMA = 2 * 32
_FREE = frozenset(("view", "constant", "return"))


@dataclass(frozen=True)
class Rates:
    """Rates of one device.

    Attributes:
        matrix_flops: of contractions on 16-bit floats, per second.
        vector_flops: of everything else, per second.
        bandwidth: of memory, bytes per second.
    """

    matrix_flops: float
    vector_flops: float
    bandwidth: float

    @classmethod
    def of(cls, target: Target) -> Rates:
        """The rates of a chip."""
        vector = target.sms * target.clock * _LANES_AND_FMA / target.cycles.float
        return cls(target.matrix_flops, vector, target.bandwidth)

    def seconds(self, graph: Graph, op: GraphOp, placement: Placement, sizes: Mapping[str, int]) -> float:
        """Seconds of one op on the device that has the largest part, at one place in time."""
        if op.kind in _FREE:
            return 0.0
        share = 1.0
        cuts = dict(placement.cuts)
        for loop, axes in cuts.items():
            parts = math.prod(sizes[axis] for axis in axes)
            share *= -(-op.loops[loop] // parts) / op.loops[loop] if op.loops[loop] else 1.0
        moved = sum(self._bytes(graph, op, use, cuts, sizes) for use in (*op.inputs, *op.results))
        narrow = op.kind == "compute" and graph.values[op.inputs[0].value].element_bytes <= 2
        return max(op.flops * share / (self.matrix_flops if narrow else self.vector_flops), moved / self.bandwidth)

    @staticmethod
    def _bytes(
        graph: Graph, op: GraphOp, use: GraphUse, cuts: Mapping[int, tuple[str, ...]], sizes: Mapping[str, int]
    ) -> int:
        tensor = graph.values[use.value]
        return layout_of(op, use, cuts).largest(tensor.shape, sizes) * tensor.element_bytes
