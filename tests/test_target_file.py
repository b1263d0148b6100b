"""Target files: what they may hold, and that nothing else is taken."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mlirstitch.errors import TargetError
from mlirstitch.target import TARGETS, IssueCycles, Target
from mlirstitch.target_file import RANGES, constants_of, read_target_file, target_from, with_constants

WHOLE: dict[str, Any] = {
    "format": "mlirstitch-target",
    "version": 1,
    "chip": "sm_90",
    "constants": {"bandwidth": 1.5e12, "cycles.float": 0.75},
}


def written(folder: Path, text: str) -> str:
    path = folder / "target.json"
    path.write_text(text)
    return str(path)


def with_constant(name: str, value: Any) -> str:
    return json.dumps({**WHOLE, "constants": {name: value}})


def test_a_file_replaces_the_constants_it_holds_and_no_others(tmp_path: Path) -> None:
    found = target_from("sm_90", written(tmp_path, json.dumps(WHOLE)))
    table = Target.parse("sm_90")
    assert found == table.override(bandwidth=1.5e12, cycles=dataclasses.replace(table.cycles, float=0.75))


def test_without_a_file_the_table_holds() -> None:
    assert target_from("sm_80", "") is Target.parse("sm_80")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_table_keeps_to_the_ranges_of_files(target: Target) -> None:
    assert with_constants(target, constants_of(target)) == target


def test_every_constant_that_is_measured_in_floats_can_stand_in_a_file() -> None:
    rates = {field.name for field in dataclasses.fields(Target) if field.type == "float"}
    cycles = {f"cycles.{field.name}" for field in dataclasses.fields(IssueCycles)}
    assert rates | cycles == set(RANGES)


@pytest.mark.parametrize("chip", ["sm_90", "sm_90a"])
def test_a_chip_and_its_form_with_instructions_of_its_own_share_a_file(tmp_path: Path, chip: str) -> None:
    assert target_from(chip, written(tmp_path, json.dumps(WHOLE))).bandwidth == 1.5e12


def test_a_file_of_another_chip_is_refused(tmp_path: Path) -> None:
    message = r"those of sm_90, and the program is compiled for sm_80\n  hint: compile with --target sm_90"
    with pytest.raises(TargetError, match=message):
        target_from("sm_80", written(tmp_path, json.dumps(WHOLE)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"is not JSON"),
        ("[" * 100_000, r"is not JSON"),
        ("[]", r"is not a target file \(format 'mlirstitch-target'\)\n  hint: mlirstitch calibrate"),
        ('{"format": "other"}', r"is not a target file"),
        (json.dumps({**WHOLE, "version": 2}), r"version 2 is unknown, this compiler reads version 1"),
        (json.dumps({**WHOLE, "bandwith": 1}), r"unknown field 'bandwith'\n  hint: fields: chip, constants"),
        (json.dumps({k: v for k, v in WHOLE.items() if k != "chip"}), r"field 'chip' is missing"),
        (json.dumps({**WHOLE, "chip": 90}), r"chip is 90, not the name of a chip"),
        (json.dumps({**WHOLE, "chip": "sm_1"}), r"unknown target 'sm_1'"),
        (json.dumps({**WHOLE, "constants": [1]}), r"constants is not an object"),
        (with_constant("bandwith", 1e12), r"no constant 'bandwith'\n  hint: constants: bandwidth, "),
        (with_constant("sms", 4), r"no constant 'sms'"),
        (with_constant("cycles.tensor", 4), r"no constant 'cycles.tensor'"),
        (with_constant("bandwidth", -1e12), r"bandwidth = -1e\+12 is not between 1e\+06 and 1e\+16 bytes a second"),
        (with_constant("bandwidth", 3350), r"bandwidth = 3350 is not between .*\n  hint: give base units"),
        (with_constant("memory_seconds", 0), r"memory_seconds = 0 is not between 1e-12 and 1 seconds"),
        (with_constant("cycles.float", -0.5), r"cycles.float = -0.5 is not between 0 and 1e\+06 cycles"),
        (with_constant("bandwidth", float("nan")), r"bandwidth is nan, not a finite number"),
        (with_constant("launch_seconds", float("inf")), r"launch_seconds is inf, not a finite number"),
        (with_constant("bandwidth", True), r"bandwidth is True, not a finite number"),
        (with_constant("bandwidth", "3e12"), r"bandwidth is '3e12', not a finite number"),
        (with_constant("bandwidth", 1e12).replace("}}", ', "bandwidth": 2e12}}'), r"'bandwidth' is given twice"),
    ],
)
def test_whatever_is_wrong_with_a_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TargetError, match=message) as caught:
        read_target_file(path)
    assert path in caught.value.message


@pytest.mark.parametrize("name", ["missing.json", ""])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TargetError, match=r"cannot read the target file .*\n  hint: mlirstitch calibrate writes"):
        read_target_file(tmp_path / name)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="is not JSON"):
        read_target_file(tmp_path / "binary")
