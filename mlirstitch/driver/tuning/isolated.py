"""A cluster by itself: the text that identifies it, and a program that runs nothing else."""

from __future__ import annotations

import math

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.bindings import print_op
from mlirstitch.dialects.schedule import Schedule
from mlirstitch.passes.structured import block_ops, structured

NAME = "cluster"
"""Name of the cluster function in its text."""

_SETTINGS = ("stitch.target", "stitch.target_constants", "stitch.numerics", "stitch.library", "stitch.grid_composition")


def cluster_text(function: ir.Operation) -> str:
    """The cluster function without locations, under one name and without schedule: what its kernel depends on."""
    return print_op(_anonymous(function))


def settings_text(module: ir.Operation) -> str:
    """The module attributes that later stages read, as an attribute dictionary."""
    found = [f"{name} = {module.attributes[name]}" for name in _SETTINGS if name in module.attributes]
    return "{" + ", ".join(found) + "}"


def program_text(function: ir.Operation, schedule: Schedule) -> str:
    """A stitched module whose one step is the cluster under ``schedule``."""
    copy = _anonymous(function)
    stitch.SCHEDULE.set(copy, schedule)
    lines = print_op(copy).splitlines()
    aliases = [line for line in lines if line.startswith("#")]  # these may only stand at the top of a text
    body = [line for line in lines if not line.startswith("#")]
    signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    given = ", ".join(f"%a{n}: {kind}" for n, kind in enumerate(signature.inputs))
    names = ", ".join(f"%a{n}" for n in range(len(signature.inputs)))
    kinds = ", ".join(map(str, signature.results))
    values = ", ".join(f"%r#{n}" for n in range(len(signature.results))) if len(signature.results) > 1 else "%r"
    bound = f"%r:{len(signature.results)}" if len(signature.results) > 1 else "%r"
    module = function.parent
    settings = settings_text(module) if module is not None else "{}"
    return "\n".join(aliases) + (
        f"\nmodule attributes {settings} {{\n"
        f"func.func @main({given}) -> ({kinds}) {{\n"
        f"  {bound} = func.call @{NAME}({names}) : ({', '.join(map(str, signature.inputs))}) -> ({kinds})\n"
        f"  return {values} : {kinds}\n}}\n" + "\n".join(body) + "\n}\n"
    )


def work(function: ir.Operation) -> int:
    """Iterations of all loops of the cluster together: a measure of what running it takes."""
    views = (structured(op) for op in block_ops(function))
    return sum(math.prod(view.loop_sizes()) for view in views if view is not None)


def _anonymous(function: ir.Operation) -> ir.Operation:
    """A detached copy named :data:`NAME` without schedule."""
    with function.context:
        copy = function.clone().operation
        copy.attributes["sym_name"] = ir.StringAttr.get(NAME)
    stitch.SCHEDULE.remove(copy)
    stitch.TUNED.remove(copy)
    return copy
