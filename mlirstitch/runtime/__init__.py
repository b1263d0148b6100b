"""Runs a bundle. Imports with numpy alone; safetensors, ml_dtypes and jsonschema are loaded on first use."""

from mlirstitch.runtime.bundle import Bundle, read_bundle
from mlirstitch.runtime.device import Device, open_device
from mlirstitch.runtime.executor import Executor
from mlirstitch.runtime.manifest import decode_program
from mlirstitch.runtime.run_report import RunReport

__all__ = ["Bundle", "Device", "Executor", "RunReport", "decode_program", "open_device", "read_bundle"]
