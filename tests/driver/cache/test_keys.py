"""Keys: whatever matters changes them, and what does not matter does not."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import mlirstitch
from mlirstitch.driver.cache import keys
from mlirstitch.driver.cache.opening import open_cache
from mlirstitch.errors import MlirstitchError
from mlirstitch.options import CompileOptions
from mlirstitch.target import TARGETS, Target

TEXT = """func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %e = tensor.empty() : tensor<8x64xf32>
  %0 = linalg.exp ins(%x : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
  return %0 : tensor<8x64xf32>
}"""


def key(text: str = TEXT, name: str = "x.mlir", from_model: bool = False, **options: str) -> str:
    return keys.program_key(text, name, from_model=from_model, options=CompileOptions(**options))


@pytest.mark.parametrize(
    "changed",
    [
        lambda: key(TEXT.replace("8x64", "64x8")),
        lambda: key(TEXT.replace("f32", "f16")),
        lambda: key(TEXT.replace("tensor<8x64xf32>)", 'tensor<8x64xf32> {stitch.dtype = "float32"})', 1)),
        lambda: key(TEXT.replace("8x64xf32>) -> tensor", "8x64xf32, affine_map<(i, j) -> (j, i)>>) -> tensor")),
        lambda: key(TEXT.replace("exp", "log")),
        lambda: key(TEXT.replace("tensor<8x64xf32>\n", 'tensor<8x64xf32> loc("model.py":7:1)\n', 1)),
        lambda: key("\n" + TEXT),
        lambda: key(name="y.mlir"),
        lambda: key(from_model=True),
    ],
    ids=["shape", "dtype", "attribute", "layout", "op", "location", "line", "file", "model"],
)
def test_every_part_of_the_input_changes_the_key(changed) -> None:
    assert changed() != key()


def other_value(field: dataclasses.Field) -> str:
    """A value of an option that is not its default."""
    if field.name == "target":
        return "sm_80"
    return next((choice for choice in field.metadata["choices"] if choice != field.default), "7")


OPTIONS = [field for field in dataclasses.fields(CompileOptions) if field.name != "target_constants"]
"""All but the path of a target file, whose content counts: tests/driver/test_target_constants.py."""


@pytest.mark.parametrize("field", OPTIONS, ids=lambda field: field.name)
def test_every_option_changes_the_key_unless_it_is_known_not_to_matter(field) -> None:
    changed = key(**{field.name: other_value(field)})
    assert (changed == key()) is (field.name in keys.IRRELEVANT)


def test_irrelevant_options_are_options() -> None:
    assert {field.name for field in dataclasses.fields(CompileOptions)} >= keys.IRRELEVANT


@pytest.mark.parametrize("field", dataclasses.fields(Target), ids=lambda field: field.name)
def test_every_fact_about_the_chip_changes_the_key(field, monkeypatch) -> None:
    before = key()
    target = TARGETS["sm_90"]
    value = getattr(target, field.name)
    if field.name == "cycles":
        other = dataclasses.replace(value, special=value.special + 1)
    else:
        other = "x" if isinstance(value, str) else not value if isinstance(value, bool) else value + 1
    monkeypatch.setitem(TARGETS, "sm_90", target.override(**{field.name: other}))
    assert key() != before


@pytest.fixture
def _fresh_fingerprint():
    """The fingerprint is taken anew in the test, and after it."""
    keys.compiler_fingerprint.cache_clear()
    yield
    keys.compiler_fingerprint.cache_clear()


@pytest.mark.usefixtures("_fresh_fingerprint")
@pytest.mark.parametrize("package", keys.PACKAGES)
def test_the_version_of_every_package_changes_the_key(package, monkeypatch) -> None:
    before, version = key(), keys.metadata.version
    keys.compiler_fingerprint.cache_clear()
    monkeypatch.setattr(keys.metadata, "version", lambda name: "9.9" if name == package else version(name))
    assert key() != before


@pytest.mark.usefixtures("_fresh_fingerprint")
def test_the_installed_libraries_of_mlir_and_llvm_change_the_key(monkeypatch, tmp_path: Path) -> None:
    found = [path.name for path in keys.native_libraries()]
    assert any("LLVM" in name for name in found)
    assert any("MLIR" in name for name in found)
    library = tmp_path / "libMLIR.so"
    library.write_bytes(b"1")
    monkeypatch.setattr(keys, "native_libraries", lambda: [library])
    one = key()
    library.write_bytes(b"2")
    os.utime(library, (10, 10))
    keys.compiler_fingerprint.cache_clear()
    assert key() != one


@pytest.mark.usefixtures("_fresh_fingerprint")
def test_our_sources_and_python_change_the_key(monkeypatch) -> None:
    found = {key()}
    for name, value in (("sources_digest", lambda files: "other"), ("sys", SimpleNamespace(version="4.0"))):
        keys.compiler_fingerprint.cache_clear()
        monkeypatch.setattr(keys, name, value)
        found.add(key())
    assert len(found) == 3


def test_the_content_and_the_names_of_our_sources_change_the_fingerprint(tmp_path: Path) -> None:
    assert Path(keys.__file__) in keys.package_files()
    one, two = tmp_path / "a.py", tmp_path / "b.py"
    one.write_text("x = 1")
    two.write_text("x = 2")
    before = keys.sources_digest([one, two])
    two.write_text("x = 3")
    assert keys.sources_digest([one, two]) != before
    two.write_text("x = 2")
    assert keys.sources_digest([one, two]) == before
    one.rename(tmp_path / "c.py")
    assert keys.sources_digest([tmp_path / "c.py", two]) != before


def test_there_is_no_cache_if_our_sources_changed_under_the_process(tmp_path: Path, monkeypatch) -> None:
    options = CompileOptions(cache=str(tmp_path))
    monkeypatch.setattr(mlirstitch, "loaded_at", keys.newest_change(keys.package_files()) + 1)
    assert open_cache(options, print) is not None
    monkeypatch.setattr(mlirstitch, "loaded_at", keys.newest_change(keys.package_files()) - 1)
    assert open_cache(options, print) is None


def test_there_is_no_cache_with_templates_that_keys_know_nothing_of(tmp_path: Path, monkeypatch) -> None:
    import mlirstitch.lowering
    from mlirstitch.passes.stitching import template

    class Foreign:
        name = "foreign"

    monkeypatch.setattr(mlirstitch, "loaded_at", float("inf"))
    options = CompileOptions(cache=str(tmp_path))
    assert open_cache(options, print) is not None
    monkeypatch.setitem(template._REGISTRY, "foreign", Foreign())
    assert open_cache(options, print) is None


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "many"])
def test_a_bound_that_is_no_number_of_megabytes_is_refused(text: str) -> None:
    with pytest.raises(MlirstitchError, match="cache_megabytes"):
        open_cache(CompileOptions(cache_megabytes=text), print)
