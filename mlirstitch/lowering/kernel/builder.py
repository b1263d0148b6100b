"""Creates the ops of a kernel: scopes, constants, loops, branches and index arithmetic.

Two builders have one interface. :class:`Builder` creates IR. :class:`DryBuilder` creates nothing and counts: the same
code that emits a kernel answers, run dry, whether it could be emitted and what it would cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mlir import ir

from mlirstitch.lowering.kernel.index_expr import Clamp, Expr, FloorDiv, Mod, Symbol

Value = Any
"""An ``ir.Value`` of the kernel, or a :class:`DryValue`."""


@dataclass(frozen=True, eq=False)
class DryValue:
    """Stands for an SSA value when nothing is emitted."""

    type: ir.Type


@dataclass(eq=False)
class Scope:
    """A block in which ops are created, with what is known there.

    Attributes:
        parent: the scope around it; values of the parent are visible here.
        block: where ops go, None when dry.
        point: insertion point: the end of the block, or before the op that holds the innermost open scope.
        barrier: whether values must stay inside because it runs under a condition.
        executions: how often a point in it is executed on average, summed over all threads of the launch.
        symbols: values of the index symbols declared here.
        memo: values computed here, by whatever key.
    """

    parent: Scope | None
    block: ir.Block | None
    point: ir.InsertionPoint | None
    barrier: bool
    executions: Fraction
    symbols: dict[Symbol, Value] = field(default_factory=dict)
    memo: dict[Any, Value] = field(default_factory=dict)

    def find(self, key: Any) -> Value | None:
        """A value known here or in a scope around."""
        scope: Scope | None = self
        while scope is not None:
            if key in scope.memo:
                return scope.memo[key]
            scope = scope.parent
        return None


class Builder:
    """Creates IR in the current scope. ``location`` is the location given to the ops."""

    dry = False

    def __init__(self, entry: ir.Block | None, location: ir.Location, executions: int) -> None:
        point = None if entry is None else ir.InsertionPoint(entry)
        self.root = Scope(None, entry, point, False, Fraction(executions))
        self.scope = self.root
        self.visits: dict[ir.Block, Fraction] = {} if entry is None else {entry: self.root.executions}
        """How often all threads of the launch together come by a block: ``Scope.executions``."""
        self.location = location
        self.index_type = ir.IndexType.get()
        self.i1 = ir.IntegerType.get_signless(1)
        self.i32 = ir.IntegerType.get_signless(32)
        self._i64 = ir.IntegerType.get_signless(64)
        self._predicates: dict[int, ir.Attribute] = {}
        self._constants: dict[Any, Value] = {}
        self._attribute_of: dict[Value, ir.Attribute] = {}
        self.ops_created = 0

    # Raw creation -----------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        results: Sequence[ir.Type],
        operands: Sequence[Value],
        attributes: dict[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> Any:
        """Create an op at the current point and return it."""
        self.ops_created += 1
        return ir.Operation.create(
            name,
            results=results,
            operands=operands,
            attributes=attributes,
            regions=regions,
            loc=self.location,
            ip=self.scope.point,
        )

    def emit(
        self, name: str, kind: ir.Type, operands: Sequence[Value], attributes: dict[str, ir.Attribute] | None = None
    ) -> Value:
        """Create an op with one result and return the result."""
        return self.create(name, [kind], operands, attributes).result

    @contextmanager
    def at(self, scope: Scope) -> Iterator[None]:
        """Create ops in ``scope``, the current one or one around it."""
        inner, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = inner

    # Constants --------------------------------------------------------------------------------------------------

    def constant(self, attribute: ir.Attribute, kind: ir.Type) -> Value:
        """A constant, created once at the start of the kernel."""
        key = (attribute, kind)
        if key not in self._constants:
            value = self._create_constant(attribute, kind)
            self._constants[key] = value
            self._attribute_of[value] = attribute
        return self._constants[key]

    def _create_constant(self, attribute: ir.Attribute, kind: ir.Type) -> Value:
        block = self.root.block
        if block is None:
            raise ValueError("a builder without a block is a DryBuilder")
        point = ir.InsertionPoint.at_block_begin(block)
        return ir.Operation.create(
            "arith.constant", results=[kind], attributes={"value": attribute}, loc=self.location, ip=point
        ).result

    def attribute_of(self, value: Value) -> ir.Attribute | None:
        """The attribute of a constant made by :meth:`constant`, None for any other value."""
        return self._attribute_of.get(value)

    def index_constant(self, value: int) -> Value:
        """A constant of type index."""
        return self.constant(ir.IntegerAttr.get(self.index_type, value), self.index_type)

    def integer(self, value: int, kind: ir.Type) -> Value:
        """A constant of an integer type."""
        return self.constant(ir.IntegerAttr.get(kind, value), kind)

    def number(self, value: float, kind: ir.Type) -> Value:
        """A constant of an integer or float type."""
        if isinstance(kind, ir.IntegerType):
            return self.integer(int(value), kind)
        return self.constant(ir.FloatAttr.get(kind, value), kind)

    def broadcast(self, value: Value, width: int) -> Value:
        """``value`` in every lane of a vector; a vector is returned as it is."""
        if isinstance(value.type, ir.VectorType):
            return value
        kind = ir.VectorType.get([width], value.type)
        attribute = self._attribute_of.get(value)
        if attribute is not None:
            return self.constant(ir.DenseElementsAttr.get_splat(kind, attribute), kind)
        key = ("broadcast", value, width)
        known = self.scope.find(key)
        if known is None:
            known = self.scope.memo[key] = self.emit("vector.broadcast", kind, [value])
        return known

    def compare(self, predicate: str, left: Value, right: Value) -> Value:
        """Integer comparison; ``predicate`` as in ``arith.cmpi`` (eq, ne, slt, sle, sgt, sge, ult ...)."""
        number = _PREDICATES.index(predicate)
        attribute = self._predicates.get(number)
        if attribute is None:
            attribute = self._predicates[number] = ir.IntegerAttr.get(self._i64, number)
        kind: ir.Type = self.i1
        if isinstance(left.type, ir.VectorType):
            kind = ir.VectorType.get(list(left.type.shape), self.i1)
        return self.emit("arith.cmpi", kind, [left, right], {"predicate": attribute})

    def select(self, condition: Value, on_true: Value, on_false: Value) -> Value:
        """``condition ? on_true : on_false`` for operands of one type."""
        return self.emit("arith.select", on_true.type, [condition, on_true, on_false])

    # Control flow -----------------------------------------------------------------------------------------------

    def loop(
        self,
        name: Symbol | None,
        bounds: tuple[Value, Value, Value],
        trips: int | Fraction,
        initial: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """``for i in range(*bounds)`` carrying values; ``trips`` is the (average) trip count, for accounting."""
        types = [value.type for value in initial]
        op = self.create("scf.for", types, [*bounds, *initial], regions=1)
        locations = [self.location] * (len(types) + 1)
        block = op.regions[0].blocks.append(self.index_type, *types, arg_locs=locations)
        with self._open(op, None if self.dry else block, False, trips):
            counter, *carried = block.arguments
            if name is not None:
                self.declare(name, counter)
            self.create("scf.yield", [], list(body(counter, carried)))
        return list(op.results)

    def branch(
        self,
        condition: Value,
        types: Sequence[ir.Type],
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]] | None = None,
        executions: Fraction | None = None,
    ) -> list[Value]:
        """``if condition``; ``executions`` says how often the then side runs (all executions, if not given)."""
        op = self.create("scf.if", types, [condition], regions=2)
        rest = None if executions is None else self.scope.executions - executions
        for region, side, count in ((op.regions[0], then, executions), (op.regions[1], otherwise, rest)):
            if side is None:
                continue
            block = region.blocks.append()
            with self._open(op, None if self.dry else block, True, 1, count):
                self.create("scf.yield", [], list(side()))
        return list(op.results)

    def spin(self, again: Callable[[], Value]) -> None:
        """Repeat ``again``, which computes a bool, as long as it is true. It is counted as one execution."""
        op = self.create("scf.while", [], [], regions=2)
        condition = op.regions[0].blocks.append()
        with self._open(op, None if self.dry else condition, True, 1):
            self.create("scf.condition", [], [again()])
        rest = op.regions[1].blocks.append()
        with self._open(op, None if self.dry else rest, True, 1):
            self.create("scf.yield", [], [])

    @contextmanager
    def _open(
        self, op: Any, block: ir.Block | None, barrier: bool, trips: int | Fraction, executions: Fraction | None = None
    ) -> Iterator[None]:
        outer = self.scope
        saved = outer.point
        count = outer.executions * trips if executions is None else executions
        point = None
        if block is not None:
            outer.point = ir.InsertionPoint(op)
            point = ir.InsertionPoint(block)
            self.visits[block] = count
        self.scope = Scope(outer, block, point, barrier, count)
        try:
            yield
        finally:
            self.scope = outer
            outer.point = saved

    # Threads ----------------------------------------------------------------------------------------------------

    def block_id(self) -> Value:
        """The number of this block along x, of type index."""
        return self._id("gpu.block_id")

    def thread_id(self) -> Value:
        """The number of this thread along x, of type index."""
        return self._id("gpu.thread_id")

    def _id(self, name: str) -> Value:
        return self.emit(name, self.index_type, [], {"dimension": ir.Attribute.parse("#gpu<dim x>")})

    def barrier(self) -> None:
        """Wait until all threads of the block have arrived."""
        self.create("gpu.barrier", [], [])

    # Index arithmetic -------------------------------------------------------------------------------------------

    def declare(self, name: Symbol, value: Value) -> None:
        """Give an index symbol its value, from here on in this scope."""
        self.scope.symbols[name] = value

    def home(self, expressions: Sequence[Expr], pinned: bool) -> Scope:
        """The outermost scope in which every symbol of ``expressions`` is known.

        ``pinned``: do not leave a scope that runs under a condition (for anything that touches memory).
        """
        scope = self.scope
        while scope.parent is not None:
            if pinned and scope.barrier:
                return scope
            if any(name in expr.symbols for name in scope.symbols for expr in expressions):
                return scope
            scope = scope.parent
        return scope

    def index(self, expr: Expr) -> Value:
        """The SSA value (of type index) of an expression whose symbols are declared."""
        if not expr.terms:
            return self.index_constant(expr.const)
        known = self.scope.find(expr)
        if known is not None:
            return known
        home = self.home((expr,), pinned=False)
        with self.at(home):
            value = home.memo[expr] = self._sum(expr)
        return value

    def _sum(self, expr: Expr) -> Value:
        total: Value | None = None
        for atom, coefficient in expr.terms:
            term = self._atom(atom)
            if coefficient != 1:
                term = self.arith("muli", term, self.index_constant(coefficient))
            total = term if total is None else self.arith("addi", total, term)
        if expr.const:
            total = self.arith("addi", total, self.index_constant(expr.const))
        return total

    def _atom(self, atom: Symbol | FloorDiv | Mod | Clamp) -> Value:
        if isinstance(atom, Symbol):
            return self._symbol(atom)
        key = ("atom", atom)
        known = self.scope.find(key)
        if known is not None:
            return known
        operand = atom.operand
        if isinstance(atom, Clamp):
            value = self.index(operand)
            if operand.low < atom.least:
                value = self.arith("maxsi", value, self.index_constant(atom.least))
            if operand.high > atom.most:
                value = self.arith("minsi", value, self.index_constant(atom.most))
        else:
            # Unsigned division only: a negative operand is first raised by a multiple of the divisor.
            raised = -(operand.low // atom.divisor) if operand.low < 0 else 0
            value = self.index(operand + raised * atom.divisor)
            divisor = self.index_constant(atom.divisor)
            if isinstance(atom, Mod):
                value = self.arith("remui", value, divisor)
            else:
                value = self.arith("divui", value, divisor)
                if raised:
                    value = self.arith("addi", value, self.index_constant(-raised))
        self.scope.memo[key] = value
        return value

    def _symbol(self, name: Symbol) -> Value:
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.symbols:
                return scope.symbols[name]
            scope = scope.parent
        raise KeyError(f"index symbol {name.text} has no value here")

    def arith(self, name: str, left: Value, right: Value) -> Value:
        """An integer op of the arith dialect on two operands of one type."""
        return self.emit(f"arith.{name}", left.type, [left, right])


class DryBuilder(Builder):
    """Creates nothing; values know their type only."""

    dry = True

    def create(
        self,
        name: str,
        results: Sequence[ir.Type],
        operands: Sequence[Value],
        attributes: dict[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> Any:
        self.ops_created += 1
        return _DryOp([DryValue(kind) for kind in results], [_DryRegion() for _ in range(regions)])

    def _create_constant(self, attribute: ir.Attribute, kind: ir.Type) -> Value:
        return DryValue(kind)


@dataclass
class _DryBlock:
    arguments: list[DryValue]


class _DryRegion:
    """Enough of ``ir.Region`` for :meth:`Builder.loop` and :meth:`Builder.branch`."""

    @property
    def blocks(self) -> _DryRegion:
        return self

    def append(self, *types: ir.Type, arg_locs: Sequence[ir.Location] = ()) -> _DryBlock:
        return _DryBlock([DryValue(kind) for kind in types])


@dataclass
class _DryOp:
    results: list[DryValue]
    regions: list[_DryRegion]

    @property
    def result(self) -> DryValue:
        return self.results[0]


_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
