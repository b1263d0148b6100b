"""Cost models: pure functions over graphs, schedules and a :class:`~mlirstitch.target.Target`; docs/cost-models.md."""

from __future__ import annotations

from mlirstitch.passes.stitching.cost.delta import PatternCosts, delta_seconds, pattern_costs, pattern_seconds

__all__ = ["PatternCosts", "delta_seconds", "pattern_costs", "pattern_seconds"]
