import ml_dtypes
import numpy as np
import pytest

from mlirstitch.driver.array_files import random_inputs, read_inputs, write_outputs
from mlirstitch.errors import LaunchError
from mlirstitch.runtime.program import Value

X = Value("x", (3,), "float32", 0)
HALF = Value("h", (3,), "bfloat16", 1)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def test_arrays_come_in_the_order_of_the_signature(tmp_path):
    np.savez(tmp_path / "in.npz", y=np.ones(3, np.float32), x=np.zeros(3, np.float32))
    first, second = read_inputs(tmp_path / "in.npz", [X, Value("y", (3,), "float32", 1)])
    assert (first[0], second[0]) == (0, 1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [({}, "lacks x"), ({"x": np.ones(3), "z": np.ones(3)}, "holds z, which is no input")],
    ids=["missing", "extra"],
)
def test_names_that_do_not_fit_are_named_with_what_the_program_takes(tmp_path, arrays, message):
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(LaunchError, match=message) as caught:
        read_inputs(tmp_path / "in.npz", [X])
    assert "x: float32 [3]" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 broken"])
def test_files_that_are_no_archive_are_refused(tmp_path, content):
    (tmp_path / "in.npz").write_bytes(content)
    with pytest.raises(LaunchError, match=r"not a readable \.npz file"):
        read_inputs(tmp_path / "in.npz", [X])


def test_an_array_without_a_name_is_refused(tmp_path):
    np.save(tmp_path / "in.npy", np.ones(3))
    with pytest.raises(LaunchError, match="one unnamed array"):
        read_inputs(tmp_path / "in.npy", [X])


def test_pickled_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "in.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(LaunchError, match="not a readable"):
        read_inputs(tmp_path / "in.npz", [X])


@pytest.mark.parametrize("stored", [np.float32, BFLOAT16], ids=["float32", "two-byte type"])
def test_bfloat16_is_read_from_both_of_its_stored_forms(tmp_path, stored):
    np.savez(tmp_path / "in.npz", h=np.array([1.5, -2.0, 0.25], stored))
    (array,) = read_inputs(tmp_path / "in.npz", [HALF])
    assert array.dtype == BFLOAT16
    assert array.astype(np.float32).tolist() == [1.5, -2.0, 0.25]


def test_float32_values_that_bfloat16_would_round_are_refused(tmp_path):
    np.savez(tmp_path / "in.npz", h=np.array([1.0, 1.001, 1.0], np.float32))
    with pytest.raises(LaunchError, match="have more digits"):
        read_inputs(tmp_path / "in.npz", [HALF])


def test_outputs_keep_their_values_under_any_name(tmp_path):
    outputs = {"file": np.arange(3), "h": np.array([0.5, 1.0], BFLOAT16), "": np.float32(2.0).reshape(())}
    write_outputs(tmp_path / "out.npz", outputs)
    with np.load(tmp_path / "out.npz") as file:
        assert file["file"].tolist() == [0, 1, 2]
        assert file["h"].dtype == np.float32
        assert file["h"].tolist() == [0.5, 1.0]
        assert file[""].shape == ()
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_an_unwritable_path_is_an_error(tmp_path):
    with pytest.raises(LaunchError, match="cannot write"):
        write_outputs(tmp_path / "no folder" / "out.npz", {})


def test_random_inputs_are_the_same_every_time_and_fit_the_signature():
    wanted = [X, HALF, Value("ids", (2, 2), "int64", 2), Value("flag", (), "bool", 3), Value("s", (), "float16", 4)]
    first, second = random_inputs(wanted), random_inputs(wanted)
    for value, a, b in zip(wanted, first, second, strict=True):
        assert (a.dtype.name, a.shape) == (value.dtype, value.shape)
        assert np.array_equal(a.astype(np.float64), b.astype(np.float64))
