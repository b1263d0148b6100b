"""The emulated device on the command line: sanitizer, counters and single kernels."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from sample_bundles import add_bundle, add_ptx

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``sound.bundle`` computes (x + w) + w; ``racy.bundle`` does it with all threads storing to one place."""
    add_bundle().write(tmp_path / "sound.bundle")
    racy = add_bundle()
    ptx = add_ptx("add").replace("add.s64 \t%rd10, %rd4, %rd7", "add.s64 \t%rd10, %rd4, 0")
    assert ptx != add_ptx("add")
    type(racy)(racy.target, racy.programs, {"kernels": ptx}, racy.weights).write(tmp_path / "racy.bundle")
    (tmp_path / "add.ptx").write_text(add_ptx("add"))
    return tmp_path


def test_run_with_the_sanitizer(call: Call, folder: Path) -> None:
    code, out, _ = call("run", folder / "sound.bundle", "--sanitize", "--seed", "3")
    assert code == 0
    assert out.startswith("y: float32 [8]")
    assert call("run", folder / "racy.bundle")[0] == 0
    code, _, err = call("run", folder / "racy.bundle", "--sanitize")
    assert code == 1
    assert "model.py:7: step 0 of 2 (kernel add): kernel 'add', PTX line" in err
    assert "write different values to the same place in global memory at once" in err


def test_counters_of_steps_and_kernels_are_printed_and_written(call: Call, folder: Path) -> None:
    code, _, err = call("run", folder / "sound.bundle", "--profile", "--report", folder / "report.json")
    assert code == 0
    assert "loads 64 B, stores 32 B" in err
    assert "2 launches of 1 kernel:" in err
    assert "add x 2" in err
    report = json.loads((folder / "report.json").read_text())
    assert [step["counters"]["bytes_loaded"] for step in report["steps"]] == [64, 64]
    (kernel,) = report["kernels"]
    assert (kernel["name"], kernel["launches"], kernel["counters"]["bytes_loaded"]) == ("add", 2, 128)
    assert report["totals"]["bytes_stored"] == 64


def test_one_kernel_is_emulated(call: Call, folder: Path) -> None:
    np.savez(folder / "in.npz", a=np.arange(8, dtype=np.float32), b=np.ones(8, np.float32))
    arguments = ["emulate", folder / "add.ptx", "--block", 8]
    for value in (f"{folder / 'in.npz'}:a", f"{folder / 'in.npz'}:b", "empty:float32:8"):
        arguments += ["--arg", value]
    code, out, _ = call(*arguments, "--sanitize", "--counters", "-o", folder / "out.npz")
    assert code == 0
    assert json.loads(out)["threads"] == 8
    with np.load(folder / "out.npz") as arrays:
        assert arrays["arg2"].tolist() == list(range(1, 9))
    code, _, err = call(*arguments[:4], "--arg", "zeros:float32:7", *arguments[6:])
    assert code == 1
    assert "thread (7, 0, 0) of block (0, 0, 0) reads 4 bytes" in err
