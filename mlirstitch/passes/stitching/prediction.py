"""What the cost models say of a cluster: the time of its kernel, what that takes of the chip, and what stitching saves.

Nothing is run. The kernel is emitted once more into a module that is thrown away, and counted; see
``passes/stitching/cost`` and docs/cost-models.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.cost import KernelFigures, Latency, latency_terms, pattern_seconds
from mlirstitch.passes.stitching.graph import Graph
from mlirstitch.passes.stitching.template import Cluster, templates
from mlirstitch.target import Target

TERMS = ("memory", "issue", "latency")
"""What the time of a kernel may be limited by; of equals the first."""


@dataclass(frozen=True)
class Prediction:
    """What is expected of one cluster function.

    Attributes:
        seconds: from launch to end of its kernel; None where a library computes it, or no kernel can be emitted.
        limited_by: the longest term of the latency evaluator, "" where ``seconds`` is None or nothing is launched.
        registers: of a thread, an estimate; 0 where ``seconds`` is None.
        resident_blocks: that run on a multiprocessor at the same time; 0 where ``seconds`` is None.
        saved_seconds: what one kernel for every op would take more, by the delta evaluator.
    """

    seconds: float | None
    limited_by: str
    registers: int
    resident_blocks: int
    saved_seconds: float


def predict(function: ir.Operation, graph: Graph, target: Target) -> Prediction:
    """Ask the evaluators about a cluster function, of which ``graph`` is the graph."""
    saved = pattern_seconds(graph, range(len(graph.ops)), target) if len(graph.ops) > 1 else 0.0
    figures = _figures(function, target)
    if figures is None:
        return Prediction(None, "", 0, 0, saved)
    terms = latency_terms(figures, target)
    return Prediction(terms.seconds, _longest(terms), figures.registers, figures.resident_blocks, saved)


def _figures(function: ir.Operation, target: Target) -> KernelFigures | None:
    schedule = stitch.SCHEDULE.get(function)
    if schedule is None:
        return None
    for template in templates():
        if template.name == schedule.template:
            try:
                return template.figures(Cluster.of_function(function), schedule, target)
            except PassError:  # a schedule written by hand: the stage that emits the kernel says what is wrong
                return None
    return None


def _longest(terms: Latency) -> str:
    longest = max(TERMS, key=lambda name: getattr(terms, name))
    return longest if getattr(terms, longest) > 0 else ""
