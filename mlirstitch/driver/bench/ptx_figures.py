"""What the text of a PTX kernel tells about its quality: statements, shuffles, barriers, memory, widths of accesses.

Counting follows the design that set the bars: a statement ends with ``;`` from ``.entry`` on, ``.reg`` lines included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlirstitch.errors import MlirstitchError

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(")
_PARAMETER = re.compile(r"\.param\s+\.\w+(?:\s+\.ptr[^,)\n]*?)?\s+([\w$]+)\s*[,)\n]")
_DECLARATION = r"(?:\.align\s+(\d+)\s+)?\.[bfsu](\d+)\s+[\w$]+(?:\[(\d+)\])?"
_SHARED = re.compile(r"\.shared\s+" + _DECLARATION)
_LOCAL = re.compile(r"\.local\s+" + _DECLARATION)
_ACCESS = re.compile(r"^(ld|st)\.global((?:\.\w+)*)$")
_WIDTH = re.compile(r"\.[bfsu](\d+)$")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)")
_REGISTER = re.compile(r"%\w+")
_BARRIER = re.compile(r"^(bar|barrier)\.")


@dataclass(frozen=True)
class GlobalAccess:
    """A load or store of global memory as it stands in the text.

    Attributes:
        argument: number of the kernel argument it touches, -1 where that does not follow from the text.
        store: whether it stores.
        bits: width.
        read_only: whether it is a load through the read-only cache (``.nc``).
    """

    argument: int
    store: bool
    bits: int
    read_only: bool


@dataclass(frozen=True)
class PtxFigures:
    """Figures of one kernel. Static shared and local memory in bytes, the others counts of statements."""

    statements: int
    shuffles: int
    barriers: int
    shared_bytes: int
    local_bytes: int
    accesses: tuple[GlobalAccess, ...]


def kernel_texts(ptx: str) -> dict[str, str]:
    """The text of every kernel of a module, from ``.entry`` to its closing brace, by name."""
    found: dict[str, str] = {}
    for match in _ENTRY.finditer(ptx):
        end = ptx.find("\n}", match.start())
        if end < 0:
            raise MlirstitchError(f"kernel {match[1]} has no end in its PTX text")
        found[match[1]] = ptx[match.start() : end + 2]
    return found


def figures_of(kernel: str) -> PtxFigures:
    """Count one kernel's text, as :func:`kernel_texts` cuts it out."""
    body = kernel[kernel.index("{") :]
    statements = [text.strip() for text in _without_comments(body).split(";")[:-1]]
    names = [_last_line(statement) for statement in statements]
    return PtxFigures(
        statements=len(statements),
        shuffles=sum(name.startswith("shfl.") for name in names),
        barriers=sum(bool(_BARRIER.match(name)) for name in names),
        shared_bytes=_bytes(_SHARED, body),
        local_bytes=_bytes(_LOCAL, body),
        accesses=_accesses(kernel, statements),
    )


def _without_comments(text: str) -> str:
    """The text without comments and ``.loc`` lines, which end without a semicolon."""
    lines = (line.partition("//")[0] for line in text.splitlines())
    return "\n".join(line for line in lines if line.split()[:1] != [".loc"])


def _last_line(statement: str) -> str:
    """The instruction of a statement: behind labels, line breaks and the predicate."""
    words = re.split(r"[\n:{}]", statement)[-1].split()
    if words and words[0].startswith("@"):
        words = words[1:]
    return words[0] if words else ""


def _bytes(declaration: re.Pattern[str], body: str) -> int:
    """Bytes of the declared variables, laid out one behind the other."""
    end = 0
    for align, bits, count in declaration.findall(body):
        size = int(bits) // 8
        aligned = int(align or size)
        end = -(-end // aligned) * aligned + size * int(count or 1)
    return end


def _accesses(kernel: str, statements: list[str]) -> tuple[GlobalAccess, ...]:
    header = kernel[: kernel.index("{")]
    origin: dict[str, int] = {name: number for number, name in enumerate(_PARAMETER.findall(header))}
    found: list[GlobalAccess] = []
    for statement in statements:
        instruction = re.split(r"[\n:]", statement)[-1].strip()
        if instruction.startswith("@"):
            instruction = instruction.partition(" ")[2].strip()
        name, _, operands = instruction.partition(" ") if " " in instruction else instruction.partition("\t")
        name, _, rest = name.partition("\t")
        operands = f"{rest} {operands}"
        access = _ACCESS.match(name)
        address = _ADDRESS.search(operands)
        if access is not None and address is not None:
            found.append(_access(access, origin.get(address[1], -1)))
        elif name.startswith("ld.param") and address is not None and address[1] in origin:
            origin[_REGISTER.findall(operands)[0]] = origin[address[1]]
        elif name.endswith("64") or name.startswith("cvta"):
            _follow(origin, operands)
    return tuple(found)


def _follow(origin: dict[str, int], operands: str) -> None:
    """What is computed from the address of an argument points into that argument."""
    registers = _REGISTER.findall(operands)
    known = [origin[register] for register in registers[1:] if register in origin]
    if registers and known:
        origin[registers[0]] = known[0]


def _access(match: re.Match[str], argument: int) -> GlobalAccess:
    width = _WIDTH.search(match[2])
    if width is None:
        raise MlirstitchError(f"the global access {match[0]} has no width")
    lanes = re.search(r"\.v(\d)", match[2])
    bits = int(width[1]) * (int(lanes[1]) if lanes else 1)
    return GlobalAccess(argument, match[1] == "st", bits, ".nc" in match[2])
