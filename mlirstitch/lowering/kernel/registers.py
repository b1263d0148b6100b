"""How many registers a kernel needs: an estimate by liveness over the structured ``gpu.func``.

Values are live from where they are computed to their last use; values that a loop reads from outside are live through
all of it. The estimate is the largest sum of the sizes of live values, plus what every kernel needs (addresses, the
frame of an instruction under way). What costs no register is left out: constants, kernel arguments (they lie in the
constant bank), offsets that differ from another by a constant (an access has an immediate offset), conditions.

``ptxas`` reorders instructions, so the estimate can be off both ways: measured against it over the kernels of all
benchmark workloads it is between 0.5 and 2 times what ptxas takes (``tests/driver/test_register_estimate.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.dialects.walk import walk
from mlirstitch.passes.structured import defining_op

OVERHEAD = 8
"""Registers for addresses and for instructions under way."""

UNROLLED = 16
MOST_AHEAD = 32
"""``ptxas`` unrolls an innermost loop so many times and loads ahead, into at most so many registers."""

MOST_HOISTED = 12
"""Registers for loads of straight code that are moved up before any use, where it has so many."""

_LOADS = ("memref.load", "vector.load", "llvm.load")

_FREE_OPS = frozenset(
    ("arith.constant", "memref.get_global", "memref.reinterpret_cast", "memref.view", "llvm.mlir.addressof")
)
"""Ops whose results are immediate operands, or are made again wherever they are needed."""

_FORWARDING = frozenset(
    (
        *("arith.index_cast", "arith.bitcast", "llvm.getelementptr"),
        *("vector.extract", "vector.broadcast", "vector.from_elements"),
    )
)
"""Ops whose result is a part or another name of their operands."""


def estimate_registers(function: ir.Operation, ahead: bool = True) -> int:
    """Registers of 32 bits that a thread of a ``gpu.func`` needs, about.

    ``ahead``: with those that loops fill with loads for later iterations. ``ptxas`` unrolls a loop no further than the
    registers that a block can have allow, so a kernel runs without them.
    """
    counter = _Liveness(ahead=ahead)
    counter.prepare(function)
    early, late = (counter.run(function, late_loads) for late_loads in (False, True))
    hoisted = min(MOST_HOISTED, -(-max(0, early - late) // 2))
    return OVERHEAD + max(late + hoisted, min(MOST_HOISTED, _most_loaded(function)))


@dataclass(eq=False)
class _Liveness:
    """Walks blocks backwards with the set of live values."""

    late_loads: bool = False
    ahead: bool = True
    peak: int = 0
    _sizes: dict[ir.Value, int] = field(default_factory=dict)
    _names: dict[ir.Value, tuple[ir.Value, ...]] = field(default_factory=dict)
    _indices: dict[tuple[ir.Block, str, tuple[ir.Value, ...]], ir.Value] = field(default_factory=dict)
    _equal: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def prepare(self, function: ir.Operation) -> None:
        """Find the size of every value, and what a value without a register of its own stands for."""
        for op in walk(function):
            known = self._find_equal(op)
            for result in op.results:
                if known is None:
                    self._prepare(op, result)
                else:
                    self._names[result] = self._of(known)

    def run(self, function: ir.Operation, late_loads: bool) -> int:
        """Registers where most are live, with loads where they stand, or moved down to their first users."""
        self.late_loads, self.peak = late_loads, 0
        self.block(function.regions[0].blocks[0], {})
        return self.peak

    def _find_equal(self, op: ir.Operation) -> ir.Value | None:
        """The result of an op of the same block that computes the same index; LLVM keeps one of the two."""
        if not op.name.startswith("arith.") or len(op.results) != 1 or op.name == "arith.constant":
            return None
        if not isinstance(op.results[0].type, ir.IndexType):
            return None
        key = (op.block, op.name, tuple(self._equal.get(operand, operand) for operand in op.operands))
        known = self._indices.setdefault(key, op.results[0])
        self._equal[op.results[0]] = known
        return None if known == op.results[0] else known

    def _prepare(self, op: ir.Operation, result: ir.Value) -> None:
        if op.name in _FREE_OPS:
            self._names[result] = ()
        elif op.name in _FORWARDING or self._is_offset(op):
            self._names[result] = tuple(name for operand in op.operands for name in self._of(operand))
        else:
            self._sizes[result] = _size(result.type)

    def _is_offset(self, op: ir.Operation) -> bool:
        """Whether an index is another one plus a constant."""
        if op.name != "arith.addi" or not isinstance(op.results[0].type, ir.IndexType):
            return False
        return any(self._names.get(operand) == () for operand in op.operands)

    def _of(self, value: ir.Value) -> tuple[ir.Value, ...]:
        return self._names.get(value, (value,))

    def block(self, block: ir.Block, live: dict[ir.Value, None]) -> dict[ir.Value, None]:
        """Go through a block whose end is reached with ``live``; returns what is live at its start."""
        live = dict(live)
        ops = _with_late_loads(block) if self.late_loads else [op.operation for op in block.operations]
        for op in reversed(ops):
            self._op(op, live)
        return live

    def _op(self, op: ir.Operation, live: dict[ir.Value, None]) -> None:
        for result in op.results:
            live.pop(result, None)
        results = sum(self._sizes.get(result, 0) for result in op.results)
        if op.name == "scf.for":
            self._loop(op, live)
        else:
            for region in op.regions:
                for block in region.blocks:
                    live.update(self.block(block, live))
        self._use(op, live)
        self.peak = max(self.peak, results + sum(self._sizes.get(value, 0) for value in live))

    def _loop(self, op: ir.Operation, live: dict[ir.Value, None]) -> None:
        block = op.regions[0].blocks[0]
        for inner in walk(op):
            if inner != op:
                self._use(inner, live)
        for argument in block.arguments:
            self._sizes[argument] = _size(argument.type)
        inside = {value for inner in walk(op) if inner != op for value in inner.results} | set(block.arguments)
        for value in [value for value in live if value in inside]:
            del live[value]
        live = dict(live)
        ahead = _loads_ahead(op) if self.ahead else 0
        before, self.peak = self.peak, 0
        self.block(block, live)
        self.peak = max(before, self.peak + ahead)

    def _use(self, op: ir.Operation, live: dict[ir.Value, None]) -> None:
        for operand in op.operands:
            for name in self._of(operand):
                live[name] = None


def _with_late_loads(block: ir.Block) -> list[ir.Operation]:
    """The ops of a block, loads moved down to their first user: ``ptxas`` does so where registers are short."""
    ops = [op.operation for op in block.operations]
    loads = {op.results[0]: op for op in ops if op.name in _LOADS}
    ordered: list[ir.Operation] = []
    for op in ops:
        if op.name in _LOADS:
            continue
        for inner in walk(op) if op.regions else (op,):
            for operand in inner.operands:
                if operand in loads:
                    ordered.append(loads.pop(operand))
        ordered.append(op)
    return ordered


def _most_loaded(function: ir.Operation) -> int:
    """Registers that the loads of one block fill, where they are most."""
    loaded: dict[ir.Block, int] = {}
    for op in walk(function):
        if op.name in _LOADS:
            loaded[op.block] = loaded.get(op.block, 0) + _size(op.results[0].type)
    return max(loaded.values(), default=0)


def loads_ahead(function: ir.Operation) -> int:
    """Registers that loops of a kernel may fill with loads for later iterations."""
    return max((_loads_ahead(op) for op in walk(function) if op.name == "scf.for"), default=0)


def _loads_ahead(loop: ir.Operation) -> int:
    """Registers for what an innermost loop, unrolled with the short ones around it, loads for later iterations."""
    inner = [op for op in walk(loop) if op != loop]
    if any(op.name in ("scf.for", "gpu.shuffle", "gpu.barrier") for op in inner):
        return 0
    copies, around = _trips(loop), loop.parent
    while around is not None and around.name == "scf.for" and copies < UNROLLED:
        copies *= _trips(around.operation)
        around = around.parent
    loads = sum(_size(op.results[0].type) for op in inner if op.name in _LOADS)
    return min(MOST_AHEAD, loads * (min(copies, UNROLLED) - 1))


def _trips(loop: ir.Operation) -> int:
    """Iterations of a loop; many, if its bounds are no constants."""
    bounds: list[int] = []
    for operand in list(loop.operands)[:3]:
        op = defining_op(operand)
        if op is None or op.name != "arith.constant":
            return UNROLLED
        bounds.append(ir.IntegerAttr(op.attributes["value"]).value)
    return -(-(bounds[1] - bounds[0]) // bounds[2])


def _size(kind: ir.Type) -> int:
    """Registers that a value takes."""
    if isinstance(kind, ir.VectorType):
        lanes = 1
        for extent in kind.shape:
            lanes *= extent
        if isinstance(kind.element_type, ir.F16Type | ir.BF16Type):
            return -(-lanes // 2)
        return lanes * _size(kind.element_type)
    if isinstance(kind, ir.MemRefType):
        return 0
    if isinstance(kind, ir.IndexType):
        return 1
    if isinstance(kind, ir.IntegerType | ir.FloatType):
        return 0 if kind.width == 1 else -(-kind.width // 32)
    return 2
