"""What our IR means: attributes of the ``stitch`` dialect, promises of each level, contexts and parsing.

``stitch`` is a namespace of discardable attributes on upstream ops, so that IR for one device parses in any MLIR tool
of the same LLVM release; nothing has to be loaded for it. Programs of several devices have ops of their own (``dist``).
"""

from __future__ import annotations

import re
from pathlib import Path

from mlir import ir

from mlirstitch.dialects import dist
from mlirstitch.dialects.bindings import MLIRError, error_diagnostics
from mlirstitch.dialects.locations import source_line
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import MlirstitchError

_UNNAMED = "-"  # the file name MLIR gives to text parsed from memory
_ELIDED = re.compile(r"\b(dense|dense_resource|sparse)<\s*(__elided__|elided)\s*>|__elided__")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')
_UNKNOWN_DIALECT = re.compile(r"unregistered dialect|Dialect `[^']*' not found")
_RESOURCE = re.compile(r'\bdense_resource<\s*(?P<name>"[^"\n]*"|[^>\s]+)\s*>')
_OPENING, _CLOSING = frozenset("<({["), frozenset(">)}]")
_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>=]=|[<({\[\]})>]')  # arrows and comparisons close nothing
MAX_NESTING = 1000
"""How deep brackets may nest in a text; MLIR overflows the stack at some ten thousand."""
_DIVIDING_MAP = re.compile(r"\baffine_map\s*<[^>]*(?:->|>=)[^>]*?\b(?:mod|floordiv|ceildiv)\b[^>]*>")
_LINALG_HINT = "lower to linalg on tensors (dialects linalg, tensor, arith, math, func) first"
DIALECT_HINTS = {
    "torch": "lower to linalg on tensors first, or hand over the nn.Module itself",
    "tm_tensor": "scan, scatter, sort and top-k of torch-mlir are not compiled; keep them in eager PyTorch",
    "stablehlo": "lower to linalg first (stablehlo-legalize-to-linalg)",
    "onnx": "lower to linalg first (with torch-mlir's ONNX importer)",
}


def new_context(*, allow_unregistered: bool = False) -> ir.Context:
    """A context for our IR: all upstream dialects and ``dist``, single-threaded.

    One thread keeps diagnostics and printed IR in order (MLIR aborts when IR is printed from several) and a compiler
    process small; the output is the same with more.
    """
    context = ir.Context()
    context.enable_multithreading(False)
    context.allow_unregistered_dialects = allow_unregistered
    dist.load(context)
    return context


def parse_module(text: str, source_name: str = _UNNAMED, context: ir.Context | None = None) -> ir.Module:
    """Parse and verify IR text; ops get locations ``source_name:line:column`` unless the text gives others.

    Raises :class:`MlirstitchError` with the line for malformed text, an unknown dialect, or an elided constant (whose
    data is gone; MLIR would read it as garbage).
    """
    context = context or new_context()
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise MlirstitchError("the text contains a NUL byte", hint="is it bytecode?", source=f"{source_name}:{line}")
    _refuse_deep_nesting(text, source_name)
    if "elided" in text or "dense_resource" in text:
        code = _QUOTED.sub(lambda match: " " * len(match[0]), text)
        _refuse_elided(code, source_name)
        _refuse_missing_resources(text, code, source_name)
    _refuse_undefined_division(text, source_name, context)
    try:
        module = ir.Module.parse(text, context)
    except MLIRError as error:
        raise _parse_error(error, text, source_name) from error
    if source_name != _UNNAMED:
        _name_source(module, source_name)
    return module


def parse_file(path: str | Path, context: ir.Context | None = None) -> ir.Module:
    """:func:`parse_module` of a file. Raises MlirstitchError also when the file cannot be read."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise MlirstitchError(f"cannot read {path}: {error.strerror}", hint="check the path") from error
    except UnicodeDecodeError as error:
        raise MlirstitchError(f"{path} is not UTF-8 text", hint="bytecode is not read; print it as text") from error
    return parse_module(text, str(path), context)


def _refuse_deep_nesting(text: str, source_name: str) -> None:
    """MLIR's parser recurses and would overflow the stack of the process."""
    if max(text.count(opening) for opening in "<({[") <= MAX_NESTING:
        return
    depth = 0
    for match in _BRACKET.finditer(text):
        bracket = match[0]
        if bracket in _OPENING:
            depth += 1
            if depth > MAX_NESTING:
                line = text.count("\n", 0, match.start()) + 1
                raise MlirstitchError(
                    f"brackets are nested more than {MAX_NESTING} deep",
                    hint="is the text IR, and complete?",
                    source=f"{source_name}:{line}",
                )
        elif bracket in _CLOSING and depth:
            depth -= 1


