"""Which ops of a kernel LLVM computes, and where: a model of its elimination of dead code and common subexpressions.

A value that an op around has computed already, from the same operands, costs nothing. Neither does a value that nobody
uses. A value that is used under one condition only is computed there. A vector whose lanes are all the same is computed
once, as a scalar.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlir import ir

from mlirstitch.passes.structured import defining_op

LOADS = frozenset(("memref.load", "vector.load"))
BARRIERS = frozenset(("gpu.barrier", "nvvm.barrier", "nvvm.cluster.arrive", "nvvm.cluster.wait"))
_PURE = ("arith.", "math.", "vector.", "llvm.intr.", "gpu.thread_id", "gpu.block_id")
_IMPURE = frozenset(("vector.store", "vector.load"))
_COMMUTATIVE = frozenset(
    f"arith.{name}" for name in ("addf", "addi", "mulf", "muli", "andi", "ori", "xori", "maximumf", "minimumf")
)
_LINEAR = frozenset(("arith.addi", "arith.muli", "arith.divui", "arith.remui"))
_LANE_BY_LANE = ("arith.", "math.", "llvm.intr.")
_LOOPS = frozenset(("scf.for", "scf.while"))


def is_pure(op: ir.Operation) -> bool:
    """The op does nothing but compute its results from its operands."""
    return op.name.startswith(_PURE) and op.name not in _IMPURE


def is_constant(value: ir.Value) -> bool:
    """The value is a constant."""
    op = defining_op(value)
    return op is not None and op.name == "arith.constant"


def constant_of(value: ir.Value) -> int | None:
    """The number that a constant of an integer type is."""
    op = defining_op(value)
    if op is None or op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    return int(attribute.value) if isinstance(attribute, ir.IntegerAttr) else None


@dataclass(eq=False)
class Placement:
    """Which ops of a ``gpu.func`` are computed at all, and in which block.

    Attributes:
        live: ops whose results are used, or that do something.
        block: for a live op that computes or loads a value, the innermost block around all its users that is reached
            from the op without entering a loop; the op is moved down there. Loads are not moved past barriers.
    """

    live: set[ir.Operation] = field(default_factory=set)
    block: dict[ir.Operation, ir.Block] = field(default_factory=dict)
    _users: dict[ir.Value, ir.Block] = field(default_factory=dict)
    _paths: dict[ir.Block, tuple[ir.Block, ...]] = field(default_factory=dict)
    _repeated: set[ir.Block] = field(default_factory=set)
    _barriers: int = 0
    _behind: dict[ir.Value, int] = field(default_factory=dict)

    @staticmethod
    def of(kernel: ir.Operation) -> Placement:
        """The placement of the ops of a kernel."""
        found = Placement()
        for block in kernel.regions[0].blocks:
            found._walk(block, ())
        return found

    def _walk(self, block: ir.Block, around: tuple[ir.Block, ...]) -> None:
        """Go through a block, which lies in the blocks ``around``, from its end."""
        self._paths[block] = path = (*around, block)
        for view in reversed(list(block.operations)):
            op = view.operation
            for region in reversed(list(op.regions)):
                for inner in reversed(list(region.blocks)):
                    if op.name in _LOOPS:
                        self._repeated.add(inner)
                    self._walk(inner, path)
            self._place(op, block)

    def _place(self, op: ir.Operation, block: ir.Block) -> None:
        users = [self._users[result] for result in op.results if result in self._users]
        if not users and (is_pure(op) or op.name in LOADS):
            return
        self.live.add(op)
        if op.name in BARRIERS:
            self._barriers += 1
        loads = op.name in LOADS and self._behind[op.results[0]] == self._barriers
        if is_pure(op) or loads:
            block = self.block[op] = self._down(block, users)
        for operand in op.operands:
            self._behind[operand] = self._barriers
            known = self._users.get(operand, block)
            self._users[operand] = known if known == block else self._around(known, block)

    def _down(self, block: ir.Block, users: list[ir.Block]) -> ir.Block:
        """From a block down to all users, as far as there are no loops."""
        common = users[0]
        for user in users[1:]:
            common = self._around(common, user)
        path = self._paths[common]
        found = block
        for inner in path[path.index(block) + 1 :]:
            if inner in self._repeated:
                break
            found = inner
        return found

    def _around(self, first: ir.Block, second: ir.Block) -> ir.Block:
        """The innermost block around two."""
        pairs = zip(self._paths[first], self._paths[second], strict=False)
        return [one for one, other in pairs if one == other][-1]


class Numbering:
    """Gives equal values equal numbers, from the first op of a kernel to the last; scopes are blocks.

    An index that differs from another by a constant has the number of that one, and an offset: it costs nothing, for it
    becomes part of the access or the comparison that uses it.

    Args:
        read_only: memory that nothing writes while the kernel runs.
    """

    def __init__(self, read_only: Iterable[ir.Value]) -> None:
        self._read_only = frozenset(read_only)
        self._places: dict[ir.Value, tuple[int, int]] = {}
        self._known: list[dict[Hashable, list[int]]] = [{}]
        self._uniform: set[int] = set()
        self._count = 0

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is computed inside is not known outside."""
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()

    def is_known(self, op: ir.Operation) -> bool:
        """Number the results of an op, and say whether the same was computed before, up to a constant offset."""
        if not (is_pure(op) or self._is_fixed_load(op)):
            return False
        linear = self._linear(op)
        if linear is None:
            key, offset = self._key(op), 0
        elif isinstance(linear[0], int):
            self._places[op.results[0]] = linear[0], linear[1]
            return True
        else:
            key, offset = linear
        for known in reversed(self._known):
            if key in known:
                self._places.update((r, (n, offset)) for r, n in zip(op.results, known[key], strict=True))
                return True
        numbers = self._known[-1][key] = [self._new(result, offset) for result in op.results]
        if self._makes_uniform(op):
            self._uniform.update(numbers)
        return False

    def is_uniform(self, value: ir.Value) -> bool:
        """Whether a vector has the same value in all lanes."""
        return self.place(value)[0] in self._uniform

    def place(self, value: ir.Value) -> tuple[int, int]:
        """The number of a value, and by how much it differs from others of that number."""
        if value not in self._places:
            number = self._new(value, 0)
            if _is_splat(value):
                self._uniform.add(number)
        return self._places[value]

    def _is_fixed_load(self, op: ir.Operation) -> bool:
        return op.name in LOADS and op.operands[0] in self._read_only

    def _new(self, value: ir.Value, offset: int) -> int:
        self._count += 1
        self._places[value] = self._count, offset
        return self._count

    def _key(self, op: ir.Operation) -> Hashable:
        operands = [self.place(value) for value in op.operands]
        if op.name in _COMMUTATIVE:
            operands.sort()
        return op.name, tuple(operands), _attributes(op), tuple(result.type for result in op.results)

    def _linear(self, op: ir.Operation) -> tuple[Hashable, int] | None:
        """Key and offset of index arithmetic on values with an offset; None for other ops.

        The key is a number where nothing is left to compute.
        """
        if op.name not in _LINEAR or not isinstance(op.results[0].type, ir.IndexType):
            return None
        (first, more), (second, rest) = (self.place(value) for value in op.operands)
        constants = [constant_of(value) for value in op.operands]
        if op.name == "arith.addi":
            for constant, number, offset in ((constants[1], first, more), (constants[0], second, rest)):
                if constant is not None:
                    return number, offset + constant
            return (op.name, *sorted((first, second))), more + rest
        factor = constants[1]
        if factor is None:
            return None
        key = (op.name, first, factor)
        if op.name == "arith.muli":
            return key, more * factor
        if more % factor or factor & (factor - 1):  # only bits that do not carry
            return None
        return key, more // factor if op.name == "arith.divui" else 0

    def _makes_uniform(self, op: ir.Operation) -> bool:
        if op.name == "vector.broadcast":
            return True
        if op.name == "arith.constant":
            return _is_splat(op.results[0])
        vectors = [value for value in op.operands if isinstance(value.type, ir.VectorType)]
        return op.name.startswith(_LANE_BY_LANE) and bool(vectors) and all(map(self.is_uniform, vectors))


def _attributes(op: ir.Operation) -> tuple[Any, ...]:
    return tuple((name, op.attributes[name]) for name in op.attributes if name != "alignment")


def _is_splat(value: ir.Value) -> bool:
    op = defining_op(value)
    if op is None or op.name != "arith.constant":
        return False
    attribute = op.attributes["value"]
    return isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat
