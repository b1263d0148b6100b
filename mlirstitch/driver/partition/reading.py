"""From what the command line names to a partitioned function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import parse_module
from mlirstitch.driver.console import progress
from mlirstitch.driver.partition.partitioned import DEFAULT_LINKS, Partitioned, Rules, partition
from mlirstitch.driver.partition.plan_file import SUFFIX, read_plan_file
from mlirstitch.driver.worker import CompileRequest, run_in_child
from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.normalize import normalize_pipeline
from mlirstitch.passes.partitioning import PREPARE_PASSES
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plans import named_plan
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.target import Links, Target

_LEVEL = "linalg"


@dataclass(frozen=True)
class PlanRequest:
    """A function and its plan, as the command line names them.

    Attributes:
        spec: a ``.mlir`` file or a factory, as ``mlirstitch compile`` takes it.
        plan: the name of a plan, or the path of a plan file (``*.json``).
        mesh: ``dp=2,tp=2``; "" for the mesh of a plan file.
        micro_batches: how many pipelines make, None for their own choice.
        target, links: names of the chip and of what connects chips.
        other_shapes: a plan file may be applied to other extents.
    """

    spec: str
    plan: str
    mesh: str = ""
    micro_batches: int | None = None
    target: str = "sm_90"
    links: str = DEFAULT_LINKS
    other_shapes: bool = False


def read_partitioned(request: PlanRequest) -> Partitioned:
    """Read the function, normalize it (in a process of its own), and partition it.

    Raises:
        PlanError: the plan or its file does not fit, or no mesh is given.
        MlirstitchError: whatever is wrong with the function.
    """
    target, links = Target.parse(request.target), Links.parse(request.links)
    micro_batches = request.micro_batches
    recompute: Callable[[Plan], Iterable[int]] | None = None
    if request.plan.endswith(SUFFIX):
        file = read_plan_file(request.plan)
        mesh = Mesh.parse(request.mesh) if request.mesh else file.mesh
        micro_batches = micro_batches or file.micro_batches
        recompute = file.recompute if file.recomputed else None
        plan: str | Rules = functools.partial(file.apply, other_shapes=request.other_shapes)
    else:
        plan = request.plan
        named_plan(plan)
        if not request.mesh:
            raise PlanError(f"plan {request.plan} needs a mesh", hint="give --mesh dp=2,tp=2")
        mesh = Mesh.parse(request.mesh)
    with progress(f"planning {request.spec}") as show:
        compiled = run_in_child(
            CompileRequest(request.spec, options={"to_level": _LEVEL, "target": request.target}, emit=(_LEVEL,)), show
        )
        show("plan")
        module = _with_dims(parse_module(compiled.emitted[_LEVEL], request.spec))
        return partition(
            module, plan, mesh, target=target, links=links, micro_batches=micro_batches, recompute=recompute
        )


def prepared(text: str) -> ir.Module:
    """The module of a text of level linalg (``import_step(...).mlir``), brought to the form that plans are made over.

    Raises:
        MlirstitchError: malformed text, or IR that breaks the promises of its level.
        PassError: a pass refuses the module.
    """
    module = parse_module(text)
    run_pipeline(module, "builtin.module(stitch-set-module-attributes)")
    run_pipeline(module, normalize_pipeline())
    return _with_dims(module)


def _with_dims(module: ir.Module) -> ir.Module:
    run_pipeline(module, f"builtin.module({','.join(PREPARE_PASSES)})")
    return module


def plan_name(text: str) -> str:
    """What a plan is called in reports: its name, or the one its file gives it."""
    return (read_plan_file(text).name or text) if text.endswith(SUFFIX) else text
