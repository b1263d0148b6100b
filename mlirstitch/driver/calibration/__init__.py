"""Measuring the constants of a chip that the cost models read: docs/calibration.md."""

from mlirstitch.driver.calibration.command import Calibration, calibrate
from mlirstitch.driver.calibration.measure import DeviceMeter, ModelMeter

__all__ = ["Calibration", "DeviceMeter", "ModelMeter", "calibrate"]
