"""Names of dim classes that the structure of a function tells, so that one plan fits many models.

| name | dim |
|---|---|
| batch | dim 0 that most inputs of the function share |
| heads | outermost part of a dim of a weight, for each place of which two tensors that are no weights are contracted |
| experts | dim of a weight for each place of which it is contracted |
| sequence | two loops of one contraction of two tensors that are no weights: queries and keys |
| vocabulary | dim of a weight that is read at places that depend on data |
| model | what contractions with weights give and sum over; several do both, or other ops reduce it too (a norm) |
| hidden | the same, elsewhere: the width inside an MLP, channels |
| height, width | first and second dim that windows walk over (one alone is called length, three depth, height, width) |

A contraction sums a product of two factors; only those of the forward pass count. A name may belong to many classes:
every layer has its own heads. A class has the first name of the table that fits, and sequence too if that fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlirstitch.passes.partitioning.access import Affine, Whole
from mlirstitch.passes.partitioning.graph import PARALLEL, REDUCTION, Graph, GraphOp
from mlirstitch.passes.partitioning.phases import FORWARD, phases_of

_SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


@dataclass(frozen=True)
class Members:
    """The members of a class: (op, loop) and (value, dim), ascending."""

    loops: tuple[tuple[int, int], ...]
    dims: tuple[tuple[int, int], ...]


@dataclass
class _Facts:
    """What is known of one class."""

    counts: bool = False  # loops of both factors and the result, none of them a weight
    counts_weights: bool = False  # the same, with a weight that has the dim itself
    pairs: bool = False
    gathered: bool = False
    made_by: set[int] = field(default_factory=set)  # weights (argument numbers) whose contraction results in it
    used_by: set[int] = field(default_factory=set)  # weights whose contraction reduces it
    reduced: bool = False  # by an op that is no contraction
    spatial: str = ""


def derived_names(graph: Graph, groups: Sequence[Members]) -> list[tuple[str, ...]]:
    """The derived names of every group."""
    return _Names(graph, groups).names()


class _Names:
    def __init__(self, graph: Graph, groups: Sequence[Members]) -> None:
        self.graph = graph
        self.groups = groups
        self.of_loop = {loop: number for number, group in enumerate(groups) for loop in group.loops}
        self.of_dim = {dim: number for number, group in enumerate(groups) for dim in group.dims}
        self.facts = [_Facts() for _ in groups]
        self.weight_of = _weights(graph)

    def names(self) -> list[tuple[str, ...]]:
        forward = phases_of(self.graph).ops(FORWARD)
        for number in forward:
            op = self.graph.ops[number]
            self._gathers(op)
            factors = _factors(op)
            if len(factors) == 2:
                self._contraction(op, factors[0], factors[1])
            else:
                self._reductions(op)
            if op.kind == "compute":
                self._windows(op)
        batch = self._batch()
        found: list[tuple[str, ...]] = []
        for number, facts in enumerate(self.facts):
            first = "batch" if number == batch else self._name(number, facts)
            names = (first,) if first else ()
            found.append((*names, "sequence") if facts.pairs and number != batch else names)
        return found

    def _name(self, number: int, facts: _Facts) -> str:
        if facts.counts and facts.made_by | facts.used_by and self._is_outer_part_of_weight(number):
            return "heads"
        if facts.counts_weights:
            return "experts"
        if facts.pairs:
            return ""
        if facts.gathered:
            return "vocabulary"
        if facts.made_by and facts.used_by:
            several = len(facts.made_by) > 1 and len(facts.used_by) > 1
            return "model" if several or facts.reduced else "hidden"
        return facts.spatial

    def _batch(self) -> int:
        """The class of dim 0 that most inputs share; the first of equals; -1 if no input has one."""
        inputs = [number for number in self.graph.arguments if self.graph.values[number].role == "input"]
        counts = Counter(self.of_dim[number, 0] for number in inputs if (number, 0) in self.of_dim)
        return max(counts, key=lambda number: (counts[number], -number)) if counts else -1

    def _is_outer_part_of_weight(self, number: int) -> bool:
        extents = {self.graph.ops[op].loops[loop] for op, loop in self.groups[number].loops}
        for value, dim in self.groups[number].dims:
            tensor = self.graph.values[value]
            if tensor.role == "weight" and tensor.shape[dim] > min(extents):
                return True
        return False

    def _gathers(self, op: GraphOp) -> None:
        for use in op.inputs:
            for dim, access in enumerate(use.access):
                if isinstance(access, Whole) and use.value in self.weight_of and (use.value, dim) in self.of_dim:
                    self.facts[self.of_dim[use.value, dim]].gathered = True

    def _reductions(self, op: GraphOp) -> None:
        for loop, kind in enumerate(op.kinds):
            if kind == REDUCTION and (op.number, loop) in self.of_loop:
                self.facts[self.of_loop[op.number, loop]].reduced = True

    def _contraction(self, op: GraphOp, left: int, right: int) -> None:
        weights = [self.weight_of.get(op.inputs[factor].value, -1) for factor in (left, right)]
        in_left, in_right, in_result = (
            _plain_loops(use.access) for use in (op.inputs[left], op.inputs[right], op.results[0])
        )
        own: Counter[int] = Counter()
        for loop in range(len(op.loops)):
            number = self.of_loop.get((op.number, loop))
            if number is None:
                continue
            facts = self.facts[number]
            own[number] += op.kinds[loop] == PARALLEL
            if loop in in_left and loop in in_right and loop in in_result:
                facts.counts |= weights == [-1, -1]
                facts.counts_weights |= any(self._has(number, weight) for weight in weights)
            for weight, inside, outside in ((weights[0], in_left, in_right), (weights[1], in_right, in_left)):
                if weight < 0 or loop not in inside:
                    continue
                if loop in in_result and loop not in outside:
                    facts.made_by.add(weight)
                if op.kinds[loop] == REDUCTION and loop in outside:
                    facts.used_by.add(weight)
        if weights == [-1, -1]:
            for number, loops in own.items():
                self.facts[number].pairs |= loops > 1

    def _has(self, number: int, weight: int) -> bool:
        """A class holds a dim of a weight (-1: no weight)."""
        return weight >= 0 and any(
            self.of_dim.get((weight, dim)) == number for dim in range(len(self.graph.values[weight].shape))
        )

    def _windows(self, op: GraphOp) -> None:
        for use in op.inputs:
            walked: list[int] = []
            for access in use.access:
                if isinstance(access, Affine) and len(access.terms) > 1:
                    found = [
                        self.of_loop.get((op.number, loop)) for loop, _ in access.terms if op.kinds[loop] == PARALLEL
                    ]
                    walked += [number for number in found[:1] if number is not None]
            for name, number in zip(_SPATIAL.get(len(walked), ()), walked, strict=False):
                self.facts[number].spatial = self.facts[number].spatial or name


def _factors(op: GraphOp) -> list[int]:
    """The operands whose product an op sums."""
    if REDUCTION not in op.kinds or op.combiner != "add":
        return []
    return [found[0] for found in op.linear if len(found) == 1]


def _plain_loops(access_map: Sequence[Affine | Whole]) -> set[int]:
    return {access.loop for access in access_map if isinstance(access, Affine) and access.loop is not None}


def _weights(graph: Graph) -> dict[int, int]:
    """The weight that a tensor is a view or a rearrangement of, by the number of the tensor."""
    found = {number: number for number in graph.arguments if graph.values[number].role == "weight"}
    for op in graph.ops:
        if len(op.inputs) == 1 and op.kind in ("view", "movement") and op.inputs[0].value in found:
            found.update((use.value, found[op.inputs[0].value]) for use in op.results)
    return found
