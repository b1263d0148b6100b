"""Partitioning: SuperScaler's three primitives over linalg, communication found from layouts (arXiv 2301.08984)."""

from mlirstitch.passes.partitioning import (
    check_schedule,
    convert_to_shard,
    expand_dims,
    insert_communication,
    plan_passes,
    recompute,
    separate_fills,
)

PREPARE_PASSES = ("dist-expand-dims",)
"""What a normalized module goes through before a plan is made over its graph."""

__all__ = [
    "PREPARE_PASSES",
    "check_schedule",
    "convert_to_shard",
    "expand_dims",
    "insert_communication",
    "plan_passes",
    "recompute",
    "separate_fills",
]
