"""Bundles on disk: what is written is read again, damage is named, nothing of the user's is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_bundles import TARGET, HostDevice, add_bundle, add_ptx, buffer, counter_bundle, program

from mlirstitch.errors import BundleError
from mlirstitch.runtime import Executor, read_bundle
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.dtypes import DTYPES, numpy_dtype
from mlirstitch.runtime.program import Copy

FORMS = pytest.mark.parametrize("name", ["model", "model.zip"])


def full_bundle() -> Bundle:
    """Every kind of content: tied and narrow weights, further files, options, calling convention."""
    base = add_bundle()
    tied = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    weights = {**base.weights, "tied.a": tied, "tied.b": tied}
    return dataclasses.replace(
        base,
        weights=weights,
        options={"numerics": "strict"},
        producer={"name": "mlirstitch", "version": "0.1.0"},
        calling={"results": {"leaf": 0}},
        report={"clusters": [1, 2]},
        files={"stitched.mlir": "module {}\n", "levels/01_linalg.mlir": "// \u03b1\n"},
    )


def contents(bundle: Bundle) -> tuple:
    arrays = {name: (a.dtype.name, a.shape, a.tobytes()) for name, a in bundle.weights.items()}
    texts = (
        bundle.modules,
        bundle.files,
        bundle.report,
        bundle.options,
        bundle.calling,
        bundle.producer,
        bundle.target,
    )
    return bundle.programs, arrays, [dict(text) for text in texts]


def tree(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@FORMS
def test_what_is_written_is_read_again(tmp_path, name):
    bundle = full_bundle()
    bundle.write(tmp_path / name)
    again = read_bundle(tmp_path / name)
    assert contents(again) == contents(bundle)
    assert again.path == str(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


@FORMS
def test_a_bundle_runs_the_same_from_disk(tmp_path, name):
    add_bundle().write(tmp_path / name)
    (y,) = Executor(read_bundle(tmp_path / name), HostDevice()).run([np.ones(8, np.float32)])
    np.testing.assert_array_equal(y, 1 + 2 * np.arange(8, dtype=np.float32))


@FORMS
def test_a_loaded_bundle_keeps_updated_weights_from_run_to_run(tmp_path, name):
    counter_bundle().write(tmp_path / name)
    bundle = read_bundle(tmp_path / name)
    executor = Executor(bundle, HostDevice())
    for _ in range(3):
        executor.run([np.ones(4, np.float32), np.zeros(4, np.float32)])
    assert bundle.weights["total"].tolist() == [3] * 4


@FORMS
def test_equal_bundles_are_equal_bytes(tmp_path, name):
    one, two = full_bundle(), full_bundle()
    shuffled = dataclasses.replace(
        two, weights=dict(reversed(two.weights.items())), files=dict(reversed(two.files.items()))
    )
    one.write(tmp_path / "a" / name)
    shuffled.write(tmp_path / "b" / name)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    full_bundle().write(tmp_path / "b")
    manifest = json.loads((tmp_path / "b/manifest.json").read_text())
    assert manifest["weights"]["aliases"] == {"tied.b": "tied.a"}
    weights = read_bundle(tmp_path / "b").weights
    assert weights["tied.a"] is weights["tied.b"]


def every_dtype_bundle() -> Bundle:
    buffers, weights = [], {}
    for k, dtype in enumerate(DTYPES):
        for shape in ((), (0, 3), (2, 3)):
            name = f"{dtype}{len(shape)}{0 in shape}"
            buffers.append(buffer(len(buffers), "weight" if k % 2 else "constant", name, shape, dtype))
            weights[name] = np.arange(int(np.prod(shape))).reshape(shape).astype(numpy_dtype(dtype))
    weights["transposed"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    buffers.append(buffer(len(buffers), "weight", "transposed", (3, 2)))
    return Bundle(TARGET, (program(buffers, []),), {}, weights)


@FORMS
def test_weights_of_every_dtype_and_rank_survive(tmp_path, name):
    bundle = every_dtype_bundle()
    bundle.write(tmp_path / name)
    again = read_bundle(tmp_path / name)
    assert contents(again) == contents(bundle)
    for array in again.weights.values():
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.nbytes == 0 or array.ctypes.data % 256 == 0


def test_a_bundle_without_weights_has_no_weights_file(tmp_path):
    Bundle(TARGET, (program([], []),), {}).write(tmp_path / "b")
    assert sorted(tree(tmp_path / "b")) == ["manifest.json", "report.json"]
    assert read_bundle(tmp_path / "b").weights == {}


# Damage


@FORMS
def test_a_missing_bundle(tmp_path, name):
    with pytest.raises(BundleError, match="there is no bundle at"):
        read_bundle(tmp_path / name)


FILES = ("kernels/kernels.ptx", "levels/01_linalg.mlir", "manifest.json", "report.json", "stitched.mlir")


@pytest.mark.parametrize("victim", [*FILES, "weights.safetensors"])
def test_a_missing_file_is_named(tmp_path, victim):
    full_bundle().write(tmp_path / "b")
    (tmp_path / "b" / victim).unlink()
    with pytest.raises(BundleError, match=f"{victim}: No such file"):
        read_bundle(tmp_path / "b")
    full_bundle().write(tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as old, zipfile.ZipFile(tmp_path / "c.zip", "w") as new:
        for info in old.infolist():
            if info.filename != victim:
                new.writestr(info, old.read(info))
    with pytest.raises(BundleError, match=f"{victim}: missing from the archive"):
        read_bundle(tmp_path / "c.zip")


def damaged(data: bytes, draw) -> bytes:
    kind = draw(st.sampled_from(["flip", "truncate", "append", "insert", "replace"]))
    at = draw(st.integers(0, len(data) - 1))
    junk = draw(st.binary(min_size=1, max_size=8))
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
    if kind == "truncate":
        return data[:at]
    if kind == "append":
        return data + junk
    return data[:at] + junk + data[at:] if kind == "insert" else junk


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    full_bundle().write(folder / "b")
    full_bundle().write(folder / "b.zip")
    return folder


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_damage_to_any_file_is_a_bundle_error(written, data):
    folder = written / "b"
    victim = folder / data.draw(st.sampled_from(sorted(tree(folder))))
    original = victim.read_bytes()
    broken = damaged(original, data.draw)
    if broken == original:
        return
    victim.write_bytes(broken)
    try:
        with pytest.raises(BundleError) as caught:
            read_bundle(folder)
        assert victim.name in str(caught.value)
    finally:
        victim.write_bytes(original)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_zip_is_a_bundle_error_or_still_holds_the_same(written, data):
    broken = written / "broken.zip"
    broken.write_bytes(damaged((written / "b.zip").read_bytes(), data.draw))
    try:
        again = read_bundle(broken)
    except BundleError:
        return
    # Times, attributes and trailing bytes of an archive are not contents.
    assert contents(again) == contents(full_bundle())


def rewrite(folder: Path, change) -> None:
    """Change the manifest and give it a right digest, as a faulty producer would."""
    from mlirstitch.runtime import bundle as module

    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    manifest["digest"] = "0" * 64
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    digest = module.hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(text.replace("0" * 64, digest, 1))


def _set(path: str, value):
    def change(manifest):
        *parents, last = path.split("/")
        for key in parents:
            manifest = manifest[int(key) if isinstance(manifest, list) else key]
        if value is None:
            del manifest[last]
        else:
            manifest[int(last) if isinstance(manifest, list) else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("version", 2), "version 2 is unknown, this runtime reads version 1"),
        (_set("version", True), "version True is unknown"),
        (_set("format", "other"), "not the manifest of a bundle"),
        (_set("programs", {}), "'programs' is not a list"),
        (_set("programs", []), "no program|non-empty|too short"),
        (_set("programs/0/arena_bytes", None), r"programs\[0\]: field 'arena_bytes' is missing"),
        (_set("programs/0/steps/0/op", "jump"), r"programs\[0\].steps\[0\]: unknown step 'jump'"),
        (_set("programs/0/steps/0/grid", [1, 1]), r"steps\[0\].grid: expected 3 entries, got 2"),
        (_set("programs/0/steps/0/grid/0", -1), r"steps\[0\].grid\[0\]: expected an integer >= 0, got -1"),
        (_set("programs/0/steps/0/cooperative", 0), r"cooperative: expected true or false, got 0"),
        (_set("programs/0/steps/0/arguments/1/access", "peek"), r"arguments\[1\].access: 'peek' is not one of read"),
        (_set("programs/0/buffers/0/dtype", []), r"buffers\[0\].dtype: \[\] is not one of"),
        (_set("programs/0/buffers/0/colour", 3), r"buffers\[0\]: unknown field 'colour'"),
        (_set("programs/0/name", 3), r"name: expected a string, got 3"),
        (_set("programs/0/signature", 3), r"signature: expected an object, got 3"),
        (_set("programs/0/buffers", 3), r"buffers: expected a list, got 3"),
        (_set("modules", 3), "modules"),
        (_set("modules/0/file", "../../secret"), "'../../secret' is not a plain relative path"),
        (_set("modules/0/file", "/etc/passwd"), "'/etc/passwd' is not a plain relative path"),
        (_set("modules/0/name", None), r"modules\[0\]|name"),
        (_set("files/report.json", None), "report.json"),
        (_set("files", [1]), "files"),
        (_set("weights/file", "c:\\x"), "is not a plain relative path"),
        (_set("weights/aliases", {"w": "x"}), "same weight as 'x', which does not fit"),
        (_set("weights/aliases", {"w": 3}), "aliases"),
        (_set("weights", None), "weights|no such weight"),
    ],
)
@pytest.mark.parametrize("schema", [True, False], ids=["jsonschema", "without"])
def test_a_manifest_that_makes_no_sense_is_refused_with_its_place(tmp_path, monkeypatch, change, message, schema):
    if not schema:
        monkeypatch.setattr("mlirstitch.runtime.manifest._validator", lambda: None)
    full_bundle().write(tmp_path / "b")
    rewrite(tmp_path / "b", change)
    with pytest.raises(BundleError, match=message):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize("change", [_set("surplus", 1), _set("producer/version", None), _set("target/ptx", "seven")])
def test_the_published_schema_is_checked_on_reading(tmp_path, change):
    full_bundle().write(tmp_path / "b")
    rewrite(tmp_path / "b", change)
    with pytest.raises(BundleError, match=r"manifest.json: \$"):
        read_bundle(tmp_path / "b")


def test_rewriting_alone_is_no_damage(tmp_path):
    full_bundle().write(tmp_path / "b")
    rewrite(tmp_path / "b", lambda manifest: manifest["options"].update(note=1))
    assert read_bundle(tmp_path / "b").options["note"] == 1


def test_a_link_out_of_the_bundle_is_refused(tmp_path):
    full_bundle().write(tmp_path / "b")
    ptx = tmp_path / "b/kernels/kernels.ptx"
    ptx.rename(tmp_path / "outside.ptx")
    ptx.symlink_to(tmp_path / "outside.ptx")
    with pytest.raises(BundleError, match="link to a file outside"):
        read_bundle(tmp_path / "b")


def test_other_kinds_of_paths(tmp_path):
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(BundleError, match=r"neither a folder nor a readable \.zip"):
        read_bundle(tmp_path / "text.zip")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BundleError, match=r"manifest.json: No such file"):
        read_bundle(tmp_path / "folder")


def test_weights_of_another_type_than_declared(tmp_path):
    bundle = add_bundle()
    for wrong in (np.zeros(8), np.zeros(7, np.float32), np.zeros(8, ">f4")):
        with pytest.raises(BundleError, match=r"weight 'w': expected float32 \[8\]"):
            dataclasses.replace(bundle, weights={"w": wrong}).write(tmp_path / "b")
    with pytest.raises(BundleError, match="no such weight"):
        dataclasses.replace(bundle, weights={}).write(tmp_path / "b")
    assert not (tmp_path / "b").exists()


# Writing


@FORMS
def test_a_bundle_may_replace_a_bundle(tmp_path, name):
    full_bundle().write(tmp_path / name)
    add_bundle(4).write(tmp_path / name)
    assert contents(read_bundle(tmp_path / name)) == contents(add_bundle(4))
    assert os.listdir(tmp_path) == [name]


def test_replacing_deletes_the_old_bundles_files_and_keeps_the_users(tmp_path):
    full_bundle().write(tmp_path / "b")
    (tmp_path / "b/notes.txt").write_text("mine")
    (tmp_path / "b/runs").mkdir()
    (tmp_path / "b/runs/y.npz").write_text("mine too")
    add_bundle().write(tmp_path / "b")
    assert sorted(tree(tmp_path / "b")) == [
        "kernels/kernels.ptx", "manifest.json", "notes.txt", "report.json", "runs/y.npz", "weights.safetensors",
    ]  # fmt: skip
    assert (tmp_path / "b/notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["b"]


def test_a_users_file_where_the_new_bundle_needs_one_is_not_overwritten(tmp_path):
    add_bundle().write(tmp_path / "b")
    (tmp_path / "b/stitched.mlir").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(BundleError, match=r"stitched.mlir is not part of the bundle there and would be overwritten"):
        full_bundle().write(tmp_path / "b")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other"}', "\x00"])
def test_a_folder_that_is_no_bundle_is_left_alone(tmp_path, content):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/manifest.json").write_text(content)
    before = tree(tmp_path)
    with pytest.raises(BundleError, match="exists and is not a bundle; it is left alone"):
        add_bundle().write(tmp_path / "home")
    assert tree(tmp_path) == before


def test_files_that_are_no_bundle_are_left_alone(tmp_path):
    (tmp_path / "x.zip").write_text("mine")
    with pytest.raises(BundleError, match="is not a bundle"):
        add_bundle().write(tmp_path / "x.zip")
    (tmp_path / "y").write_text("mine")
    with pytest.raises(BundleError, match="is a file, but a folder"):
        add_bundle().write(tmp_path / "y")
    (tmp_path / "z.zip").mkdir()
    with pytest.raises(BundleError, match="is a folder, but a file"):
        add_bundle().write(tmp_path / "z.zip")
    assert tree(tmp_path) == {"x.zip": b"mine", "y": b"mine"}


def test_an_empty_folder_or_file_is_filled(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b.zip").touch()
    for name in ("b", "b.zip"):
        add_bundle().write(tmp_path / name)
        assert contents(read_bundle(tmp_path / name)) == contents(add_bundle())


@FORMS
def test_a_failed_write_leaves_the_old_bundle(tmp_path, name):
    add_bundle().write(tmp_path / name)
    before = (tmp_path / name).read_bytes() if name.endswith("zip") else tree(tmp_path / name)
    for bad in (
        {"report": {"x": object()}},
        {"report": {"x": float("nan")}},
        {"files": {"../x": ""}},
        {"files": {"report.json": ""}},
        {"modules": {"kernels": add_ptx("add"), "a/b": ""}},
        {"producer": {"name": "mlirstitch"}},
        {"weights": {**add_bundle().weights, "c": np.zeros(2, complex)}},
    ):
        with pytest.raises(BundleError):
            dataclasses.replace(add_bundle(), **bad).write(tmp_path / name)
    assert before == ((tmp_path / name).read_bytes() if name.endswith("zip") else tree(tmp_path / name))
    assert os.listdir(tmp_path) == [name]


def test_a_bundle_that_does_not_hold_together_is_not_written(tmp_path):
    bundle = Bundle(TARGET, (program([buffer(0, "input", "x", [2])], [Copy(0, 7, 8)]),), {})
    with pytest.raises(BundleError, match="buffer 7 does not exist"):
        bundle.write(tmp_path / "b")
    with pytest.raises(BundleError, match="no program 'side'"):
        add_bundle().program("side")
    with pytest.raises(BundleError, match="two programs"):
        Bundle(TARGET, add_bundle().programs * 2, add_bundle().modules, add_bundle().weights).check()
