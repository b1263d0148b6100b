"""Repairs of imported text: compare and select become minimum and maximum, and no erased op is looked at."""

from __future__ import annotations

import subprocess
import sys

import pytest

LENGTH = 60
CODE = f"""
from mlirstitch.driver.torch_import.repairs import Labels, finish

step = '''
  %NEXT = linalg.generic {{indexing_maps = [#m, #m], iterator_types = ["parallel"]}}
      ins(%LAST : tensor<4xf32>) outs(%e : tensor<4xf32>) {{
  ^bb0(%x: f32, %o: f32):
    %c = arith.constant LAST.5 : f32
    %g = arith.cmpf ugt, %x, %c : f32
    %y = arith.select %g, %x, %c : f32
    %h = arith.cmpf ult, %y, %c : f32
    %w = arith.select %h, %y, %c : f32
    linalg.yield %w : f32
  }} -> tensor<4xf32>'''
body = "".join(step.replace("NEXT", str(k + 1)).replace("LAST", str(k)) for k in range({LENGTH}))
text = '''#m = affine_map<(d0) -> (d0)>
func.func @main(%0: tensor<4xf32>) -> tensor<4xf32> {{
  %e = tensor.empty() : tensor<4xf32>''' + body + '''
  return %{LENGTH} : tensor<4xf32>
}}'''
for _ in range(REPEATED):
    done = finish(text, Labels([{{}}], [{{}}]), {{}})
print(*(done.count(f"arith.{{name}}") for name in ("maximumf", "minimumf", "select", "cmpf")))
"""


@pytest.mark.parametrize("repeated", [1, pytest.param(200, marks=pytest.mark.slow)])
def test_every_compare_and_select_becomes_one_op_and_the_process_lives(repeated: int) -> None:
    """Memory of erased ops is used again sooner or later: reading a handle to one ended the process then."""
    code = CODE.replace("REPEATED", str(repeated))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(LENGTH), str(LENGTH), "0", "0"]
