"""For templates that enumerate layouts: powers of two in a range, and an order that starts from the best layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def powers_of_two(first: int, last: int) -> Iterator[int]:
    """Powers of two from ``first``, itself one, to ``last``."""
    while first <= last:
        yield first
        first *= 2


def nearest_first(best: T, layouts: Iterable[T], place: Callable[[T], Sequence[float]]) -> list[T]:
    """``layouts`` by their distance from ``best``: a template that chooses well has good layouts near its choice.

    ``place`` gives coordinates; sizes belong there by their logarithm. Ties keep the order of ``layouts``.
    """
    center = place(best)

    def distance(layout: T) -> float:
        return math.fsum(abs(a - b) for a, b in zip(place(layout), center, strict=True))

    return sorted(layouts, key=distance)
