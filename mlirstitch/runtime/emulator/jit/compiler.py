"""Machine code of kernels: the ExecutionEngine of the ``mlir`` package, and a cache of what it compiled.

``mlir`` is imported when the first kernel is compiled. It computes nonsense if ``torch_mlir`` was imported before it
(symbols of its libLLVM are then taken from torch_mlir's); that order is recognised and refused.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.jit.emit import Specialisation, Unsupported
from mlirstitch.runtime.emulator.jit.kernel import Code, generate
from mlirstitch.runtime.emulator.jit.support import FUNCTIONS, module_text
from mlirstitch.runtime.emulator.ptx.ir import Kernel

CACHED_KERNELS = 256
"""Compiled kernels that are kept, of all modules together; the one not used for longest goes first."""

_OPTIMISATION = 2


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel ready to run: its code, the address of ``run_warp``, and what keeps the machine code alive."""

    code: Code
    address: int
    keep: Any


def unavailable() -> str:
    """Why this process cannot compile, or ""."""
    wrong = wrong_order()
    if wrong:
        return wrong
    try:
        import mlir.execution_engine  # noqa: F401  pyright: ignore[reportUnusedImport]
    except ImportError as error:
        return f"the mlir package cannot be imported ({error})"
    return ""


def wrong_order() -> str:
    """What is wrong with the order in which native packages were loaded, or ""."""
    names = list(sys.modules)
    loaded = [n for n in names if n == "torch_mlir" or n.startswith("torch_mlir._mlir_libs")]
    if not loaded:
        return ""
    first = names.index(loaded[0])
    if "mlir.ir" in sys.modules and names.index("mlir.ir") < first:
        return ""
    return "torch_mlir was imported before mlir, which breaks the code that mlir generates: import mlir.ir first"


class Compiler:
    """Compiles kernels for this process; kernels compiled before are found again by the key of their text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kernels: OrderedDict[tuple[str, str, Specialisation], CompiledKernel | LaunchError] = OrderedDict()
        self._library: tuple[Any, dict[str, int]] | None = None

    def compile(self, text_key: str, kernel: Kernel, special: Specialisation) -> CompiledKernel:
        """The compiled kernel. ``text_key`` identifies the PTX module.

        Raises :class:`emit.Unsupported` for an instruction the engine has no code for, at every call.
        """
        key = (text_key, kernel.name, special)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                found = self._compile(kernel, special)
                self._kernels[key] = found
                if len(self._kernels) > CACHED_KERNELS:
                    self._kernels.popitem(last=False)
            else:
                self._kernels.move_to_end(key)
        if isinstance(found, LaunchError):
            raise found
        return found

    def _compile(self, kernel: Kernel, special: Specialisation) -> CompiledKernel | LaunchError:
        try:
            code = generate(kernel, special)
        except LaunchError as error:
            return error
        try:
            engine = _machine_code(code.text)
        except _mlir_error() as error:
            return Unsupported(f"kernel {kernel.name!r}: mlir refuses the code generated for it: {error}")
        return CompiledKernel(code, _addresses(engine, "entry", 1)[0], engine)

    def functions(self) -> dict[str, int]:
        """Addresses of the functions of the support library by name; compiled at the first call."""
        with self._lock:
            if self._library is None:
                engine = _machine_code(module_text())
                self._library = (
                    engine,
                    dict(zip(FUNCTIONS, _addresses(engine, "addresses", len(FUNCTIONS)), strict=True)),
                )
            return self._library[1]


def _mlir_error() -> type[Exception]:
    from mlir import ir

    return getattr(ir, "MLIRError", RuntimeError)


def _machine_code(text: str) -> Any:
    from mlir import execution_engine, ir

    options: dict[str, Any] = {"opt_level": _OPTIMISATION, "enable_object_dump": False}
    with ir.Context(), ir.Location.unknown():
        return execution_engine.ExecutionEngine(ir.Module.parse(text), **options)


def _addresses(engine: Any, function: str, count: int) -> list[int]:
    """What ``function(pointer)`` writes."""
    out = (ctypes.c_uint64 * count)()
    argument = ctypes.c_void_p(ctypes.addressof(out))
    packed = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.raw_lookup(function))(ctypes.addressof(packed))
    return list(out)


COMPILER = Compiler()
"""The compiler of this process."""
