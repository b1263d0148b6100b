"""Faults put back into the code generator, each by changing the ops it creates.

Most faults are rules about single ops, applied where all kernels create them (:meth:`Builder.create`), so that they do
not depend on how templates are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from mlir import ir

from mlirstitch.lowering.kernel import body, combiner, fold, memory_access
from mlirstitch.lowering.kernel.builder import Builder
from mlirstitch.lowering.kernel.flat_kernel import FlatKernel
from mlirstitch.lowering.kernel.partials import Partials
from mlirstitch.lowering.kernel.reduction_kernel import ReductionKernel
from mlirstitch.lowering.kernel.staging import Staging


@dataclass(frozen=True)
class Op:
    """An op about to be created."""

    builder: Builder
    name: str
    results: Sequence[ir.Type]
    operands: Sequence[Any]
    attributes: dict[str, ir.Attribute] | None

    def constant(self, operand: int) -> Any:
        """The number that an operand is known to be, or None."""
        attribute = self.builder.attribute_of(self.operands[operand])
        return attribute.value if isinstance(attribute, ir.IntegerAttr | ir.FloatAttr) else None


Rule = Callable[[Op], "Op | None"]
"""What to create instead of an op; None: nothing (for ops without results)."""
Fault = Callable[[pytest.MonkeyPatch], None]


def rule(change: Rule) -> Fault:
    """The fault that changes every op a kernel consists of."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        create = Builder.create

        def faulty(builder, name, results, operands, attributes=None, regions=0):
            op = change(Op(builder, name, results, operands, attributes))
            return None if op is None else create(builder, op.name, op.results, op.operands, op.attributes, regions)

        patch.setattr(Builder, "create", faulty)

    return apply


def without(*names: str) -> Fault:
    """Leave all ops of some names out."""
    return rule(lambda op: None if op.name in names else op)


def renamed(old: str, new: str) -> Fault:
    """Create an op of another name."""
    return rule(lambda op: replace(op, name=new) if op.name == old else op)


def wrapped(owner: Any, name: str, change: Callable[..., Any]) -> Fault:
    """Call ``change(original, *arguments)`` instead of a function."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *arguments, **named: change(original, *arguments, **named))

    return apply


def only_barrier(kept: int) -> Fault:
    """Keep the first ``kept`` barriers of a kernel and leave the others out."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        seen: dict[int, int] = {}

        def change(op: Op) -> Op | None:
            if op.name != "gpu.barrier":
                return op
            seen[id(op.builder)] = seen.get(id(op.builder), 0) + 1
            return op if seen[id(op.builder)] <= kept else None

        rule(change)(patch)

    return apply


def _no_guard(original: Any, kernel: ReductionKernel, running_fold: Any, running: Any, col: Any, guard: Any) -> Any:
    return original(kernel, running_fold, running, col, None)


IDLE_LANES_COUNT = wrapped(ReductionKernel, "_accumulate", _no_guard)
"""Threads without an element of the row fold what their guarded load gave them."""

UNGUARDED_ACCESS = wrapped(
    memory_access.MemoryAccess, "_condition", lambda original, access, offset: (None, original(access, offset)[1])
)
"""Threads without an element access memory all the same."""

NO_REMAINDER = wrapped(FlatKernel, "_rest", lambda *_: None)
"""The elements that do not fill a chunk are left out."""


def neutral(merge: str, value: float) -> Fault:
    """Another neutral element of one combining op."""

    def change(original: Any, name: str, kind: Any) -> Any:
        return value if name == merge else original(name, kind)

    def apply(patch: pytest.MonkeyPatch) -> None:
        for module in (combiner, fold):
            wrapped(module, "neutral_element", change)(patch)

    return apply


def _double_distance(original: Any, builder: Builder, value: Any, distance: Any, mode: str = "xor") -> Any:
    wrong = distance * 2 % fold.WARP or 1 if isinstance(distance, int) else distance
    return original(builder, value, wrong, mode)


WRONG_LANE = wrapped(fold, "_shuffle32", _double_distance)
"""Threads fetch from another lane than the tree needs."""


