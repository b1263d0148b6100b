"""A cluster as a graph of tensor expressions, the form the evaluator walks.

Every tensor value of the cluster becomes a :class:`Node`: an argument, a uniform value, a view (index arithmetic on one
source), a choice between sources (pad, concat, insert_slice), an element-wise op or a reduction. Nothing is emitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.dialects.locations import describe, refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.index_expr import ZERO, Expr, delinearize, linearize
from mlirstitch.lowering.kernel.linalg_body import LinalgOp, linalg_op
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import defining_op

Indices = tuple[Expr, ...]
MAX_INLINE_TABLE = 1 << 14
"""Elements of a dense constant that a kernel may hold; longer ones have to be arguments."""

_FLOATS = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)


@dataclass(frozen=True, eq=False)
class Node:
    """One tensor value.

    Attributes:
        uid: position in the program, operands before users.
        shape: static extents.
        element: element type in the IR (i1 for bools).
        op: the operation that produces it, or None for an argument.
        level: how many reductions lie on the longest path from the inputs to it, itself included.
    """

    uid: int
    shape: tuple[int, ...]
    element: ir.Type
    op: ir.Operation | None
    level: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Argument(Node):
    """A tensor read from memory: cluster input number ``position``."""

    position: int


@dataclass(frozen=True, eq=False)
class Uniform(Node):
    """Every element equals ``scalar``: a scalar value, an attribute, or None for undefined contents."""

    scalar: ir.Value | ir.Attribute | None


@dataclass(frozen=True, eq=False)
class Table(Node):
    """A dense constant held by the kernel."""

    values: ir.Attribute


@dataclass(frozen=True, eq=False)
class View(Node):
    """Elements of ``source`` under other indices."""

    source: Node
    source_indices: Callable[[Indices], Indices]


@dataclass(frozen=True, eq=False)
class Choice(Node):
    """Inside a box the elements of ``inside``, elsewhere those of ``outside`` (or the scalar ``padding``).

    The box holds index ``i`` of dim ``d`` if ``low[d] <= i < low[d] + stride[d] * size[d]`` and ``stride[d]`` divides
    ``i - low[d]``. ``inside`` is read at ``(i - low) // stride`` of the dims in ``kept``; ``outside`` at ``i - shift``.
    """

    inside: Node
    outside: Node | None
    padding: ir.Value | None
    low: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    kept: tuple[int, ...]
    shift: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Computed(Node):
    """Result number ``result`` of a linalg op: element-wise, or a reduction if ``linalg.is_reduction``."""

    linalg: LinalgOp
    result: int
    operands: tuple[Node, ...]
    tensors: dict[ir.Value, Node] = field(repr=False)

    @property
    def is_reduction(self) -> bool:
        """Whether the op reduces a dim."""
        return self.linalg.is_reduction

    @property
    def is_scan(self) -> bool:
        """Whether the op scans a dim; then it counts as a reduction too."""
        return self.linalg.scan is not None


@dataclass(frozen=True, eq=False)
class Refused(Node):
    """A value no template can compute; demanding it raises ``error``."""

    error: PassError


@dataclass(frozen=True, eq=False)
class TensorProgram:
    """All nodes of a cluster.

    Attributes:
        arguments: one per cluster input.
        outputs: one per cluster output.
        nodes: by value.
        function: the cluster function, if the cluster has been outlined (for its argument attributes).
    """

    arguments: tuple[Argument, ...]
    outputs: tuple[Node, ...]
    nodes: dict[ir.Value, Node]

    @staticmethod
    def of(cluster: Cluster, facts: dict[ir.Operation, OpFacts]) -> TensorProgram:
        """Read a cluster. ``facts`` keeps what single ops mean; it is valid while the ops do not change."""
        builder = _Builder(facts)
        arguments = tuple(builder.argument(value, i) for i, value in enumerate(cluster.inputs))
        outputs = tuple(builder.node(value) for value in cluster.outputs)
        return TensorProgram(arguments, outputs, builder.nodes)


@dataclass(frozen=True)
class OpFacts:
    """What one op says about itself, whatever cluster it is in.

    Attributes:
        name: name of the op.
        linalg: its parts if it is a linalg op with a body.
        reads: the tensors it reads, those that its body extracts elements from included.
    """

    name: str
    linalg: LinalgOp | None
    reads: tuple[ir.Value, ...]


def _facts_of(op: ir.Operation) -> OpFacts:
    linalg = linalg_op(op) if op.name.startswith("linalg.") else None
    reads = [value for value in op.operands if isinstance(value.type, ir.RankedTensorType)]
    if linalg is not None:
        reads += [inner.tensor for inner in linalg.body.ops if inner.tensor is not None]
    return OpFacts(op.name, linalg, tuple(reads))


class _Builder:
    def __init__(self, facts: dict[ir.Operation, OpFacts]) -> None:
        self.nodes: dict[ir.Value, Node] = {}
        self._facts = facts
        self._count = 0

    def _uid(self) -> int:
        self._count += 1
        return self._count

    def argument(self, value: ir.Value, position: int) -> Argument:
        kind = ir.RankedTensorType(value.type)
        node = Argument(self._uid(), tuple(kind.shape), kind.element_type, None, 0, position)
        self.nodes[value] = node
        return node

    def node(self, value: ir.Value) -> Node:
        """The node of a value, building what it depends on (without recursion: chains can be long)."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self.nodes:
                stack.pop()
                continue
            op = defining_op(top)
            missing = [] if op is None else [v for v in self._of(op).reads if v not in self.nodes]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.nodes[top] = self._build(top, op)
        return self.nodes[value]

    def _of(self, op: ir.Operation) -> OpFacts:
        known = self._facts.get(op)
        if known is None:
            known = self._facts[op] = _facts_of(op)
        return known

    def _build(self, value: ir.Value, op: ir.Operation | None) -> Node:
        kind = value.type
        shape = tuple(kind.shape) if isinstance(kind, ir.RankedTensorType) else ()
        element = kind.element_type if isinstance(kind, ir.RankedTensorType) else kind
        if op is None:
            error = PassError(f"{kind} is read from outside the cluster but is not among its inputs")
            return Refused(self._uid(), shape, element, None, 0, error)
        sources = [self.nodes[v] for v in self._of(op).reads]
        level = max((source.level for source in sources), default=0)
        for source in sources:
            if isinstance(source, Refused):
                return Refused(self._uid(), shape, element, op, level, source.error)
        problem = element_problem(element)
        if not problem:
            try:
                return self._known(value, op, shape, element, level, sources)
            except _NotSupported as reason:
                problem = str(reason)
        return Refused(self._uid(), shape, element, op, level, refusal(op, problem, WAY_OUT))

    def _known(
        self,
        value: ir.Value,
        op: ir.Operation,
        shape: tuple[int, ...],
        element: ir.Type,
        level: int,
        sources: Sequence[Node],
    ) -> Node:
        head = (self._uid(), shape, element, op, level)
        name = self._of(op).name
        if name == "tensor.cast":
            return View(head[0], sources[0].shape, element, op, level, sources[0], _same)
        if name == "tensor.concat":
            return self._concat(op, element, level, sources)
        if any(extent < 0 for extent in shape):
            raise _NotSupported("its shape is dynamic")
        if name == "linalg.fill":
            return Uniform(*head, op.operands[0])
        linalg = self._of(op).linalg
        if linalg is not None:
            if linalg.problem:
                raise _NotSupported(linalg.problem)
            operands = tuple(self.nodes[v] for v in (*linalg.inputs, *linalg.inits))
            tensors = {b.tensor: self.nodes[b.tensor] for b in linalg.body.ops if b.tensor is not None}
            number = list(op.results).index(value)
            own = (head[0], shape, element, op, level + (1 if linalg.is_reduction else 0))
            return Computed(*own, linalg, number, operands, tensors)
        builder = _VIEWS.get(name)
        if builder is not None:
            return View(*head, sources[0], builder(op, sources[0].shape, shape))
        if name == "tensor.empty":
            return Uniform(*head, None)
        if name == "tensor.splat":
            return Uniform(*head, op.operands[0])
        if name == "arith.constant":
            return _constant(head, op.attributes["value"])
        if name == "tensor.pad":
            return _pad(head, op, sources[0])
        if name == "tensor.insert_slice":
            return _insert(head, op, sources[0], sources[1])
        raise _NotSupported("no kernel template computes it")

    def _concat(self, op: ir.Operation, element: ir.Type, level: int, sources: Sequence[Node]) -> Node:
        dim = ir.IntegerAttr(op.attributes["dim"]).value
        result = sources[0]
        for source in sources[1:]:
            extent = result.shape[dim]
            shape = tuple(e + source.shape[dim] if d == dim else e for d, e in enumerate(result.shape))
            rank = len(shape)
            zero, one = (0,) * rank, (1,) * rank
            shift = tuple(extent if d == dim else 0 for d in range(rank))
            head = (self._uid(), shape, element, op, level)
            result = Choice(*head, result, source, None, zero, result.shape, one, tuple(range(rank)), shift)
        return result


