"""Template ``loop_nest``: compiles everything else, correctly if slowly. A thread computes one element of each output.

A reduction becomes loops inside the thread: contractions, convolutions, poolings, reductions over leading or middle
dims, index reductions of any form. Floating-point sums are blocked: runs of at most ``BLOCK`` terms are summed from
zero and their sums are added, level by level (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), so
that long sums neither stall nor lose more than a blocked BLAS does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.analysis import build_program
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.combiner import results_together
from mlirstitch.lowering.kernel.evaluate import Evaluator
from mlirstitch.lowering.kernel.flat_kernel import FlatKernel, FlatLayout, dry_kernel, flat_elements
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.index_expr import ZERO, Expr, Symbol, symbol
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel, schemes_of
from mlirstitch.lowering.kernel.linalg_body import LinalgOp
from mlirstitch.lowering.kernel.schedule_checks import check_flat_schedule
from mlirstitch.lowering.kernel.tensor_program import Computed, Indices, TensorProgram
from mlirstitch.lowering.kernel.variants import powers_of_two
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

THREADS = 128
BLOCK = 128
"""Longest run of terms that is summed one after the other."""


LoopBody = Callable[[Expr, list[Value]], list[Value]]
"""From the loop index and the running values to the new running values."""


@dataclass(frozen=True)
class LoopNestTemplate(KernelTemplate[int, FlatLayout]):
    """Everything that is computed element by element, reductions included. The space is the size of every output."""

    name: str = "loop_nest"

    def space(self, program: TensorProgram) -> int:
        """Elements of every output."""
        return flat_elements(program)

    def check(self, program: TensorProgram, space: int, target: Target) -> None:
        """Refuse reductions that would be computed more than once, and values that cannot be computed."""
        _run_dry(program, space, LoopReductions(checked=True))

    def layouts(self, program: TensorProgram, space: int, target: Target) -> Sequence[FlatLayout]:
        """A thread per element."""
        return [FlatLayout.over(space, 1, 1, THREADS, target.sms)]

    def variants(self, program: TensorProgram, space: int, target: Target) -> Iterator[FlatLayout]:
        """Other block sizes."""
        for threads in powers_of_two(WARP, target.max_threads_per_block):
            blocks = -(-space // threads)
            if threads < space + WARP and blocks <= GRID_X_LIMIT:
                yield FlatLayout(space, threads, blocks, 1, 1)

    def schedule(self, cluster: Cluster, space: int, layout: FlatLayout) -> Schedule:
        """The schedule that describes a layout."""
        nodes = build_program(cluster).nodes.values()
        roots = [node for node in nodes if isinstance(node, Computed) and node.is_reduction]
        return layout.schedule(self.name, schemes_of(cluster, [(node, "thread") for node in roots]))

    def layout(self, program: TensorProgram, space: int, schedule: Schedule, target: Target) -> FlatLayout:
        """The layout that a schedule describes."""
        check_flat_schedule(schedule, space, target, widest=1)
        return FlatLayout.of(schedule, space)

    def body(self, kernel: OpenKernel, space: int, layout: FlatLayout) -> None:
        """Emit the body. A dry run tells where every reduction is asked for."""
        asked = LoopReductions()
        _run_dry(kernel.program, space, asked)
        reductions = LoopReductions(planned=asked.places)
        reductions.evaluator = kernel.evaluator
        kernel.evaluator.reduce = reductions.value
        FlatKernel(kernel.program, layout, kernel.evaluator).emit()


def _run_dry(program: TensorProgram, elements: int, reductions: LoopReductions) -> None:
    kernel = dry_kernel(program, FlatLayout(elements, THREADS, 1, 1, 1), reductions.value)
    reductions.evaluator = kernel.evaluator
    kernel.emit()


@dataclass(eq=False)
class LoopReductions:
    """Computes reductions by loops where they are asked for.

    ``checked``: refuse a reduction that would be computed more often than it has elements, or inside another one.
    ``planned``: the places at which each op is known to be asked for (``places`` of a dry run); they share one nest, so
    that what several places read is loaded once (the gates of a recurrent cell are slices of one product).
    """

    checked: bool = False
    planned: dict[int, list[Indices]] = field(default_factory=dict)
    places: dict[int, list[Indices]] = field(default_factory=dict)
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
        if node.is_scan:
            raise refusal(linalg.op, "is a scan")
        parallel = linalg.parallel_point(node.result, indices)
        key = ("reduction", id(linalg), parallel, node.result)
        known = builder.scope.find(key)
        if known is not None:
            return known
        if self.checked:
            self._check(node)
        together = [parallel]
        if self._is_unconditional():
            self.places.setdefault(id(linalg), []).append(parallel)
            planned = self.planned.get(id(linalg), [])
            together = planned if parallel in planned else together
        nest = _Nest(self, node, together, self._wanted(linalg))
        outer, self._inside = self._inside, linalg
        values = nest.emit()
        self._inside = outer
        for place, found in zip(together, values, strict=True):
            for result, value in zip(nest.results, found, strict=True):
                builder.scope.memo["reduction", id(linalg), place, result] = value
        return builder.scope.memo[key]

    def _is_unconditional(self) -> bool:
        """Whether the value is asked for once for every element of the output, not in a branch or another loop."""
        scope = self.evaluator.builder.scope
        return scope.parent is None or scope.parent.parent is None

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
    """The loops of one reduction at some points of its parallel dims. Running values are lists, one entry a point."""

    owner: LoopReductions
    node: Computed
    points: list[Indices]
    results: tuple[int, ...]

    def emit(self) -> list[list[Value]]:
        """For each point the final running values of ``results``."""
        extents = self.linalg.reduction_extents
        dims = [(extent, position) for position, extent in enumerate(extents) if extent != 1]
        reduction: list[Expr] = [ZERO] * len(extents)
        initial = [[self._initial(point, result) for result in self.results] for point in self.points]
        terms = self._added_terms()
        if terms is None:
            flat = self._fold(dims, reduction, [value for values in initial for value in values])
            count = len(self.results)
            return [flat[i * count : (i + 1) * count] for i in range(len(self.points))]
        starts = [values[0] for values in initial]
        totals = starts if 0 in extents else self._add(starts, self._sum(dims, reduction, terms))
        return [[total] for total in totals]

    @property
    def linalg(self) -> LinalgOp:
        """The op."""
        return self.node.linalg

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator."""
        return self.owner.evaluator

    def _initial(self, point: Indices, result: int) -> Value:
        operand = len(self.linalg.inputs) + result
        loop = self.linalg.loop_indices(point, [ZERO] * len(self.linalg.reduction_extents))
        return self.evaluator.get(self.node.operands[operand], self.linalg.operand_indices(operand, loop))

    # Any body: carried through all loops ------------------------------------------------------------------------

    def _fold(self, dims: list[tuple[int, int]], reduction: list[Expr], running: list[Value]) -> list[Value]:
        if not dims:
            return self._step(reduction, running)
        (extent, position), rest = dims[0], dims[1:]

        def body(index: Expr, carried: list[Value]) -> list[Value]:
            return self._fold(rest, _at(reduction, position, index), carried)

        return self._loop(extent, running, body)

    def _step(self, reduction: list[Expr], running: list[Value]) -> list[Value]:
        first, count = len(self.linalg.inputs), len(self.results)
        roots = [self.linalg.body.yields[result] for result in self.results]
        taken: list[Value] = []
        for point in self.points:
            own = running[len(taken) : len(taken) + count]
            known = {first + result: value for result, value in zip(self.results, own, strict=True)}
            taken += self.evaluator.run_body(self.node, roots, self.linalg.loop_indices(point, reduction), known)
        return taken

    # Sums: every level starts from zero -------------------------------------------------------------------------

    def _added_terms(self) -> tuple[int, ...] | None:
        """Body slots of what one iteration of a float sum adds: a term, or two factors. None for other bodies."""
        if len(self.results) != 1 or isinstance(self.node.element, ir.IntegerType):
            return None
        body = self.linalg.body
        running = len(self.linalg.inputs) + self.results[0]
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
        if running in slots or not terms:
            return None
        product = producers.get(terms[0])
        wide = isinstance(self.node.element, ir.F32Type | ir.F64Type)
        if len(terms) == 1 and product is not None and product.name == "arith.mulf" and wide:
            # A contraction multiplies and adds in one rounding, as the libraries that eager calls do.
            return product.operands if self.linalg.is_contraction_like else terms
        return terms

    def _sum(self, dims: list[tuple[int, int]], reduction: list[Expr], terms: tuple[int, ...]) -> list[Value]:
        """The sums over ``dims``, from zero."""
        zeros = [self.evaluator.builder.number(0.0, self.node.element)] * len(self.points)
        if not dims:
            return self._take(terms, reduction, zeros)
        (extent, position), rest = dims[0], dims[1:]

        def body(index: Expr, carried: list[Value]) -> list[Value]:
            inner = _at(reduction, position, index)
            if not rest:
                return self._take(terms, inner, carried)
            return self._add(carried, self._sum(rest, inner, terms))

        return self._blocked(extent, zeros, body)

    def _take(self, terms: tuple[int, ...], reduction: list[Expr], running: list[Value]) -> list[Value]:
        taken: list[Value] = []
        builder, element = self.evaluator.builder, self.node.element
        for point, value in zip(self.points, running, strict=True):
            values = self.evaluator.run_body(self.node, terms, self.linalg.loop_indices(point, reduction), {})
            if len(values) == 2:
                taken.append(scalar_ops.emit_op(builder, "math.fma", [*values, value], element, {}))
            else:
                taken += self._add([value], values)
        return taken

    def _add(self, left: list[Value], right: list[Value]) -> list[Value]:
        builder = self.evaluator.builder
        builder.location = self.linalg.op.location
        return [builder.emit("arith.addf", self.node.element, [x, y]) for x, y in zip(left, right, strict=True)]

    # Loops ------------------------------------------------------------------------------------------------------

    def _loop(self, extent: int, initial: list[Value], body: LoopBody) -> list[Value]:
        builder = self.evaluator.builder
        name = self.owner.new_symbol(extent)
        bounds = (builder.index_constant(0), builder.index_constant(extent), builder.index_constant(1))
        return builder.loop(name, bounds, extent, initial, lambda _, carried: body(name.expr, carried))

    def _blocked(self, extent: int, zeros: list[Value], body: LoopBody) -> list[Value]:
        """Sum ``body`` over ``range(extent)`` in runs of at most ``BLOCK``, the runs likewise."""
        if extent <= BLOCK:
            return self._loop(extent, zeros, body)
        steps = [BLOCK]
        while steps[-1] * BLOCK < extent:
            steps.append(steps[-1] * BLOCK)
        builder = self.evaluator.builder
        name = self.owner.new_symbol(extent)
        limits = (builder.index_constant(0), builder.index_constant(extent))
        return self._run(name, steps, limits, Fraction(extent), zeros, body)

    def _run(
        self,
        name: Symbol,
        steps: list[int],
        limits: tuple[Value, Value],
        extent: Fraction,
        zeros: list[Value],
        body: LoopBody,
    ) -> list[Value]:
        """Sum over ``range(*limits)``, on average ``extent`` long, in runs of the largest step, or one by one."""
        builder = self.evaluator.builder
        if not steps:
            bounds = (*limits, builder.index_constant(1))
            return builder.loop(name, bounds, extent, zeros, lambda _, carried: body(name.expr, carried))
        step = steps[-1]
        runs = math.ceil(extent / step)

        def run(start: Value, carried: list[Value]) -> list[Value]:
            end = builder.arith("minui", builder.arith("addi", start, builder.index_constant(step)), limits[1])
            return self._add(carried, self._run(name, steps[:-1], (start, end), extent / runs, zeros, body))

        return builder.loop(None, (*limits, builder.index_constant(step)), runs, zeros, run)


def _at(reduction: list[Expr], position: int, index: Expr) -> list[Expr]:
    """``reduction`` with one index replaced."""
    return [index if i == position else old for i, old in enumerate(reduction)]
