"""Tokens of PTX text, each with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlirstitch.errors import LaunchError

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f]+)
  | (?P<newline>\n)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>"[^"\n]*")
  | (?P<number>
        0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b
      | 0[xX][0-9a-fA-F]+U?   | 0[bB][01]+U?
      | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+U?)
  | (?P<name>[%$A-Za-z_.][\w$.%]*(?:::\w+(?:\.\w+)*)*)
  | (?P<punctuation>[{}()\[\],;:@!|+\-<>=*])
    """,
    re.VERBOSE | re.DOTALL,
)
_IMPLICIT_DEFINITION = re.compile(r"//\s*implicit-def:\s*(%[\w$]+)")


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    ``kind`` is "name" (mnemonics, directives, registers, symbols), "number", "string", "punctuation", "implicit" (the
    register named by LLVM's ``// implicit-def`` comment: its value does not matter, so reading it is no mistake) or
    "end". ``line`` counts from 1.
    """

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """Split PTX into tokens, the last of kind "end". Raises :class:`LaunchError` at a character PTX does not have."""
    tokens: list[Token] = []
    position, line = 0, 1
    match = _TOKEN.match
    while position < len(text):
        found = match(text, position)
        if found is None:
            raise LaunchError(f"malformed PTX, line {line}: unexpected {text[position : position + 12]!r}")
        kind = found.lastgroup or ""
        lexeme = found.group()
        if kind == "newline":
            line += 1
        elif kind == "comment":
            implicit = _IMPLICIT_DEFINITION.match(lexeme)
            if implicit:
                tokens.append(Token("implicit", implicit.group(1), line))
            line += lexeme.count("\n")
        elif kind != "space":
            tokens.append(Token(kind, lexeme, line))
        position = found.end()
    tokens.append(Token("end", "", line))
    return tokens