WAY_OUT = "compile the module without this op, or replace it by ops that are supported (docs: what is not supported)"
"""Hint of a refusal."""


class _NotSupported(Exception):
    """Carries the reason of a refusal to where the op is known."""


def element_problem(element: ir.Type) -> str:
    """Why memory cannot hold elements of a type, or ""."""
    if isinstance(element, _FLOATS):
        return ""
    if isinstance(element, ir.IntegerType) and element.width in (1, 8, 16, 32, 64):
        return ""
    return f"elements of type {element} are not supported"


def _same(indices: Indices) -> Indices:
    return indices


def _groups(op: ir.Operation) -> list[list[int]]:
    return [
        [ir.IntegerAttr(i).value for i in ir.ArrayAttr(group)] for group in ir.ArrayAttr(op.attributes["reassociation"])
    ]


def _expand(op: ir.Operation, source: Sequence[int], shape: Sequence[int]) -> Callable[[Indices], Indices]:
    groups = _groups(op)

    def source_indices(indices: Indices) -> Indices:
        if not groups:
            return ()
        return tuple(linearize([indices[d] for d in group], [shape[d] for d in group]) for group in groups)

    return source_indices


def _collapse(op: ir.Operation, source: Sequence[int], shape: Sequence[int]) -> Callable[[Indices], Indices]:
    groups = _groups(op)

    def source_indices(indices: Indices) -> Indices:
        if not groups:
            return (ZERO,) * len(source)
        found: list[Expr] = []
        for group, index in zip(groups, indices, strict=True):
            found.extend(delinearize(index, [source[d] for d in group]))
        return tuple(found)

    return source_indices


