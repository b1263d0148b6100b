"""Folders that repeat a failing pipeline."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from mlirstitch.errors import MlirstitchError, PipelineError

if TYPE_CHECKING:
    from mlir import ir

RUN_SCRIPT = """#!/bin/sh
# Repeats the failure; give further options of mlirstitch-opt as arguments.
command -v mlirstitch-opt > /dev/null || { echo "error: put mlirstitch-opt on PATH (activate its venv)" >&2; exit 127; }
cd "$(dirname "$0")" && exec mlirstitch-opt input.mlir --pass-pipeline="$(cat pipeline.txt)" "$@"
"""


def write_reproducer(before: ir.Operation, pipeline: str, parent: str, error: MlirstitchError) -> Path:
    """Write ``<parent>/mlirstitch-reproducer-<digest>`` for the module ``before`` the pipeline and return its path.

    The name depends on input and pipeline alone: the same failure does not pile up folders.
    """
    from mlirstitch.dialects.bindings import print_op

    return write_reproducer_text(print_op(before, locations=True), pipeline, parent, error.message)


def write_reproducer_text(text: str, pipeline: str, parent: str, reason: str) -> Path:
    """:func:`write_reproducer` for a module given as text. Raises PipelineError if the folder cannot be written."""
    digest = hashlib.sha256(f"{pipeline}\0{text}".encode()).hexdigest()[:12]
    folder = Path(parent).absolute() / f"mlirstitch-reproducer-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "input.mlir").write_text(text.rstrip("\n") + "\n")
        (folder / "pipeline.txt").write_text(pipeline + "\n")
        (folder / "reason.txt").write_text(reason + "\n")
        script = folder / "run.sh"
        script.write_text(RUN_SCRIPT)
        script.chmod(0o755)
    except OSError as problem:
        raise PipelineError(f"cannot write the reproducer {folder}: {problem.strerror}") from problem
    return folder
