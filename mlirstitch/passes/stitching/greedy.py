"""The greedy clusterer: merge along edges as long as one kernel can compute the union.

0. *Library calls* take up what their routine computes as well (see ``library_clusters``).
1. *Row and element-wise clusters.* Ops that no stitching template can hold (anchors) cut the graph into levels. All
   connected nodes of a level are tried as one cluster, then its parts whose reductions run over the same rows; where
   that is refused, and across levels, clusters merge pair by pair in rounds, each with the neighbour that saves most
   bytes, which keeps the number of questions to the templates near n log n.
2. *Loop nests.* Each anchor takes up element-wise consumers, then producers that it alone reads, while nothing
   expensive is computed twice.
3. *Duplicates.* A movement or cast that several clusters read is computed by each of them and never stored, if each
   can; the bits are the same everywhere.
4. *Last word.* What the code generator cannot emit after all is cut (see ``emittable``).
5. *Packs.* Clusters that do not depend on each other share a launch where that saves time (see ``packing``).

Clusters that ``stitch.cluster`` asks for (see ``keep_together``) are made first and stay as they are.

Every union keeps the contracted graph acyclic, saves bytes (packs: launches), and has a template that applies. Ties go
by op order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.passes.op_kind import Kind
from mlirstitch.passes.stitching.contraction import Contraction
from mlirstitch.passes.stitching.emittable import Cut, cut_to_emittable
from mlirstitch.passes.stitching.fusion_plan import Apart, FusionPlan, PlannedCluster, Rule
from mlirstitch.passes.stitching.graph import Graph, edges_without, tensor_bytes
from mlirstitch.passes.stitching.judge import Judge, Limits, Refusal
from mlirstitch.passes.stitching.keep_together import contract_asked, contract_kept, kept_together
from mlirstitch.passes.stitching.library_clusters import take_up_neighbours
from mlirstitch.passes.stitching.packing import pack_independent
from mlirstitch.passes.stitching.regions import level_regions, split_by_rows
from mlirstitch.passes.structured import shape_of
from mlirstitch.target import Target


@dataclass(frozen=True)
class GreedyClusterer:
    """See the module's documentation."""

    limits: Limits = field(default_factory=Limits)

    def plan(self, graph: Graph, target: Target, library: str) -> FusionPlan:
        """Cluster ``graph``. Raises :class:`PassError` naming the op if no template can compute a node by itself."""
        run = GreedyRun(graph, Judge(graph, target, library, self.limits), target)
        return run.finish(run.sets())


