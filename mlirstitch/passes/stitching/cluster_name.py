"""A short name that tells what a cluster computes."""

from __future__ import annotations

from mlir import ir

from mlirstitch.passes.op_kind import VIEW_OPS, Kind, op_kind
from mlirstitch.passes.scan import TOTAL
from mlirstitch.passes.stitching.graph import PASSIVE_OPS
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import Structured, defining_op, structured

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
    if kind is not Kind.REDUCTION:
        return name
    return "matvec" if name == "fma" and _is_product_sum(view) else REDUCTION_NAMES.get(name, name)


def _is_product_sum(view: Structured) -> bool:
    """Two operands are multiplied and added up, of which one lacks a loop that runs over the other."""
    sizes = view.loop_sizes()
    read = [
        {expr.position for expr in m.results if isinstance(expr, ir.AffineDimExpr) and sizes[expr.position] > 1}
        for m in view.maps[: len(view.inputs)]
    ]
    return len(read) == 2 and read[0] != read[1]
