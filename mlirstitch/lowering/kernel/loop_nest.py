"""Template ``loop_nest``: compiles everything else, correctly if slowly. A thread computes one element of each output.

A reduction becomes loops inside the thread: contractions, convolutions, poolings, reductions over leading or middle
dims, index reductions of any form. Floating-point sums are blocked: runs of at most ``BLOCK`` terms are summed from
zero and their sums are added, level by level (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), so
that long sums neither stall nor lose more than a blocked BLAS does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.combiner import results_together
from mlirstitch.lowering.kernel.evaluate import Evaluator
from mlirstitch.lowering.kernel.flat_kernel import FlatLayout, dry_kernel, flat_elements, open_kernel
from mlirstitch.lowering.kernel.index_expr import ZERO, Expr, Symbol, symbol
from mlirstitch.lowering.kernel.linalg_body import LinalgOp
from mlirstitch.lowering.kernel.tensor_program import Computed, Indices
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

THREADS = 128
BLOCK = 128
"""Longest run of terms that is summed one after the other."""


@dataclass(frozen=True)
class LoopNestTemplate:
    """Everything that is computed element by element, reductions included."""

    name: str = "loop_nest"

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if all outputs have one size and no reduction would be computed more than once, else why not."""
        try:
            program = build_program(cluster)
            check_program(program)
            layout = FlatLayout(flat_elements(program), THREADS, 1, 1, 1)
            reductions = LoopReductions(checked=True)
            kernel = dry_kernel(program, layout, reductions.value)
            reductions.evaluator = kernel.evaluator
            kernel.emit()
        except PassError as error:
            return error.message
        return None

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """The one schedule: a thread per element."""
        program = build_program(cluster)
        layout = FlatLayout.over(flat_elements(program), 1, 1, THREADS, target.sms)
        positions = {op: i for i, op in enumerate(cluster.ops)}
        roots = [n.op for n in program.nodes.values() if isinstance(n, Computed) and n.is_reduction]
        schemes = sorted({positions[op] for op in roots if op is not None and op in positions})
        return [layout.schedule(self.name, tuple((position, "thread") for position in schemes))]

    def emit(self, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
        """Create the kernel. Raises :class:`PassError` for what :meth:`applies` refuses."""
        program = build_program(cluster)
        reductions = LoopReductions()
        function, kernel = open_kernel(cluster, program, schedule, name, reductions.value)
        reductions.evaluator = kernel.evaluator
        kernel.emit()
        return function.finish(kernel.evaluator.accesses.bytes)


@dataclass(eq=False)
class LoopReductions:
    """Computes reductions by loops where they are asked for.

    ``checked``: refuse a reduction that would be computed more often than it has elements, or inside another one.
    """

    checked: bool = False
    _evaluator: Evaluator | None = None
    _loops: int = 0
    _inside: LinalgOp | None = None
    _computed: dict[int, Fraction] = field(default_factory=dict)

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator that asks; to be set before the first question."""
        if self._evaluator is None:
            raise TypeError("the evaluator is not set")
        return self._evaluator

    @evaluator.setter
    def evaluator(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def value(self, node: Computed, indices: Indices) -> Value:
        """The element ``indices`` of a reduction's result."""
        builder = self.evaluator.builder
        linalg = node.linalg
        parallel = linalg.parallel_point(node.result, indices)
        key = ("reduction", id(linalg), parallel, node.result)
        known = builder.scope.find(key)
        if known is not None:
            return known
        if self.checked:
            self._check(node)
        nest = _Nest(self, node, parallel, self._wanted(linalg))
        outer, self._inside = self._inside, linalg
        values = nest.emit()
        self._inside = outer
        for result, value in zip(nest.results, values, strict=True):
            builder.scope.memo["reduction", id(linalg), parallel, result] = value
        return builder.scope.memo[key]

    def _wanted(self, linalg: LinalgOp) -> tuple[int, ...]:
        """The results of an op that the cluster uses, with those they depend on: computed in the same loops."""
        found: set[int] = set()
        for node in self.evaluator.program.nodes.values():
            if isinstance(node, Computed) and node.linalg is linalg:
                found.update(results_together(linalg, node.result))
        return tuple(sorted(found))

    def new_symbol(self, extent: int) -> Symbol:
        """A loop variable."""
        self._loops += 1
        return symbol(f"k{self._loops}", extent)

    def _check(self, node: Computed) -> None:
        linalg = node.linalg
        if self._inside is not None:
            raise refusal(linalg.op, f"feeds the reduction {self._inside.op.name} and would be computed in its loop")
        total = self._computed.get(id(linalg), Fraction()) + self.evaluator.builder.scope.executions
        self._computed[id(linalg)] = total
        if total > max(1, node.elements):
            times = math.ceil(total / max(1, node.elements))
            raise refusal(linalg.op, f"would be computed {times} times, once for each element that reads it")


@dataclass(eq=False)
class _Nest:
    """The loops of one reduction at one point of its parallel dims."""

    owner: LoopReductions
    node: Computed
    parallel: Indices
    results: tuple[int, ...]

    def emit(self) -> list[Value]:
        """The final running values of ``results``."""
        linalg = self.linalg
        initial = [self._initial(result) for result in self.results]
        dims = [(extent, position) for position, extent in enumerate(linalg.reduction_extents)]
        reduction: list[Expr] = [ZERO] * len(dims)
        if self._is_float_sum():
            return [self._sum(dims, reduction, initial[0])]
        return self._fold(dims, reduction, initial)

    @property
    def linalg(self) -> LinalgOp:
        """The op."""
        return self.node.linalg

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator."""
        return self.owner.evaluator

    def _loop_indices(self, reduction: Sequence[Expr]) -> tuple[Expr, ...]:
        return self.linalg.loop_indices(self.parallel, reduction)

    def _initial(self, result: int) -> Value:
        operand = len(self.linalg.inputs) + result
        loop = self._loop_indices([ZERO] * len(self.linalg.reduction_extents))
        return self.evaluator.get(self.node.operands[operand], self.linalg.operand_indices(operand, loop))

    def _running_slots(self) -> list[int]:
        return [len(self.linalg.inputs) + result for result in self.results]

    # Any body: carried through all loops ------------------------------------------------------------------------

    def _fold(self, dims: list[tuple[int, int]], reduction: list[Expr], running: list[Value]) -> list[Value]:
        if not dims:
            known = dict(zip(self._running_slots(), running, strict=True))
            roots = [self.linalg.body.yields[result] for result in self.results]
            return self.evaluator.run_body(self.node, roots, self._loop_indices(reduction), known)
        (extent, position), rest = dims[0], dims[1:]
        if extent == 1:
            return self._fold(rest, reduction, running)

        def body(index: Expr, carried: list[Value]) -> list[Value]:
            inner = list(reduction)
            inner[position] = index
            return self._fold(rest, inner, carried)

        return self._loop(extent, running, body)

    # Sums: every level starts from zero -------------------------------------------------------------------------

    def _is_float_sum(self) -> bool:
        """Whether the body is ``acc + term`` (or ``fma(x, y, acc)``) on floats."""
        return self._adding() is not None and not isinstance(self.node.element, ir.IntegerType)

    def _adding(self) -> tuple[int, ...] | None:
        """Slots of the term, or of the two factors, that one iteration adds; None if the body does anything else."""
        if len(self.results) != 1:
            return None
        body = self.linalg.body
        (running,) = self._running_slots()
        producers = {op.result: op for op in body.ops}
        last = producers.get(body.yields[self.results[0]])
        if last is None or running not in last.operands:
            return None
        if last.name == "math.fma" and last.operands[2] == running:
            terms = last.operands[:2]
        elif last.name == "arith.addf":
            terms = tuple(slot for slot in last.operands if slot != running)
        else:
            return None
        _, slots = body.needed(terms, frozenset())
        if running in slots or len(terms) == 0:
            return None
        factors = producers.get(terms[0])
        wide = isinstance(self.node.element, ir.F32Type | ir.F64Type)
        if len(terms) == 1 and factors is not None and factors.name == "arith.mulf" and wide:
            # A contraction multiplies and adds in one rounding, as the libraries that eager calls do.
            return factors.operands if self.linalg.is_contraction_like else terms
        return terms

    def _sum(self, dims: list[tuple[int, int]], reduction: list[Expr], start: Value) -> Value:
        """``start`` plus the sum over ``dims``."""
        inner = [(extent, position) for extent, position in dims if extent != 1]
        if 0 in self.linalg.reduction_extents:
            return start
        total = self._sum_level(inner, reduction, None)
        return self._add(start, total)

    def _sum_level(self, dims: list[tuple[int, int]], reduction: list[Expr], running: Value | None) -> Value:
        """The sum over ``dims``, added to ``running`` if there is one (else from zero)."""
        builder = self.evaluator.builder
        zero = builder.number(0.0, self.node.element)
        if not dims:
            return self._term(reduction, zero if running is None else running)
        (extent, position), rest = dims[0], dims[1:]

        def body(index: Expr, carried: list[Value]) -> list[Value]:
            inner = list(reduction)
            inner[position] = index
            if not rest:
                return [self._term(inner, carried[0])]
            return [self._add(carried[0], self._sum_level(rest, inner, None))]

        total = self._blocked(extent, zero, body)
        return total if running is None else self._add(running, total)

    def _term(self, reduction: Sequence[Expr], running: Value) -> Value:
        terms = self._adding()
        if terms is None:
            raise TypeError("not a sum")
        values = self.evaluator.run_body(self.node, terms, self._loop_indices(reduction), {})
        if len(values) == 2:
            return scalar_ops.emit_op(self.evaluator.builder, "math.fma", [*values, running], self.node.element, {})
        return self._add(running, values[0])

    def _add(self, left: Value, right: Value) -> Value:
        builder = self.evaluator.builder
        builder.location = self.linalg.op.location
        return builder.emit("arith.addf", self.node.element, [left, right])

    # Loops ------------------------------------------------------------------------------------------------------

    def _loop(self, extent: int, initial: list[Value], body: Callable[[Expr, list[Value]], list[Value]]) -> list[Value]:
        builder = self.evaluator.builder
        name = self.owner.new_symbol(extent)
        bounds = (builder.index_constant(0), builder.index_constant(extent), builder.index_constant(1))
        return builder.loop(name, bounds, extent, initial, lambda _, carried: body(name.expr, carried))

    def _blocked(self, extent: int, zero: Value, body: Callable[[Expr, list[Value]], list[Value]]) -> Value:
        """Sum ``body`` over ``range(extent)`` in runs of at most ``BLOCK``, the runs likewise."""
        if extent <= BLOCK:
            return self._loop(extent, [zero], body)[0]
        steps = [BLOCK]
        while steps[-1] * BLOCK < extent:
            steps.append(steps[-1] * BLOCK)
        builder = self.evaluator.builder
        name = self.owner.new_symbol(extent)
        return self._run(
            name, steps, builder.index_constant(0), builder.index_constant(extent), Fraction(extent), zero, body
        )

    def _run(
        self,
        name: Symbol,
        steps: list[int],
        low: Value,
        high: Value,
        extent: Fraction,
        zero: Value,
        body: Callable[[Expr, list[Value]], list[Value]],
    ) -> Value:
        """Sum over ``range(low, high)``, on average ``extent`` long, in runs of the largest step, or one by one."""
        builder = self.evaluator.builder
        if not steps:
            bounds = (low, high, builder.index_constant(1))
            return builder.loop(name, bounds, extent, [zero], lambda _, carried: body(name.expr, carried))[0]
        step = steps[-1]
        runs = math.ceil(extent / step)

        def run(start: Value, carried: list[Value]) -> list[Value]:
            end = builder.arith("minui", builder.arith("addi", start, builder.index_constant(step)), high)
            inner = self._run(name, steps[:-1], start, end, extent / runs, zero, body)
            return [self._add(carried[0], inner)]

        bounds = (low, high, builder.index_constant(step))
        return builder.loop(None, bounds, runs, [zero], run)[0]
