"""What the command line prints besides products: errors and progress, always on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlirstitch.errors import InternalError, MlirstitchError

DEBUG_VARIABLE = "MLIRSTITCH_DEBUG"
_BAR = 20
"""Characters of a bar."""

REFUSED, MISUSED, CRASHED, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: the input is at fault, the command line is, the compiler is; stopped by Ctrl-C. Success is 0."""


def report_error(error: BaseException) -> int:
    """Print ``error: ...`` with its hint on stderr and return the exit code it stands for.

    With MLIRSTITCH_DEBUG=1 in the environment the traceback is printed first.
    """
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        traceback.print_exception(error)
    if isinstance(error, MlirstitchError):
        print(f"error: {error}", file=sys.stderr)
        # Loaded only on this path: the worker module is not needed to print a refusal of, say, a bundle.
        from mlirstitch.driver.worker import CompilerCrash

        return CRASHED if isinstance(error, CompilerCrash | InternalError) else REFUSED
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, OSError) and error.filename is not None:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return REFUSED
    print(f"error: internal error: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"  hint: this is a fault of mlirstitch; {DEBUG_VARIABLE}=1 shows where it happened", file=sys.stderr)
    return CRASHED


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show what is going on, on stderr, if that is a terminal. Yields a function that replaces the shown phase."""
    if not sys.stderr.isatty():
        yield lambda phase: None
        return
    from rich.console import Console
    from rich.text import Text

    # As Text, because rich reads a str as markup: in "model.py:factory: import" it would see an emoji.
    with Console(stderr=True).status(Text(title)) as status:
        yield lambda phase: status.update(Text(f"{title}: {phase}"))


def note(text: str) -> None:
    """One line of information on stderr."""
    print(text, file=sys.stderr)


def bar(done: int, total: int) -> str:
    """How far something is, as text for :func:`progress`: ``[####......] 4/10``."""
    filled = _BAR * done // max(1, total)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{total}"
