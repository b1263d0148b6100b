"""Typed access to the parts of MLIR's Python bindings whose type stubs are missing or too wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from mlir import ir


class NativeDiagnostic(Protocol):
    """A diagnostic of MLIR: of an error, or handed to a diagnostic handler."""

    @property
    def severity(self) -> Any: ...

    @property
    def location(self) -> ir.Location: ...

    @property
    def message(self) -> str: ...

    @property
    def notes(self) -> Sequence[NativeDiagnostic]: ...


MLIRError = cast("type[Exception]", getattr(ir, "MLIRError"))  # noqa: B009  the stub lacks it
"""The exception MLIR raises when parsing, verifying or a pass fails."""


def error_diagnostics(error: BaseException | None) -> list[NativeDiagnostic]:
    """What MLIR said with an error; empty if ``error`` is not one of MLIR's."""
    return list(getattr(error, "error_diagnostics", ())) if isinstance(error, MLIRError) else []


def print_op(op: ir.Operation, *, locations: bool = False, generic: bool = False, assume_verified: bool = False) -> str:
    """The text of an op, constants in full, ending in one newline."""
    text = op.get_asm(enable_debug_info=locations, print_generic_op_form=generic, assume_verified=assume_verified)
    return str(text).rstrip("\n") + "\n"
