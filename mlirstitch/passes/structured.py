"""Linalg ops seen uniformly: inputs, inits, indexing maps, iterators, body; and how to build ``linalg.generic``.

Named ops carry the same parts as generics (LLVM derives maps and body from the name), so that passes need no table of
names. ``linalg.softmax``, ``pack``, ``unpack`` and the Winograd ops have no body and are not structured in this sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import linalg

PARALLEL = "parallel"
REDUCTION = "reduction"


@dataclass(frozen=True)
class Structured:
    """The parts of one linalg op with a body.

    ``maps`` has one map per input, then one per init; each goes from the iteration space to the dims of that operand.
    ``body`` has one argument per map, in the same order.
    """

    op: ir.Operation
    inputs: tuple[ir.Value, ...]
    inits: tuple[ir.Value, ...]
    maps: tuple[ir.AffineMap, ...]
    iterators: tuple[str, ...]
    body: ir.Block

    @property
    def operands(self) -> tuple[ir.Value, ...]:
        """Inputs, then inits, as ``maps`` are."""
        return self.inputs + self.inits

    @property
    def init_maps(self) -> tuple[ir.AffineMap, ...]:
        """The maps of the inits."""
        return self.maps[len(self.inputs) :]

    @property
    def running(self) -> tuple[ir.Value, ...]:
        """The body's arguments for the inits: the running values of a reduction."""
        return tuple(self.body.arguments)[len(self.inputs) :]

    @property
    def yielded(self) -> tuple[ir.Value, ...]:
        """The scalars the body yields, one per result."""
        return tuple(terminator(self.body).operands)

    @property
    def body_ops(self) -> tuple[ir.Operation, ...]:
        """The ops of the body without its terminator."""
        return tuple(op.operation for op in self.body.operations)[:-1]

    @property
    def is_parallel(self) -> bool:
        """Every iterator is parallel."""
        return all(kind == PARALLEL for kind in self.iterators)

    def loop_sizes(self) -> tuple[int, ...]:
        """Extent of every iteration dim, from the operand shapes; -1 for a dim that no operand indexes by itself."""
        sizes = [-1] * len(self.iterators)
        for value, affine_map in zip(self.operands, self.maps, strict=True):
            for extent, expr in zip(shape_of(value), affine_map.results, strict=True):
                if isinstance(expr, ir.AffineDimExpr):
                    sizes[expr.position] = extent
        return tuple(sizes)


def structured(op: ir.Operation) -> Structured | None:
    """The parts of ``op``, or None if it is not a linalg op with a body."""
    if not op.name.startswith("linalg.") or len(op.regions) != 1 or not op.operands:
        return None
    if op.name == "linalg.generic":
        maps = [ir.AffineMapAttr(attr).value for attr in ir.ArrayAttr(op.attributes["indexing_maps"])]
        iterators = [
            _iterator_name(attr)  # the attribute prints as #linalg.iterator_type<parallel>
            for attr in ir.ArrayAttr(op.attributes["iterator_types"])
        ]
    else:
        if len(op.regions[0].blocks) != 1:
            return None
        attrs = linalg.get_indexing_maps(op)  # pyright: ignore[reportAttributeAccessIssue]
        if attrs is None:
            return None
        maps = [ir.AffineMapAttr(attr).value for attr in ir.ArrayAttr(attrs)]
        iterators = None
    inputs = _input_count(op)
    if iterators is None:
        iterators = _derive_iterators(maps[0].n_dims, maps[inputs:])
    operands = tuple(op.operands)
    return Structured(op, operands[:inputs], operands[inputs:], tuple(maps), tuple(iterators), op.regions[0].blocks[0])


def _iterator_name(attr: ir.Attribute) -> str:
    return str(attr).partition("<")[2].rstrip(">")


def _input_count(op: ir.Operation) -> int:
    if "operandSegmentSizes" in op.attributes:
        return next(iter(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])))
    if op.name == "linalg.reduce":
        return len(op.operands) // 2
    return len(op.operands) - 1  # transpose, broadcast, map


def _derive_iterators(dims: int, init_maps: Sequence[ir.AffineMap]) -> list[str]:
    """Named ops: a dim is parallel exactly if the results are indexed by it."""
    parallel = {
        expr.position for affine_map in init_maps for expr in affine_map.results if isinstance(expr, ir.AffineDimExpr)
    }
    return [PARALLEL if dim in parallel else REDUCTION for dim in range(dims)]


def main_function(module: ir.Operation) -> ir.Operation | None:
    """The public ``func.func @main`` of a module, or None."""
    for op in module.regions[0].blocks[0].operations:
        operation = op.operation
        if operation.name == "func.func" and symbol_name(operation) == "main" and operation.regions[0].blocks:
            return operation
    return None


def functions(module: ir.Operation) -> Iterator[ir.Operation]:
    """Every function with a body, in order. The list is taken before the first is handed out."""
    ops = [op.operation for op in module.regions[0].blocks[0].operations]
    yield from (op for op in ops if op.name == "func.func" and len(op.regions[0].blocks))


