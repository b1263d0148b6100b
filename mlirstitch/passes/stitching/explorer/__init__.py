"""The explorer: looks for a better fusion plan than the greedy one."""

from __future__ import annotations

from mlirstitch.passes.stitching.explorer.clusterer import BeamClusterer

__all__ = ["BeamClusterer"]
