"""Kernel templates: a cluster becomes one ``gpu.func``. Importing this package registers them, preferred first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.column import ColumnTemplate
from mlirstitch.lowering.kernel.elementwise import ElementwiseTemplate
from mlirstitch.lowering.kernel.loop_nest import LoopNestTemplate
from mlirstitch.lowering.kernel.packed import PackedTemplate
from mlirstitch.lowering.kernel.resources import bound_launch
from mlirstitch.lowering.kernel.row import RowTemplate
from mlirstitch.lowering.kernel.row_column import RowColumnTemplate
from mlirstitch.lowering.kernel.row_tile import RowTileTemplate
from mlirstitch.lowering.kernel.scan import ScanTemplate
from mlirstitch.lowering.kernel.scatter import ScatterTemplate
from mlirstitch.lowering.kernel.tile import TileTemplate
from mlirstitch.passes.stitching.template import Cluster, Schedule, register_template, templates
from mlirstitch.target import Target

if TYPE_CHECKING:
    from mlir import ir

register_template(PackedTemplate())
register_template(RowTileTemplate())
register_template(RowTemplate())
register_template(ColumnTemplate())
register_template(RowColumnTemplate())
register_template(ScanTemplate())
register_template(TileTemplate())
register_template(ScatterTemplate())
register_template(ElementwiseTemplate())
register_template(LoopNestTemplate())


def emit_kernel(cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
    """Create the kernel of ``cluster`` at the current insertion point (inside a ``gpu.module``) and return it.

    Raises :class:`PassError` if the schedule names no template, or the template cannot emit the cluster.
    """
    for template in templates():
        if template.name == schedule.template:
            kernel = template.emit(cluster, schedule, name, target)
            bound_launch(kernel, schedule, target)
            return kernel
    known = ", ".join(template.name for template in templates())
    raise PassError(f"no kernel template is named {schedule.template!r}", hint=f"templates: {known}")
