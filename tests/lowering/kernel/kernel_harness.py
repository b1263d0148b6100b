"""Compiles one cluster function to PTX, runs it on the emulated device and hands the outputs back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import mlir.ir as ir
import numpy as np

import mlirstitch.lowering  # noqa: F401  (registers templates and passes)
from mlirstitch.dialects import new_context
from mlirstitch.driver.reference import run as run_reference
from mlirstitch.lowering.gpu_to_nvvm import GPU_TO_NVVM
from mlirstitch.lowering.kernel import emit_kernel
from mlirstitch.lowering.nvvm_to_ptx import NVVM_TO_PTX, extract_ptx
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.stitching.template import Cluster, Schedule, Template, find_template
from mlirstitch.runtime import emulator
from mlirstitch.runtime.emulator import LaunchCounters
from mlirstitch.target import Target

DATA_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
BF16 = ml_dtypes.bfloat16
DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": BF16,
    "f32": np.float32,
    "f64": np.float64,
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}


@dataclass(frozen=True)
class Built:
    """A compiled kernel: its schedule, gpu-level text, PTX, and output shapes and dtypes."""

    schedule: Schedule
    gpu_text: str
    ptx: str
    results: tuple[tuple[tuple[int, ...], Any], ...]
    traffic: tuple[int, ...]
    counted: list[LaunchCounters] = field(default_factory=list)

    def run(
        self, inputs: Sequence[np.ndarray], checks: bool = True, seed: int | None = None, sanitize: bool = False
    ) -> list[np.ndarray]:
        """Launch on the emulated device; outputs in order. ``counted`` gets what the device counted.

        With ``seed``, blocks and warps run in an order drawn from it; ``sanitize`` looks for races in any order.
        """
        outputs = [np.full(max(1, int(np.prod(shape))), 7, _storage(dtype)) for shape, dtype in self.results]
        arrays = [np.ascontiguousarray(x).reshape(-1).view(_storage(x.dtype)).copy() for x in inputs]
        workspace = [np.full(size, 7, DTYPES[kind]) for kind, size in self.schedule.scratch]
        if self.schedule.tickets:
            workspace.append(np.zeros(self.schedule.tickets, np.int32))
        if self.schedule.grid[0]:
            module = emulator.load(self.ptx)
            counted = module.launch(
                "kernel",
                self.schedule.grid,
                self.schedule.block,
                [*arrays, *outputs, *workspace],
                shared_bytes=self.schedule.shared_bytes,
                checks=checks,
                seed=seed,
                sanitize=sanitize,
                cooperative=self.schedule.cooperative,
            )
            self.counted.append(counted)
        if self.schedule.tickets:
            assert not workspace[-1].any(), "tickets are not put back"
        return [
            out[: int(np.prod(shape))].view(dtype).reshape(shape)
            for out, (shape, dtype) in zip(outputs, self.results, strict=True)
        ]


def _storage(dtype: Any) -> Any:
    return np.uint8 if dtype == np.bool_ else np.uint16 if dtype == BF16 else dtype


def build(
    text: str,
    template: str | Template | None = None,
    chip: str = "sm_90",
    which: int = 0,
    schedule: Schedule | None = None,
) -> Built:
    """Compile the only function of ``text`` as one cluster; ``which`` picks among the template's schedules.

    ``template`` is one by name, or one that is not registered.
    """
    target = Target.parse(chip)
    with new_context() as context, ir.Location.unknown(context):
        source = ir.Module.parse(text)
        function = source.body.operations[0].operation
        cluster = Cluster.of_function(function)
        if template is None or isinstance(template, str):
            found, why = find_template(cluster, target, [template] if template else None)
            assert found is not None, why
            emit = emit_kernel
        else:
            found, emit = template, template.emit
            assert (why := found.applies(cluster, target)) is None, why
        if schedule is None:
            options = found.schedules(cluster, target)
            schedule = options[min(which, len(options) - 1)]
        module = ir.Module.parse(
            "module attributes {gpu.container_module} { gpu.module @kernels "
            f'[#nvvm.target<O = 3, chip = "{target.chip}">] attributes {{llvm.data_layout = "{DATA_LAYOUT}"}} {{}} }}'
        )
        block = module.body.operations[0].operation.regions[0].blocks[0]
        with ir.InsertionPoint(block), function.location:
            kernel = emit(cluster, schedule, "kernel", target)
        assert module.operation.verify()
        traffic = tuple(ir.DenseI64ArrayAttr(kernel.attributes["stitch.traffic"]))
        gpu_text = str(module)
        for passes in (GPU_TO_NVVM, NVVM_TO_PTX):
            passes = passes if isinstance(passes, str) else ",".join(passes)
            run_pipeline(module, f"builtin.module({passes})")
        results = tuple((tuple(v.type.shape), DTYPES[str(v.type.element_type)]) for v in cluster.outputs)
        return Built(schedule, gpu_text, extract_ptx(module.operation)["kernels"], results, traffic)


def moved_bytes(built: Built) -> tuple[int, ...]:
    """Bytes per argument that the last launch moved."""
    counted = built.counted[-1]
    return tuple(a + b for a, b in zip(counted.argument_bytes_loaded, counted.argument_bytes_stored, strict=True))


def reason(text: str, template: str, chip: str = "sm_90") -> str | None:
    """What a template says about a function."""
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        cluster = Cluster.of_function(module.body.operations[0].operation)
        found, why = find_template(cluster, Target.parse(chip), [template])
        return None if found is not None else why


def reference(text: str, inputs: Sequence[np.ndarray], precision: str = "float64") -> list[np.ndarray]:
    """The outputs by the reference interpreter."""
    name = text.split("func.func @")[1].split("(")[0]
    return run_reference(text, list(inputs), function=name, precision=precision)


def random_array(rng: np.random.Generator, shape: Sequence[int], element: str) -> np.ndarray:
    """Values of moderate size for any element type."""
    if element == "i1":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if element.startswith("i"):
        return rng.integers(-50, 50, shape).astype(DTYPES[element])
    return rng.standard_normal(shape).astype(np.float32).astype(DTYPES[element])
