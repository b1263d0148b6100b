"""The graph of a function on the linalg level (docs/architecture.md)."""

from __future__ import annotations

from dataclasses import replace

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal, source_line
from mlirstitch.passes.op_kind import op_kind
from mlirstitch.passes.partitioning.access import AccessMap
from mlirstitch.passes.partitioning.graph import Graph, GraphOp, GraphUse, GraphValue
from mlirstitch.passes.partitioning.op_loops import OpLoops
from mlirstitch.passes.partitioning.structured_loops import structured_loops
from mlirstitch.passes.partitioning.tensor_loops import tensor_loops
from mlirstitch.passes.structured import block_ops, symbol_name

RETURN = "func.return"
RECOMPUTE = "dist.recompute"
"""Unit attribute of an op that computes a forward op again; see ``dist-recompute``."""
_BYTES = {"i1": 1, "index": 8}


def graph_of(function: ir.Operation) -> Graph:
    """The graph of a normalized function.

    ``tensor.empty``, scalar constants and the return are no ops of the graph; a fill or a tensor constant is an op
    without inputs, which can be split like any. Arguments without ``stitch.role`` are inputs.

    Raises:
        PassError: an op that does not belong on the linalg level, or a returned tensor that nobody wrote.
    """
    return _Builder(function).build()


def loops_of(op: ir.Operation) -> OpLoops | None:
    """What :func:`graph_of` knows of one op, with the values that it reads; None for an op that is not in the graph.

    Position k of ``GraphOp.inputs`` is position k of ``OpLoops.reads``. Raises as :func:`graph_of` does.
    """
    if op.name == RETURN:
        return None
    return structured_loops(op) or tensor_loops(op)


class _Builder:
    def __init__(self, function: ir.Operation) -> None:
        self.function = function
        self.values: list[GraphValue] = []
        self.users: list[list[int]] = []
        self.numbers: dict[ir.Value, int] = {}
        self.ops: list[GraphOp] = []
        self._shared: dict[AccessMap, AccessMap] = {}

    def build(self) -> Graph:
        function = self.function
        arguments = list(function.regions[0].blocks[0].arguments)
        names = stitch.NAME.of_arguments(function)
        roles = stitch.ROLE.of_arguments(function)
        for value, name, role in zip(arguments, names, roles, strict=True):
            self._add(value, -1, name or "", role or "input")
        returned: list[int] = []
        for index, op in enumerate(block_ops(function)):
            if op.name == RETURN:
                returned = [self._number(op, value) for value in op.operands]
            else:
                self._op(index, op)
        self._name_results(returned, len(arguments))
        values = tuple(replace(v, users=tuple(users)) for v, users in zip(self.values, self.users, strict=True))
        return Graph(
            symbol_name(function),
            tuple(self.ops),
            values,
            tuple(range(len(arguments))),
            tuple(returned),
            self._mutated(len(arguments)),
        )

    def _op(self, index: int, op: ir.Operation) -> None:
        found = loops_of(op)
        if found is None:
            return
        number = len(self.ops)
        inputs = tuple(self._use(self._number(op, read.value), read.access) for read in found.reads)
        for use in inputs:
            if not self.users[use.value] or self.users[use.value][-1] != number:
                self.users[use.value].append(number)
        results = tuple(
            self._use(self._add(value, number), access) for value, access in zip(op.results, found.results, strict=True)
        )
        self.ops.append(
            GraphOp(
                number,
                index,
                op.name,
                found.loops,
                found.kinds,
                found.combiner,
                inputs,
                results,
                found.inits,
                found.linear,
                found.fixed,
                found.flops,
                _kind(op),
                source_line(op.location),
                RECOMPUTE in op.attributes,
            )
        )

    def _use(self, value: int, access: AccessMap) -> GraphUse:
        """A use; equal access maps are one object, since a large graph has few different ones."""
        return GraphUse(value, self._shared.setdefault(access, access))

    def _add(self, value: ir.Value, producer: int, name: str = "", role: str = "") -> int:
        number = len(self.values)
        type_ = ir.RankedTensorType(value.type)
        element = type_.element_type
        shape = tuple(type_.shape)
        label = name or f"%{number}"
        self.values.append(GraphValue(number, label, shape, str(element), _bytes(element), producer, role=role))
        self.users.append([])
        self.numbers[value] = number
        return number

    def _number(self, reader: ir.Operation, value: ir.Value) -> int:
        if value not in self.numbers:
            raise refusal(reader, "reads or returns a tensor that nobody wrote", "fill the tensor first")
        return self.numbers[value]

    def _name_results(self, returned: list[int], arguments: int) -> None:
        names = stitch.NAME.of_results(self.function)
        for number, name in zip(returned, names, strict=True):
            if name and number >= arguments and self.values[number].name == f"%{number}":
                self.values[number] = replace(self.values[number], name=name)

    def _mutated(self, arguments: int) -> tuple[int, ...]:
        by_name = {self.values[number].name: number for number in range(arguments)}
        return tuple(by_name.get(name or "", -1) for name in stitch.MUTATES.of_results(self.function))


def _kind(op: ir.Operation) -> str:
    if stitch.KIND.name in op.attributes:
        return ir.StringAttr(op.attributes[stitch.KIND.name]).value
    if op.name == "arith.constant":
        return "constant"
    kind = op_kind(op)
    return kind.value if kind is not None else "view"


def _bytes(element: ir.Type) -> int:
    text = str(element)
    if text in _BYTES:
        return _BYTES[text]
    return (ir.IntegerType(element).width if isinstance(element, ir.IntegerType) else ir.FloatType(element).width) // 8
