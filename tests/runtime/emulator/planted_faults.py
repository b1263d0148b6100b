"""Reads the planted faults of ``faults/*.txt``; the format is described in ``faults/README.md``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ptx_text import kernel, line_of

from mlirstitch.runtime import emulator

FOLDER = Path(__file__).parent / "faults"
_TILE = ".shared .align 16 .b8 tile[1024];\n"
_PRELUDE = """mov.u32 %r60, %ctaid.x; mov.u32 %r61, %ntid.x; mad.lo.u32 %r61, %r60, %r61, %r0; shl.b32 %r62, %r0, 2;
mov.u32 %r63, tile; add.u32 %r63, %r63, %r62; mul.wide.u32 %d63, %r61, 4; add.u64 %d60, %a0, %d63;
"""


@dataclass(frozen=True)
class Fault:
    """A kernel with a fault and its sound twin, how it is launched, and what the finding says."""

    name: str
    body: tuple[str, ...]
    finds: str
    before: str
    options: dict[str, str]

    def text(self, sound: bool) -> str:
        """PTX of the faulty kernel or of its twin."""
        other = "-" if sound else "+"
        lines = [line.removeprefix("- ").removeprefix("+ ") for line in self.body if not line.startswith(f"{other} ")]
        before = _TILE + (self.before + "\n" if ".local" not in self.before else "")
        local = self.before + "\n" if ".local" in self.before else ""
        return kernel(local + _PRELUDE + "\n".join(lines), len(self._lengths()), before=before)

    def lines(self) -> set[int]:
        """PTX lines where the finding may be."""
        text = self.text(sound=False)
        assert line_of(text, "// FOUND")
        return {number for number, line in enumerate(text.splitlines(), 1) if "// FOUND" in line}

    def _lengths(self) -> list[str]:
        return self.options["args"].split(",")

    def run(self, sound: bool, seed: int) -> None:
        """Launch under the sanitizer."""
        args: list[Any] = []
        defined: list[Any] = []
        for length in self._lengths():
            array = np.arange(int(length.rstrip("?r")), dtype=np.int32)
            array[...] = 0 if "atom" in "".join(self.body) or "red." in "".join(self.body) else array
            array.flags.writeable = not length.endswith("r")
            args.append(array)
            defined.append(np.zeros(array.nbytes, bool) if length.endswith("?") else None)
        extra: dict[str, Any] = {"cooperative": "cooperative" in self.options}
        for name, given in (("budget", "budget"), ("cluster", "cluster"), ("shared_bytes", "shared")):
            if given in self.options:
                extra[name] = int(self.options[given])
        emulator.load(self.text(sound)).launch(
            "k",
            int(self.options.get("grid", "1")),
            int(self.options["block"]),
            args,
            sanitize=True,
            seed=seed,
            defined=defined,
            **extra,
        )


def read_faults() -> list[Fault]:
    """All planted faults, in order of file and place."""
    found: list[Fault] = []
    for path in sorted(FOLDER.glob("*.txt")):
        for part in path.read_text().split("=== ")[1:]:
            name, launch, finds, *rest = part.splitlines()
            before = ""
            if rest[0].startswith("before: "):
                before = rest.pop(0).removeprefix("before: ")
            words = launch.removeprefix("launch: ").split()
            options = {word.partition("=")[0]: word.partition("=")[2] for word in words}
            body = tuple(line for line in rest if line.strip())
            found.append(Fault(name, body, finds.removeprefix("finds: "), before, options))
    return found
