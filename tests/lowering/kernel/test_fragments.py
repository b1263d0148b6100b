"""The core serves groups that are no rows: accumulator fragments of a contraction, with reductions and an epilogue.

A warp owns a tile of 16 rows and 64 columns in the way of matrix instructions: 8 lanes share a row, and a thread holds
pieces of two neighbouring columns of four rows. The group below asks the evaluator for its left operand, whatever
computes it, and hands its accumulators to whoever asks for the product; reductions, folds, epilogue and stores are
those of every other kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from kernel_harness import build, moved_bytes, random_array

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial
from mlirstitch.lowering.kernel.index_expr import Expr, symbol
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel
from mlirstitch.lowering.kernel.reduction_kernel import ReductionKernel, Thread
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.tensor_program import Argument, Computed, Node, TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

TILE = 16
LANES = 8
ROWS_PER_THREAD = TILE * LANES // WARP


@dataclass(frozen=True)
class FragmentLayout:
    """A warp per tile; see the module's documentation."""

    lanes: int = LANES
    resident: bool = True
    unroll: int = 1
    splits: int = 1
    vector: int = 2
    threads: int = WARP


@dataclass(frozen=True)
class Product:
    """``left @ right``, handed to whoever reads argument ``result``."""

    left: Node
    right: Node
    result: Node


