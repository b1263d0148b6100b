"""Every schedule that templates offer is legal, differs from the others, compiles, and computes the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
from kernel_harness import BF16, DATA_LAYOUT, DTYPES, random_array, reference
from row_column_programs import scaled_rows
from row_programs import argmax, fold, softmax, softmax_over

from mlirstitch.dialects import new_context
from mlirstitch.lowering.gpu_to_nvvm import GPU_TO_NVVM
from mlirstitch.lowering.kernel import emit_kernel
from mlirstitch.lowering.nvvm_to_ptx import NVVM_TO_PTX, extract_ptx
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.stitching.template import MOST_CANDIDATES, Cluster, Schedule, find_candidates, find_template
from mlirstitch.runtime import emulator
from mlirstitch.target import Target

TARGET = Target.parse("sm_90")
SUM = ("arith.addf", "0.0")

ADDED = """#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d1)>
func.func @f(%a: tensor<64x72xf32>, %b: tensor<72xf32>) -> tensor<64x72xf32> {
  %e = tensor.empty() : tensor<64x72xf32>
  %o = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %b : tensor<64x72xf32>, tensor<72xf32>) outs(%e : tensor<64x72xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<64x72xf32>
  return %o : tensor<64x72xf32>
}"""

PRODUCT = """func.func @f(%a: tensor<24x40xf32>, %b: tensor<40x36xf32>) -> tensor<24x36xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<24x36xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<24x36xf32>) -> tensor<24x36xf32>
  %r = linalg.matmul ins(%a, %b : tensor<24x40xf32>, tensor<40x36xf32>) outs(%i : tensor<24x36xf32>)
      -> tensor<24x36xf32>
  return %r : tensor<24x36xf32>
}"""

PROGRAMS = {
    "softmax": softmax(24, 512),
    "softmax of odd rows": softmax(5, 333),
    "softmax of half": softmax(16, 256, "f16"),
    "softmax of bfloat": softmax(3, 1536, "bf16"),
    "softmax of long rows": softmax(2, 5000),
    "softmax over a middle dim": softmax_over((3, 40, 32), 1),
    "sums of rows": fold((40, 96), (1,), "f32", *SUM),
    "sum of everything": fold((1, 20000), (1,), "f32", *SUM),
    "sums of columns": fold((600, 48), (0,), "f32", *SUM),
    "sums over batch and image": fold((6, 10, 64), (0, 2), "f32", *SUM),
    "argmax": argmax(9, 200),
    "rows and columns": scaled_rows(40, 64),
    "rows and a total": scaled_rows(33, 96, columns=False),
    "element-wise": ADDED,
    "product": PRODUCT,
}
QUICK = ("sums over batch and image", "element-wise")
"""Programs that run on every change; all of them run in the slow test."""


@contextmanager
def cluster_of(text: str) -> Iterator[Cluster]:
    """The first function of ``text`` as a cluster."""
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        yield Cluster.of_function(module.body.operations[0].operation)


def compile_all(cluster: Cluster, schedules: list[Schedule]) -> str:
    """One PTX module with a kernel for every schedule, ``kernel0``, ``kernel1``, ..."""
    module = ir.Module.parse(
        "module attributes {gpu.container_module} { gpu.module @kernels "
        f'[#nvvm.target<O = 3, chip = "sm_90">] attributes {{llvm.data_layout = "{DATA_LAYOUT}"}} {{}} }}'
    )
    block = module.body.operations[0].operation.regions[0].blocks[0]
    with ir.InsertionPoint(block), ir.Location.unknown():
        for number, schedule in enumerate(schedules):
            emit_kernel(cluster, schedule, f"kernel{number}", TARGET)
    assert module.operation.verify()
    for passes in (GPU_TO_NVVM, NVVM_TO_PTX):
        run_pipeline(module, f"builtin.module({passes if isinstance(passes, str) else ','.join(passes)})")
    return extract_ptx(module.operation)["kernels"]


def stored(dtype: Any) -> Any:
    return np.uint8 if dtype == np.bool_ else np.uint16 if dtype == BF16 else dtype


def check_all(text: str, sanitize: bool) -> int:
    """Run every candidate of a program and compare it with float64; returns how many there are."""
    with cluster_of(text) as cluster:
        schedules = find_candidates(cluster, TARGET)
        rng = np.random.default_rng(3)
        inputs = [random_array(rng, v.type.shape, str(v.type.element_type)) for v in cluster.inputs]
        results = [(tuple(v.type.shape), DTYPES[str(v.type.element_type)]) for v in cluster.outputs]
        module = emulator.load(compile_all(cluster, schedules))
    wanted = reference(text, inputs)
    for number, schedule in enumerate(schedules):
        outputs = [np.full(int(np.prod(shape)), 7, stored(dtype)) for shape, dtype in results]
        arrays = [np.ascontiguousarray(x).reshape(-1).view(stored(x.dtype)).copy() for x in inputs]
        workspace = [np.full(size, 7, DTYPES[kind]) for kind, size in schedule.scratch]
        workspace += [np.zeros(schedule.tickets, np.int32)] if schedule.tickets else []
        module.launch(
            f"kernel{number}",
            schedule.grid,
            schedule.block,
            [*arrays, *outputs, *workspace],
            shared_bytes=schedule.shared_bytes,
            checks=True,
            sanitize=sanitize,
        )
        for output, (shape, dtype), expected in zip(outputs, results, wanted, strict=True):
            found = output.view(dtype).reshape(shape).astype(np.float64)
            tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}.get(np.dtype(dtype).name, 0)
            message = f"{number}: {schedule}"
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=message)
    return len(schedules)


@pytest.mark.parametrize("name", QUICK)
def test_all_candidates_compute_the_same_numbers(name: str) -> None:
    assert check_all(PROGRAMS[name], sanitize=False) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_candidates_are_free_of_races(name: str) -> None:
    assert check_all(PROGRAMS[name], sanitize=True) >= 5


@pytest.mark.parametrize("name", ["softmax", "sums of columns", "rows and columns", "element-wise", "product"])
def test_candidates_are_bounded_distinct_and_start_with_the_choice(name: str) -> None:
    with cluster_of(PROGRAMS[name]) as cluster:
        found = find_candidates(cluster, TARGET)
        template, _ = find_template(cluster, TARGET)
        assert template is not None
        assert found[0] == template.schedules(cluster, TARGET)[0]
        assert len(set(found)) == len(found) <= MOST_CANDIDATES
        assert len({(s.template, s.block, s.grid, s.vector, s.parameters) for s in found}) == len(found)
        assert find_candidates(cluster, TARGET, limit=3) == [*found[:2], *find_candidates(cluster, TARGET, limit=3)[2:]]


def test_candidates_differ_in_every_respect() -> None:
    with cluster_of(PROGRAMS["softmax"]) as cluster:
        found = find_candidates(cluster, TARGET)
    assert len({s.block for s in found}) >= 4
    assert len({s.vector for s in found}) >= 2
    assert len({s.parameter("mode") for s in found}) >= 2
    assert {scheme for s in found for _, scheme in s.schemes} >= {"warp", "block"}