class GreedyRun:
    """One run: the contracted graph and what was already refused.

    Attributes:
        contraction: the clusters; duplicated nodes are clusters of their own there.
        kept: nodes of clusters that somebody asked for as they are.
        preset: those, and nodes of clusters that somebody asked for which others may join.
        hidden: nodes that several clusters compute, each for itself.
        cuts: sets of nodes that no kernel can compute, as the code generator said in the end.
    """

    def __init__(self, graph: Graph, judge: Judge, target: Target) -> None:
        self.graph = graph
        self.judge = judge
        self.contraction = Contraction(graph.predecessors, graph.successors)
        kept = kept_together(graph)
        contract_kept(graph, kept, self.contraction, target)
        self.kept = frozenset(node for wanted in kept for node in wanted.nodes)
        asked = contract_asked(graph, judge.requests, self.contraction, target, self.kept)
        self.preset = self.kept | asked
        for node in sorted(asked.union(*(wanted.nodes for wanted in kept if len(wanted.nodes) > 1))):
            judge.routines.pop(node, None)
        self.hidden: frozenset[int] = frozenset()
        self.cuts: list[Cut] = []
        self.refused: dict[tuple[int, int, int, int], Refusal] = {}
        self.readers: dict[ir.Value, list[int]] = {}
        for node, values in enumerate(graph.reads):
            for value in values:
                self.readers.setdefault(value, []).append(node)

    def sets(self) -> dict[int, set[int]]:
        """Merge clusters; then the nodes of each, duplicates included, in an order in which they can run."""
        take_up_neighbours(self.graph, self.judge, self.contraction, self.preset)
        self._merge_regions()
        self._merge_in_rounds(self._stitching_neighbours)
        self._merge_in_rounds(self._loop_nest_neighbours)
        sets = {name: set(self.contraction.members[name]) for name in self.contraction.in_program_order()}
        self._duplicate(sets)
        return self.checked(sets.values())

    def checked(self, sets: Iterable[Collection[int]]) -> dict[int, set[int]]:
        """The sets, which stand in an order in which they can run, where kernels can be emitted for them; else cut.

        The clusters of the contraction become theirs, less the nodes that several hold.
        """
        found = cut_to_emittable(self.graph, self.judge, list(sets), self.preset)
        self.hidden = found.hidden
        self.cuts += found.cuts
        own = [tuple(node for node in nodes if node not in self.hidden) for nodes in found.sets]
        clusters = [tuple(self.contraction.members[self.contraction.owner[mine[0]]]) for mine in own]
        if self.hidden or clusters != own:  # hidden nodes are clusters of the old one, as if in the way
            self.restart(own)
        return {self.contraction.owner[mine[0]]: set(nodes) for mine, nodes in zip(own, found.sets, strict=True)}

    def restart(self, clusters: Iterable[tuple[int, ...]]) -> list[int]:
        """Contract other clusters instead, each convex and ascending, without cycles among them.

        Nodes in none of them are computed by every cluster that reads them: such a node may lie between two of one
        cluster. Returns the names of the clusters in an order in which they can run.
        """
        clusters = sorted(clusters)
        everywhere = set(range(len(self.graph.ops))).difference(*clusters)
        self.contraction = Contraction(*edges_without(self.graph, everywhere))
        self.refused.clear()
        names: set[int] = set()
        for first, *others in clusters:
            name = first
            for node in others:
                name = self.contraction.merge(name, node)
            names.add(name)
        self.contraction.compact()
        return [name for name in self.contraction.in_program_order() if name in names]

    def finish(self, sets: dict[int, set[int]]) -> FusionPlan:
        """The plan of the clusters: routines, pairs left apart, and packs."""
        plan = FusionPlan(
            tuple(PlannedCluster(tuple(sorted(nodes)), self.judge.routine(nodes)) for nodes in sets.values()),
            tuple(self._pairs_apart(sets)),
        )
        return pack_independent(self.graph, plan, self.judge.target, self.judge.limits, self.kept)

    # Row and element-wise clusters

    def _merge_regions(self) -> None:
        """Make every region of a level one cluster if a template takes it, else every part with reductions of a sort.

        Such merges make no cycle; in ascending order neither do the steps between.
        """
        for region in level_regions(self.graph, self.judge.anchors | self.preset):
            if not self._merge_all(region):
                for part in split_by_rows(self.graph, region):
                    self._merge_all(part)
        self.contraction.compact()

    def _merge_all(self, nodes: list[int]) -> bool:
        """Merge ascending nodes into one cluster if a template takes them."""
        if len(nodes) == 1:
            return True
        if self._encloses_kept(nodes) or self.judge.why_no_stitch(nodes) is not None:
            return False
        name = nodes[0]
        for node in nodes[1:]:
            name = self.contraction.merge(name, node)
        return True

    def _encloses_kept(self, nodes: list[int]) -> bool:
        """Some cluster that is kept as it is reads one of the nodes and feeds another: merging all makes a cycle."""
        if not self.preset:
            return False
        below = self._reached(nodes, self.contraction.successors)
        return any(node in self.preset for node in below & self._reached(nodes, self.contraction.predecessors))

    def _reached(self, nodes: list[int], step: Callable[[int], list[int]]) -> set[int]:
        """Clusters outside ``nodes`` on a path that starts among them."""
        inside = {self.contraction.owner[node] for node in nodes}
        stack = list(inside)
        found: set[int] = set()
        while stack:
            for other in step(stack.pop()):
                if other not in found and other not in inside:
                    found.add(other)
                    stack.append(other)
        return found

    def _is_kept(self, name: int) -> bool:
        """The cluster was asked for as it is."""
        return name in self.kept

    def _merge_in_rounds(self, neighbours: Callable[[int], list[int]]) -> None:
        """Merge each cluster with its first acceptable neighbour, round after round until nothing merges.

        A cluster merges once a round: so clusters double in size, and the templates see each op log n times.
        """
        merged: set[int] = {-1}
        while merged:
            merged = set()
            for name in self.contraction.in_program_order():
                if name not in merged and name in self.contraction.members:
                    for other in neighbours(name):
                        if other not in merged and self._why_apart(name, other) is None:
                            merged.add(self.contraction.merge(name, other))
                            break
            self.contraction.compact()

    def _why_apart(self, first: int, second: int) -> Refusal | None:
        """None if two clusters may merge. What the judge refused is remembered; cycles come and go with merges."""
        if self._is_kept(first) or self._is_kept(second):
            return Rule.KEPT, ""
        asked = self.judge.why_asked([*self.contraction.members[first], *self.contraction.members[second]])
        if asked is not None:
            return asked
        if not self.contraction.can_merge(first, second):
            return Rule.CYCLE, ""
        low, high = min(first, second), max(first, second)
        key = (low, self.contraction.version[low], high, self.contraction.version[high])
        if key not in self.refused:
            answer = self.judge.why_apart(self.contraction.members[low], self.contraction.members[high])
            if answer is None:
                return None
            self.refused[key] = answer
        return self.refused[key]

    def _stitching_neighbours(self, name: int) -> list[int]:
        """Clusters next to ``name``, loop nests left out, the one that saves most bytes first."""
        mine = self.contraction.members[name]
        if self.judge.is_anchored(mine):
            return []
        saved: dict[int, int] = {}
        for other in (*self.contraction.predecessors(name), *self.contraction.successors(name)):
            theirs = self.contraction.members[other]
            if not self.judge.is_anchored(theirs):
                saved[other] = self._bytes_between(theirs, mine) + self._bytes_between(mine, theirs)
        for other, size in self._siblings(name):
            saved[other] = saved.get(other, 0) + size
        return sorted((other for other in saved if saved[other]), key=lambda other: (-saved[other], other))

    def _bytes_between(self, producers: list[int], consumers: list[int]) -> int:
        return sum(tensor_bytes(value) for value in self.graph.crossing(frozenset(producers), consumers))

    def _siblings(self, name: int) -> list[tuple[int, int]]:
        """For each tensor that ``name`` reads, the next cluster that reads it too, with the tensor's bytes.

        Only where both make a pass over the tensor: then one pass serves both.
        """
        found: dict[ir.Value, int] = {}
        for node in self.contraction.members[name]:
            for value in self.graph.reads[node]:
                if value not in found and self._passes_over(name, shape_of(value)):
                    later = (self.contraction.owner[reader] for reader in self.readers[value])
                    following = next((other for other in later if other > name), None)
                    if following is not None:
                        found[value] = following
        return [
            (other, tensor_bytes(value))
            for value, other in found.items()
            if not self.judge.is_anchored(self.contraction.members[other]) and self._passes_over(other, shape_of(value))
        ]

    def _passes_over(self, name: int, shape: tuple[int, ...]) -> bool:
        """Some result of the cluster, or what one of its reductions reads, has the shape."""
        graph = self.graph
        for node in self.contraction.members[name]:
            if any(shape_of(result) == shape for result in graph.ops[node].results):
                return True
            if graph.kinds[node] is Kind.REDUCTION and any(shape_of(value) == shape for value in graph.reads[node]):
                return True
        return False

    # Loop nests

    def _loop_nest_neighbours(self, name: int) -> list[int]:
        """What the loop nest ``name`` may take up: clusters that read it, then cheap or element-wise ones it reads."""
        if not self.judge.is_anchored(self.contraction.members[name]):
            return []
        consumers = [other for other in self.contraction.successors(name) if self._is_free(other)]
        producers = [
            other
            for other in reversed(self.contraction.predecessors(name))
            if self._is_free(other) and self.contraction.successors(other) == [name] and not self._is_returned(other)
        ]
        return consumers + producers

    def _is_free(self, name: int) -> bool:
        """The cluster is no loop nest or library call, or one that only moves data."""
        nodes = self.contraction.members[name]
        return not self.judge.is_anchored(nodes) or self.judge.is_cheap(nodes)

    def _is_returned(self, name: int) -> bool:
        return any(node in self.graph.returned for node in self.contraction.members[name])

    # Duplicates

    def _duplicate(self, sets: dict[int, set[int]]) -> None:
        """Dissolve clusters of pure movement into all that read them, consumers first; each takes what it needs."""
        everywhere: set[int] = set()
        for name in reversed(list(sets)):
            nodes = sets[name]
            if not self.judge.is_cheap(nodes) or nodes & (self.graph.returned | self.preset):
                continue
            targets = {target for node in nodes for target in self.graph.successors[node]} - nodes
            readers = [other for other, theirs in sets.items() if other != name and theirs & targets]
            needed = {other: self._needed(nodes, sets[other]) for other in readers}
            hidden = everywhere | nodes
            if not readers or any(self._is_kept(other) for other in readers):
                continue
            if all(self.judge.why_apart(sets[other], needed[other], hidden) is None for other in readers):
                everywhere = hidden
                for other in readers:
                    sets[other] |= needed[other]
                del sets[name]

    def _needed(self, nodes: set[int], reader: set[int]) -> set[int]:
        """The nodes that a reader depends on without leaving the set."""
        found: set[int] = set()
        for node in sorted(nodes, reverse=True):
            targets = self.graph.successors[node]
            if any(target in reader or target in found for target in targets):
                found.add(node)
        return found

    def _by_choice(self, value: ir.Value, producer: int, reader: set[int]) -> Rule:
        """Why a tensor goes through memory although one kernel could make and read it."""
        stored = producer in self.graph.returned or any(node not in reader for node in self.readers[value])
        return Rule.SHARED if stored else Rule.ELSEWHERE

    # What a user is told

    def _why_two(self, first: set[int], second: set[int], names: tuple[int, int]) -> Refusal | None:
        """Why two sets of the plan are not one; None if only because others suit them better."""
        if self.hidden.isdisjoint(first | second):
            return self._why_apart(*names) or self._cut_between(first, second)
        if any(map(self._is_kept, names)):
            return Rule.KEPT, ""
        asked = self.judge.why_asked([*first, *second])
        if asked is not None:
            return asked
        if not self.contraction.can_merge(*names):
            return Rule.CYCLE, ""
        return self.judge.why_apart(first, second, self.hidden) or self._cut_between(first, second)

    def _cut_between(self, first: set[int], second: set[int]) -> Refusal | None:
        """What the templates said when the two were to share a kernel."""
        said = (cut.reason for cut in self.cuts if not cut.nodes.isdisjoint(first) and not cut.nodes.isdisjoint(second))
        reason = next(said, "")
        return (Rule.TEMPLATE, reason) if reason else None

    def _pairs_apart(self, sets: dict[int, set[int]]) -> list[Apart]:
        """One entry for every tensor that goes from one cluster to another through memory."""
        home = {node: name for name, nodes in sets.items() for node in self.contraction.members[name]}
        found: list[Apart] = []
        for name, nodes in sets.items():
            reasons: dict[int, Refusal] = {}
            for node in sorted(nodes):
                for value in self.graph.reads[node]:
                    producer = self.graph.producer.get(value)
                    if producer is None or producer in nodes:
                        continue
                    source = home[producer]
                    if source not in reasons:
                        why = self._why_two(sets[source], nodes, (source, name))
                        reasons[source] = why or (self._by_choice(value, producer, nodes), "")
                    rule, detail = reasons[source]
                    found.append(Apart(producer, node, name, rule, detail, str(value.type), tensor_bytes(value)))
        return found
