"""`mlirstitch calibrate`: the file it writes is one that a compilation takes; devices that are not there are named."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mlirstitch
from mlirstitch.driver.calibration import command
from mlirstitch.driver.calibration import measure as measuring
from mlirstitch.driver.calibration.command import Calibration, calibrate, displaced
from mlirstitch.driver.calibration.fit import fit
from mlirstitch.driver.calibration.measure import DeviceMeter, Measurement, ModelMeter, measure, open_meter
from mlirstitch.driver.calibration.probes import Probe, probes
from mlirstitch.driver.cli import main
from mlirstitch.errors import LaunchError, MlirstitchError
from mlirstitch.runtime.emulated_device import EmulatedDevice
from mlirstitch.target import Target
from mlirstitch.target_file import constants_of, read_target_file

TABLE = Target.parse("sm_90")
SLEEP = 2e-3


class SlowDevice(EmulatedDevice):
    """A device whose launches take a known time."""

    @property
    def name(self) -> str:
        return "slow"

    def launch(self, module: Any, step: Any, arguments: Sequence[Any], *, count: bool) -> None:
        time.sleep(SLEEP)


class OtherChip(EmulatedDevice):
    """A device that runs nothing of ours."""

    def refuses(self, target: Any) -> str | None:
        return f"it is no {target['chip']}"


def calibration(counted: list[Measurement]) -> Calibration:
    return Calibration("emulator", TABLE, tuple(counted), fit(counted, displaced(TABLE, 0.75)))


def test_the_command_writes_a_file_that_compilations_take(
    counted: list[Measurement], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    known = {measured.name: measured for measured in counted}  # measuring again would take seconds
    monkeypatch.setattr(command, "measure", lambda probe, target, meter: known[probe.name])
    path = tmp_path / "sm_90.json"
    assert main(["calibrate", "--device", "emulator", "-o", str(path)]) == 0
    shown = capfd.readouterr()
    assert f"wrote {path}" in shown.err
    assert "root mean square error 0.0" in shown.out
    found, table = read_target_file(path), constants_of(TABLE)
    assert found.chip == "sm_90"
    assert all(value == pytest.approx(table[name], rel=0.03) for name, value in found.constants.items())
    text = (
        "func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {\n  %e = tensor.empty() : tensor<64xf32>\n"
        "  %r = linalg.exp ins(%a: tensor<64xf32>) outs(%e: tensor<64xf32>) -> tensor<64xf32>\n"
        "  return %r : tensor<64xf32>\n}"
    )
    compiled = mlirstitch.compile(text, target_constants=str(path), to_level="stitched", cache="off")
    assert compiled.report["target_constants"] == dict(found.constants)


def test_the_file_says_what_was_measured_and_how_well_it_fits(counted: list[Measurement]) -> None:
    data = calibration(counted).to_json()
    assert [entry["kernel"] for entry in data["measured"]] == [probe.name for probe in probes("sm_90")]
    assert all(entry["seconds"] > 0 and entry["fitted_seconds"] > 0 for entry in data["measured"])
    assert data["fit"]["rms_error"] <= abs(data["fit"]["largest_error"]["error"]) < 0.01
    assert set(data["constants"]) | set(data["kept"]) == set(constants_of(TABLE))
    assert not set(data["constants"]) & set(data["kept"])


def test_equal_counts_give_equal_files(counted: list[Measurement]) -> None:
    first, second = (json.dumps(calibration(counted).to_json()) for _ in range(2))
    assert first == second


def test_progress_names_every_kernel_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [probe for probe in probes("sm_90") if probe.name in ("nothing but a launch", "float arithmetic")]
    monkeypatch.setattr(command, "probes", lambda chip: few)
    told: list[tuple[int, int, str]] = []
    calibrate(TABLE, ModelMeter(TABLE), lambda *told_now: told.append(told_now))
    assert told == [(0, 2, "nothing but a launch"), (1, 2, "float arithmetic")]


def test_a_device_that_takes_time_is_timed_and_counted_on_the_emulated_one() -> None:
    (probe,) = (probe for probe in probes("sm_90") if probe.name == "nothing but a launch")
    found, counted = (measure(probe, TABLE, meter) for meter in (DeviceMeter(SlowDevice()), ModelMeter(TABLE)))
    assert SLEEP <= found.seconds < 10 * SLEEP
    assert found.figures == counted.figures


def test_a_cuda_device_that_is_not_there_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--device", "cuda", "-o", str(tmp_path / "x.json")]) == 1
    shown = capfd.readouterr().err
    assert "CUDA device" in shown
    assert "hint: use --device emulator" in shown
    assert not (tmp_path / "x.json").exists()


def test_a_device_of_another_chip_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "open_device", lambda name: OtherChip())
    with pytest.raises(LaunchError, match=r"does not run code for sm_90: it is no sm_90\n  hint: give its --target"):
        open_meter("cuda", TABLE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "sm_1", "-o", "x.json"], "unknown target 'sm_1'"),
        (["-o", "no/such/folder/x.json"], "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is_measured(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(chip: str) -> list[Probe]:
        raise MlirstitchError("measured")

    monkeypatch.setattr(command, "probes", fail)
    assert main(["calibrate", *arguments]) == 1
    assert message in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120"])
def test_the_constants_of_every_chip_are_found(chip: str) -> None:
    table = Target.parse(chip)
    found = calibrate(table, ModelMeter(table), lambda *_: None)
    constants, wanted = constants_of(found.fit.target), constants_of(table)
    assert len(found.fit.fitted) >= 16
    assert all(constants[name] == pytest.approx(wanted[name], rel=0.03) for name in found.fit.fitted)
