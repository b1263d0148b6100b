"""Normalisation: from whatever linalg an importer or a person wrote to the canonical linalg of docs/architecture.md."""

from __future__ import annotations

from mlirstitch.passes.normalize import (
    accumulators,
    classify,
    common_subexpressions,
    dead_results,
    drop_asserts,
    f64_statistics,
    fast_math,
    fold_splats,
    fold_transposes,
    form_fma,
    memory_bound_products,
    module_attributes,
    named_ops,
    reject_unsupported,
    returned_constants,
    sink_products,
    sink_scalars,
    slice_products,
    static_shapes,
)

NORMALIZE_PASSES = (
    "normalize-reject-unsupported{dynamic=true}",
    "normalize-drop-asserts",
    "normalize-static-concat",
    "func.func(convert-elementwise-to-linalg)",
    "canonicalize",
    "normalize-cse",
    "normalize-reject-unsupported",
    "normalize-named-ops",
    "normalize-sink-scalars",
    "normalize-dead-results",
    "normalize-f64-statistics",
    "normalize-fold-transposes",
    "normalize-accumulators",
    "normalize-memory-bound-products",
    "normalize-fold-splats",
    "canonicalize",
    "normalize-cse",
    "normalize-dead-results",
    "normalize-fast-math",
    "normalize-sink-products",
    "normalize-form-fma",
    "canonicalize",
    "normalize-cse",
    "normalize-slice-products",
    "normalize-returned-constants",
    "normalize-classify",
)
"""The passes of the stage, in order; ``stitch-set-module-attributes`` runs before them."""


def normalize_pipeline() -> str:
    """Pipeline text of the stage ``linalg -> linalg``, anchored on ``builtin.module``."""
    return f"builtin.module({','.join(NORMALIZE_PASSES)})"


__all__ = [
    "NORMALIZE_PASSES",
    "accumulators",
    "classify",
    "common_subexpressions",
    "dead_results",
    "drop_asserts",
    "f64_statistics",
    "fast_math",
    "fold_splats",
    "fold_transposes",
    "form_fma",
    "memory_bound_products",
    "module_attributes",
    "named_ops",
    "normalize_pipeline",
    "reject_unsupported",
    "returned_constants",
    "sink_products",
    "sink_scalars",
    "slice_products",
    "static_shapes",
]
