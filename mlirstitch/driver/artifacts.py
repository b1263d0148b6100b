"""Folders that a compilation leaves behind: dumps of the levels, and reproducers of failures."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any


def keep_reproducer(work: Path, parent: str, reason: str) -> Path:
    """Copy a failed compilation's folder to ``<parent>/mlirstitch-reproducer-<digest>`` and return that path.

    The name depends on the input alone, so that the same failure does not pile up folders. ``reason`` is kept as
    ``reason.txt``; ``run.sh`` repeats the failure.
    """
    digest = hashlib.sha256()
    for name in ("options.json", "input.mlir"):
        if (work / name).exists():
            digest.update((work / name).read_bytes())
    target = Path(parent or ".").absolute() / f"mlirstitch-reproducer-{digest.hexdigest()[:12]}"
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(work, target)
    (target / "reason.txt").write_text(reason + "\n")
    script = target / "run.sh"
    script.write_text(f"#!/bin/sh\nexec python -m mlirstitch.driver.worker {shlex.quote(str(target))}\n")
    script.chmod(0o755)
    return target


def write_json(path: Path, data: Any) -> None:
    """Write JSON aside and rename, so that a reader never sees half a file."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    os.replace(aside, path)
