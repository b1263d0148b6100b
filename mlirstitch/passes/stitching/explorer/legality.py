"""Which patterns a kernel can compute: the judge's answers (that is, the templates'), remembered and counted."""

from __future__ import annotations

from collections.abc import Collection

from mlirstitch.passes.stitching.emittable import why_not_emitted, with_hidden
from mlirstitch.passes.stitching.explorer.window import Window
from mlirstitch.passes.stitching.fusion_plan import Rule
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.judge import Judge


class Legality:
    """Answers for one graph.

    Attributes:
        hidden: nodes that every kernel which needs them computes for itself; they are in no window.
        questions: how often the templates were asked so far.
        asked: how many ops they were asked about, all questions together.
    """

    def __init__(self, graph: Graph, judge: Judge, hidden: Collection[int]) -> None:
        self.hidden = frozenset(hidden)
        self.questions = 0
        self.asked = 0
        self._graph = graph
        self._judge = judge
        self._answers: dict[tuple[int, ...], Rule | None] = {}

    def refusal(self, window: Window, mask: int) -> Rule | None:
        """None if one kernel can compute the set, which is convex, else why not. A single node always is a kernel."""
        if not mask & (mask - 1):
            return None
        nodes = self.whole(window.members(mask))
        if nodes not in self._answers:
            answer = self._judge.why_apart(nodes, (), self.hidden)
            self._answers[nodes] = None if answer is None else answer[0]
            if answer is None or answer[0] is Rule.TEMPLATE:
                self.questions += 1
                self.asked += len(nodes)
        return self._answers[nodes]

    def emits(self, window: Window, mask: int) -> bool:
        """The code generator has a kernel for a set that is not refused: the last word, for what is to be taken."""
        nodes = self.whole(window.members(mask))
        return not why_not_emitted(self._graph, self._judge, nodes, self.hidden, free=False)

    def whole(self, nodes: Collection[int]) -> tuple[int, ...]:
        """The nodes and what a kernel for them computes for itself, ascending."""
        return with_hidden(self._graph, nodes, self.hidden)
