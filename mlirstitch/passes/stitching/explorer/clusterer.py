"""The clusterer that explores: FusionStitching's search (arXiv 2009.10924, section 4), started from the greedy plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirstitch.passes.stitching.explorer.legality import Legality
from mlirstitch.passes.stitching.explorer.partition import Partition
from mlirstitch.passes.stitching.explorer.refine import Effort, Refinement
from mlirstitch.passes.stitching.explorer.scorer import GraphScorer
from mlirstitch.passes.stitching.fusion_plan import FusionPlan
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.greedy import GreedyRun
from mlirstitch.passes.stitching.judge import Judge, Limits
from mlirstitch.target import Target


@dataclass(frozen=True)
class BeamClusterer:
    """The greedy plan, refined window by window; the greedy plan itself where that leads to nothing better."""

    limits: Limits = field(default_factory=Limits)
    effort: Effort = field(default_factory=Effort)

    def plan(self, graph: Graph, target: Target, library: str) -> FusionPlan:
        """Cluster ``graph``. Raises :class:`PassError` naming the op if no template can compute a node by itself."""
        judge = Judge(graph, target, library, self.limits)
        run = GreedyRun(graph, judge, target)
        sets = run.sets()
        greedy = run.finish(sets)
        # Of the sets, not of the plan: two that hold a node may share a pack, where it stands once.
        hidden = run.hidden
        partition = Partition(graph, [sorted(nodes - hidden) for nodes in sets.values()])
        legality, scorer = Legality(graph, judge, hidden), GraphScorer(graph, target)
        called = {node for nodes in sets.values() if judge.routine(nodes) for node in nodes}
        fixed = run.preset | called
        refinement = Refinement(graph, partition, fixed, legality, scorer, self.effort)
        refinement.run()
        if not refinement.changed:
            return greedy
        names = run.restart(partition.clusters.values())
        explored = run.finish(run.checked(legality.whole(run.contraction.members[name]) for name in names))
        return explored if _is_no_worse(explored, greedy, scorer) else greedy


def _is_no_worse(plan: FusionPlan, other: FusionPlan, scorer: GraphScorer) -> bool:
    """It takes no more kernels and moves no more bytes, packs included."""
    return len(plan.clusters) <= len(other.clusters) and _moved(plan, scorer) <= _moved(other, scorer)


def _moved(plan: FusionPlan, scorer: GraphScorer) -> int:
    hidden = plan.duplicated()
    return sum(scorer.moved_bytes(cluster.nodes, hidden) for cluster in plan.clusters)
