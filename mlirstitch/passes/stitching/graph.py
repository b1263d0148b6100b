"""The dependency graph of ``@main``: which op on tensors reads whose results.

Nodes are the ops that a kernel must compute. Three sorts of ops are no nodes: *free* ops (constants, ``tensor.empty``,
fills, and element-wise ops that read no tensor, such as a causal mask made of ``linalg.index``), which every cluster
that needs them computes for itself, *views* (``expand_shape``, ``collapse_shape``), which cost nothing, and the
terminator. Edges look through views and free ops.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlir import ir

from mlirstitch.dialects.walk import walk
from mlirstitch.passes.op_kind import VIEW_OPS, Kind, op_kind
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import block_ops, defining_op, is_tensor, shape_of, structured

PASSIVE_OPS = frozenset(("arith.constant", "tensor.empty", "linalg.fill"))
MAX_FREE_DEPTH = 16
"""Longest chain of ops that each cluster computes for itself instead of reading a tensor."""

BYTES_PER_ELEMENT = {1: 1, 8: 1, 16: 2, 32: 4, 64: 8}


@dataclass(frozen=True)
class Graph:
    """The graph of one function.

    Attributes:
        function: the ``func.func``.
        ops: the nodes, in program order; a node's number is its index here.
        kinds: kind of every node.
        reads: tensors every node reads from other nodes or from arguments, views looked through, in operand order.
        predecessors, successors: numbers of the nodes read from, and read by; ascending.
        producer: the node that defines a tensor.
        returned: nodes with a result that ``@main`` returns, as it is or through a view.
        number: number of a node's op.
        needs: values of the function level, scalars included, that each op reads, in order, each once.
        facts: what templates learnt about single ops, shared by all clusters of the graph.
        costs: what cost models learnt about the graph, per target.
    """

    function: ir.Operation
    ops: tuple[ir.Operation, ...]
    kinds: tuple[Kind | None, ...]
    reads: tuple[tuple[ir.Value, ...], ...]
    predecessors: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]
    producer: dict[ir.Value, int]
    returned: frozenset[int]
    number: dict[ir.Operation, int]
    needs: dict[ir.Operation, tuple[ir.Value, ...]]
    facts: dict[ir.Operation, Any] = field(default_factory=dict, compare=False, repr=False)
    costs: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def crossing(self, producers: Collection[int], consumers: Collection[int]) -> list[ir.Value]:
        """The tensors that nodes in ``consumers`` read from nodes in ``producers``, each once."""
        found: dict[ir.Value, None] = {}
        for consumer in consumers:
            for value in self.reads[consumer]:
                if self.producer.get(value, -1) in producers:
                    found[value] = None
        return list(found)

    def cluster(self, nodes: Iterable[int], duplicated: Collection[int] = frozenset()) -> Cluster:
        """The cluster that the nodes form, with the free ops and views they need.

        ``duplicated`` are nodes that every consumer computes for itself, so that their results are never outputs.
        """
        return _ClusterBuilder(self, tuple(sorted(nodes)), duplicated).build()

    def iteration_space(self, node: int) -> int:
        """Number of body evaluations of a node: the product of its loop sizes, or the size of its result."""
        view = structured(self.ops[node])
        if view is not None:
            return math.prod(view.loop_sizes())
        return max(math.prod(shape_of(result)) for result in self.ops[node].results)

    def elements(self, node: int) -> int:
        """Size of a node's largest result, elements."""
        return max(math.prod(shape_of(result)) for result in self.ops[node].results)


def build_graph(function: ir.Operation) -> Graph:
    """Build the graph of a function in canonical linalg form."""
    ops = block_ops(function)
    entry = function.regions[0].blocks[0]
    returned_values = {root(value) for value in ops[-1].operands}
    needs = {op: _needs(op, entry) for op in ops[:-1]}
    free = _free_ops(needs, returned_values)
    nodes = [op for op in ops[:-1] if op.name not in VIEW_OPS and op not in free]
    number = {op: i for i, op in enumerate(nodes)}
    producer: dict[ir.Value, int] = {result: i for i, op in enumerate(nodes) for result in op.results}
    reads = tuple(tuple(_roots(needs[op], free)) for op in nodes)
    predecessors = tuple(tuple(sorted({producer[v] for v in values if v in producer})) for values in reads)
    successors: list[list[int]] = [[] for _ in nodes]
    for node, sources in enumerate(predecessors):
        for source in sources:
            successors[source].append(node)
    return Graph(
        function,
        tuple(nodes),
        tuple(op_kind(op) for op in nodes),
        reads,
        predecessors,
        tuple(tuple(targets) for targets in successors),
        producer,
        frozenset(producer[value] for value in returned_values if value in producer),
        number,
        needs,
    )


def root(value: ir.Value) -> ir.Value:
    """``value`` without the views that made it."""
    op = defining_op(value)
    while op is not None and op.name in VIEW_OPS:
        value = op.operands[0]
        op = defining_op(value)
    return value


def _needs(op: ir.Operation, entry: ir.Block) -> tuple[ir.Value, ...]:
    """Operands, then what the op's regions capture."""
    found: dict[ir.Value, None] = dict.fromkeys(op.operands)
    for inner in walk(op):
        if inner != op:
            for value in inner.operands:
                if _stands_in(value, entry):
                    found[value] = None
    return tuple(found)


def _stands_in(value: ir.Value, entry: ir.Block) -> bool:
    op = defining_op(value)
    return (ir.BlockArgument(value).owner if op is None else op.block) == entry


