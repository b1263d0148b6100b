"""The emulated device: executes PTX text on the CPU, checks it, and counts what it does.

Needs numpy alone. ``load`` parses a module, :meth:`EmulatedModule.launch` runs a kernel on numpy arrays.
"""

from mlirstitch.runtime.emulator.counters import LaunchCounters
from mlirstitch.runtime.emulator.module import DEFAULT_BUDGET, EmulatedModule, KernelInfo, ParameterInfo, launch, load

__all__ = ["DEFAULT_BUDGET", "EmulatedModule", "KernelInfo", "LaunchCounters", "ParameterInfo", "launch", "load"]