def _refuse_elided(code: str, source_name: str) -> None:
    """``code`` is the text with comments and strings blanked."""
    match = _ELIDED.search(code)
    if match is not None:
        line = code.count("\n", 0, match.start()) + 1
        raise MlirstitchError(
            f"the data of a constant was elided when this text was printed ({match[0]})",
            hint="print the module again without a limit (no --mlir-elide-elementsattrs-if-larger, "
            "large_elements_limit=None)",
            source=f"{source_name}:{line}",
        )


def _refuse_missing_resources(text: str, code: str, source_name: str) -> None:
    for match in _RESOURCE.finditer(text):
        if not code.startswith("dense_resource", match.start()):
            continue  # inside a string or a comment
        name = match["name"].strip('"')
        if not re.search(rf'(?<![\w.])"?{re.escape(name)}"?\s*:\s*"0x', text):
            line = text.count("\n", 0, match.start()) + 1
            raise MlirstitchError(
                f"the constant dense_resource<{match['name']}> has no data: the text lacks its resource section",
                hint="print the module again without a limit (no --mlir-elide-resource-strings-if-larger)",
                source=f"{source_name}:{line}",
            )


def _refuse_undefined_division(text: str, source_name: str, context: ir.Context) -> None:
    """The verifier of linalg ends the process on a map that divides by zero or by a negative number."""
    for match in _DIVIDING_MAP.finditer(text):
        try:
            affine_map = ir.AffineMapAttr(ir.Attribute.parse(match[0], context)).value
        except MLIRError:
            continue  # no map, or one with an error that the parser of the module reports at its place
        if any(_divides_by_nothing(expression) for expression in affine_map.results):
            line = text.count("\n", 0, match.start()) + 1
            raise MlirstitchError(
                f"{match[0]} divides by zero or by a negative number",
                hint="mod, floordiv and ceildiv are defined for positive numbers only",
                source=f"{source_name}:{line}",
            )


def _divides_by_nothing(expression: ir.AffineExpr) -> bool:
    if not isinstance(expression, ir.AffineBinaryExpr):
        return False
    if isinstance(expression, ir.AffineModExpr | ir.AffineFloorDivExpr | ir.AffineCeilDivExpr):
        divisor = expression.rhs
        if isinstance(divisor, ir.AffineConstantExpr) and divisor.value <= 0:
            return True
    return _divides_by_nothing(expression.lhs) or _divides_by_nothing(expression.rhs)


def _parse_error(error: Exception, text: str, source_name: str) -> MlirstitchError:
    diagnostics = error_diagnostics(error)
    if not diagnostics:
        return MlirstitchError(str(error), source=source_name)
    diagnostic = diagnostics[0]
    location = diagnostic.location
    source = source_line(location)
    if source.startswith(f"{_UNNAMED}:"):
        source = source_name + source[len(_UNNAMED) :]
    message = diagnostic.message.strip()
    hint = ""
    if _UNKNOWN_DIALECT.search(message):
        lines = text.splitlines()
        number = location.start_line if location.is_a_file() else 0
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        name = re.search(r"""[`'#!]"?(\w+)""", message) or re.search(r'"(\w+)\.', line)
        message = "unknown dialect" + (f" {name[1]!r}: " if name else ": ") + message.partition(". If this is")[0]
        hint = DIALECT_HINTS.get(name[1] if name else "", _LINALG_HINT)
    return MlirstitchError(message, hint=hint, source=source)


def _name_source(module: ir.Module, source_name: str) -> None:
    for op in walk(module.operation):
        location = op.location
        if location.is_a_file() and location.filename == _UNNAMED:
            op.location = ir.Location.file(source_name, location.start_line, location.start_col, module.context)
