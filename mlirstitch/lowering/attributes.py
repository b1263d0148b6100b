"""Typed reading and writing of the attributes that the lowering leaves in the IR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlir import ir

from mlirstitch.errors import PassError


def integer(value: int) -> ir.Attribute:
    """An i64 attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def integers(values: Sequence[int]) -> ir.Attribute:
    """An ``array<i64: ...>`` attribute."""
    return ir.DenseI64ArrayAttr.get(list(values))


def text(value: str) -> ir.Attribute:
    """A string attribute."""
    return ir.StringAttr.get(value)


def texts(values: Iterable[str]) -> ir.Attribute:
    """An array of strings."""
    return ir.ArrayAttr.get([ir.StringAttr.get(value) for value in values])


def _required(op: ir.Operation, name: str) -> ir.Attribute:
    if name not in op.attributes:
        raise PassError(f"the attribute {name} is missing", op=op.name, hint="run the earlier stages first")
    return op.attributes[name]


def get_integer(op: ir.Operation, name: str) -> int:
    """Read :func:`integer`. Raises :class:`PassError` if the attribute is absent."""
    return ir.IntegerAttr(_required(op, name)).value


def get_integers(op: ir.Operation, name: str) -> tuple[int, ...]:
    """Read :func:`integers`. Raises :class:`PassError` if the attribute is absent."""
    return tuple(ir.DenseI64ArrayAttr(_required(op, name)))


def get_text(op: ir.Operation, name: str, default: str | None = None) -> str:
    """Read :func:`text`; ``default`` for an absent one, or :class:`PassError` without a default."""
    if default is not None and name not in op.attributes:
        return default
    return ir.StringAttr(_required(op, name)).value


def get_texts(op: ir.Operation, name: str) -> tuple[str, ...]:
    """Read :func:`texts`. Raises :class:`PassError` if the attribute is absent."""
    return tuple(ir.StringAttr(entry).value for entry in ir.ArrayAttr(_required(op, name)))


def element_attributes(function: ir.Operation, which: str, number: int) -> dict[str, ir.Attribute]:
    """Attributes of one argument (``which="arg_attrs"``) or result (``"res_attrs"``) of a function, by name."""
    if which not in function.attributes:
        return {}
    entries = ir.ArrayAttr(function.attributes[which])
    return {named.name: named.attr for named in ir.DictAttr(entries[number])}


def symbol_name(op: ir.Operation) -> str:
    """The ``sym_name`` of a function or module."""
    return ir.StringAttr(op.attributes["sym_name"]).value
