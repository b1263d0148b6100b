"""``stitch-outline``: every cluster becomes a private function; equal clusters share one."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import PassError
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import VIEW_OPS
from mlirstitch.passes.stitching.cluster_name import cluster_label
from mlirstitch.passes.stitching.graph import Graph, build_graph
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import block_ops, defining_op, main_function, terminator


@register_pass
@dataclass(frozen=True)
class StitchOutline(Pass):
    """Move every cluster of ``@main`` into a private function and leave calls, views and the return.

    Reads ``stitch.cluster`` of the ops, whoever wrote it. A cluster function takes the tensors it reads, returns those
    that others read or ``@main`` returns, and holds everything else it needs (constants, fills, masks, reshapes).
    Clusters whose functions print the same without locations share one function. A call carries the fused locations of
    its ops.
    """

    NAME = "stitch-outline"

    def run(self, op: ir.Operation) -> None:
        main = main_function(op)
        if main is not None:
            with op.context:
                _Outliner(op, main).run()


@dataclass(frozen=True)
class _Member:
    """One cluster read off the attributes: its number and its nodes."""

    number: int
    nodes: tuple[int, ...]


class _Outliner:
    """Rewrites one module."""

    def __init__(self, module: ir.Operation, main: ir.Operation) -> None:
        self.module = module
        self.main = main
        self.graph = build_graph(main)
        self.block = main.regions[0].blocks[0]
        self.shared: dict[str, str] = {}
        self.values: dict[ir.Value, ir.Value] = {argument: argument for argument in self.block.arguments}

    def run(self) -> None:
        old = block_ops(self.main)[:-1]
        members = _in_order(self.graph, _members(self.graph))
        duplicated = _duplicated(members)
        with ir.InsertionPoint(terminator(self.block)):
            for member in members:
                self._outline(member, self.graph.cluster(member.nodes, duplicated))
            returned = [self._value(value) for value in terminator(self.block).operands]
        for position, value in enumerate(returned):
            terminator(self.block).operands[position] = value
        for op in reversed(old):
            op.erase()
        self._renumber([member.number for member in members])

    def _outline(self, member: _Member, cluster: Cluster) -> None:
        operands = [self._value(value) for value in cluster.inputs]
        function = _build_function(self.module, self.main, cluster)
        name = self._share(function, cluster)
        location = _fused(self.graph.ops[node].location for node in member.nodes)
        call = ir.Operation.create(
            "func.call",
            results=[value.type for value in cluster.outputs],
            operands=operands,
            attributes={"callee": ir.FlatSymbolRefAttr.get(name)},
            loc=location,
        )
        self.values.update(zip(cluster.outputs, call.results, strict=True))

    def _share(self, function: ir.Operation, cluster: Cluster) -> str:
        """The name of an equal function made before; else ``function`` gets a name of its own."""
        text = str(function.get_asm(enable_debug_info=False, use_local_scope=True))
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest in self.shared:
            function.erase()
        else:
            self.shared[digest] = f"cluster_{len(self.shared)}_{cluster_label(cluster)}"
            function.attributes["sym_name"] = ir.StringAttr.get(self.shared[digest])
        return self.shared[digest]

    def _value(self, value: ir.Value) -> ir.Value:
        """What stands for ``value`` in the new body; a view is built where it is first needed."""
        if value not in self.values:
            op = defining_op(value)
            if op is None or op.name not in VIEW_OPS:
                raise refusal(
                    op if op is not None else self.main,
                    "@main needs this value, but no cluster computes it",
                    "run the normalize and stitch-cluster passes first",
                )
            source = self._value(op.operands[0])
            view = op.clone()
            view.operands[0] = source
            stitch.MEMBER.remove(view)
            self.values[value] = view.result
        return self.values[value]

    def _renumber(self, numbers: list[int]) -> None:
        """``stitch.apart`` names clusters; from here on a cluster's number is the position of its call."""
        entries = stitch.APART.get(self.main)
        if not entries:
            return
        position = {number: place for place, number in enumerate(numbers)}
        for entry in entries:
            old = list(ir.DenseI64ArrayAttr(entry["clusters"]))
            if any(number not in position for number in old):
                raise refusal(self.main, f"stitch.apart names the clusters {old}, but no op is in one of them")
            entry["clusters"] = ir.DenseI64ArrayAttr.get([position[number] for number in old])
        stitch.APART.set(self.main, entries)