class FragmentKernel(ReductionKernel):
    """Four rows a thread, one after the other, each shared by eight lanes."""

    product: Product | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tile = symbol("tile", self.space.rows // TILE)
        self._eighth = symbol("eighth", WARP // LANES)
        self._fragment = 0
        self._accumulators: dict[tuple[int, Expr], Value] = {}
        self.evaluator.staged = self._accumulated

    @property
    def chunks(self) -> int:
        return self.space.cols // self.layout.vector

    @property
    def row(self) -> Expr:
        return self._tile.expr * TILE + self._fragment * (TILE // ROWS_PER_THREAD) + self._eighth.expr

    @property
    def result_width(self) -> int:
        return 1

    def column(self, chunk: Expr) -> Expr:
        col = chunk * self.layout.vector
        return col if self.lane is None else col + self.lane.expr

    def place_threads(self) -> Thread:
        builder = self.builder
        thread = builder.thread_id()
        in_row = builder.arith("remui", thread, builder.index_constant(LANES))
        builder.declare(self._tile, builder.block_id())
        builder.declare(self._eighth, builder.arith("divui", thread, builder.index_constant(LANES)))
        builder.declare(self._in_row, in_row)
        zero = builder.index_constant(0)
        return Thread(in_row, thread, zero, zero)

    def fold_threads(self, folds: Sequence[tuple[Fold, Partial]], thread: Thread) -> list[Partial]:
        return [fold.across_threads(fold.across_lanes(partial), LANES) for fold, partial in folds]

    def emit(self) -> None:
        thread = self.place_threads()
        with self.evaluator.within(self._context()):
            if self.product is not None:
                self._contract(self.product)
            for fragment in range(ROWS_PER_THREAD):
                self._fragment = fragment
                self.results.clear()
                self._emit_rows(thread)

    def _contract(self, product: Product) -> None:
        builder, evaluator = self.builder, self.evaluator
        inner = product.left.shape[1]
        depth = symbol("depth", inner)
        chunks = [self._in_row.expr + number * LANES for number in range(self.chunks // LANES)]
        kind = product.result.element

        def body(_: Value, carried: list[Value]) -> Sequence[Value]:
            running = iter(carried)
            taken: list[Value] = []
            for fragment in range(ROWS_PER_THREAD):
                self._fragment = fragment
                left = evaluator.get(product.left, (self.row, depth.expr))
                for chunk in chunks:
                    right = evaluator.get(product.right, (depth.expr, self.column(chunk)))
                    taken.append(scalar_ops.emit_op(builder, "math.fma", [left, right, next(running)], kind, {}))
            return taken

        zero = builder.broadcast(builder.number(0, kind), self.layout.vector)
        bounds = (builder.index_constant(0), builder.index_constant(inner), builder.index_constant(1))
        totals = builder.loop(depth, bounds, inner, [zero] * (ROWS_PER_THREAD * len(chunks)), body)
        keys = [(fragment, chunk) for fragment in range(ROWS_PER_THREAD) for chunk in chunks]
        self._accumulators = dict(zip(keys, totals, strict=True))

    def _accumulated(self, node: Argument, offset: Expr) -> Value | None:
        if self.product is None or node is not self.product.result or self._chunk is None:
            return None
        return self._accumulators[self._fragment, self._chunk]


@dataclass(frozen=True)
class FragmentTemplate(KernelTemplate[RowSpace, FragmentLayout]):
    """``contracts``: argument 2 is the product of what is computed from argument 0 alone, and of argument 1."""

    contracts: bool
    name: str = "fragments"

    def space(self, program: TensorProgram) -> RowSpace:
        return RowSpace.of(program)

    def check(self, program: TensorProgram, space: RowSpace, target: Target) -> None:
        pass

    def layouts(self, program: TensorProgram, space: RowSpace, target: Target) -> Sequence[FragmentLayout]:
        return [FragmentLayout()]

    def schedule(self, cluster: Cluster, space: RowSpace, layout: FragmentLayout) -> Schedule:
        return Schedule(self.name, (space.rows // TILE, 1, 1), (WARP, 1, 1), layout.vector)

    def layout(self, program: TensorProgram, space: RowSpace, schedule: Schedule, target: Target) -> FragmentLayout:
        return FragmentLayout()

    def body(self, kernel: OpenKernel, space: RowSpace, layout: FragmentLayout) -> None:
        program = kernel.program
        emitter = FragmentKernel(program, space, layout, kernel.evaluator, kernel.place.shared)
        if self.contracts:
            scaled = next(
                node
                for node in program.nodes.values()
                if isinstance(node, Computed) and node.operands[0] is program.arguments[0]
            )
            emitter.product = Product(scaled, program.arguments[1], program.arguments[2])
        emitter.emit()


PROGRAM = """#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, 0)>
func.func @f(%a: tensor<48x64xf32>, %b: tensor<64x64xf32>, %s: tensor<48x64xf32>)
    -> (tensor<48x64xf32>, tensor<48x1xf32>) {
  %inf = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %half = arith.constant 0.5 : f32
  %er = tensor.empty() : tensor<48x1xf32>
  %ef = tensor.empty() : tensor<48x64xf32>
  %i0 = linalg.fill ins(%inf : f32) outs(%er : tensor<48x1xf32>) -> tensor<48x1xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%er : tensor<48x1xf32>) -> tensor<48x1xf32>
  %p = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<48x64xf32>) outs(%ef : tensor<48x64xf32>) {
  ^bb0(%x: f32, %o: f32):
    %r = arith.mulf %x, %half : f32
    linalg.yield %r : f32
  } -> tensor<48x64xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%s : tensor<48x64xf32>) outs(%i0 : tensor<48x1xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %r = arith.maximumf %x, %acc : f32
    linalg.yield %r : f32
  } -> tensor<48x1xf32>
  %t = linalg.generic {indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%s, %m : tensor<48x64xf32>, tensor<48x1xf32>) outs(%z0 : tensor<48x1xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %d = arith.subf %x, %y : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  } -> tensor<48x1xf32>
  %o = linalg.generic {indexing_maps = [#id, #row, #row, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%s, %m, %t, %p : tensor<48x64xf32>, tensor<48x1xf32>, tensor<48x1xf32>, tensor<48x64xf32>)
      outs(%ef : tensor<48x64xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32, %w: f32, %out: f32):
    %d = arith.subf %x, %y : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %z : f32
    %r = arith.addf %q, %w : f32
    linalg.yield %r : f32
  } -> tensor<48x64xf32>
  return %o, %m : tensor<48x64xf32>, tensor<48x1xf32>
}"""


@pytest.mark.parametrize("contracts", [False, True])
def test_eight_lanes_share_a_row_of_a_tile_with_reductions_and_an_epilogue(contracts):
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (48, 64), "f32"), random_array(rng, (64, 64), "f32")
    product = (a.astype(np.float64) * 0.5) @ b.astype(np.float64)
    # A kernel that computes the product must not read it from memory.
    s = np.full((48, 64), np.nan, np.float32) if contracts else product.astype(np.float32)
    built = build(PROGRAM, FragmentTemplate(contracts))
    out, top = built.run([a, b, s], sanitize=True, seed=7)
    largest = product.max(axis=1, keepdims=True)
    weights = np.exp(product - largest)
    expected = weights / weights.sum(axis=1, keepdims=True) + a.astype(np.float64) * 0.5
    np.testing.assert_allclose(top, largest, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert moved_bytes(built) == built.traffic
    assert built.traffic[2] == (0 if contracts else s.nbytes)
    assert built.ptx.count("shfl.sync") == ROWS_PER_THREAD * 2 * 3
    assert "bar.sync" not in built.ptx
