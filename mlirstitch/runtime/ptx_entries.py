"""Entry points of a PTX text and their arity, found without parsing the code."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\))?")


def entry_points(ptx: str) -> dict[str, int]:
    """Kernel name -> number of parameters. PTX ISA, "Kernel and Function Directives: .entry"."""
    text = _COMMENT.sub(" ", ptx)
    return {name: len(re.findall(r"\.param\b", parameters or "")) for name, parameters in _ENTRY.findall(text)}
