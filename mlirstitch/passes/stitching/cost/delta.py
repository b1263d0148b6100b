"""Delta evaluator: what it saves to compute ops in one kernel, from the graph alone; cheap enough to be asked always.

FusionStitching (arXiv 2009.10924, section 4.3, "delta-evaluator"), in our own words: saved bytes x (cost of global
memory - cost of the storage class they move to) + saved launches x cost of a launch - a penalty. The penalty assumes 16
registers a thread and the largest single request for shared memory, and is what an occupancy below the one that keeps
memory busy costs.

A pattern is compared with one kernel for every op. It saves the stores of tensors whose every reader is inside, reads
of tensors that it makes, and all but one read of a tensor that several of its ops read. A tensor small enough to stay
in the level-2 cache from one kernel to the next costs that cache's bandwidth, any other that of global memory.

The evaluator is consistent: what two patterns save by merging is what the union saves, less what either saves, up to
rounding. It costs the size of what lies between the two, not of the patterns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.op_kind import Kind
from mlirstitch.passes.stitching.graph import Graph, root, tensor_bytes
from mlirstitch.passes.structured import REDUCTION, structured, terminator
from mlirstitch.target import Target

CACHED_FRACTION = 8
"""A tensor of at most this part of the level-2 cache is taken to be still there when the next kernel reads it."""

REGISTERS = 16
"""Registers of a thread that the penalty assumes."""

THREADS = 1024
"""Threads of a block that keeps a long row in shared memory."""

ENOUGH_THREADS = 0.5
"""Share of a multiprocessor's threads from which on more do not make memory any busier."""

BANK_BYTES = 128
"""Bytes that shared memory of one multiprocessor moves per clock: 32 banks of 4 bytes (programming guide)."""

KEPT_IN_REGISTERS = 0.5
"""Share of the register file that a block can fill with a row."""


def delta_seconds(graph: Graph, first: Collection[int], second: Collection[int], target: Target) -> float:
    """Seconds that one kernel for two disjoint patterns saves over one kernel each; below zero: it loses."""
    return pattern_costs(graph, target).delta_seconds(first, second)


def pattern_seconds(graph: Graph, nodes: Collection[int], target: Target) -> float:
    """Seconds that one kernel for a pattern saves over one kernel for each of its nodes."""
    return pattern_costs(graph, target).pattern_seconds(nodes)


def pattern_costs(graph: Graph, target: Target) -> PatternCosts:
    """The evaluator of a graph, made once."""
    key = ("delta", target)
    if key not in graph.costs:
        graph.costs[key] = PatternCosts(graph, target)
    return graph.costs[key]


@dataclass(frozen=True)
class _Tensor:
    """A tensor between nodes, or an argument that nodes read.

    Attributes:
        producer: the node that makes it, -1 for an argument.
        readers: the nodes that read it.
        leaves: whether it has to be stored whoever reads it: it is returned, or nobody reads it.
        bytes: its size.
        seconds: what it takes to load or store it once.
        held: what it takes to keep it inside a kernel.
    """

    producer: int
    readers: tuple[int, ...]
    leaves: bool
    bytes: int
    seconds: float
    held: float


@dataclass(frozen=True)
class _LongRow:
    """A reduction over rows too long for the registers of a block.

    ``request``: shared memory of a block that keeps the row, bytes; ``again``: seconds to read the row a second time
    where nothing can keep it.
    """

    request: int
    again: float


