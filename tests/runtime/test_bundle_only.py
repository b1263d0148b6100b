"""A bundle runs where neither torch nor MLIR nor any other compiler dependency is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from sample_bundles import TARGET, add_bundle, buffer, library_call, program

from mlirstitch.runtime.bundle import Bundle

BFLOAT16 = ml_dtypes.bfloat16

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(name + " is not installed here")

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocked())
"""

RUN = """
import json
import numpy as np
from mlirstitch.runtime import Executor, open_device, read_bundle
from mlirstitch.runtime.arrays import random_inputs

executor = Executor(read_bundle(sys.argv[2]), open_device("emulator"))
outputs = executor.run(random_inputs(executor.signature, 7))
print(json.dumps([np.asarray(y, np.float64).tolist() for y in outputs]))
"""

COMPILER = "torch,torch_mlir,mlir,llvm,jax,cuda,click,rich,jsonschema"


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + code, *arguments],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bundle_of_kernels_runs(tmp_path):
    bundle = add_bundle()
    bundle.write(tmp_path / "b.zip")
    (y,) = json.loads(python(RUN, COMPILER, str(tmp_path / "b.zip")))
    x = np.random.default_rng([7, 0]).standard_normal(8).astype(np.float32)
    np.testing.assert_array_equal(y, (x + bundle.weights["w"]) + bundle.weights["w"])


def test_a_bundle_of_library_calls_in_bfloat16_runs(tmp_path):
    a, b, c = (buffer(k, r, r + str(k), [2, 2], "bfloat16") for k, r in enumerate(["input", "weight", "output"]))
    call = library_call("matmul", [(a, "read"), (b, "read"), (c, "write")])
    weights = {"weight1": np.eye(2).astype(BFLOAT16)}
    Bundle(TARGET, (program([a, b, c], [call]),), {}, weights).write(tmp_path / "b")
    (y,) = json.loads(python(RUN, COMPILER, str(tmp_path / "b")))
    x = np.random.default_rng([7, 0]).standard_normal((2, 2)).astype(BFLOAT16)
    np.testing.assert_array_equal(y, x.astype(np.float64))


def test_importing_the_runtime_needs_numpy_alone():
    code = """
import mlirstitch.runtime, mlirstitch.runtime.executor, mlirstitch.runtime.emulated_device, mlirstitch.runtime.arrays
print(sorted({name.split(".")[0] for name in sys.modules} & BLOCKED))
"""
    assert python(code, COMPILER + ",safetensors,ml_dtypes,scipy,tqdm").strip() == "[]"


@pytest.mark.parametrize(
    ("missing", "message"),
    [("safetensors", "reading weights needs safetensors"), ("ml_dtypes", "bfloat16 needs ml_dtypes")],
)
def test_a_missing_library_is_named_when_it_is_needed(tmp_path, missing, message):
    w = buffer(0, "weight", "w", [2], "bfloat16")
    Bundle(TARGET, (program([w], []),), {}, {"w": np.ones(2).astype(BFLOAT16)}).write(tmp_path / "b")
    code = """
from mlirstitch.errors import BundleError
from mlirstitch.runtime import read_bundle
try:
    read_bundle(sys.argv[2])
except BundleError as error:
    print(error)
"""
    text = python(code, missing, str(tmp_path / "b"))
    assert message in text
    assert f"pip install {missing}" in text