def _narrow_shuffle(op: Op) -> Op:
    if op.name != "gpu.shuffle":
        return op
    half = op.builder.integer(fold.WARP // 2, op.builder.i32)
    return replace(op, operands=[op.operands[0], op.operands[1], half])


NARROW_SHUFFLE = rule(_narrow_shuffle)
"""Shuffles of half a warp in which the whole warp takes part."""


def _forget_ticket(op: Op) -> Op | None:
    resets = op.name == "memref.store" and str(op.operands[0].type) == "i32" and op.constant(0) == 0
    return None if resets else op


TICKET_KEPT = rule(_forget_ticket)
"""The last block does not put its ticket back."""


def _first_block_folds(original: Any, partials: Partials, evaluator: Any, ticket: Any, sharing: int, *rest: Any) -> Any:
    return original(partials, evaluator, ticket, 1, *rest)


FIRST_BLOCK_FOLDS = wrapped(Partials, "in_last_block", _first_block_folds)
"""The block that comes first folds the parts, before the others have left theirs."""


def _swap_sides(original: Any, running: fold.Fold, a: Any, b: Any) -> Any:
    return running.combine(b, a)


LAST_INDEX_WINS = wrapped(fold.Fold, "merge", _swap_sides)
"""Partial results of an index reduction are folded without regard to which stood first."""


def _contracting(op: Op) -> Op:
    if op.name not in ("arith.mulf", "arith.addf", "arith.subf"):
        return op
    flags = ir.Attribute.parse("#arith.fastmath<contract>")
    return replace(op, attributes={**(op.attributes or {}), "fastmath": flags})


CONTRACTED = rule(_contracting)
"""LLVM may form multiply-adds as it likes."""


def _rounded_twice(op: Op) -> Op:
    if op.name != "math.fma":
        return op
    product = op.builder.emit("arith.mulf", op.results[0], op.operands[:2])
    return Op(op.builder, "arith.addf", op.results, [product, op.operands[2]], None)


PRODUCT_ROUNDED = rule(_rounded_twice)
"""A fused multiply-add rounds its product before it adds."""


def cast_elided(patch: pytest.MonkeyPatch) -> None:
    """A value that was narrowed and widened again keeps the bits that the narrowing took away."""
    wide: dict[Any, Any] = {}

    def emit(original: Any, builder: Builder, name: str, operands: Any, result: Any, attributes: Any) -> Any:
        if name == "arith.extf" and operands[0] in wide:
            return wide[operands[0]]
        value = original(builder, name, operands, result, attributes)
        if name == "arith.truncf":
            wide[value] = operands[0]
        return value

    wrapped(body, "emit_op", emit)(patch)


def _through_f32(original: Any, builder: Builder, name: str, operands: Any, result: Any, attributes: Any) -> Any:
    if name not in ("math.log", "math.exp") or not isinstance(result, ir.F64Type):
        return original(builder, name, operands, result, attributes)
    f32 = ir.F32Type.get()
    narrow = [original(builder, "arith.truncf", operands, f32, {})]
    return original(builder, "arith.extf", [original(builder, name, narrow, f32, {})], result, {})


DOUBLE_BY_SINGLE = wrapped(body, "emit_op", _through_f32)
"""Functions of double precision are computed in single precision."""


def _aligned_at_will(op: Op) -> Op:
    if "alignment" not in (op.attributes or {}) or op.name not in ("vector.load", "vector.store"):
        return op
    most = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 16)
    return replace(op, attributes={**(op.attributes or {}), "alignment": most})


OVERSTATED_ALIGNMENT = rule(_aligned_at_will)
"""Vectors are said to be aligned to 16 bytes, whatever their offset."""


def root_by_llvm(patch: pytest.MonkeyPatch) -> None:
    """Square roots are left to LLVM, which approximates them."""
    patch.delitem(body._SPECIAL, "math.sqrt")


UNCLAMPED_INDEX = rule(
    lambda op: (
        replace(op, name="arith.maxsi", operands=[op.operands[0], op.operands[0]]) if op.name == "arith.minsi" else op
    )
)
"""A loaded index is not held inside the tensor it selects from."""


def _initial_in_every_thread(original: Any, kernel: ReductionKernel, running: Any, width: int) -> Any:
    values = [kernel._row_init(running, result) for result in running.combiner.results]
    return tuple(kernel.builder.broadcast(value, width) if width > 1 else value for value in values)


INITIAL_PER_THREAD = wrapped(ReductionKernel, "_initial", _initial_in_every_thread)
"""Every thread starts from the initial value, which then counts once a thread."""


def _first_place(original: Any, staging: Staging, builder: Builder, tensor: Any, at: Any) -> Any:
    return original(staging, builder, staging.tensors[0], at)


STAGED_TOGETHER = wrapped(Staging, "_address", _first_place)
"""All staged tensors lie at the start of shared memory."""

BOOL_IS_ITS_LOW_BIT = wrapped(
    body,
    "from_memory",
    lambda original, builder, value, element: (
        value
        if body.element_of(value.type) == element
        else builder.emit("arith.trunci", body.with_element(value, element), [value])
    ),
)
"""A byte is true if it is odd."""
