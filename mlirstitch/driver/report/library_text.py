"""What a library call does besides its product, as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator

from mlirstitch.runtime.program import Epilogue, LibraryCall, Operand


def epilogue_text(call: LibraryCall) -> str:
    """``relu(product + 2 * addend + bias)``; "" for the bare product."""
    epilogue = call.epilogue
    if epilogue is None:
        return ""
    terms = [_scaled(epilogue.alpha, "product")]
    if epilogue.addend is not None:
        terms.append(_scaled(epilogue.beta, "addend"))
    if epilogue.bias is not None:
        terms.append("bias")
    text = " + ".join(terms)
    if epilogue.activation != "none":
        text = f"{epilogue.activation}({text})"
    return "" if text == "product" else text


def order_text(call: LibraryCall) -> str:
    """Which dims the operands have, in the order of memory: ``[b, m, k] x [b, n, k] -> [b, m, n]``; "" if not given.

    ``b`` is a dim of the batch, ``m`` one of rows, ``n`` one of columns, ``k`` one that is summed.
    """
    maps = call.attributes.get("indexing_maps")
    if not maps or len(maps) != 3:
        return ""
    left, right, result = (set(dims) for dims in maps)
    sorts = {"b": left & right & result, "m": (left & result) - right, "n": (right & result) - left}
    sorts["k"] = (left | right) - result
    names: dict[int, str] = {}
    for name, members in sorts.items():
        for place, dim in enumerate(sorted(members)):
            names[dim] = name if len(members) == 1 else f"{name}{place}"
    first, second, third = (f"[{', '.join(names.get(dim, str(dim)) for dim in dims)}]" for dims in maps)
    return f"{first} x {second} -> {third}"


def operand_texts(call: LibraryCall) -> Iterator[tuple[str, str]]:
    """(what it is, how it lies in memory) of every operand that is not its whole buffer, row by row."""
    last = len(call.operands) - 1
    for number, operand in enumerate(call.operands):
        if operand.strides is not None:
            yield _role(number, last, call.epilogue), _layout(operand)


def _role(number: int, last: int, epilogue: Epilogue | None) -> str:
    if number == last:
        return "result"
    if epilogue is not None and number in (epilogue.addend, epilogue.bias):
        return "addend" if number == epilogue.addend else "bias"
    return ("left", "right")[number] if number < 2 else f"operand {number}"


def _layout(operand: Operand) -> str:
    shape, strides = (" x ".join(map(str, extents)) or "1" for extents in (operand.shape, operand.steps))
    offset = f" from element {operand.offset}" if operand.offset else ""
    return f"{shape} by strides of {strides.replace(' x ', ', ')} elements{offset}"


def _scaled(factor: float, name: str) -> str:
    return name if factor == 1 else f"{factor:g} * {name}"
