"""Beam search over plans of a window: which candidate patterns, disjoint and free of cycles, save most together.

The nodes are taken from producers to consumers; a plan that does not cover the next one yet goes on with each of its
candidates (FusionStitching, arXiv 2009.10924, section 4.2). Two additions:

- Patterns that are convex one by one can still depend on each other, so every plan knows what is reachable in its
  contracted graph.
- Plans are compared by what they save together with a quick completion (the candidates of highest gain that are still
  free). By what they have saved so far, plans that take much early would crowd out those that leave it to a better
  pattern.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlirstitch.passes.stitching.explorer.window import Pattern

WIDTH = 3
"""Plans kept at every step."""


@dataclass(frozen=True)
class PartialPlan:
    """Disjoint patterns whose contracted graph has no cycle.

    Attributes:
        taken: all their nodes.
        patterns: in the order in which they were chosen.
        gain: seconds saved.
    """

    taken: int
    patterns: tuple[Pattern, ...]
    gain: float

    def extended(self, pattern: Pattern) -> PartialPlan | None:
        """The plan with one more pattern, or None if it overlaps another or closes a cycle."""
        if pattern.mask & self.taken or self._closes_cycle(pattern):
            return None
        return PartialPlan(self.taken | pattern.mask, (*self.patterns, pattern), self.gain + pattern.gain)

    def _closes_cycle(self, pattern: Pattern) -> bool:
        """Something outside ``pattern`` depends on it and is needed by it, once every pattern is one kernel."""
        outside = pattern.below & ~pattern.mask
        waiting = [other for other in self.patterns if other.mask & (other.mask - 1)]
        while True:
            reached = [other for other in waiting if other.mask & outside]
            if not reached:
                return False
            for other in reached:
                outside |= other.below
            if outside & pattern.mask:
                return True
            waiting = [other for other in waiting if other not in reached]


def beam_search(
    candidates: Sequence[Sequence[Pattern]], familiar: Collection[int] = (), width: int = WIDTH
) -> list[PartialPlan]:
    """The best plans found that cover every place, best first; at least one.

    ``candidates`` are those of every place, the place by itself among them. Of plans that save the same, those with
    more patterns among ``familiar`` (sets of places) come first.
    """
    search = _Search(candidates, frozenset(familiar))
    plans = [PartialPlan(0, (), 0.0)]
    for place, choices in enumerate(candidates):
        following: dict[frozenset[int], PartialPlan] = {}
        for plan in plans:
            offered = [plan] if plan.taken >> place & 1 else [plan.extended(pattern) for pattern in choices]
            for longer in offered:
                if longer is not None:
                    following.setdefault(_identity(longer), longer)
        plans = sorted(following.values(), key=search.rank)[:width]
    return plans


class _Search:
    def __init__(self, candidates: Sequence[Sequence[Pattern]], familiar: frozenset[int]) -> None:
        useful = (pattern for choices in candidates for pattern in choices if pattern.gain > 0)
        self._by_gain = sorted(useful, key=lambda pattern: (-pattern.gain, pattern.mask))
        self._familiar = familiar
        self._completions: dict[int, float] = {}

    def rank(self, plan: PartialPlan) -> tuple[float, int, list[int]]:
        """What the plan saves if it is completed quickly, highest first; then familiar patterns; then op order."""
        masks = sorted(_identity(plan))
        known = sum(mask in self._familiar for mask in masks)
        return -round(plan.gain + self._completion(plan.taken), 12), -known, masks

    def _completion(self, taken: int) -> float:
        """What the candidates of highest gain save that are disjoint from each other and from what is taken."""
        if taken not in self._completions:
            covered, gain = taken, 0.0
            for pattern in self._by_gain:
                if not pattern.mask & covered:
                    covered |= pattern.mask
                    gain += pattern.gain
            self._completions[taken] = gain
        return self._completions[taken]


def _identity(plan: PartialPlan) -> frozenset[int]:
    return frozenset(pattern.mask for pattern in plan.patterns)
