"""gpu level to PTX: pipelines, refusals before native code, determinism, line numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mlir import ir

from mlirstitch.dialects import parse_module
from mlirstitch.errors import PassError
from mlirstitch.lowering.gpu_to_nvvm import GPU_TO_NVVM
from mlirstitch.lowering.nvvm_to_ptx import NVVM_TO_PTX, extract_ptx
from mlirstitch.lowering.ptx_target import DATA_LAYOUT
from mlirstitch.passes.pipeline import run_pipeline

ROOT = Path(__file__).parents[2]
KERNEL = """
module attributes {gpu.container_module} {
  gpu.module @kernels [#nvvm.target<O = 3, chip = "sm_90">] attributes {llvm.data_layout = "LAYOUT"} {
    gpu.func @k(%a: memref<1024xi64> {llvm.noalias}, %b: memref<1024xi64> {llvm.noalias}) kernel
        attributes {known_block_size = array<i32: 256, 1, 1>} {
      %tx = gpu.thread_id x
      %v = memref.load %a[%tx] : memref<1024xi64>
      %w = arith.addi %v, %v : i64 loc("clusters.mlir":7:4)
      memref.store %w, %b[%tx] : memref<1024xi64>
      gpu.return
    }
  }
}
""".replace("LAYOUT", DATA_LAYOUT)


def compile_text(text: str) -> tuple[ir.Module, dict[str, str]]:
    module = parse_module(text, "gpu.mlir")
    for passes in (GPU_TO_NVVM, NVVM_TO_PTX):
        run_pipeline(module, f"builtin.module({','.join(passes)})")
    return module, extract_ptx(module.operation)


def test_a_kernel_becomes_ptx_with_whole_loads_through_the_read_only_path() -> None:
    _, texts = compile_text(KERNEL)
    ptx = texts["kernels"]
    assert ".target sm_90" in ptx
    assert ".visible .entry k(" in ptx
    assert ptx.count("ld.global.nc.b64") == 1
    assert ptx.count("ld.global") == 1, "a 64-bit load was split"


def test_loc_lines_point_where_the_ops_say() -> None:
    _, texts = compile_text(KERNEL)
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', texts["kernels"]))
    lines = re.findall(r"\.loc\s+(\d+) (\d+)", texts["kernels"])
    assert ("clusters.mlir", "7") in [(files[file], line) for file, line in lines]


def test_the_binary_holds_no_times_so_equal_input_gives_equal_text() -> None:
    first, _ = compile_text(KERNEL)
    second, _ = compile_text(KERNEL)
    assert str(first) == str(second)
    assert "TimeInMs" not in str(first)


def test_ptx_is_the_same_in_every_process() -> None:
    code = (
        "import sys; from tests.lowering.test_gpu_to_ptx import *; sys.stdout.write(compile_text(KERNEL)[1]['kernels'])"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] == compile_text(KERNEL)[1]["kernels"]


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (("memref<1024xi64>", "memref<1024xi1>"), "elements of type i1 cannot be stored"),
        (("memref<1024xi64>", "memref<1024xindex>"), "elements of type index"),
        (("memref<1024xi64>", "memref<?xi64>"), "dynamic shape"),
    ],
)
def test_memory_that_would_abort_native_code_is_refused_before_it(replacement: tuple[str, str], message: str) -> None:
    text = KERNEL.replace(*replacement)
    text = text.replace(
        "arith.addi %v, %v : i64", f"arith.addi %v, %v : {'i64' if '?' in text else replacement[1][12:-1]}"
    )
    with pytest.raises(PassError, match=message):
        compile_text(text)


def test_an_op_without_lowering_is_refused_by_name() -> None:
    text = KERNEL.replace("gpu.return", "%t = tensor.empty() : tensor<4xf32>\n gpu.return")
    with pytest.raises(PassError, match=r"tensor\.empty"):
        compile_text(text)


def test_an_op_that_does_not_lower_is_named_with_its_place() -> None:
    text = KERNEL.replace("gpu.return", "%s = gpu.subgroup_reduce add %v : (i64) -> i64\n gpu.return")
    with pytest.raises(PassError, match="subgroup_reduce") as caught:
        compile_text(text)
    assert caught.value.source.startswith("gpu.mlir:")


@pytest.mark.parametrize("op", ["math.absi %v : i64", "math.ctpop %v : i64", "arith.floordivsi %v, %v : i64"])
def test_integer_ops_without_a_libdevice_function_lower_too(op: str) -> None:
    _, texts = compile_text(KERNEL.replace("arith.addi %v, %v : i64", op))
    assert "call" not in texts["kernels"]


def test_truncation_lowers_to_one_conversion() -> None:
    text = KERNEL.replace("xi64>", "xf32>").replace("arith.addi %v, %v : i64", "math.trunc %v : f32")
    _, texts = compile_text(text)
    assert "cvt.rzi.f32.f32" in texts["kernels"]


def test_a_module_without_kernels_has_no_ptx() -> None:
    _, texts = compile_text("module { func.func @main() { return } }")
    assert texts == {}


def test_a_binary_that_is_no_ptx_is_refused() -> None:
    module = parse_module(KERNEL)
    run_pipeline(module, f"builtin.module({','.join(GPU_TO_NVVM)},gpu-module-to-binary{{format=llvm}})")
    with pytest.raises(PassError, match="does not hold PTX"):
        extract_ptx(module.operation)


@pytest.mark.parametrize("chip", ["sm_80", "sm_banana", "sm_75"])
def test_kernels_for_another_chip_than_the_module_says_are_refused(chip: str) -> None:
    text = f"""module attributes {{stitch.target = "sm_90"}} {{
      gpu.module @kernels [#nvvm.target<O = 3, chip = "{chip}">] {{
        llvm.func @k() attributes {{gpu.kernel, nvvm.kernel}} {{ llvm.return }}
      }}
    }}"""
    with pytest.raises(PassError, match="the module for sm_90"):
        run_pipeline(parse_module(text), "builtin.module(verify-chip)")


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90", "sm_90a"])
def test_kernels_for_the_chip_of_the_module_pass(chip: str) -> None:
    text = f"""module attributes {{stitch.target = "{chip}"}} {{
      gpu.module @kernels [#nvvm.target<O = 3, chip = "{chip}">] {{
        llvm.func @k() attributes {{gpu.kernel, nvvm.kernel}} {{ llvm.return }}
      }}
    }}"""
    run_pipeline(parse_module(text), "builtin.module(verify-chip)")