def block_ops(function: ir.Operation) -> list[ir.Operation]:
    """The ops of the function's entry block, terminator included, as a list that survives rewriting."""
    return [op.operation for op in function.regions[0].blocks[0].operations]


def symbol_name(op: ir.Operation) -> str:
    """The ``sym_name`` of a symbol."""
    return ir.StringAttr(op.attributes["sym_name"]).value


def terminator(block: ir.Block) -> ir.Operation:
    """The last op of a block."""
    return block.operations[len(block.operations) - 1].operation


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The op that defines ``value``, or None for a block argument."""
    return value.owner.operation if isinstance(value.owner, ir.OpView | ir.Operation) else None


def users(value: ir.Value) -> list[ir.Operation]:
    """The ops that use ``value``, one entry per use."""
    return [use.owner.operation for use in value.uses]


def has_uses(value: ir.Value) -> bool:
    """Anything uses ``value``."""
    return next(iter(value.uses), None) is not None


def is_tensor(value: ir.Value) -> bool:
    """``value`` is a ranked tensor."""
    return isinstance(value.type, ir.RankedTensorType)


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Shape of a ranked tensor, or ``()`` for a scalar."""
    return tuple(ir.RankedTensorType(value.type).shape) if is_tensor(value) else ()


def element_type(value: ir.Value) -> ir.Type:
    """Element type of a ranked tensor, or the scalar's own type."""
    return ir.RankedTensorType(value.type).element_type if is_tensor(value) else value.type


def tensor_type(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    """``tensor<shape x element>`` (needs no current location)."""
    return ir.RankedTensorType.get(list(shape), element, loc=ir.Location.unknown(element.context))


def clone_into_body(
    ops: Sequence[ir.Operation], mapping: dict[ir.Value, ir.Value], ip: ir.InsertionPoint
) -> dict[ir.Value, ir.Value]:
    """Clone scalar ops at ``ip``, replacing operands by ``mapping``, which gains the clones' results."""
    for op in ops:
        clone = op.clone(ip=ip)
        for position, operand in enumerate(op.operands):
            if operand in mapping:
                clone.operands[position] = mapping[operand]
        mapping.update(zip(op.results, clone.results, strict=True))
    return mapping


BodyBuilder = Callable[[Sequence[ir.Value]], Sequence[ir.Value]]
"""Builds a body at the current insertion point from its arguments and returns the scalars to yield."""


def build_generic(
    inputs: Sequence[ir.Value],
    inits: Sequence[ir.Value],
    maps: Sequence[ir.AffineMap],
    iterators: Sequence[str],
    body: BodyBuilder,
    location: ir.Location,
    attributes: Mapping[str, ir.Attribute] | None = None,
) -> ir.Operation:
    """Create ``linalg.generic`` at the current insertion point. ``body`` gets the arguments: inputs, then inits."""
    context = location.context
    kinds = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>", context) for kind in iterators]
    op = ir.Operation.create(
        "linalg.generic",
        results=[value.type for value in inits],
        operands=[*inputs, *inits],
        attributes={
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps], context),
            "iterator_types": ir.ArrayAttr.get(kinds, context),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(inits)], context),
            **(attributes or {}),
        },
        regions=1,
        loc=location,
    )
    types = [element_type(value) for value in (*inputs, *inits)]
    block = op.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
    with ir.InsertionPoint(block), location:
        yielded = body(tuple(block.arguments))
        ir.Operation.create("linalg.yield", operands=list(yielded), loc=location)
    return op


def build_empty(shape: Sequence[int], element: ir.Type, location: ir.Location) -> ir.Value:
    """Create ``tensor.empty`` at the current insertion point."""
    return ir.Operation.create("tensor.empty", results=[tensor_type(shape, element)], loc=location).result


def build_constant(attr: ir.Attribute, type_: ir.Type, location: ir.Location) -> ir.Value:
    """Create ``arith.constant`` at the current insertion point."""
    return ir.Operation.create("arith.constant", results=[type_], attributes={"value": attr}, loc=location).result


def build_fill(scalar: ir.Value, shape: Sequence[int], location: ir.Location) -> ir.Value:
    """Create ``linalg.fill`` of ``scalar`` into a new tensor at the current insertion point."""
    init = build_empty(shape, scalar.type, location)
    with location:
        return linalg.fill(scalar, outs=[init])


def constant_of(value: ir.Value) -> ir.Attribute | None:
    """The value attribute if ``value`` is an ``arith.constant``."""
    op = defining_op(value)
    return op.attributes["value"] if op is not None and op.name == "arith.constant" else None


def splat_scalar(value: ir.Value) -> ir.Attribute | None:
    """The scalar attribute every element of ``value`` equals: a scalar constant, splat constant, or fill of one."""
    op = defining_op(value)
    if op is None:
        return None
    if op.name == "linalg.fill":
        return splat_scalar(op.operands[0])
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
        return splat_scalar(op.operands[0])
    attr = constant_of(value)
    if attr is None or isinstance(attr, ir.FloatAttr | ir.IntegerAttr):
        return attr
    if isinstance(attr, ir.DenseElementsAttr) and attr.is_splat:
        return attr.get_splat_value()
    return None
