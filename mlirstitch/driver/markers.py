"""Markers in a PyTorch model that say which ops share a kernel: ``with mlirstitch.keep_together():`` and its likes.

A marker leaves the program alone: while a model is imported it notes the source lines that it encloses, and the ops
that come from these lines, directly or through calls, are meant. At any other time it does nothing.
"""

from __future__ import annotations

import ast
import functools
import glob
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from mlirstitch.errors import MlirstitchError

P = ParamSpec("P")
R = TypeVar("R")
Recorded = dict[str, list[str]]
"""Name of a compile option -> the patterns that markers add to it, in the order in which they were met."""

_recorded: ContextVar[Recorded | None] = ContextVar("recorded", default=None)
_SPECIAL = re.compile(r"""[,;|"']""")


@contextmanager
def recording() -> Iterator[Recorded]:
    """Collect what markers ask for while the body runs."""
    found: Recorded = {}
    token = _recorded.set(found)
    try:
        yield found
    finally:
        _recorded.reset(token)


class Marker:
    """A context manager, and a decorator of functions and methods, that notes the lines it encloses."""

    def __init__(self, option: str) -> None:
        self._option = option

    def __enter__(self) -> None:
        if _recorded.get() is not None:
            frame = sys._getframe(1)
            self._note(frame.f_code.co_filename, *_lines_of_with(frame))

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """``function``, whose lines are noted whenever it is called."""

        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            if _recorded.get() is not None:
                self._note(function.__code__.co_filename, *_lines_of_function(function))
            return function(*args, **kwargs)

        return marked

    def _note(self, file: str, first: int, last: int) -> None:
        recorded = _recorded.get()
        if recorded is not None:
            # A mark of the pattern language in the path stands for itself as "any character".
            path = _SPECIAL.sub("?", glob.escape(file))
            patterns = recorded.setdefault(self._option, [])
            pattern = f"{path}:{first}-{last}"
            if pattern not in patterns:
                patterns.append(pattern)


def keep_together() -> Marker:
    """``with keep_together():`` or ``@keep_together()``: ops of the enclosed lines that read each other share a kernel.

    They are refused, when the model is compiled, if no kernel can compute them. Raises :class:`MlirstitchError`, while
    the model is imported, where the source of the enclosed lines cannot be found.
    """
    return Marker("keep_together")


def keep_apart() -> Marker:
    """``with keep_apart():`` or ``@keep_apart()``: ops of the enclosed lines share no kernel with any other op.

    Raises as :func:`keep_together` does.
    """
    return Marker("keep_apart")


def never_fuse() -> Marker:
    """``with never_fuse():`` or ``@never_fuse()``: every op of the enclosed lines is a kernel of its own.

    Raises as :func:`keep_together` does.
    """
    return Marker("never_fuse")


def _lines_of_with(frame: FrameType) -> tuple[int, int]:
    """First and last line of the body of the ``with`` statement that a frame is entering."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    try:
        tree = ast.parse("".join(linecache.getlines(file, frame.f_globals)))
    except SyntaxError as error:
        raise _no_source(file, line) from error
    enclosing = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.With | ast.AsyncWith) and node.lineno <= line <= _end_of_header(node)
    ]
    if not enclosing:
        raise _no_source(file, line)
    inner = max(enclosing, key=lambda node: node.lineno)
    return inner.body[0].lineno, inner.end_lineno or inner.lineno


def _end_of_header(node: ast.With | ast.AsyncWith) -> int:
    return max(item.context_expr.end_lineno or node.lineno for item in node.items)


def _lines_of_function(function: Callable[..., Any]) -> tuple[int, int]:
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        code = function.__code__
        raise _no_source(code.co_filename, code.co_firstlineno) from error
    return first, first + len(lines) - 1


def _no_source(file: str, line: int) -> MlirstitchError:
    return MlirstitchError(
        f"a marker at {file}:{line} finds no source of the lines it encloses",
        hint="keep the model in a file, or use the options keep_together, keep_apart, never_fuse",
    )
