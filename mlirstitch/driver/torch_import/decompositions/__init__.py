"""Own decompositions of aten ops: where the importer's own lowering does not give eager's numbers.

Each module registers rules; :func:`decomposition_table` puts them on top of a base table.
"""

from mlirstitch.driver.torch_import.decompositions import (
    attention,
    losses,
    normalization,
    pointwise,
    reductions,
)
from mlirstitch.driver.torch_import.decompositions.registry import table_over as decomposition_table

__all__ = ["attention", "decomposition_table", "losses", "normalization", "pointwise", "reductions"]