def _members(graph: Graph) -> list[_Member]:
    """The clusters that the ops' attributes describe, by number. Every node must have one."""
    nodes: dict[int, list[int]] = {}
    for node, op in enumerate(graph.ops):
        for number in stitch.MEMBER.require(op):
            nodes.setdefault(number, []).append(node)
    return [_Member(number, tuple(nodes[number])) for number in sorted(nodes)]


def _duplicated(members: Sequence[_Member]) -> frozenset[int]:
    seen: set[int] = set()
    twice: set[int] = set()
    for member in members:
        twice.update(node for node in member.nodes if node in seen)
        seen.update(member.nodes)
    return frozenset(twice)


def _in_order(graph: Graph, members: Sequence[_Member]) -> list[_Member]:
    """Clusters in an order in which they can run, the smallest number first. Refuses clusters that need each other."""
    homes: dict[int, list[int]] = {}
    for place, member in enumerate(members):
        for node in member.nodes:
            homes.setdefault(node, []).append(place)
    after: list[set[int]] = [set() for _ in members]
    waiting = [0] * len(members)
    for place, member in enumerate(members):
        sources = {source for node in member.nodes for source in graph.predecessors[node]} - set(member.nodes)
        for home in {home for source in sources for home in homes[source]}:
            after[home].add(place)
            waiting[place] += 1
    ready = [place for place, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    ordered: list[_Member] = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(members[place])
        for target in after[place]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, target)
    if len(ordered) != len(members):
        stuck = next(member for place, member in enumerate(members) if waiting[place])
        raise refusal(
            graph.ops[stuck.nodes[0]],
            f"cluster {stuck.number} reads what another cluster computes from its own results",
            "give the ops between them the same stitch.cluster",
        )
    return ordered


def _build_function(module: ir.Operation, main: ir.Operation, cluster: Cluster) -> ir.Operation:
    """A private function computing ``cluster``, before ``@main``."""
    inputs = [value.type for value in cluster.inputs]
    outputs = [value.type for value in cluster.outputs]
    location = _fused(op.location for op in cluster.ops)
    with ir.InsertionPoint(main):
        function = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get("cluster"),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs)),
                "no_inline": ir.UnitAttr.get(),
                stitch.CLUSTER.name: ir.UnitAttr.get(),
            },
            regions=1,
            loc=location,
        )
    block = function.regions[0].blocks.append(*inputs, arg_locs=[location] * len(inputs))
    mapping: dict[ir.Value, ir.Value] = dict(zip(cluster.inputs, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for op in cluster.ops:
            clone = op.clone()
            _replace_operands(clone, mapping)
            mapping.update(zip(op.results, clone.results, strict=True))
            stitch.MEMBER.remove(clone)
            routine = stitch.LIBRARY_OP.get(clone)
            if routine is not None:
                stitch.LIBRARY.set(function, routine)
                stitch.LIBRARY_OP.remove(clone)
        ir.Operation.create("func.return", operands=[mapping[value] for value in cluster.outputs], loc=location)
    return function


def _replace_operands(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> None:
    """Replace operands of ``op`` and of everything in its regions."""
    for inner in walk(op):
        for position, operand in enumerate(inner.operands):
            if operand in mapping:
                inner.operands[position] = mapping[operand]


def _fused(locations: Iterable[ir.Location]) -> ir.Location:
    """One location naming all; equal ones once, in order."""
    distinct = list({str(location): location for location in locations}.values())
    if not distinct:
        raise PassError("a cluster without ops")
    return distinct[0] if len(distinct) == 1 else ir.Location.fused(distinct)
