"""`--target-constants`: measured constants reach the passes, the report, the bundle and the key of the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import mlirstitch
from mlirstitch.dialects import parse_module, stitch
from mlirstitch.driver.cache.keys import program_key
from mlirstitch.driver.cli import cli, main
from mlirstitch.errors import MlirstitchError, PassError, TargetError
from mlirstitch.options import CompileOptions
from mlirstitch.target import Target

SOURCE = """func.func @main(%a: tensor<512x1024xf32>) -> tensor<512x1024xf32> {
  %e = tensor.empty() : tensor<512x1024xf32>
  %r = linalg.exp ins(%a: tensor<512x1024xf32>) outs(%e: tensor<512x1024xf32>) -> tensor<512x1024xf32>
  return %r : tensor<512x1024xf32>
}"""
TABLE = Target.parse("sm_90")


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """A chip whose launches take a millisecond."""
    path = tmp_path / "slow.json"
    constants = {"launch_seconds": 1e-3, "cycles.float": 1 / 3}
    text = {"format": "mlirstitch-target", "version": 1, "chip": "sm_90", "constants": constants}
    path.write_text(json.dumps(text))
    return str(path)


def test_passes_see_the_constants_bit_for_bit_and_the_rest_of_the_table(slow: str) -> None:
    compiled = mlirstitch.compile(SOURCE, target_constants=slow, to_level="stitched", cache="off")
    found = stitch.target_of(parse_module(compiled.text("stitched")).operation)
    assert (found.launch_seconds, found.cycles.float) == (1e-3, 1 / 3)
    assert (found.bandwidth, found.cycles.integer) == (TABLE.bandwidth, TABLE.cycles.integer)


def test_predictions_follow_the_constants(slow: str) -> None:
    table, file = (
        mlirstitch.compile(SOURCE, target_constants=path, to_level="stitched", cache="off").report["predicted_seconds"]
        for path in ("", slow)
    )
    assert file - table == pytest.approx(1e-3 - TABLE.launch_seconds)


def test_manifest_report_and_page_name_the_constants(slow: str, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    mlirstitch.compile(SOURCE, target_constants=slow, cache="off").save(bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    report = json.loads((bundle / "report.json").read_text())
    digest = manifest["options"]["target_constants"]
    assert report["target_constants"] == {"cycles.float": 1 / 3, "launch_seconds": 1e-3}
    for arguments in (["explain", str(bundle)], ["explain", str(bundle), "--html", "-"]):
        assert f"2 constants of a target file, SHA-256 {digest[:12]}" in CliRunner().invoke(cli, arguments).output


def test_a_bundle_without_a_target_file_says_nothing_of_one(tmp_path: Path) -> None:
    compiled = mlirstitch.compile(SOURCE, cache="off")
    assert "target_constants" not in compiled.bundle.options
    assert compiled.report["target_constants"] == {}


def test_the_key_of_the_cache_depends_on_the_content_of_the_file_and_not_on_its_name(slow: str, tmp_path: Path) -> None:
    def key(path: str) -> str:
        return program_key(SOURCE, "x", from_model=False, options=CompileOptions(target_constants=path))

    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_text(Path(slow).read_text())
    other.write_text(Path(slow).read_text().replace("0.001", "0.002"))
    assert key(slow) == key(str(same))
    assert len({key(""), key(slow), key(str(other))}) == 3


def test_the_compile_cache_keeps_chips_apart(slow: str, tmp_path: Path) -> None:
    found = [
        mlirstitch.compile(SOURCE, target_constants=path, cache=str(tmp_path / "cache")).report["predicted_seconds"]
        for path in ("", slow, "", slow)
    ]
    assert found[:2] == found[2:]
    assert found[0] != found[1]


@pytest.mark.parametrize("level", ["linalg", "stitched"])
def test_a_file_of_another_chip_is_refused_at_every_level(slow: str, level: str) -> None:
    compiled = mlirstitch.compile(SOURCE, target="sm_80", to_level="stitched", cache="off")
    text = SOURCE if level == "linalg" else compiled.text("stitched")
    target = "sm_80" if level == "linalg" else "sm_90"  # a module keeps the chip that it names
    with pytest.raises(TargetError, match="those of sm_90, and the program is compiled for sm_80"):
        mlirstitch.compile(text, target=target, target_constants=slow, from_level=level, cache="off")


def test_a_constant_in_the_ir_is_checked() -> None:
    text = 'module attributes {stitch.target = "sm_90", stitch.target_constants = {%s}} {}'
    for wrong, message in (
        ("bandwidth = -1.0 : f64", "bandwidth = -1 is not between"),
        ("speed = 1.0 : f64", "there is no constant 'speed'"),
        ("bandwidth = 3 : i64", "must be of type dictionary of f64"),
    ):
        with pytest.raises(PassError, match=message):
            stitch.target_of(parse_module(text % wrong).operation)


def test_the_command_line_refuses_a_wrong_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, wrong = tmp_path / "x.mlir", tmp_path / "wrong.json"
    source.write_text(SOURCE)
    wrong.write_text("{}")
    given = ["compile", str(source), "--to", "stitched", "--target-constants", str(wrong), "--cache", "off"]
    assert main(given) == 1
    shown = capfd.readouterr().err
    assert f"target file {wrong}: is not a target file" in shown
    assert "hint: mlirstitch calibrate writes target files" in shown


def test_the_variable_stands_in_for_the_option(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLIRSTITCH_TARGET_CONSTANTS", slow)
    assert mlirstitch.compile(SOURCE, to_level="stitched", cache="off").report["target_constants"]
    monkeypatch.setenv("MLIRSTITCH_TARGET_CONSTANTS", slow + "x")
    with pytest.raises(MlirstitchError, match="cannot read the target file"):
        mlirstitch.compile(SOURCE, to_level="stitched", cache="off")
