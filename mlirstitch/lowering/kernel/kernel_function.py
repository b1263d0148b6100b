"""The ``gpu.func`` around a kernel: arguments, launch bounds, shared memory, constant tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.lowering.kernel.body import byte_size, memory_type
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.footprint import footprint
from mlirstitch.lowering.kernel.index_expr import Expr
from mlirstitch.lowering.kernel.memory_access import Accesses
from mlirstitch.lowering.kernel.shared_plan import ALIGNMENT, place_buffers
from mlirstitch.lowering.kernel.tensor_program import Node, Table, TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

_WORKGROUP = "#gpu.address_space<workgroup>"
_NO_BUDGET = 1 << 62
_DYNAMIC = "dynamic_shared"
"""The symbol of dynamic shared memory, one a module."""


class KernelFunction:
    """A ``gpu.func`` under construction at the current insertion point of a ``gpu.module``.

    Arguments are flat memrefs: the inputs, one destination per output, then the scratch buffers and tickets that the
    schedule asks for. An input or output is promised not to alias anything unless the cluster function says
    ``stitch.noalias = false`` on the argument or result. Blocks talk to each other through scratch and tickets, which
    therefore promise nothing: a load must not be moved across a fence.
    """

    def __init__(self, cluster: Cluster, program: TensorProgram, schedule: Schedule, name: str) -> None:
        self._name = name
        inputs = [_flat(node) for node in program.arguments]
        outputs = [_flat(node) for node in program.outputs]
        workspace = [ir.MemRefType.get([size], ir.Type.parse(kind)) for kind, size in schedule.scratch]
        if schedule.tickets:
            workspace.append(ir.MemRefType.get([schedule.tickets], ir.IntegerType.get_signless(32)))
        types = inputs + outputs
        self._tensors = len(types)
        alias = [*_may_alias(cluster, "arg_attrs", len(inputs)), *_may_alias(cluster, "res_attrs", len(outputs))]
        attributes = [
            _argument_attributes("llvm.readonly" if i < len(inputs) else "llvm.writeonly", alias[i], kind)
            for i, kind in enumerate(types)
        ]
        attributes += [_alignment(kind) for kind in workspace]
        types += workspace
        launch: dict[str, ir.Attribute] = {
            "known_block_size": ir.DenseI32ArrayAttr.get(list(schedule.block)),
            "known_grid_size": ir.DenseI32ArrayAttr.get([max(1, extent) for extent in schedule.grid]),
        }
        if schedule.cluster_blocks > 1:
            launch["known_cluster_size"] = ir.DenseI32ArrayAttr.get(list(schedule.thread_block_cluster))
        self.location: ir.Location = ir.Location.current  # pyright: ignore[reportAttributeAccessIssue, reportAssignmentType]
        self.op = ir.Operation.create(
            "gpu.func",
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                "arg_attrs": ir.ArrayAttr.get(attributes),
                "gpu.kernel": ir.UnitAttr.get(),
                **launch,
            },
            regions=1,
            loc=self.location,
        )
        self.entry = self.op.regions[0].blocks.append(*types, arg_locs=[self.location] * len(types))
        self.memory: list[Value] = list(self.entry.arguments)
        self._shared: Any = None
        self._shared_bytes = 0
        self._shared_used = 0
        self._views: list[ir.Operation] = []
        self._parts: list[tuple[ir.Block, int]] = []
        self._staged_bytes = schedule.shared_bytes
        self._tables: dict[Table, Value] = {}

    def shared(self, elements: int, element: ir.Type) -> Value:
        """A new buffer in shared memory, aligned to 16 bytes.

        All buffers are views into one, at constant offsets: threads compute one address where one symbol a buffer
        would need an address each. :meth:`finish` plans the offsets anew (see ``shared_plan``).
        """
        stored = memory_type(element)
        space = ir.Attribute.parse(_WORKGROUP)
        byte = ir.IntegerType.get_signless(8)
        start = -(-self._shared_used // ALIGNMENT) * ALIGNMENT
        self._shared_used = start + elements * byte_size(stored)
        self._shared_bytes = max(self._shared_bytes, self._shared_used)
        whole = ir.MemRefType.get([self._shared_bytes], byte, memory_space=space)
        if self._shared is None:
            self._shared = self.entry.add_argument(whole, self.location)
        self._shared.set_type(whole)
        index = ir.IndexType.get()
        last = self._views[-1] if self._views else None
        start_of_body = ir.InsertionPoint.at_block_begin(self.entry)
        with start_of_body if last is None else ir.InsertionPoint.after(last), self.location:
            offset = ir.Operation.create(
                "arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, start)}
            ).result
            kind = ir.MemRefType.get([elements], stored, memory_space=space)
            view = ir.Operation.create("memref.view", results=[kind], operands=[self._shared, offset])
        self._views.append(view)
        return view.result

    def begin_part(self, body: ir.Block) -> None:
        """The next buffers are of a part that only some blocks run, in ``body``: they lie where those of others do."""
        self._shared_used = 0
        self._parts.append((body, len(self._views)))

    def dynamic_shared(self, builder: Builder) -> Value:
        """A pointer (address space 3) to the block's dynamic shared memory, aligned to 16 bytes."""
        names = [op.operation.attributes for op in self.op.block.operations]
        if not any("sym_name" in found and ir.StringAttr(found["sym_name"]).value == _DYNAMIC for found in names):
            i64 = ir.IntegerType.get_signless(64)
            ir.Operation.create(
                "llvm.mlir.global",
                attributes={
                    "sym_name": ir.StringAttr.get(_DYNAMIC),
                    "global_type": ir.TypeAttr.get(ir.Type.parse("!llvm.array<0 x i8>")),
                    "linkage": ir.Attribute.parse("#llvm.linkage<external>"),
                    "addr_space": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 3),
                    "alignment": ir.IntegerAttr.get(i64, 16),
                    "unnamed_addr": ir.IntegerAttr.get(i64, 0),
                    "visibility_": ir.IntegerAttr.get(i64, 0),
                },
                regions=1,
                loc=self.location,
                ip=ir.InsertionPoint.at_block_begin(self.op.block),
            )
        symbol: dict[str, ir.Attribute] = {"global_name": ir.FlatSymbolRefAttr.get(_DYNAMIC)}
        return builder.emit("llvm.mlir.addressof", ir.Type.parse("!llvm.ptr<3>"), [], symbol)

    def table(self, builder: Builder, node: Table) -> Value:
        """The memref of a constant table: a global of the module, viewed flat."""
        if node not in self._tables:
            with builder.at(builder.root):
                self._tables[node] = self._create_table(builder, node)
        return self._tables[node]

    def _create_table(self, builder: Builder, node: Table) -> Value:
        element = memory_type(node.element)
        values: ir.Attribute = node.values
        if element != node.element:
            bits = [ir.IntegerAttr.get(element, int(bool(value))) for value in ir.DenseIntElementsAttr(values)]
            values = ir.DenseElementsAttr.get(bits, ir.RankedTensorType.get(list(node.shape), element))
        symbol = f"{self._name}_table{len(self._tables)}"
        shaped = ir.MemRefType.get(list(node.shape), element)
        ir.Operation.create(
            "memref.global",
            attributes={
                "sym_name": ir.StringAttr.get(symbol),
                "sym_visibility": ir.StringAttr.get("private"),
                "type": ir.TypeAttr.get(shaped),
                "initial_value": values,
                "constant": ir.UnitAttr.get(),
                "alignment": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 16),
            },
            loc=self.location,
            ip=ir.InsertionPoint(self.op),
        )
        found = builder.emit("memref.get_global", shaped, [], {"name": ir.FlatSymbolRefAttr.get(symbol)})
        static = ir.DenseI64ArrayAttr.get
        return builder.emit(
            "memref.reinterpret_cast",
            ir.MemRefType.get([node.elements], element),
            [found],
            {
                "static_offsets": static([0]),
                "static_sizes": static([node.elements]),
                "static_strides": static([1]),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
            },
        )

    def finish(self, accesses: Accesses) -> ir.Operation:
        """Close the function. What it moves and touches of its arguments is told by attributes."""
        i64 = ir.IntegerType.get_signless(64)
        self._place_shared()
        ir.Operation.create("gpu.return", loc=self.location, ip=ir.InsertionPoint(self.entry))
        if self._shared is not None:
            align = ir.DictAttr.get({"llvm.align": ir.IntegerAttr.get(i64, ALIGNMENT)})
            self.op.attributes["workgroup_attributions"] = ir.IntegerAttr.get(i64, 1)
            self.op.attributes["workgroup_attrib_attrs"] = ir.ArrayAttr.get([align])
        traffic = [round(moved) for moved in accesses.bytes]
        self.op.attributes["stitch.traffic"] = ir.DenseI64ArrayAttr.get(traffic)
        self.op.attributes["stitch.touched"] = ir.DenseI64ArrayAttr.get(
            [
                min(moved, self._touched(number, offsets))
                for number, (moved, offsets) in enumerate(zip(traffic, accesses.offsets, strict=True))
            ]
        )
        return self.op

    def _touched(self, number: int, offsets: Iterable[Expr]) -> int:
        """Bytes of an argument that are touched at most; all of scratch and tickets, which are made to measure."""
        kind = ir.MemRefType(self.memory[number].type)
        elements = kind.shape[0]
        if number < self._tensors:
            elements = footprint(offsets).elements(elements)
        return elements * byte_size(kind.element_type)

    def _place_shared(self) -> None:
        """Plan the shared buffers; what a kernel cannot declare becomes dynamic shared memory."""
        if self._shared is None:
            return
        if self._parts:
            self._shared_bytes = max(self._place_part(number) for number in range(len(self._parts)))
        else:
            self._shared_bytes = place_buffers(self.entry, self._views, Target.shared_bytes_static)
        space = ir.Attribute.parse(_WORKGROUP)
        whole = ir.MemRefType.get([self._shared_bytes], ir.IntegerType.get_signless(8), memory_space=space)
        self._shared.set_type(whole)
        if self._shared_bytes > Target.shared_bytes_static:
            self._demote(whole)

    def _place_part(self, number: int) -> int:
        """Plan the buffers of one part and return their bytes.

        No barriers are added: which threads of the block run the part, and so would arrive, is not known here.
        """
        body, first = self._parts[number]
        last = self._parts[number + 1][1] if number + 1 < len(self._parts) else len(self._views)
        return place_buffers(body, self._views[first:last], _NO_BUDGET)

    def _demote(self, whole: ir.MemRefType) -> None:
        """Put all shared buffers behind what the schedule stages in dynamic shared memory."""
        builder = Builder(self.entry, self.location, 1)
        builder.root.point = ir.InsertionPoint.at_block_begin(self.entry)
        start = -(-self._staged_bytes // ALIGNMENT) * ALIGNMENT
        i64 = ir.IntegerType.get_signless(64)
        pointer = self.dynamic_shared(builder)
        attributes: dict[str, ir.Attribute] = {
            "elem_type": ir.TypeAttr.get(ir.IntegerType.get_signless(8)),
            "rawConstantIndices": ir.DenseI32ArrayAttr.get([start]),
            "noWrapFlags": ir.IntegerAttr.get(builder.i32, 0),
        }
        pointer = builder.emit("llvm.getelementptr", pointer.type, [pointer], attributes)
        kind = ir.Type.parse("!llvm.struct<(ptr<3>, ptr<3>, i64, array<1 x i64>, array<1 x i64>)>")
        descriptor = builder.emit("llvm.mlir.undef", kind, [])
        numbers = [
            builder.emit("llvm.mlir.constant", i64, [], {"value": ir.IntegerAttr.get(i64, value)})
            for value in (0, self._shared_bytes, 1)
        ]
        fields = [([0], pointer), ([1], pointer), ([2], numbers[0]), ([3, 0], numbers[1]), ([4, 0], numbers[2])]
        for place, value in fields:
            where: dict[str, ir.Attribute] = {"position": ir.DenseI64ArrayAttr.get(place)}
            descriptor = builder.emit("llvm.insertvalue", kind, [descriptor, value], where)
        memory = builder.emit("builtin.unrealized_conversion_cast", whole, [descriptor])
        for view in self._views:
            view.operands[0] = memory
        self.entry.erase_argument(len(list(self.entry.arguments)) - 1)
        self._shared = None
        stitch.DYNAMIC_SHARED.set(self.op, start + self._shared_bytes)


def _flat(node: Node) -> ir.MemRefType:
    return ir.MemRefType.get([math.prod(node.shape)], memory_type(node.element))


def _argument_attributes(access: str, may_alias: bool, kind: ir.MemRefType) -> ir.Attribute:
    fields: dict[str, ir.Attribute] = {access: ir.UnitAttr.get()}
    fields.update({named.name: named.attr for named in _alignment(kind)})
    if not may_alias:
        fields["llvm.noalias"] = ir.UnitAttr.get()
    return ir.DictAttr.get(fields)


def _alignment(kind: ir.MemRefType) -> ir.DictAttr:
    """Every buffer is aligned to 16 bytes, but LLVM reads whole aligned units where it knows the alignment.

    It is told no more than divides the buffer's size, so that it does not read past the end.
    """
    size = kind.shape[0] * byte_size(kind.element_type)
    align = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), math.gcd(16, size))
    return ir.DictAttr.get({"llvm.align": align})


def _may_alias(cluster: Cluster, which: str, count: int) -> list[bool]:
    """Per argument or result of the cluster function: whether ``stitch.noalias = false`` is set.

    False for ops that are still spread over ``@main``, whose arguments are others.
    """
    if not cluster.ops or cluster.ops[0].parent is None:
        return [False] * count
    function = cluster.ops[0].parent.operation
    if stitch.CLUSTER.name not in function.attributes or which not in function.attributes:
        return [False] * count
    found: list[bool] = []
    for fields in ir.ArrayAttr(function.attributes[which]):
        fields = ir.DictAttr(fields)
        found.append("stitch.noalias" in fields and not ir.BoolAttr(fields["stitch.noalias"]).value)
    return (found + [False] * count)[:count]
