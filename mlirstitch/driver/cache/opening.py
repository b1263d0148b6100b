"""Which cache a compilation uses, if any."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import mlirstitch
from mlirstitch.driver.cache.keys import newest_change, package_files
from mlirstitch.driver.cache.store import Store
from mlirstitch.errors import MlirstitchError
from mlirstitch.options import CompileOptions

OFF = "off"


def default_folder() -> Path:
    """The platform's folder for caches: ``~/.cache/mlirstitch`` on Linux, XDG_CACHE_HOME respected."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("mlirstitch", appauthor=False))


def cache_folder(options: CompileOptions) -> Path | None:
    """The folder that the options name, the default one if they name none, None if they say ``off``."""
    if options.cache == OFF:
        return None
    return Path(options.cache) if options.cache else default_folder()


def cache_limit(options: CompileOptions) -> int:
    """The bound in bytes. Raises MlirstitchError if it is not a number of megabytes above zero."""
    text = options.cache_megabytes
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise MlirstitchError(
            f"option cache_megabytes: {text!r} is not a whole number above zero",
            hint="give megabytes, for example 1024; --cache off turns the cache off",
        )
    return int(text) * 1_000_000


def open_cache(options: CompileOptions, on_trouble: Callable[[str], None]) -> Store | None:
    """The cache to compile with; None if it is off, or if the key would not tell what this process runs.

    ``on_trouble`` receives the warning about a folder that cannot be used. Raises MlirstitchError as
    :func:`cache_limit` does.
    """
    folder, limit = cache_folder(options), cache_limit(options)
    if folder is None or _foreign_templates() or _changed_since_loaded():
        return None
    return Store(folder, limit, on_trouble)


def _foreign_templates() -> bool:
    """Whether kernel templates are registered that are not ours: keys know nothing of their code."""
    template = sys.modules.get("mlirstitch.passes.stitching.template")
    kernels = sys.modules.get("mlirstitch.lowering.kernel")
    if template is None or kernels is None:
        return False
    return any(not type(found).__module__.startswith("mlirstitch.") for found in template.templates())


def _changed_since_loaded() -> bool:
    """Whether our sources were edited under this process, which then may run the old ones."""
    return newest_change(package_files()) > mlirstitch.loaded_at