def tensor_bytes(value: ir.Value) -> int:
    """Size of a tensor in memory, bytes; a bool takes one."""
    element = ir.RankedTensorType(value.type).element_type
    width = element.width if isinstance(element, ir.IntegerType | ir.FloatType) else 64
    return math.prod(shape_of(value)) * BYTES_PER_ELEMENT[width]


def _free_ops(needs: dict[ir.Operation, tuple[ir.Value, ...]], returned: Collection[ir.Value]) -> set[ir.Operation]:
    """Ops that each cluster computes for itself. A returned one must be a node, or nobody would write it."""
    depth: dict[ir.Operation, int] = {}
    for op, values in needs.items():
        if any(result in returned for result in op.results):
            continue
        if op.name in PASSIVE_OPS:
            depth[op] = 0
        elif op_kind(op) in (Kind.LIGHT, Kind.MOVEMENT):
            sources = [defining_op(root(value)) for value in values if is_tensor(value)]
            depths = [depth.get(source, MAX_FREE_DEPTH) if source is not None else MAX_FREE_DEPTH for source in sources]
            if all(below < MAX_FREE_DEPTH for below in depths):
                depth[op] = 1 + max(depths, default=0)
    return set(depth)


def _roots(values: Sequence[ir.Value], free: Collection[ir.Operation]) -> dict[ir.Value, None]:
    """Roots of the tensors among ``values``, free ones left out."""
    found: dict[ir.Value, None] = {}
    for value in values:
        source = root(value)
        if is_tensor(value) and defining_op(source) not in free:
            found[source] = None
    return found


class _ClusterBuilder:
    """Collects the ops, inputs and outputs of one cluster."""

    def __init__(self, graph: Graph, nodes: tuple[int, ...], duplicated: Collection[int]) -> None:
        self.graph = graph
        self.nodes = nodes
        self.inside = set(nodes)
        self.duplicated = duplicated
        self.entry = graph.function.regions[0].blocks[0]
        self.ops: dict[ir.Operation, None] = {}
        self.inputs: dict[ir.Value, None] = {}
        self.forms: dict[ir.Value, set[ir.Value]] = {}

    def build(self) -> Cluster:
        for node in self.nodes:
            for value in self.graph.needs[self.graph.ops[node]]:
                self.forms.setdefault(root(value), set()).add(value)
        for node in self.nodes:
            self._add(self.graph.ops[node])
        outputs = [
            result
            for node in self.nodes
            if node not in self.duplicated
            for result in self.graph.ops[node].results
            if self._is_visible(result)
        ]
        return Cluster(tuple(self.ops), tuple(self.inputs), tuple(outputs), self.graph.facts)

    def _add(self, op: ir.Operation) -> None:
        """Add an op after everything it needs."""
        if op not in self.ops:
            for value in self.graph.needs[op]:
                self._need(value)
            self.ops[op] = None

    def _need(self, value: ir.Value) -> None:
        op = defining_op(value)
        if op is None:
            self.inputs[value] = None
        elif op in self.graph.number:
            if self.graph.number[op] not in self.inside:
                self.inputs[value] = None
            else:
                self._add(op)
        elif op.name in VIEW_OPS and not self._takes_view(value):
            self.inputs[value] = None
        else:
            self._add(op)

    def _takes_view(self, value: ir.Value) -> bool:
        """A view is computed inside if its source is, or if the cluster reads one tensor in several forms."""
        source = root(value)
        producer = defining_op(source)
        if producer is None or producer in self.graph.number:
            outside = producer is None or self.graph.number[producer] not in self.inside
            return not outside or len(self.forms.get(source, ())) > 1
        return True  # a view of a free op

    def _is_visible(self, value: ir.Value) -> bool:
        for use in value.uses:
            user = self._top_level(use.owner.operation)
            if user.name == "func.return":
                return True
            if user in self.graph.number:
                if self.graph.number[user] not in self.inside:
                    return True
            elif user.name in VIEW_OPS and self._is_visible(user.result):
                return True
        return False

    def _top_level(self, op: ir.Operation) -> ir.Operation:
        while op.block != self.entry and op.parent is not None:
            op = op.parent.operation
        return op


def reachability(successors: Sequence[Sequence[int]]) -> list[int]:
    """For every node the set of nodes reachable from it, itself included, as a bit set (Python integer).

    Nodes must be numbered in topological order.
    """
    reach = [0] * len(successors)
    for node in range(len(successors) - 1, -1, -1):
        bits = 1 << node
        for target in successors[node]:
            bits |= reach[target]
        reach[node] = bits
    return reach


def edges_without(graph: Graph, left_out: Collection[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Predecessors and successors of every node, ascending, where paths through nodes left out are edges.

    Those nodes themselves have none.
    """
    before: list[list[int]] = []
    for sources in graph.predecessors:
        found = {source for source in sources if source not in left_out}
        before.append(sorted(found.union(*(before[source] for source in sources if source in left_out))))
    after: list[list[int]] = [[] for _ in before]
    for node, sources in enumerate(before):
        if node in left_out:
            before[node] = []
        else:
            for source in sources:
                after[source].append(node)
    return before, after


def is_convex(graph: Graph, nodes: Collection[int], reach: Sequence[int]) -> bool:
    """No path leaves the set and comes back: nothing outside is reachable from inside and reaches inside."""
    members = 0
    for node in nodes:
        members |= 1 << node
    leaving = 0
    for node in nodes:
        for target in graph.successors[node]:
            if not members >> target & 1:
                leaving |= reach[target]
    return not leaving & members
