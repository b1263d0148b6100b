"""The graph a plan is made over: ops with loops, values with shapes, and where each op reads and writes its values.

It is data alone, without handles into the IR, so that planning a large model costs neither weights nor bindings;
``GraphOp.index`` is the position of the op in the body of its function, which is how emission finds it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlirstitch.passes.partitioning.access import AccessMap

PARALLEL, REDUCTION = "parallel", "reduction"
COMBINERS = ("add", "mul", "max", "min", "and", "or", "argmax", "argmin")
"""How partial values become one. ``argmax`` and ``argmin`` combine pairs: a value and its index, the lower index first
among equals."""


@dataclass(frozen=True)
class GraphValue:
    """A tensor (a pTensor of SuperScaler, section 3.1).

    Attributes:
        number: its position in ``Graph.values``.
        name: the user's name of an argument or result (``layers.0.weight``), else ``%<number>``.
        shape: extents.
        element: element type, as MLIR spells it.
        element_bytes: bytes of one element in memory.
        producer: number of the op that computes it, -1 for an argument of the function.
        users: numbers of the ops that read it, ascending, each once.
        role: ``input``, ``weight``, ``constant`` for arguments, else ``""``.
    """

    number: int
    name: str
    shape: tuple[int, ...]
    element: str
    element_bytes: int
    producer: int
    users: tuple[int, ...] = ()
    role: str = ""

    @property
    def bytes(self) -> int:
        """Size of the whole tensor."""
        return math.prod(self.shape) * self.element_bytes


@dataclass(frozen=True)
class GraphUse:
    """One operand or result of an op.

    Attributes:
        value: number of the value.
        access: where the loops of the op touch it.
    """

    value: int
    access: AccessMap


@dataclass(frozen=True)
class GraphOp:
    """An op of the function, seen as a nest of loops over its operands and results.

    Attributes:
        number: its position in ``Graph.ops``, which is the order of the function.
        index: its position in the body of the function.
        name: op name (``linalg.matmul``).
        loops: extent of every loop.
        kinds: ``parallel`` or ``reduction`` for every loop.
        combiner: how parts of a reduction become one (one of :data:`COMBINERS`), "" where there is no reduction or none
            of a known sort.
        inputs, results: operands and results; an operand that only gives the shape of the result is left out.
        inits: positions in ``inputs`` of what a sum or product starts from, where that is not known to be neutral. One
            part alone may add it, unless it is itself partial over the same axes.
        linear: sets of positions in ``inputs``: the results are linear in the inputs of a set taken together, all
            others fixed, and zero where they are. So the op applied to the parts of sums gives the parts of a sum:
            partial sums may pass through it if exactly the inputs of one set are partial. ``x + y`` has the set
            (0, 1), ``x * y`` the sets (0,) and (1,), ``x + 1`` none.
        fixed: loops that must not be split, with the reason in plain words.
        flops: scalar operations of the whole op.
        kind: ``stitch.kind``, or "view", "constant", "return".
        source: the user's lines, ``model.py:12``, or "".
        recomputes: a second computation of a forward op, for the backward pass (``dist-recompute``).
    """

    number: int
    index: int
    name: str
    loops: tuple[int, ...]
    kinds: tuple[str, ...]
    combiner: str
    inputs: tuple[GraphUse, ...]
    results: tuple[GraphUse, ...]
    inits: tuple[int, ...]
    linear: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, str], ...]
    flops: int
    kind: str
    source: str
    recomputes: bool = False


@dataclass(frozen=True)
class Graph:
    """A function. ``ops`` are in its order, so every value is computed before it is read.

    Attributes:
        name: of the function.
        arguments, returned: numbers of the values it takes and gives; a value may be given twice.
        mutated: for every returned value the number of the argument whose new contents it is, or -1.
    """

    name: str
    ops: tuple[GraphOp, ...]
    values: tuple[GraphValue, ...]
    arguments: tuple[int, ...]
    returned: tuple[int, ...]
    mutated: tuple[int, ...]

    def constant_ops(self) -> frozenset[int]:
        """The ops that depend on no argument: fills, masks, tables of positions. Every device can compute them."""
        reached = set(self.arguments)
        found: set[int] = set()
        for op in self.ops:
            if any(use.value in reached for use in op.inputs):
                reached.update(use.value for use in op.results)
            else:
                found.add(op.number)
        return frozenset(found)