class PatternCosts:
    """The delta evaluator of one graph: facts about single ops and tensors, and sums over them."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self._target = target
        self._successors = graph.successors
        self._tensors: list[_Tensor] = []
        returned = {root(value) for value in terminator(graph.function.regions[0].blocks[0]).operands}
        numbers: dict[ir.Value, int] = {}
        readers: dict[ir.Value, list[int]] = {}
        for node, values in enumerate(graph.reads):
            for value in values:
                readers.setdefault(value, []).append(node)
        for node, op in enumerate(graph.ops):
            for value in (*graph.reads[node], *op.results):
                if value not in numbers:
                    numbers[value] = len(self._tensors)
                    self._tensors.append(self._examine(graph, value, readers.get(value, []), value in returned))
        self._reads = [tuple(numbers[value] for value in values) for values in graph.reads]
        self._makes = [tuple(numbers[value] for value in op.results) for op in graph.ops]
        rows = ((node, self._long_row(graph, node)) for node in range(len(graph.ops)))
        self._long_rows = {node: row for node, row in rows if row is not None}

    # Questions ------------------------------------------------------------------------------------------------------

    def delta_seconds(self, first: Collection[int], second: Collection[int]) -> float:
        """See :func:`delta_seconds`."""
        small, large = sorted((_as_set(first), _as_set(second)), key=len)
        saved = [self._target.launch_seconds]
        for number in self._touched(small):
            tensor = self._tensors[number]
            loads, stores, begins = _crossing(tensor, small, large)
            saved += ((loads + stores) * tensor.seconds, -begins * tensor.held)
        if self._long_rows:
            saved += (-self._penalty(small | large), self._penalty(small), self._penalty(large))
        return math.fsum(saved)  # exact, so that the order of the nodes does not matter

    def delta_bytes(self, first: Collection[int], second: Collection[int]) -> int:
        """Bytes of arguments that one kernel for two disjoint patterns saves over one kernel each."""
        small, large = sorted((_as_set(first), _as_set(second)), key=len)
        saved = 0
        for number in self._touched(small):
            loads, stores, _ = _crossing(self._tensors[number], small, large)
            saved += (loads + stores) * self._tensors[number].bytes
        return saved

    def pattern_seconds(self, nodes: Collection[int]) -> float:
        """See :func:`pattern_seconds`."""
        inside = _as_set(nodes)
        saved = [(len(inside) - 1) * self._target.launch_seconds, -self._penalty(inside)]
        for number in self._touched(inside):
            tensor = self._tensors[number]
            readers = sum(reader in inside for reader in tensor.readers)
            if tensor.producer in inside:
                stored = tensor.leaves or readers < len(tensor.readers)
                saved += ((readers + (not stored)) * tensor.seconds, -bool(readers) * tensor.held)
            else:
                saved.append((readers - 1) * tensor.seconds)
        return math.fsum(saved)

    def moved_bytes(self, nodes: Collection[int]) -> int:
        """Bytes of the tensors that one kernel for the pattern reads and writes."""
        inside = _as_set(nodes)
        return sum(self._tensors[number].bytes for number in self._boundary(inside))

    # Facts ----------------------------------------------------------------------------------------------------------

    def _examine(self, graph: Graph, value: ir.Value, readers: Sequence[int], returned: bool) -> _Tensor:
        producer = graph.producer.get(value, -1)
        size = tensor_bytes(value)
        cached = size * CACHED_FRACTION <= self._target.l2_bytes
        seconds = size / (self._target.l2_bandwidth if cached else self._target.bandwidth)
        held = 0.0
        if producer >= 0 and _crosses_threads(graph, producer):
            held = 2 * size / (BANK_BYTES * self._target.clock * self._target.sms)
        return _Tensor(producer, tuple(readers), returned or not readers, size, seconds, held)

    def _long_row(self, graph: Graph, node: int) -> _LongRow | None:
        view = structured(graph.ops[node])
        if graph.kinds[node] is not Kind.REDUCTION or view is None:
            return None
        sizes = zip(view.loop_sizes(), view.iterators, strict=True)
        reduced = math.prod(size for size, kind in sizes if kind == REDUCTION)
        read = [tensor_bytes(value) for value in graph.reads[node]]
        rows = max(1, graph.elements(node))
        row = max(read, default=0) // rows
        target = self._target
        if reduced < 1 or row <= KEPT_IN_REGISTERS * 4 * target.registers_per_sm:
            return None
        if row > target.shared_bytes_block * target.cluster_blocks and not target.grid_composition:
            return _LongRow(0, max(read) / target.bandwidth)
        return _LongRow(min(row, target.shared_bytes_block), 0.0)

    # Sums -----------------------------------------------------------------------------------------------------------

    def _touched(self, nodes: Iterable[int]) -> dict[int, None]:
        """The tensors that the nodes read or make, each once."""
        found: dict[int, None] = {}
        for node in nodes:
            found.update(dict.fromkeys(self._reads[node]))
            found.update(dict.fromkeys(self._makes[node]))
        return found

    def _boundary(self, inside: AbstractSet[int]) -> list[int]:
        """The tensors that a kernel for the nodes reads or writes."""
        return [
            number
            for number in self._touched(inside)
            if self._tensors[number].producer not in inside
            or self._tensors[number].leaves
            or any(reader not in inside for reader in self._tensors[number].readers)
        ]

    def _penalty(self, inside: AbstractSet[int]) -> float:
        """What the pattern loses because nothing keeps its rows, or because shared memory leaves room for few threads.

        A row has to be kept only for what depends on its reduction inside.
        """
        among = self._long_rows if len(self._long_rows) < len(inside) else inside
        kept = [
            self._long_rows[node]
            for node in among
            if node in inside
            and node in self._long_rows
            and any(successor in inside for successor in self._successors[node])
        ]
        if not kept:
            return 0.0
        lost = math.fsum(row.again for row in kept)
        share = self._occupancy(max(row.request for row in kept))
        if share < 1:
            lost += math.fsum(self._tensors[number].seconds for number in self._boundary(inside)) * (1 / share - 1)
        return lost

    def _occupancy(self, request: int) -> float:
        """Which share of the threads that keep memory busy is resident, at most 1."""
        target = self._target
        resident = min(target.max_threads_per_sm, target.registers_per_sm // REGISTERS)
        if request:
            resident = min(resident, max(1, target.shared_bytes_sm // request) * THREADS)
        return min(1.0, resident / (ENOUGH_THREADS * target.max_threads_per_sm))


def _crossing(tensor: _Tensor, first: AbstractSet[int], second: AbstractSet[int]) -> tuple[int, int, bool]:
    """What merging saves of a tensor that ``first`` touches: loads, stores; whether the kernel begins to hold it."""
    readers = tensor.readers
    made_by = first if tensor.producer in first else second if tensor.producer in second else None
    read_by = second if made_by is first else first
    if made_by is None:
        both = any(reader in first for reader in readers) and any(reader in second for reader in readers)
        return int(both), 0, False
    taken = sum(reader in read_by for reader in readers)
    if not taken:
        return 0, 0, False
    stored = tensor.leaves or any(reader not in first and reader not in second for reader in readers)
    return 1, int(not stored), not any(reader in made_by for reader in readers)


def _crosses_threads(graph: Graph, node: int) -> bool:
    """Other threads than the one that computes a result of the node need it: it goes through shared memory."""
    kind = graph.kinds[node]
    if kind in (Kind.REDUCTION, Kind.SCAN, Kind.SCATTER, Kind.COMPUTE):
        return True
    view = structured(graph.ops[node])
    return kind is Kind.MOVEMENT and view is not None and any(_permutes(affine_map) for affine_map in view.maps)


def _permutes(affine_map: ir.AffineMap) -> bool:
    places = [ir.AffineDimExpr(expr).position for expr in affine_map.results if isinstance(expr, ir.AffineDimExpr)]
    return places != sorted(places)


def _as_set(nodes: Collection[int]) -> AbstractSet[int]:
    return nodes if isinstance(nodes, AbstractSet) else frozenset(nodes)
