"""The ``Pass`` class and the registry of passes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, TypeVar

from mlirstitch.errors import PipelineError

if TYPE_CHECKING:
    from mlir import ir


@dataclass(frozen=True)
class Pass:
    """A pass written in Python. Subclasses are frozen dataclasses whose fields are the pass's options.

    The class docstring is the pass's documentation. ``run`` raises :class:`mlirstitch.errors.PassError` to refuse; the
    pipeline turns it into a diagnostic at the op's location. Options are ints, bools or strings.
    """

    NAME: ClassVar[str] = ""
    ANCHOR: ClassVar[str] = "builtin.module"

    def run(self, op: ir.Operation) -> None:
        """Rewrite ``op`` (the anchor) in place. Raise PassError to refuse."""
        raise TypeError(f"{type(self).__name__} does not define run()")


OPTION_TYPES = ("int", "bool", "str")
P = TypeVar("P", bound=type[Pass])
_REGISTRY: dict[str, type[Pass]] = {}


def register_pass(cls: P) -> P:
    """Class decorator, above ``@dataclass(frozen=True)``: make a pass usable in pipeline texts.

    Raises :class:`PipelineError` if the class has no name, takes a used one, is not a dataclass of its own (its options
    would be lost), or has a field that is no int, bool or str.
    """
    if not cls.NAME:
        raise PipelineError(f"{cls.__name__} has no NAME")
    if "__dataclass_fields__" not in cls.__dict__:
        raise PipelineError(
            f"{cls.__name__} is not a dataclass", hint="write @dataclass(frozen=True) below the decorator"
        )
    for field in fields(cls):
        if getattr(field.type, "__name__", field.type) not in OPTION_TYPES:
            raise PipelineError(
                f"option {field.name} of {cls.__name__} is {field.type}", hint=f"use one of {', '.join(OPTION_TYPES)}"
            )
    if _REGISTRY.setdefault(cls.NAME, cls) is not cls:
        raise PipelineError(f"a pass named {cls.NAME!r} is already registered")
    return cls


def registered_passes() -> dict[str, type[Pass]]:
    """All registered passes by name, sorted."""
    return dict(sorted(_REGISTRY.items()))
