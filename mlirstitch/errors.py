"""Every error a user can meet.

All of them derive from :class:`MlirstitchError`. A refusal names the operation, its types and shapes, the user's Python
line when it is known, the reason, and a way out (``hint``).
"""

from __future__ import annotations


class MlirstitchError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        message: what is wrong, in one or two sentences.
        hint: what the user can do about it, or ``""``.
        source: the user's source line (``file.py:12``) when known, or ``""``.
        reproducer: folder that reproduces the failure, or ``""``.
    """

    def __init__(self, message: str, *, hint: str = "", source: str = "", reproducer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.source = source
        self.reproducer = reproducer

    def __str__(self) -> str:
        text = f"{self.source}: {self.message}" if self.source else self.message
        if self.hint:
            text += f"\n  hint: {self.hint}"
        if self.reproducer:
            text += f"\n  reproducer: {self.reproducer}"
        return text


class ImportFailure(MlirstitchError):
    """A model could not be brought into linalg."""


class PipelineError(MlirstitchError):
    """A pipeline text or a pass option is malformed, or names something that does not exist."""


class PassError(MlirstitchError):
    """A pass refuses its input, or a stage failed.

    ``op`` is a printable description of the operation (name, types); it is text, never a handle into the IR, because
    the IR may be gone when the error is read.
    """

    def __init__(self, message: str, *, op: str = "", hint: str = "", source: str = "", reproducer: str = "") -> None:
        super().__init__(f"{op}: {message}" if op else message, hint=hint, source=source, reproducer=reproducer)
        self.op = op


class InternalError(PassError):
    """A pass broke: an exception nobody meant, or invalid IR. A fault of the compiler, not of the input."""


class TargetError(MlirstitchError):
    """An unknown chip, or something that the chip cannot do."""


class PlanError(MlirstitchError):
    """A partition plan is malformed or cannot be honoured."""


class BundleError(MlirstitchError):
    """A bundle on disk is missing, damaged, of an unknown version, or does not fit the device."""


class LaunchError(MlirstitchError):
    """Arguments of a call do not fit the program, or a kernel launch failed or was found faulty."""
