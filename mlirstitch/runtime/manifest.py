"""JSON of ``manifest.json`` to the dataclasses of :mod:`mlirstitch.runtime.program`, and back.

The decoder is driven by the declared field types: a field that is missing, unknown or of another type is a
:class:`BundleError` that names the place (``programs[0].steps[3].grid``). It needs no jsonschema; where jsonschema is
installed, :func:`check_schema` checks the published schema as well.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mlirstitch.errors import BundleError
from mlirstitch.runtime.program import Copy, Launch, LibraryCall, Program, Step

FORMAT = "mlirstitch-bundle"
VERSION = 1
SCHEMA_FILE = Path(__file__).with_name("manifest.schema.json")

_STEPS: dict[str, type[Step]] = {"launch": Launch, "library": LibraryCall, "copy": Copy}


def decode_program(data: Any, where: str = "program") -> Program:
    """A program from its JSON. Raises :class:`BundleError` naming the field at fault."""
    return _decode(data, Program, where)


def encode_program(program: Program) -> dict[str, Any]:
    """The JSON of a program; :func:`decode_program` is its inverse."""
    return _encode(program)


def check_schema(manifest: Mapping[str, Any]) -> None:
    """Check a whole manifest against the published schema; without jsonschema this does nothing."""
    validator = _validator()
    if validator is None:
        return
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(manifest))
    if error is not None:
        raise BundleError(f"manifest.json: {error.json_path}: {error.message}")


@functools.cache
def _validator() -> Any:
    try:
        import jsonschema
    except ImportError:
        return None
    return jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


@functools.cache
def _fields(cls: type) -> dict[str, tuple[str, Any, bool]]:
    """JSON key -> (field name, type, may be absent)."""
    hints = get_type_hints(cls)
    return {f.metadata.get("json", f.name): (f.name, hints[f.name], f.default is None) for f in dataclasses.fields(cls)}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _decode(data: Any, kind: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind == Step:
        return _decode_step(data, where)
    if dataclasses.is_dataclass(kind):
        return _decode_object(data, kind, where)
    if origin is tuple:
        return _decode_list(data, get_args(kind), where)
    if origin in (Union, types.UnionType):
        present = next(option for option in get_args(kind) if option is not type(None))
        return _decode(data, present, where)
    if origin is Literal:
        if data not in get_args(kind):
            raise BundleError(f"{where}: {_shown(data)} is not one of {', '.join(get_args(kind))}")
        return data
    if kind is int and (type(data) is not int or data < 0):
        raise BundleError(f"{where}: expected an integer >= 0, got {_shown(data)}")
    if kind is float and (type(data) not in (int, float) or not math.isfinite(data)):
        raise BundleError(f"{where}: expected a number, got {_shown(data)}")
    if kind is bool and type(data) is not bool:
        raise BundleError(f"{where}: expected true or false, got {_shown(data)}")
    if kind is str and type(data) is not str:
        raise BundleError(f"{where}: expected a string, got {_shown(data)}")
    if origin is not None and issubclass(origin, Mapping) and type(data) is not dict:
        raise BundleError(f"{where}: expected an object, got {_shown(data)}")
    return data


def _decode_step(data: Any, where: str) -> Step:
    op = data.get("op") if isinstance(data, dict) else None
    if not isinstance(op, str) or op not in _STEPS:
        raise BundleError(f"{where}: unknown step {_shown(op)}", hint="steps are " + ", ".join(_STEPS))
    return _decode_object({key: value for key, value in data.items() if key != "op"}, _STEPS[op], where)


def _decode_object(data: Any, cls: Any, where: str) -> Any:
    if type(data) is not dict:
        raise BundleError(f"{where}: expected an object, got {_shown(data)}")
    fields = _fields(cls)
    for key in data:
        if key not in fields:
            raise BundleError(f"{where}: unknown field {_shown(key)}")
    values: dict[str, Any] = {}
    for key, (name, kind, optional) in fields.items():
        if key in data:
            values[name] = _decode(data[key], kind, f"{where}.{key}")
        elif not optional:
            raise BundleError(f"{where}: field {key!r} is missing")
    return cls(**values)


def _decode_list(data: Any, items: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if type(data) is not list:
        raise BundleError(f"{where}: expected a list, got {_shown(data)}")
    if items[-1] is not Ellipsis:
        if len(data) != len(items):
            raise BundleError(f"{where}: expected {len(items)} entries, got {len(data)}")
        return tuple(
            _decode(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(data, items, strict=True))
        )
    return tuple(_decode(item, items[0], f"{where}[{i}]") for i, item in enumerate(data))


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        encoded = {
            key: _encode(getattr(value, name))
            for key, (name, _, optional) in _fields(type(value)).items()
            if not (optional and getattr(value, name) is None)
        }
        ops = [op for op, cls in _STEPS.items() if isinstance(value, cls)]
        return {"op": ops[0], **encoded} if ops else encoded
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return value
