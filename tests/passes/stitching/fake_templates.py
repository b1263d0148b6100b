"""Templates of known behaviour, so that clustering is tested without the code generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.op_kind import Kind, op_kind
from mlirstitch.passes.stitching.template import MOST_CANDIDATES, Cluster, Schedule
from mlirstitch.passes.structured import shape_of, structured
from mlirstitch.target import Target


@dataclass(frozen=True)
class FakeRow:
    """Element-wise ops and reductions over trailing dims; all reductions alike, outputs of one shape."""

    name: str = "row"

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        rows: set[tuple[int, ...]] = set()
        for op in cluster.ops:
            view, kind = structured(op), op_kind(op)
            if kind is Kind.COMPUTE or op.name in ("tensor.concat", "tensor.extract_slice"):
                return f"{op.name} is not element-wise"
            if kind is Kind.REDUCTION and view is not None:
                if view.iterators[-1] != "reduction":
                    return f"{op.name} does not reduce a trailing dim"
                rows.add(view.loop_sizes())
        if len(rows) > 1:
            return "rows differ"
        if not rows and len({shape_of(value) for value in cluster.outputs}) > 1:
            return "outputs differ in shape"
        return None

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        return [Schedule(self.name, (1, 1, 1), (32, 1, 1)), Schedule(self.name, (2, 1, 1), (64, 1, 1))]

    def candidates(self, cluster: Cluster, target: Target, limit: int = MOST_CANDIDATES) -> Sequence[Schedule]:
        return self.schedules(cluster, target)[:limit]

    def refusal(self, cluster: Cluster, schedule: Schedule, target: Target) -> str | None:
        return None

    def emit(self, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
        raise NotImplementedError


@dataclass(frozen=True)
class FakeLoopNest(FakeRow):
    """Everything with one shape of output, except convolutions."""

    name: str = "loop_nest"

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        if any(op.name.startswith("linalg.conv") for op in cluster.ops):
            return "no convolutions here"
        return None if len({shape_of(value) for value in cluster.outputs}) < 2 else "outputs differ in shape"
