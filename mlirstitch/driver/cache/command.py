"""What ``mlirstitch cache`` and ``mlirstitch doctor`` say about the cache."""

from __future__ import annotations

import os
from pathlib import Path

from mlirstitch.driver.cache.opening import OFF, cache_folder, cache_limit
from mlirstitch.driver.cache.store import CacheInfo, Store
from mlirstitch.driver.report.quantities import byte_size
from mlirstitch.options import CompileOptions


def info_text(options: CompileOptions) -> str:
    """Folder, bound, and entries by kind. Raises MlirstitchError if the bound is none."""
    folder = cache_folder(options)
    if folder is None:
        return _off()
    info = _store(folder, options).info()
    lines = [f"folder   {info.folder}", f"holds    {_holds(info)}"]
    width = max(len(kind) for kind in info.entries)
    for kind, entries in info.entries.items():
        lines.append(f"  {kind:<{width}}  {entries:>6}  {byte_size(info.bytes[kind]):>10}")
    return "\n".join(lines)


def clear_text(options: CompileOptions) -> str:
    """Remove all entries and say how many there were."""
    folder = cache_folder(options)
    if folder is None:
        return _off()
    return f"removed {_store(folder, options).clear()} entries of {folder}"


def describe(options: CompileOptions) -> tuple[bool, str]:
    """Whether the cache can be used, or is off on purpose; and where it is and what it holds, in a line."""
    folder = cache_folder(options)
    if folder is None:
        return True, f"{OFF}, as MLIRSTITCH_CACHE says"
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return False, f"{folder} cannot be written"
    return True, f"{folder}, {_holds(_store(folder, options).info())}"


def _holds(info: CacheInfo) -> str:
    count = sum(info.entries.values())
    return f"{count} entries, {byte_size(info.total_bytes)} of at most {byte_size(info.limit_bytes)}"


def _store(folder: Path, options: CompileOptions) -> Store:
    return Store(folder, cache_limit(options), lambda text: None)


def _off() -> str:
    return "the cache is off, as --cache or MLIRSTITCH_CACHE says"
