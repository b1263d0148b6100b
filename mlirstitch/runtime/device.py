"""What the executor needs of a device. Implementations: the emulated device; others fit behind the same protocol.

``M`` is the device's own handle of a piece of memory (a byte array on the emulated device, an address on a GPU). Work
is ordered: every call sees what the earlier ones did. Calls may return before the work is done;
:meth:`Device.synchronize` and :meth:`Device.copy_out` wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.dtypes import Array
from mlirstitch.runtime.library import Library
from mlirstitch.runtime.program import Launch

M = TypeVar("M")

Counters = Mapping[str, Any]
"""Counted facts of one launch by name: integers, or nested mappings of integers."""


class Device(Protocol[M]):
    """Memory, modules and launches of one device."""

    @property
    def name(self) -> str:
        """Printable name, for reports and messages."""
        ...

    @property
    def library(self) -> Library[M]:
        """Who computes library steps on this device."""
        ...

    def refuses(self, target: Mapping[str, str]) -> str | None:
        """None if PTX for ``target`` (``{"chip", "ptx"}``) runs here, else the reason why not."""
        ...

    def allocate(self, count: int, label: str) -> M:
        """``count`` bytes aligned to 256; contents undefined. ``label`` names them in messages. ``count`` may be 0."""
        ...

    def adopt(self, array: Array) -> M | None:
        """Device memory that is the array's own storage, where the device can do so without a copy; else None."""
        ...

    def view(self, memory: M, offset: int, count: int) -> M:
        """``count`` bytes from ``offset`` of an allocation."""
        ...

    def copy_in(self, destination: M, source: Array) -> None:
        """Fill device memory from a contiguous array of the same number of bytes."""
        ...

    def copy_out(self, destination: Array, source: M) -> None:
        """Fill a contiguous array from device memory of the same number of bytes."""
        ...

    def copy(self, destination: M, source: M) -> None:
        """Copy within the device, equal sizes."""
        ...

    def clear(self, memory: M) -> None:
        """Set every byte to zero."""
        ...

    def discard(self, memory: M) -> None:
        """The contents are no longer needed. A checking device overwrites them, so that a stale read shows."""
        ...

    def load_ptx(self, text: str, name: str) -> Any:
        """A module of kernels. Raises LaunchError if the device cannot load it."""
        ...

    def launch(self, module: Any, step: Launch, arguments: Sequence[M], *, count: bool) -> Counters | None:
        """Run a kernel of ``module``; one address a parameter.

        With ``count``, returns what was counted, as plain JSON data, if the device can count; else None.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all work is done. Raises LaunchError if some of it failed."""
        ...


def open_device(
    name: str = "emulator", *, sanitize: bool = False, seed: int = 0, engine: str | None = None
) -> Device[Any]:
    """The device of that name (``--device``). Raises :class:`LaunchError` for one that does not exist here.

    ``sanitize`` looks for uninitialised memory and races too, with blocks and warps in an order drawn from ``seed``.
    ``engine`` is that of the emulator, "auto", "jit" or "reference"; None leaves it to the environment.
    """
    if name == "emulator" and sanitize and engine == "jit":
        raise LaunchError("the sanitizer is part of the reference engine", hint="leave --engine out with --sanitize")
    if name == "emulator" and sanitize:
        from mlirstitch.runtime.sanitized_device import SanitizedDevice

        return SanitizedDevice(seed=seed)
    if name == "emulator":
        from mlirstitch.runtime.emulated_device import EmulatedDevice

        return EmulatedDevice(engine=engine)
    hint = "use --device emulator: it executes the same PTX on the CPU"
    if name == "cuda" or name.startswith("cuda:"):
        raise LaunchError("running on a CUDA device is not supported yet", hint=hint)
    raise LaunchError(f"unknown device {name!r}", hint=hint)
