"""Own decompositions of aten ops: where the importer's own lowering does not give eager's numbers.

Each module registers rules; :func:`decomposition_table` puts them on top of a base table.
"""

from mlirstitch.driver.torch_import.decompositions import (
    attention,
    convolutions,
    integers,
    losses,
    normalization,
    pointwise,
    pooling,
    promotion,
    reductions,
    scans,
    scatters,
)
from mlirstitch.driver.torch_import.decompositions.registry import table_over as decomposition_table

__all__ = [
    "attention",
    "convolutions",
    "decomposition_table",
    "integers",
    "losses",
    "normalization",
    "pointwise",
    "pooling",
    "promotion",
    "reductions",
    "scans",
    "scatters",
]
