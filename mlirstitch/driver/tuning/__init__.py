"""Trying several schedules of a cluster and keeping the one that costs least: docs/tuning.md."""

from mlirstitch.driver.tuning.tuner import Tuner, tuner_of

__all__ = ["Tuner", "tuner_of"]
