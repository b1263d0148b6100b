"""mlirstitch: stitch the memory-bound ops of a PyTorch model into few large GPU kernels.

The public names below are loaded when they are first used: ``import mlirstitch`` itself imports neither torch nor mlir.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlirstitch.driver.compile import compile, load
    from mlirstitch.driver.embed import add_passes
    from mlirstitch.driver.import_step import import_step
    from mlirstitch.driver.markers import keep_apart, keep_together, never_fuse
    from mlirstitch.driver.partition.partitioned import partition
    from mlirstitch.errors import (
        BundleError,
        ImportFailure,
        InternalError,
        LaunchError,
        MlirstitchError,
        PassError,
        PipelineError,
        PlanError,
        TargetError,
    )
    from mlirstitch.mesh import Mesh
    from mlirstitch.options import CompileOptions, option
    from mlirstitch.passes.base import Pass, register_pass
    from mlirstitch.passes.partitioning.plan import Plan
    from mlirstitch.target import Target

__version__ = "0.1.0"

loaded_at = time.time()
"""When this process began to load the package, seconds since the epoch."""

__all__ = [
    "BundleError",
    "CompileOptions",
    "ImportFailure",
    "InternalError",
    "LaunchError",
    "Mesh",
    "MlirstitchError",
    "Pass",
    "PassError",
    "PipelineError",
    "Plan",
    "PlanError",
    "Target",
    "TargetError",
    "__version__",
    "add_passes",
    "compile",
    "import_step",
    "keep_apart",
    "keep_together",
    "load",
    "never_fuse",
    "option",
    "partition",
    "register_pass",
]

_HOMES = {
    "compile": "mlirstitch.driver.compile",
    "load": "mlirstitch.driver.compile",
    "add_passes": "mlirstitch.driver.embed",
    "import_step": "mlirstitch.driver.import_step",
    "keep_together": "mlirstitch.driver.markers",
    "keep_apart": "mlirstitch.driver.markers",
    "never_fuse": "mlirstitch.driver.markers",
    "Pass": "mlirstitch.passes.base",
    "register_pass": "mlirstitch.passes.base",
    "CompileOptions": "mlirstitch.options",
    "option": "mlirstitch.options",
    "Target": "mlirstitch.target",
    "Mesh": "mlirstitch.mesh",
    "Plan": "mlirstitch.passes.partitioning.plan",
    "partition": "mlirstitch.driver.partition.partitioned",
    **{name: "mlirstitch.errors" for name in __all__ if name.endswith(("Error", "Failure"))},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlirstitch' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
