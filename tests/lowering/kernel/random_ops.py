"""The ops of random programs, and a program as text and as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from random_movement import (
    ConcatOp,
    FlipOp,
    GatherOp,
    InsertOp,
    IotaOp,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    TriangleOp,
)
from random_pointwise import CastOp, DivideByOp, PointwiseOp, SelectOp
from random_program import Known, Program, Step, TensorType, Text, known_input
from random_reductions import MatmulOp, PositionOp, ReduceOp
from random_scans import ScanOp, ScatterOp


class Op(Protocol):
    """What an op computes and how it is written."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        """The results, or None where the operands' errors leave them open."""
        ...

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        """Append the op to ``text``; returns the names of its results."""
        ...


RESULTS = {"position": 2}
"""Results of the ops that have not just one."""

OPS: dict[str, Op] = {
    "pointwise": PointwiseOp(),
    "select": SelectOp(),
    "cast": CastOp(),
    "divide_by": DivideByOp(),
    "transpose": TransposeOp(),
    "slice": SliceOp(),
    "insert": InsertOp(),
    "concat": ConcatOp(),
    "pad": PadOp(),
    "reshape": ReshapeOp(),
    "flip": FlipOp(),
    "gather": GatherOp(),
    "triangle": TriangleOp(),
    "iota": IotaOp(),
    "reduce": ReduceOp(),
    "position": PositionOp(),
    "matmul": MatmulOp(),
    "scan": ScanOp(),
    "scatter": ScatterOp(),
}


def computed(program: Program) -> list[Known]:
    """All values of a program."""
    values = [known_input(given) for given in program.inputs]
    for step in program.steps:
        results = OPS[step.op].compute(step, [values[k] for k in step.operands])
        if results is None:
            raise ValueError(f"{step} has no definite result")
        values.extend(results)
    return values


def linalg_text(program: Program, values: Sequence[Known]) -> str:
    """The program as a module of linalg on tensors."""
    text = Text()
    names = [f"%x{k}" for k in range(len(program.inputs))]
    for step in program.steps:
        operands = step.operands
        names += OPS[step.op].write(text, step, [names[k] for k in operands], [values[k].type for k in operands])
    arguments = ", ".join(f"{names[k]}: {_attributed(given.type)}" for k, given in enumerate(program.inputs))
    results = [values[k].type for k in program.outputs]
    returned = f"{', '.join(names[k] for k in program.outputs)} : {', '.join(kind.text for kind in results)}"
    head = f"func.func @main({arguments}) -> ({', '.join(map(_attributed, results))}) {{"
    return "\n".join([head, *text.lines, f"  return {returned}", "}\n"])


def _attributed(kind: TensorType) -> str:
    return f'{kind.text} {{stitch.dtype = "{kind.dtype.name}"}}'
