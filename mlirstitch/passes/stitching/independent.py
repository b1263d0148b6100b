"""The independent parts of a cluster: sets of its ops between which no tensor goes.

Kernel packing (FusionStitching, arXiv 2009.10924, section 2) gives every such part a range of the blocks of one launch.
Ops that cost nothing to have twice join nothing: what reads no tensor (constants, fills, masks), and views, movements
and casts of such values and of the cluster's inputs. Each part that reads one of them has its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlir import ir

from mlirstitch.dialects.walk import walk
from mlirstitch.passes.op_kind import CASTS, VIEW_OPS, Kind, op_kind
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import defining_op, is_tensor, structured

_CONSTANTS = frozenset(("arith.constant", "tensor.empty", "tensor.splat"))


def independent_parts(cluster: Cluster) -> tuple[Cluster, ...]:
    """The independent parts of ``cluster``, in the order of their first ops; one if it does not fall apart.

    Inputs, outputs and ops of a part stand in the order of the cluster. Ops that no output needs are in no part.
    """
    finder = _Finder(cluster)
    groups = finder.groups()
    return tuple(part for part in (finder.part(group) for group in groups) if part.outputs)


def join_parts(cluster: Cluster, parts: Sequence[Cluster]) -> Cluster:
    """Several parts of ``cluster`` as one."""
    ops = {op for part in parts for op in part.ops}
    inputs = {value for part in parts for value in part.inputs}
    outputs = {value for part in parts for value in part.outputs}
    return Cluster(
        tuple(op for op in cluster.ops if op in ops),
        tuple(value for value in cluster.inputs if value in inputs),
        tuple(value for value in cluster.outputs if value in outputs),
        cluster.facts,
    )


class _Finder:
    """Reads one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._inputs = set(cluster.inputs)
        self._position = {op: position for position, op in enumerate(cluster.ops)}
        self._needs = {op: self._needed(op) for op in cluster.ops}
        self._copied = self._find_copied()

    def groups(self) -> list[list[ir.Operation]]:
        """Ops connected by tensors and scalars, copied ones left out, each in order."""
        group = {op: op for op in self._cluster.ops if op not in self._copied}

        def find(op: ir.Operation) -> ir.Operation:
            while group[op] != op:
                group[op] = group[group[op]]
                op = group[op]
            return op

        for op in group:
            for value in self._needs[op]:
                source = defining_op(value)
                if source is not None and source in group:
                    group[find(op)] = find(source)
        found: dict[ir.Operation, list[ir.Operation]] = {}
        for op in group:
            found.setdefault(find(op), []).append(op)
        return sorted(found.values(), key=lambda ops: self._position[ops[0]])

    def part(self, ops: Collection[ir.Operation]) -> Cluster:
        """The cluster of connected ops and of the copied ones they need."""
        cluster = self._cluster
        inside = set(ops)
        stack = list(ops)
        read: set[ir.Value] = set()
        while stack:
            for value in self._needs[stack.pop()]:
                source = defining_op(value)
                if value in self._inputs:
                    read.add(value)
                elif source is not None and source in self._position and source not in inside:
                    inside.add(source)
                    stack.append(source)
        own = {result for op in inside if op not in self._copied for result in op.results}
        return Cluster(
            tuple(op for op in cluster.ops if op in inside),
            tuple(value for value in cluster.inputs if value in read),
            tuple(value for value in cluster.outputs if value in own),
            cluster.facts,
        )

    def _needed(self, op: ir.Operation) -> tuple[ir.Value, ...]:
        """Operands, and what the regions of the op read from outside it."""
        found: dict[ir.Value, None] = {}
        for inner in walk(op):
            for value in inner.operands:
                source = defining_op(value)
                if value in self._inputs or (source is not None and source in self._position):
                    found[value] = None
        return tuple(found)

    def _find_copied(self) -> set[ir.Operation]:
        """Ops that every part which needs them computes for itself."""
        outputs = set(self._cluster.outputs)
        copied: set[ir.Operation] = set()
        constant: set[ir.Operation] = set()
        for op in self._cluster.ops:
            if any(result in outputs for result in op.results):
                continue
            read = [defining_op(value) for value in self._needs[op] if value not in self._inputs]
            if not all(source in copied for source in read):
                continue
            reads_nothing = len(read) == len(self._needs[op]) and all(source in constant for source in read)
            if reads_nothing and _is_light(op):
                constant.add(op)
                copied.add(op)
            elif _moves(op):
                copied.add(op)
        return copied


def _is_light(op: ir.Operation) -> bool:
    """A constant, arithmetic on scalars, or an op on tensors that is cheap for each element."""
    if op.name in _CONSTANTS or not any(is_tensor(result) for result in op.results):
        return True
    return op_kind(op) is Kind.LIGHT or _moves(op)


def _moves(op: ir.Operation) -> bool:
    """A view, a movement or a cast."""
    if op.name in VIEW_OPS or op_kind(op) is Kind.MOVEMENT:
        return True
    view = structured(op)
    return view is not None and view.is_parallel and all(inner.name in CASTS for inner in view.body_ops)
