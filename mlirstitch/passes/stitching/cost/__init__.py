"""Cost models: pure functions over graphs, schedules and a :class:`~mlirstitch.target.Target`; docs/cost-models.md."""

from __future__ import annotations

from mlirstitch.passes.stitching.cost.delta import PatternCosts, delta_seconds, pattern_costs, pattern_seconds
from mlirstitch.passes.stitching.cost.figures import ArgumentFigures, KernelFigures
from mlirstitch.passes.stitching.cost.latency import (
    SECTOR,
    Latency,
    issue_seconds,
    latency_seconds,
    latency_terms,
    plan_seconds,
)

__all__ = [
    "SECTOR",
    "ArgumentFigures",
    "KernelFigures",
    "Latency",
    "PatternCosts",
    "delta_seconds",
    "issue_seconds",
    "latency_seconds",
    "latency_terms",
    "pattern_costs",
    "pattern_seconds",
    "plan_seconds",
]
