"""Compiling with the cache gives the bytes that compiling without it gives, and does not compile twice."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlir.passmanager import PassManager

import mlirstitch
from mlirstitch.driver.compile import compile
from mlirstitch.driver.compiled import Compiled

TEXT = """func.func @main(%x: tensor<8x64xf32>) -> tensor<8xf32> {
  %e = tensor.empty() : tensor<8x64xf32>
  %0 = linalg.exp ins(%x : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) -> tensor<8x64xf32>
  %z = arith.constant dense<0.0> : tensor<8xf32>
  %1 = linalg.reduce { arith.addf } ins(%0 : tensor<8x64xf32>) outs(%z : tensor<8xf32>) dimensions = [1]
  return %1 : tensor<8xf32>
}"""


@pytest.fixture(autouse=True)
def _sources_are_unchanged(monkeypatch) -> None:
    """Somebody may edit the sources while the tests run; here that does not matter."""
    monkeypatch.setattr(mlirstitch, "loaded_at", float("inf"))


@pytest.fixture
def native_passes(monkeypatch) -> list[str]:
    """Every pass of MLIR that is run, in order."""
    ran: list[str] = []
    add = PassManager.add

    def recording(manager: PassManager, text: str) -> None:
        ran.append(text)
        add(manager, text)

    monkeypatch.setattr(PassManager, "add", recording)
    return ran


def saved(compiled: Compiled, folder: Path) -> dict[str, bytes]:
    compiled.save(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_bytes_are_the_same_without_with_an_empty_and_with_a_full_cache(tmp_path: Path) -> None:
    folders = ("off", str(tmp_path / "cache"), str(tmp_path / "cache"))
    compiled = [compile(TEXT, cache=folder) for folder in folders]
    assert "cache" in compiled[2].timings
    assert "cache" not in compiled[1].timings
    bundles = [saved(program, tmp_path / f"bundle{n}") for n, program in enumerate(compiled)]
    assert bundles[0] == bundles[1] == bundles[2]
    for level in ("linalg", "partitioned", "stitched", "gpu", "nvvm", "ptx"):
        assert compiled[0].text(level) == compiled[1].text(level) == compiled[2].text(level)
    assert compiled[0].report == compiled[2].report


def test_a_warm_compilation_runs_no_pass_and_assembles_nothing(tmp_path: Path, native_passes: list[str]) -> None:
    first = compile(TEXT, cache=str(tmp_path))
    assert any(text.startswith("gpu-module-to-binary") for text in native_passes)
    native_passes.clear()
    assert compile(TEXT, cache=str(tmp_path)).ptx == first.ptx
    assert native_passes == []


def test_an_edit_around_the_kernels_compiles_but_does_not_assemble(tmp_path: Path, native_passes: list[str]) -> None:
    changed = TEXT.replace("%x: tensor<8x64xf32>", '%x: tensor<8x64xf32> {stitch.name = "other"}')
    expected = compile(changed, cache="off")
    compile(TEXT, cache=str(tmp_path))
    native_passes.clear()
    found = compile(changed, cache=str(tmp_path))
    assert "normalize" in found.timings
    assert not any(text.startswith("gpu-module-to-binary") for text in native_passes)
    for level in ("nvvm", "ptx"):
        assert found.text(level) == expected.text(level)
    assert found.launch_plan == expected.launch_plan
    assert found.launch_plan.signature.inputs[0].name == "other"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("linalg.exp", "linalg.log"),
        lambda text: text.replace("<8x", "<4x"),
        lambda text: text.replace("f32", "f16"),
    ],
    ids=["op", "shape", "dtype"],
)
def test_other_kernels_of_the_same_names_get_their_own_code(change, tmp_path: Path) -> None:
    compile(TEXT, cache=str(tmp_path))
    for options in ({}, {"target": "sm_80"}):
        expected = compile(change(TEXT), cache="off", **options)
        assert compile(change(TEXT), cache=str(tmp_path), **options).ptx == expected.ptx


def test_source_lines_are_those_of_the_program_that_is_compiled(tmp_path: Path) -> None:
    def lines(text: str) -> list[str]:
        return [op["line"] for op in compile(text, cache=str(tmp_path)).report["clusters"][0]["ops"]]

    first = lines(TEXT)
    assert lines("\n\n" + TEXT) != first
    assert lines(TEXT) == first


def test_a_damaged_entry_is_compiled_and_kept_again(tmp_path: Path) -> None:
    expected = compile(TEXT, cache=str(tmp_path)).ptx
    for path in tmp_path.rglob("*.entry"):
        path.write_bytes(path.read_bytes()[:-20])
    again = compile(TEXT, cache=str(tmp_path))
    assert "normalize" in again.timings
    assert again.ptx == expected
    assert "cache" in compile(TEXT, cache=str(tmp_path)).timings


def test_a_dump_writes_every_level_whatever_is_kept(tmp_path: Path) -> None:
    for name in ("one", "two"):
        compile(TEXT, cache=str(tmp_path / "cache"), dump=str(tmp_path / name))
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert "program.json" in names
    match, different, _ = filecmp.cmpfiles(tmp_path / "one", tmp_path / "two", names, shallow=False)
    assert (sorted(match), different) == (names, [])


def test_a_refused_program_is_refused_again(tmp_path: Path) -> None:
    wrong = TEXT.replace("linalg.exp", "linalg.expo")
    for _ in range(2):
        with pytest.raises(mlirstitch.MlirstitchError, match="expo"):
            compile(wrong, cache=str(tmp_path))
    assert not list(tmp_path.rglob("*.entry"))


def command_line(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlirstitch", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )


def test_the_command_line_goes_on_without_a_cache_it_cannot_use_and_says_so_once(tmp_path: Path) -> None:
    source, blocked = tmp_path / "x.mlir", tmp_path / "file"
    source.write_text(TEXT)
    blocked.write_text("")
    done = command_line("compile", str(source), "-o", str(tmp_path / "b"), MLIRSTITCH_CACHE=str(blocked))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1
    assert (tmp_path / "b" / "manifest.json").exists()


def test_two_processes_fill_one_cache_and_both_succeed(tmp_path: Path) -> None:
    source = tmp_path / "x.mlir"
    source.write_text(TEXT)
    command = [sys.executable, "-m", "mlirstitch", "compile", str(source), "--cache", str(tmp_path / "cache"), "-o"]
    children = [subprocess.Popen([*command, str(tmp_path / name)], stderr=subprocess.PIPE) for name in ("one", "two")]
    assert [child.communicate(timeout=120)[1].count(b"warning") for child in children] == [0, 0]
    assert [child.returncode for child in children] == [0, 0]
    manifests = [(tmp_path / name / "manifest.json").read_bytes() for name in ("one", "two")]
    assert manifests[0] == manifests[1]


def test_the_cache_command_shows_and_clears(call, tmp_path: Path) -> None:
    compile(TEXT, cache=str(tmp_path))
    code, out, _ = call("cache", "--cache", tmp_path)
    assert code == 0
    assert str(tmp_path) in out
    assert "holds    2 entries" in out  # the program and its PTX; nobody asked for the report
    code, out, _ = call("cache", "--clear", "--cache", tmp_path)
    assert (code, out) == (0, f"removed 2 entries of {tmp_path}\n")
    assert "holds    0 entries" in call("cache", "--info", "--cache", tmp_path)[1]
    assert call("cache", "--cache", "off")[:2] == (0, "the cache is off, as --cache or MLIRSTITCH_CACHE says\n")
    assert call("cache", "--info", "--clear")[0] == 2
