"""Asking NVIDIA's assembler about PTX: does it accept a module, and at what cost in registers and memory.

``ptxas`` is optional. It comes with the PyPI package ``nvidia-cuda-nvcc`` (the ``dev`` extra) or with a CUDA toolkit.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlirstitch.errors import MlirstitchError

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<chip>[^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SECONDS = 300


@dataclass(frozen=True)
class KernelUse:
    """What one kernel takes: registers a thread; stack, spill stores, spill loads and static shared memory in bytes."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


@dataclass(frozen=True)
class PtxasReport:
    """Answer of ``ptxas`` for one PTX module.

    Attributes:
        chip: what it was assembled for.
        kernels: by name, in the order in which they were assembled.
        errors: error lines; empty if the module was accepted.
    """

    chip: str
    kernels: dict[str, KernelUse]
    errors: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        """Whether the module assembles."""
        return not self.errors

    @property
    def spilling(self) -> tuple[str, ...]:
        """Kernels whose registers spill to memory."""
        return tuple(name for name, use in self.kernels.items() if use.spill_stores or use.spill_loads)


def find_ptxas() -> Path | None:
    """Path of ``ptxas``: the ``nvidia`` packages of this environment, then ``$CUDA_HOME/bin``, then ``$PATH``."""
    candidates: list[Path] = []
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations if package else None) or ():
        candidates += sorted(Path(folder).glob("*/bin/ptxas"))
    if "CUDA_HOME" in os.environ:
        candidates.append(Path(os.environ["CUDA_HOME"]) / "bin" / "ptxas")
    on_path = shutil.which("ptxas")
    if on_path:
        candidates.append(Path(on_path))
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def check(ptx: str, chip: str) -> PtxasReport:
    """Assemble ``ptx`` for ``chip`` ("sm_90").

    Raises :class:`MlirstitchError` when there is no ptxas. PTX that it refuses gives a report with errors.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        raise MlirstitchError("ptxas was not found", hint="pip install nvidia-cuda-nvcc, or set CUDA_HOME")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "module.ptx"
        source.write_text(ptx)
        command = [str(ptxas), f"-arch={chip}", "-v", str(source), "-o", os.devnull]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return PtxasReport(chip, {}, (f"ptxas took more than {_SECONDS} s",))
    return _parse(chip, done.returncode, done.stdout + done.stderr)


def _parse(chip: str, code: int, output: str) -> PtxasReport:
    errors = [line for line in output.splitlines() if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)]
    if code and not errors:
        errors = [output.strip() or f"ptxas ended with code {code}"]
    kernels: dict[str, KernelUse] = {}
    name, stack = "", (0, 0, 0)
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            name, stack = match["name"], (0, 0, 0)
        elif match := _STACK.search(line):
            stack = int(match[1]), int(match[2]), int(match[3])
        elif name and (match := _REGISTERS.search(line)):
            shared = _SHARED.search(line)
            kernels[name] = KernelUse(int(match[1]), *stack, int(shared[1]) if shared else 0)
    return PtxasReport(chip, kernels, tuple(errors) if code else ())


def version() -> str | None:
    """The release of the ptxas that :func:`check` runs ("13.3.33"); None if there is none or it does not say."""
    ptxas = find_ptxas()
    if ptxas is None:
        return None
    said = subprocess.run([str(ptxas), "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    match = re.search(r"\bV(\d+(?:\.\d+)*)", said.stdout)
    return match[1] if match else None
