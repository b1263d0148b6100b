"""docs/adding-a-template.md, followed to the letter: its code runs, and its template is a good one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "adding-a-template.md").read_text()
FILE, REGISTER, TRY = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JUDGE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import pytest
from kernel_harness import build, moved_bytes, reason, reference
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.template import Schedule, templates

full, row = "tensor<1037x2113xf32>", "tensor<2113xf32>"
text = f'''func.func @f(%a: {full}, %b: {row}) -> {full} {{
  %e = tensor.empty() : {full}
  %r = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>,
      affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %b : {full}, {row}) outs(%e : {full}) {{
  ^bb0(%x: f32, %y: f32, %o: f32):
    %z = arith.mulf %x, %y : f32
    linalg.yield %z : f32
  }} -> {full}
  return %r : {full}
}}'''
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    (folder / "grid_stride.py").write_text(FILE)
    return folder


def _run(folder: Path, code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_code_of_the_page_runs_and_prints_what_it_says(folder: Path) -> None:
    (said,) = re.findall(r"# (grid_stride .*)", TRY)
    assert _run(folder, REGISTER + TRY).strip() == said


def test_the_template_of_the_page_computes_every_element_once(folder: Path) -> None:
    code = f"""{REGISTER}{JUDGE}
assert [t.name for t in templates()].index("grid_stride") == [t.name for t in templates()].index("elementwise") - 1
rng = np.random.default_rng(0)
a, b = rng.standard_normal((1037, 2113)).astype(np.float32), rng.standard_normal(2113).astype(np.float32)
built = build(text, "grid_stride", chip="sm_75")
(got,) = built.run([a, b], checks=False)
np.testing.assert_array_equal(got, a * b)
assert moved_bytes(built) == built.traffic
assert "too few" in reason(text.replace("1037x2113", "2x3").replace("2113", "3"), "grid_stride")
for wrong in (Schedule("grid_stride", (0, 1, 1), (256, 1, 1)), Schedule("grid_stride", (8, 2, 1), (256, 1, 1)),
              Schedule("grid_stride", (8, 1, 1), (256, 1, 1), 4), Schedule("grid_stride", (8, 1, 1), (2048, 1, 1))):
    with pytest.raises(PassError):
        build(text, "grid_stride", schedule=wrong)
"""
    _run(folder, code, str(Path(__file__).parent / "lowering" / "kernel"))


def test_a_name_registers_once_and_stands_before_one_that_is_there(folder: Path) -> None:
    code = (
        REGISTER
        + """
for again, before in (("grid_stride", "row"), ("other", "nothing")):
    try:
        register_template(GridStrideTemplate(name=again), before=before)
    except ValueError as error:
        print(error)
"""
    )
    first, second = _run(folder, code).splitlines()
    assert "already registered" in first
    assert second.startswith("no template 'nothing' is registered; registered: ")
