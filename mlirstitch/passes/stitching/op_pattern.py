"""Which ops a user means: patterns of what an op does, and source lines.

``exp*`` and ``linalg.matmul`` are patterns (as of file names) of an op's label or name; ``model.py:42`` and
``model.py:40-52`` are the ops that come from these lines, directly or through a call that stands there. A path may be
given by its last parts, or left out (``:42``). Patterns are listed with commas.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mlirstitch.dialects.locations import frames
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.cluster_name import op_label
from mlirstitch.passes.stitching.graph import Graph

_LINES = re.compile(r"(?P<path>.*):(?P<first>\d+)(?:-(?P<last>\d+))?")
_SHOWN = 12


@dataclass(frozen=True)
class NamedOp:
    """An op as patterns see it: what it does in a word, its name, and (file, line) of every frame it comes from."""

    label: str
    name: str
    places: tuple[tuple[str, int], ...]


def named_ops(graph: Graph) -> tuple[NamedOp, ...]:
    """Every node of a graph, in order."""
    return tuple(NamedOp(op_label(op), op.name, frames(op.location)) for op in graph.ops)


def matching(ops: Sequence[NamedOp], patterns: str, request: str) -> tuple[int, ...]:
    """The nodes that one of the listed patterns names, ascending.

    Raises :class:`PassError` for an empty list, and for a pattern that names no op; ``request`` says who asks.
    """
    found: set[int] = set()
    for pattern in (part.strip() for part in patterns.split(",")):
        if not pattern:
            raise PassError(
                f"{request}: {patterns!r} lists an empty pattern", hint="write exp*, linalg.matmul, f.py:42"
            )
        nodes = [node for node, op in enumerate(ops) if _matches(op, pattern)]
        if not nodes:
            raise PassError(f"{request}: no op of the program matches {pattern!r}", hint=_hint(ops, pattern))
        found.update(nodes)
    return tuple(sorted(found))


def _matches(op: NamedOp, pattern: str) -> bool:
    lines = _LINES.fullmatch(pattern)
    if lines is None:
        return fnmatchcase(op.label, pattern) or fnmatchcase(op.name, pattern)
    first = int(lines["first"])
    last = int(lines["last"] or first)
    return any(first <= line <= last and _is_file(file, lines["path"]) for file, line in op.places)


def _is_file(file: str, path: str) -> bool:
    return not path or fnmatchcase(file, path) or fnmatchcase(file, "*/" + path)


def _hint(ops: Sequence[NamedOp], pattern: str) -> str:
    lines = _LINES.fullmatch(pattern)
    if lines is not None:
        places = dict.fromkeys(place for op in ops for place in op.places if _is_file(place[0], lines["path"]))
        if not places:
            files = sorted({file for op in ops for file, _ in op.places})
            return f"the program comes from {', '.join(files[:_SHOWN]) or 'no known line'}"
        wanted = int(lines["first"])
        near = sorted(places, key=lambda place: (abs(place[1] - wanted), place))[:3]
        return "the nearest lines with ops are " + ", ".join(f"{file}:{line}" for file, line in sorted(near))
    names = sorted({op.label for op in ops} | {op.name for op in ops})
    close = difflib.get_close_matches(pattern.strip("*?"), names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"its ops are {', '.join(names[:_SHOWN])}"
