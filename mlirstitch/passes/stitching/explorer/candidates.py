"""PatternReduction: for every node the best few patterns in which it stands first (FusionStitching, arXiv 2009.10924,
section 4.2), over a walk from consumers to producers.

The candidates of a node are united from those of its consumers: from the cross product of "one of its candidates, or
none" over the consumers, or where these are many, from the candidates of the two halves. Beyond the paper:

- A union is closed under paths between its members (convex closure) instead of being given up, which keeps diamonds.
- It is also tried with the producers that only members read: the node that stands first is not what the others depend
  on alone. And without those of them that others outside the window need: a kernel that stores a tensor on the way may
  be refused.
- What the best pattern of a node leaves of a cluster that was there is a candidate, too: else a plan could take an op
  from a cluster only together with all that the op's own candidates hold.
- Remote fusion, with a virtual producer of all nodes: patterns that read one tensor unite although neither depends on
  the other. What shares no tensor is left to kernel packing, which saves launches only.

Patterns are ranked by the cost model, and the templates are asked in that order, no more often than it takes to keep
three. Ties go by op order, so that the result is the same in every process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from mlirstitch.passes.stitching.explorer.legality import Legality
from mlirstitch.passes.stitching.explorer.scorer import Scorer
from mlirstitch.passes.stitching.explorer.window import Pattern, Window, mask_of
from mlirstitch.passes.stitching.fusion_plan import Rule
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.judge import HEAVY

TOP = 3
"""Candidates of a node (the paper's k)."""

TOP_LIGHT = 2
"""Candidates of a node without any reduction or contraction, whatever their rank: a contraction that feeds the node can
take up no others, while those of highest gain mostly hold a reduction."""

MOST_CONSUMERS = 2
"""Consumers whose candidates are combined freely; more are split in halves."""

MOST_REFUSALS = 4
"""Patterns of one node that templates may refuse before its walk ends: what they refuse, they mostly refuse in larger
unions too."""


class PatternReduction:
    """One walk over a window."""

    def __init__(self, graph: Graph, window: Window, legality: Legality, scorer: Scorer, most_ops: int) -> None:
        self._graph = graph
        self._window = window
        self._legality = legality
        self._scorer = scorer
        self._most_ops = most_ops
        self._known: dict[int, Pattern] = {}
        self._heavy = mask_of(place for place, node in enumerate(window.nodes) if graph.kinds[node] in HEAVY)

    def candidates(self, seeds: Iterable[int]) -> list[list[Pattern]]:
        """For every place the patterns in which it stands first, the best first, the node by itself among them.

        ``seeds`` are sets known to be legal, which become candidates whatever their rank.
        """
        count = len(self._window.nodes)
        best: list[list[Pattern]] = [[] for _ in range(count)]
        for place in reversed(range(count)):
            best[place] = self._keep([*self._pool(place, best), 1 << place], place)
        found = [{pattern.mask: pattern for pattern in patterns} for patterns in best]
        given = list(seeds)
        for pattern in itertools.chain(self._remote(best), self._rests(best, given), map(self._pattern, given)):
            found[pattern.first].setdefault(pattern.mask, pattern)
        return [sorted(patterns.values(), key=_rank) for patterns in found]

    def _pool(self, place: int, best: Sequence[Sequence[Pattern]]) -> list[int]:
        """Sets that contain ``place`` and candidates of its consumers."""
        united = self._unite([best[consumer] for consumer in self._window.successors[place]])
        pool: dict[int, None] = {}
        for mask in united:
            closed = self._window.closure(mask | 1 << place)
            pool[closed] = None
            pool[self._window.with_producers(closed)] = None
            pool[self._window.with_producers(closed, leaving=False)] = None
        return [mask for mask in pool if mask.bit_count() <= self._most_ops]

    def _unite(self, choices: Sequence[Sequence[Pattern]]) -> list[int]:
        """Unions of one candidate or none of each consumer; the empty one is left out."""
        if len(choices) <= MOST_CONSUMERS:
            options = [[0, *(pattern.mask for pattern in patterns)] for patterns in choices]
            unions = dict.fromkeys(_union(chosen) for chosen in itertools.product(*options))
        else:
            half = len(choices) // 2
            first, second = self._unite(choices[:half]), self._unite(choices[half:])
            first, second = self._highest(first), self._highest(second)
            unions = dict.fromkeys([*first, *second, *(_union(pair) for pair in itertools.product(first, second))])
        return [mask for mask in unions if mask]

    def _highest(self, masks: Sequence[int]) -> list[int]:
        return [pattern.mask for pattern in sorted(map(self._pattern, masks), key=_rank)[:TOP]]

    def _keep(self, masks: Iterable[int], place: int) -> list[Pattern]:
        """The best patterns that a kernel can compute; then the best of those that a contraction can still take up."""
        ranked = sorted(map(self._pattern, dict.fromkeys(masks)), key=_rank)
        kept = self._accepted(ranked, TOP)
        kept += self._accepted([pattern for pattern in ranked if not pattern.mask & self._heavy], TOP_LIGHT, kept)
        alone = self._pattern(1 << place)
        return kept if alone in kept else [*kept, alone]

    def _accepted(self, ranked: Iterable[Pattern], count: int, known: Sequence[Pattern] = ()) -> list[Pattern]:
        """The first ``count`` that a kernel can compute, less those that are ``known``."""
        found: list[Pattern] = []
        refused = 0
        for pattern in ranked:
            if len(found) == count or refused == MOST_REFUSALS:
                break
            rule = self._legality.refusal(self._window, pattern.mask)
            if rule is None:
                found.append(pattern)
            elif rule is Rule.TEMPLATE:
                refused += 1
        return [pattern for pattern in found if pattern not in known]

    def _remote(self, best: Sequence[Sequence[Pattern]]) -> list[Pattern]:
        """The virtual producer: unions of patterns of nodes that read one tensor and do not depend on each other."""
        readers: dict[object, list[int]] = {}
        for place, node in enumerate(self._window.nodes):
            for value in self._graph.reads[node]:
                readers.setdefault(value, []).append(place)
        masks: dict[int, None] = {}
        for together in readers.values():
            for first, second in itertools.pairwise(together):
                if not self._window.below[first] >> second & 1:
                    unions = (a.mask | b.mask for a in best[first][:2] for b in best[second][:2])
                    masks.update(dict.fromkeys(self._window.closure(mask) for mask in unions))
        ranked = sorted((self._pattern(mask) for mask in masks if mask.bit_count() <= self._most_ops), key=_rank)
        return [pattern for pattern in ranked if self._legality.refusal(self._window, pattern.mask) is None]

    def _rests(self, best: Sequence[Sequence[Pattern]], seeds: Sequence[int]) -> list[Pattern]:
        """What the best patterns leave of the seeds: convex sets of several nodes that a kernel can compute."""
        masks: dict[int, None] = {}
        for pattern in dict.fromkeys(patterns[0] for patterns in best if patterns):
            left = (seed & ~pattern.mask for seed in seeds if seed & pattern.mask)
            masks.update(dict.fromkeys(mask for mask in left if mask & (mask - 1)))
        rests = [pattern for pattern in map(self._pattern, masks) if pattern.is_convex and pattern.gain > 0]
        return [pattern for pattern in rests if self._legality.refusal(self._window, pattern.mask) is None]

    def _pattern(self, mask: int) -> Pattern:
        if mask not in self._known:
            below, above = self._window.reach(mask)
            gain = self._scorer.gain(self._window.members(mask)) if mask & (mask - 1) else 0.0
            self._known[mask] = Pattern(mask, below, above, gain)
        return self._known[mask]


def _union(masks: Iterable[int]) -> int:
    united = 0
    for mask in masks:
        united |= mask
    return united


def _rank(pattern: Pattern) -> tuple[float, int]:
    """Highest gain first; ties go to what stands first in program order, then to the smaller set."""
    return -round(pattern.gain, 12), pattern.mask
