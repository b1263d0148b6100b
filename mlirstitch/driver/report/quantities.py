"""Quantities as a person reads them."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 kernel``, ``3 kernels``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def byte_size(number: int) -> str:
    """Bytes in decimal units, as bandwidths are given: ``512 B``, ``1.5 MB``."""
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.3g} {unit}"


def seconds(number: float) -> str:
    """Three digits with the unit that suits: ``12.3 ms``, ``4.56 s``."""
    if number < 1e-3:
        return f"{number * 1e6:.3g} us"
    if number < 1:
        return f"{number * 1e3:.3g} ms"
    return f"{number:.3g} s"
