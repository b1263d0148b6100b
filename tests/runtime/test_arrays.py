"""Inputs and outputs in .npz files."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.arrays import random_inputs, read_npz, write_npz
from mlirstitch.runtime.dtypes import DTYPES
from mlirstitch.runtime.program import Signature, Value

SIGNATURE = Signature((Value("x", (2, 3), "float32", 0), Value("h", (2,), "bfloat16", 1)), ())
X = np.arange(6, dtype=np.float32).reshape(2, 3)
H = np.array([1.5, -2], ml_dtypes.bfloat16)


@pytest.mark.parametrize("names", [["x", "h"], ["arr_0", "arr_1"]])
@pytest.mark.parametrize("stored", [H, H.view(np.uint16)], ids=["void", "bits"])
def test_inputs_by_name_or_by_position(tmp_path, names, stored):
    np.savez(tmp_path / "x.npz", **dict(zip(names, [X, stored], strict=True)))
    x, h = read_npz(tmp_path / "x.npz", SIGNATURE)
    np.testing.assert_array_equal(x, X)
    assert h.dtype == ml_dtypes.bfloat16
    assert h.tolist() == [1.5, -2]


def test_order_in_the_file_does_not_matter(tmp_path):
    np.savez(tmp_path / "x.npz", h=H, x=X)
    assert [a.shape for a in read_npz(tmp_path / "x.npz", SIGNATURE)] == [(2, 3), (2,)]


def test_outputs_can_be_read_as_inputs_of_every_dtype(tmp_path):
    signature = Signature(tuple(Value(d, (2, 2), d, k) for k, d in enumerate(DTYPES)), ())
    arrays = random_inputs(signature)
    write_npz(tmp_path / "y.npz", arrays, DTYPES)
    for wrote, read in zip(arrays, read_npz(tmp_path / "y.npz", signature), strict=True):
        assert read.dtype == wrote.dtype
        assert read.tobytes() == wrote.tobytes()
    with np.load(tmp_path / "y.npz") as plain:
        assert plain["bfloat16.bfloat16"].dtype == np.uint16
    assert os.listdir(tmp_path) == ["y.npz"]


def test_outputs_of_any_name_shape_and_layout(tmp_path):
    arrays = [np.float32(1)[()] * np.ones(()), np.zeros((0, 2)), X.T, X, X]
    write_npz(tmp_path / "y.npz", arrays, ["file", "args", "y", "y", "y_1"])
    with np.load(tmp_path / "y.npz") as stored:
        assert sorted(stored.files) == ["args", "file", "y", "y_1", "y_2"]
        np.testing.assert_array_equal(stored["y"], X.T)


def test_writing_is_reproducible(tmp_path):
    for name in ("a", "b"):
        write_npz(tmp_path / name, [X, H], ["x", "h"])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_random_inputs_depend_on_the_seed_alone():
    one, two, other = random_inputs(SIGNATURE, 3), random_inputs(SIGNATURE, 3), random_inputs(SIGNATURE, 4)
    assert [a.tobytes() for a in one] == [a.tobytes() for a in two]
    assert one[0].tobytes() != other[0].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 2), (5,)])
def test_random_inputs_fit_the_signature(dtype, shape):
    (array,) = random_inputs(Signature((Value("x", shape, dtype, 0),), ()))
    assert array.dtype.name == dtype
    assert array.shape == shape
    assert dtype.startswith(("float", "bfloat")) or set(array.ravel().tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "has no input 'h'"),
        ({"x": X, "h": H, "z": X}, "has an array 'z' that is no input"),
        ({"arr_0": X, "arr_1": H, "arr_2": X}, "has an array 'arr_2' that is no input"),
        ({"x": X.astype(np.float64), "h": H}, r"input 'x': expected float32 \[2, 3\], got float64 \[2, 3\]"),
        ({"x": X, "h": H.astype(np.float32)}, r"input 'h': expected bfloat16 \[2\], got float32"),
        ({"x": X, "h": np.zeros((1, 2), np.uint16)}, r"input 'h': expected bfloat16 \[2\]"),
        ({"x": np.array([object()]), "h": H}, "cannot be read"),
    ],
)
def test_files_that_do_not_fit_are_explained(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(LaunchError, match=message):
        read_npz(tmp_path / "x.npz", SIGNATURE)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(LaunchError, match="cannot be read"):
        read_npz(tmp_path / "none.npz", SIGNATURE)
    (tmp_path / "text.npz").write_text("x = 1")
    with pytest.raises(LaunchError, match=r"is not an \.npz file"):
        read_npz(tmp_path / "text.npz", SIGNATURE)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(LaunchError, match=r"is not an \.npz file"):
        read_npz(tmp_path / "x.npy", SIGNATURE)
    np.savez(tmp_path / "x.npz", x=X, h=H)
    data = (tmp_path / "x.npz").read_bytes()
    for cut in range(0, len(data), 7):
        (tmp_path / "cut.npz").write_bytes(data[:cut])
        with pytest.raises(LaunchError):
            read_npz(tmp_path / "cut.npz", SIGNATURE)


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(LaunchError, match="cannot write"):
        write_npz(tmp_path / "no/such/folder/y.npz", [X], ["x"])
