"""The table of stages and running slices of it."""

from __future__ import annotations

import gc
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mlir import ir

from mlirstitch.dialects import new_context
from mlirstitch.driver.stages import STAGES, StageResult, run_stages, select_stages
from mlirstitch.errors import MlirstitchError, PassError, PipelineError
from mlirstitch.options import LEVELS, CompileOptions
from mlirstitch.passes.pipeline import check_pipeline, parse_pipeline

ROOT = Path(__file__).parents[2]
SOFTMAX = """
#rows = affine_map<(d0, d1) -> (d0)>
#all = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : tensor<8xf32>
  %ea = tensor.empty() : tensor<8x64xf32>
  %fl = linalg.fill ins(%low : f32) outs(%er : tensor<8xf32>) -> tensor<8xf32>
  %max = linalg.generic {indexing_maps = [#all, #rows], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<8x64xf32>) outs(%fl : tensor<8xf32>) {
  ^bb0(%a: f32, %m: f32):
    %r = arith.maximumf %a, %m : f32 loc("model.py":3:0)
    linalg.yield %r : f32
  } -> tensor<8xf32> loc("model.py":3:0)
  %exp = linalg.generic {indexing_maps = [#all, #rows, #all], iterator_types = ["parallel", "parallel"]}
      ins(%x, %max : tensor<8x64xf32>, tensor<8xf32>) outs(%ea : tensor<8x64xf32>) {
  ^bb0(%a: f32, %m: f32, %o: f32):
    %s = arith.subf %a, %m : f32
    %r = math.exp %s : f32
    linalg.yield %r : f32
  } -> tensor<8x64xf32> loc("model.py":4:0)
  %fz = linalg.fill ins(%zero : f32) outs(%er : tensor<8xf32>) -> tensor<8xf32>
  %sum = linalg.generic {indexing_maps = [#all, #rows], iterator_types = ["parallel", "reduction"]}
      ins(%exp : tensor<8x64xf32>) outs(%fz : tensor<8xf32>) {
  ^bb0(%a: f32, %m: f32):
    %r = arith.addf %a, %m : f32
    linalg.yield %r : f32
  } -> tensor<8xf32> loc("model.py":5:0)
  %div = linalg.generic {indexing_maps = [#all, #rows, #all], iterator_types = ["parallel", "parallel"]}
      ins(%exp, %sum : tensor<8x64xf32>, tensor<8xf32>) outs(%ea : tensor<8x64xf32>) {
  ^bb0(%a: f32, %m: f32, %o: f32):
    %r = arith.divf %a, %m : f32
    linalg.yield %r : f32
  } -> tensor<8x64xf32> loc("model.py":6:0)
  return %div : tensor<8x64xf32>
}
"""


def compiled(text: str = SOFTMAX, **options: str) -> StageResult:
    return run_stages(text, CompileOptions(**options))


def test_stages_lead_from_the_first_level_to_the_last_without_gaps() -> None:
    assert STAGES[0].start == LEVELS[0]
    assert STAGES[-1].end == LEVELS[-1]
    assert all(a.end == b.start for a, b in itertools.pairwise(STAGES))


def test_every_pipeline_of_the_table_names_passes_that_exist() -> None:
    context = new_context()
    for stage in STAGES:
        if stage.pipeline:
            check_pipeline(parse_pipeline(stage.pipeline), context)


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        ("linalg", "linalg", ["normalize"]),
        ("linalg", "stitched", ["normalize", "partition", "stitch"]),
        ("stitched", "gpu", ["plan and emit"]),
        ("nvvm", "ptx", ["assemble"]),
        ("ptx", "ptx", []),
    ],
)
def test_from_and_to_select_a_slice(first: str, last: str, names: list[str]) -> None:
    stages = select_stages(CompileOptions(from_level=first, to_level=last))
    assert [stage.name for stage in stages] == names


def test_the_compiler_does_not_go_backwards() -> None:
    with pytest.raises(PipelineError, match="back to linalg"):
        compiled(from_level="gpu", to_level="linalg")


def test_linalg_text_becomes_ptx_and_a_program() -> None:
    seen: list[str] = []
    result = run_stages(SOFTMAX, CompileOptions(), on_stage=seen.append)
    assert seen == [stage.name for stage in STAGES] == list(result.timings)
    assert set(result.texts) == set(LEVELS)
    assert ".visible .entry" in result.ptx["kernels"]
    assert result.program is not None
    (launch,) = result.program["steps"]
    assert launch["source"] == ["model.py:3", "model.py:4", "model.py:5", "model.py:6"]
    assert launch["kind"] == "memory_bound"


