"""Where an op comes from, as a user reads it, and errors that say so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mlirstitch.errors import PassError

if TYPE_CHECKING:
    from mlir import ir

_LIBRARY = re.compile(r"[\\/](site-packages|dist-packages)[\\/]")
_SOURCE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")


def source_lines(location: ir.Location) -> tuple[str, ...]:
    """The distinct lines a location names, as ``file:line`` or ``file:line:column``; empty for an unknown location.

    Of a chain of calls (a call-site location, innermost frame first) only one line is named: the innermost that does
    not lie in an installed package, because that is the line the user wrote. A fused location names one line for each
    of its parts, in order. The column is left out where the producer did not know it (Python lines).
    """
    found: dict[str, None] = {}
    for part in _parts(location):
        frames = list(_frames(part))
        own = [frame for frame in frames if not _LIBRARY.search(frame)]
        if frames:
            found[(own or frames)[0]] = None
    return tuple(found)


def source_line(location: ir.Location) -> str:
    """The first of :func:`source_lines`, or ``""``."""
    lines = source_lines(location)
    return lines[0] if lines else ""


def frames(location: ir.Location) -> tuple[tuple[str, int], ...]:
    """Every distinct (file, line) that a location names, those of calls and of installed packages too."""
    found: dict[tuple[str, int], None] = {}
    for part in _parts(location):
        for frame in _frames(part):
            match = _SOURCE.fullmatch(frame)
            if match is not None:
                found[match["file"], int(match["line"])] = None
    return tuple(found)


def location_of(source: str, context: ir.Context) -> ir.Location | None:
    """The location a source line of :func:`source_line` stands for, or None if the text is not one."""
    from mlir import ir

    match = _SOURCE.fullmatch(source)
    if match is None:
        return None
    return ir.Location.file(match["file"], int(match["line"]), int(match["column"] or 0), context)


def without_calls(location: ir.Location) -> ir.Location:
    """The same user lines without chains of calls: file locations, fused if there are several.

    Functions that stand beside kernels need it: upstream's ``ensure-debug-info-scope-on-llvm-func`` dies on a call-site
    location outside of llvm functions.
    """
    from mlir import ir

    context = location.context
    lines = [found for line in source_lines(location) if (found := location_of(line, context)) is not None]
    if not lines:
        return ir.Location.unknown(context)
    return lines[0] if len(lines) == 1 else ir.Location.fused(lines, context=context)


def _parts(location: ir.Location) -> Iterator[ir.Location]:
    """The members of (nested) fused locations, else the location itself."""
    if location.is_a_fused():
        for part in location.locations:
            yield from _parts(part)
    elif location.is_a_name():
        yield from _parts(location.child_loc)
    else:
        yield location


def _frames(location: ir.Location) -> Iterator[str]:
    """The lines of a chain of calls, innermost first."""
    if location.is_a_callsite():
        yield from _frames(location.callee)
        yield from _frames(location.caller)
    elif location.is_a_name():
        yield from _frames(location.child_loc)
    elif location.is_a_fused():
        for part in location.locations:
            yield from _frames(part)
    elif location.is_a_file():
        column = location.start_col
        yield f"{location.filename}:{location.start_line}" + (f":{column}" if column else "")


def describe(op: ir.Operation) -> str:
    """The op's name with the types of its operands and results: ``math.exp (f32) -> (f32)``."""
    if op.name == "func.func" or op.name == "gpu.func":
        return f"{op.name} {op.attributes['sym_name']}".replace('"', "@", 1).replace('"', "")
    return f"{op.name} ({_types(op.operands)}) -> ({_types(op.results)})"


MOST_TYPES = 8
"""Of more operands than this a message names the first and counts the others."""


def _types(values: Iterable[ir.Value]) -> str:
    texts = [str(value.type) for value in values]
    shown = ", ".join(texts[:MOST_TYPES])
    return f"{shown}, and {len(texts) - MOST_TYPES} more" if len(texts) > MOST_TYPES else shown


def refusal(op: ir.Operation, message: str, hint: str = "") -> PassError:
    """The error with which ``op`` is refused: names op, types and the user's source line."""
    return PassError(message, op=describe(op), hint=hint, source=source_line(op.location))