def _static(op: ir.Operation, name: str) -> tuple[int, ...]:
    values = tuple(ir.DenseI64ArrayAttr(op.attributes[name]))
    if any(value == ir.ShapedType.get_dynamic_size() for value in values):
        raise _NotSupported(f"{name.removeprefix('static_')} are dynamic")
    return values


def _extract(op: ir.Operation, source: Sequence[int], shape: Sequence[int]) -> Callable[[Indices], Indices]:
    offsets, sizes, strides = (_static(op, f"static_{what}") for what in ("offsets", "sizes", "strides"))
    kept = _kept_dims(sizes, shape)

    def source_indices(indices: Indices) -> Indices:
        at = dict(zip(kept, indices, strict=True))
        return tuple(at.get(d, ZERO) * strides[d] + offsets[d] for d in range(len(offsets)))

    return source_indices


def _kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The dims of a slice that its rank-reduced type keeps; dropped ones have size 1."""
    kept: list[int] = []
    spare = len(sizes) - len(shape)
    for dim, size in enumerate(sizes):
        if len(kept) < len(shape) and size == shape[len(kept)]:
            kept.append(dim)
        elif size == 1 and spare > 0:
            spare -= 1
        else:
            raise _NotSupported(f"a slice of sizes {list(sizes)} does not have the shape {list(shape)}")
    return tuple(kept)


_VIEWS: dict[str, Callable[[ir.Operation, Sequence[int], Sequence[int]], Callable[[Indices], Indices]]] = {
    "tensor.expand_shape": _expand,
    "tensor.collapse_shape": _collapse,
    "tensor.extract_slice": _extract,
}

_Head = tuple[int, tuple[int, ...], ir.Type, ir.Operation, int]


def _constant(head: _Head, attribute: ir.Attribute) -> Node:
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise _NotSupported(f"a constant of the form {type(attribute).__name__} is not supported")
    if attribute.is_splat:
        return Uniform(*head, attribute.get_splat_value())
    if math.prod(head[1]) > MAX_INLINE_TABLE:
        raise _NotSupported(
            f"a constant of {math.prod(head[1])} elements does not fit into a kernel; pass it as argument"
        )
    return Table(*head, attribute)


def _pad(head: _Head, op: ir.Operation, source: Node) -> Node:
    low, high = _static(op, "static_low"), _static(op, "static_high")
    block = op.regions[0].blocks[0]
    scalar = list(block.operations)[-1].operation.operands[0]
    producer = defining_op(scalar)
    if producer is None or any(scalar == argument for argument in block.arguments):
        raise _NotSupported("its padding depends on the position")
    if min((*low, *high), default=0) < 0:
        raise _NotSupported("its padding is negative")
    rank = len(low)
    zero, one = (0,) * rank, (1,) * rank
    return Choice(*head, source, None, scalar, low, source.shape, one, tuple(range(rank)), zero)


def _insert(head: _Head, op: ir.Operation, source: Node, destination: Node) -> Node:
    offsets, sizes, strides = (_static(op, f"static_{what}") for what in ("offsets", "sizes", "strides"))
    kept = _kept_dims(sizes, source.shape)
    zero = (0,) * len(offsets)
    return Choice(*head, source, destination, None, offsets, sizes, strides, kept, zero)


def name_of(node: Node) -> str:
    """How a refusal names a value."""
    return describe(node.op) if node.op is not None else f"an argument of shape {list(node.shape)}"