def test_loc_lines_of_the_ptx_point_into_the_canonical_text() -> None:
    result = compiled()
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', result.ptx["kernels"]))
    places = {(files[file], int(line)) for file, line in re.findall(r"\.loc\s+(\d+) (\d+)", result.ptx["kernels"])}
    assert {file for file, _ in places} == {"kernels.stitched.mlir"}
    lines = result.kernels_text.splitlines()
    assert any("math.exp" in lines[line - 1] for _, line in places)
    assert any("arith.divf" in lines[line - 1] for _, line in places)


def test_where_the_model_was_written_does_not_change_the_ptx() -> None:
    moved = SOFTMAX.replace('"model.py":', '"/elsewhere/model.py":1')
    assert compiled(moved).ptx == compiled().ptx


def test_dumps_of_every_level_can_be_fed_back(tmp_path: Path) -> None:
    whole = compiled(dump=str(tmp_path))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "00_linalg.mlir",
        "01_linalg.mlir",
        "02_partitioned.mlir",
        "03_stitched.mlir",
        "04_gpu.mlir",
        "05_nvvm.mlir",
        "06_ptx.mlir",
        "kernels.ptx",
        "kernels.stitched.mlir",
        "program.json",
    ]
    for path in sorted(tmp_path.glob("0*.mlir")):
        level = path.stem.partition("_")[2]
        again = run_stages(path.read_text(), CompileOptions(from_level=level), source_name=str(path))
        assert again.ptx == whole.ptx, path.name
        assert again.program == whole.program, path.name
    assert (tmp_path / "kernels.ptx").read_text() == whole.ptx["kernels"]


def test_stopping_early_leaves_no_ptx_and_no_program() -> None:
    result = compiled(to_level="stitched")
    assert (result.ptx, result.program) == ({}, None)
    assert list(result.texts) == ["linalg", "partitioned", "stitched"]
    assert "stitch.schedule" in result.kernels_text


def test_options_stand_on_the_module_and_later_levels_keep_them() -> None:
    result = compiled(target="sm_80")
    assert 'stitch.target = "sm_80"' in result.texts["ptx"]
    assert ".target sm_80" in result.ptx["kernels"]
    again = run_stages(result.texts["stitched"], CompileOptions(from_level="stitched", target="sm_90"))
    assert again.ptx == result.ptx, "the module says what it was stitched for"
    assert again.settings == result.settings == {"target": "sm_80", "numerics": "default", "library": "none"}


def test_a_program_without_kernels_is_copies_alone() -> None:
    result = compiled("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    assert result.ptx == {}
    assert result.program is not None
    assert [step["op"] for step in result.program["steps"]] == ["copy"]


def test_ptx_and_program_are_the_same_in_every_process() -> None:
    code = (
        "import sys, json; from tests.driver.test_stages import *; r = compiled();"
        "sys.stdout.write(r.ptx['kernels'] + json.dumps(r.program) + r.texts['ptx'])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "77")
    ]
    assert outputs[0] == outputs[1]


def test_a_refusal_names_the_stage_input_and_leaves_a_folder_only_when_asked(tmp_path: Path) -> None:
    text = SOFTMAX.replace("math.exp %s : f32", "math.isnormal %s : f32").replace(
        "%r = math.isnormal %s : f32", "%q = math.isnormal %s : f32\n %r = arith.uitofp %q : i1 to f32"
    )
    with pytest.raises(PassError, match="isnormal") as caught:
        compiled(text)
    assert caught.value.reproducer == ""
    with pytest.raises(PassError) as caught:
        compiled(text, reproducer=str(tmp_path))
    folder = Path(caught.value.reproducer)
    assert folder.parent == tmp_path
    assert {"input.mlir", "pipeline.txt", "run.sh"} <= {path.name for path in folder.iterdir()}


def test_malformed_text_is_refused_with_its_line() -> None:
    with pytest.raises(MlirstitchError, match=r"bad\.mlir:2"):
        run_stages("module {\n nonsense\n}", CompileOptions(), source_name="bad.mlir")


def test_a_level_that_the_input_does_not_have_is_refused() -> None:
    with pytest.raises(PassError):
        compiled(from_level="gpu")


def test_a_compilation_leaves_no_context_behind() -> None:
    def live() -> int:
        gc.collect()
        return ir.Context._get_live_count()

    run_stages(SOFTMAX, CompileOptions())
    before = live()
    for _ in range(3):
        run_stages(SOFTMAX, CompileOptions())
        with pytest.raises(PassError):
            run_stages(SOFTMAX.replace("@main", "@other"), CompileOptions())
    assert live() <= before
