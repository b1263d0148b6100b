"""Stitching: which ops share a kernel (cluster), as functions of their own (outline), and how they run (schedule)."""

from __future__ import annotations

from mlirstitch.passes.stitching import cluster, control, outline, schedule

STITCH_PASSES = ("stitch-cluster", "stitch-outline", "stitch-schedule")
"""The passes of the stage ``partitioned -> stitched``, in order."""


def stitch_pipeline() -> str:
    """Pipeline text of the stage, anchored on ``builtin.module``."""
    return f"builtin.module({','.join(STITCH_PASSES)})"


__all__ = ["STITCH_PASSES", "cluster", "control", "outline", "schedule", "stitch_pipeline"]
