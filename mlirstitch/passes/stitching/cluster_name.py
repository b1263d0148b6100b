"""A short name that tells what a cluster computes."""

from __future__ import annotations

from mlir import ir

from mlirstitch.passes.op_kind import VIEW_OPS, Kind, op_kind
from mlirstitch.passes.scan import TOTAL
from mlirstitch.passes.stitching.graph import PASSIVE_OPS
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import defining_op, structured

MAX_PARTS = 5
REDUCTION_NAMES = {
    "add": "sum",
    "fma": "sum",
    "maximum": "max",
    "minimum": "min",
    "mul": "prod",
    "maxsi": "max",
    "minsi": "min",
}


def cluster_label(cluster: Cluster) -> str:
    """The distinct ops of a cluster in order, at most five: ``max_sub_exp_sum_div`` for a softmax."""
    parts: dict[str, None] = {}
    for op in cluster.ops:
        if op.name not in PASSIVE_OPS and op.name not in VIEW_OPS:
            parts[op_label(op)] = None
    return "_".join(list(parts)[:MAX_PARTS]) or "fill"


def op_label(op: ir.Operation) -> str:
    """What an op does, in one word: ``sum``, ``exp``, ``transpose``, ``gather``, ``matmul``."""
    view = structured(op)
    if op.name != "linalg.generic" or view is None:
        return op.name.partition(".")[2]
    result = defining_op(view.yielded[0])
    kind = op_kind(op)
    if kind is Kind.SCATTER:
        return "scatter"
    if kind is Kind.SCAN:
        last = defining_op(view.yielded[TOTAL])
        name = "" if last is None else last.name.partition(".")[2].rstrip("fi")
        return f"scan_{REDUCTION_NAMES.get(name, name)}"
    if result is None or result.block != view.body:
        return "transpose" if len(view.inputs) == 1 else "copy"
    name = result.name.partition(".")[2]
    if name in ("addf", "subf", "mulf", "divf", "maximumf", "minimumf", "negf", "addi", "subi", "muli"):
        name = name[:-1]
    if name == "extract":
        return "gather"
    return REDUCTION_NAMES.get(name, name) if kind is Kind.REDUCTION else name
