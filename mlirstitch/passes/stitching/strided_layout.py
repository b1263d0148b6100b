"""Where the elements of a tensor lie in another one: strides in mixed radix, so that reshapes stay exact.

A *layout* holds one list of digits a dim, from the most significant inwards; a digit is (extent, stride in elements).
``tensor<8x128x768>`` reshaped to ``1024x768`` and split into heads is digits throughout, also where a dim of 96 = 8x12
walks memory with two strides. The nested layouts of CuTe (CUTLASS 3 documentation, "CuTe Layouts") are the same idea.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Digit = tuple[int, int]
Layout = tuple[tuple[Digit, ...], ...]
JointDigit = tuple[int, tuple[int, ...]]
"""An extent, and the stride by which each of several tensors walks it."""


class NotStrided(Exception):
    """An index has no strided form; the message says which."""


def row_major(shape: Sequence[int]) -> Layout:
    """The layout of a contiguous tensor."""
    found: list[tuple[Digit, ...]] = []
    for dim, extent in enumerate(shape):
        found.append(((extent, math.prod(shape[dim + 1 :])),) if extent != 1 else ())
    return tuple(found)


def collapsed(layout: Layout, groups: Sequence[Sequence[int]]) -> Layout:
    """Dims of each group become one."""
    return tuple(tuple(digit for dim in group for digit in layout[dim]) for group in groups)


def expanded(layout: Layout, groups: Sequence[Sequence[int]], shape: Sequence[int]) -> Layout:
    """Each dim becomes the dims of its group, whose extents ``shape`` gives. Raises :class:`NotStrided`."""
    dims: list[tuple[Digit, ...]] = []
    for digits, group in zip(layout, groups, strict=True):
        dims += split(digits, [shape[dim] for dim in group])
    return tuple(dims)


def split(digits: Sequence[Digit], extents: Sequence[int]) -> list[tuple[Digit, ...]]:
    """The digits of each of the parts into which a dim is split."""
    found: list[list[Digit]] = [[] for _ in extents]
    rest = list(digits)
    for number in reversed(range(len(extents))):
        wanted = extents[number]
        while wanted > 1:
            if not rest:
                raise NotStrided(f"a dim cannot be split into {list(extents)}")
            extent, stride = rest.pop()
            taken = math.gcd(extent, wanted)
            if taken != min(extent, wanted):
                raise NotStrided(f"a dim of digits {list(digits)} cannot be split into {list(extents)}")
            if taken < extent:
                rest.append((extent // taken, stride * taken))
            found[number].insert(0, (taken, stride))
            wanted //= taken
    return [tuple(part) for part in found]


def sliced(layout: Layout, offsets: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> tuple[int, Layout]:
    """Offset in elements and layout of a slice. Raises :class:`NotStrided` for one that starts inside a digit."""
    start = 0
    dims: list[tuple[Digit, ...]] = []
    for digits, offset, size, step in zip(layout, offsets, sizes, steps, strict=True):
        if not digits or (offset == 0 and step == 1 and size == math.prod(extent for extent, _ in digits)):
            dims.append(digits)
            continue
        if len(digits) > 1:
            raise NotStrided("a slice of a dim that walks memory with several strides")
        stride = next(step for _, step in digits)
        start += offset * stride
        dims.append(() if size == 1 else ((size, stride * step),))
    return start, tuple(dims)


def joint(lists: Sequence[Sequence[JointDigit]]) -> list[JointDigit]:
    """The coarsest digits that all lists share; strides of the lists one after the other. Raises :class:`NotStrided`.

    All lists describe a dim of the same extent.
    """
    rests = [list(digits) for digits in lists]
    found: list[JointDigit] = []
    while any(rests):
        if not all(rests):
            raise NotStrided("dims of different extents meet")
        extent = min(rest[-1][0] for rest in rests)
        strides: list[int] = []
        for rest in rests:
            held, steps = rest.pop()
            if held % extent:
                raise NotStrided(f"digits of {held} and {extent} elements meet")
            if held > extent:
                rest.append((held // extent, tuple(step * extent for step in steps)))
            strides += steps
        found.append((extent, tuple(strides)))
    return merged(found[::-1])


def merged(digits: Sequence[JointDigit]) -> list[JointDigit]:
    """Neighbouring digits that every tensor walks as one become one; digits of one element go."""
    found: list[JointDigit] = []
    for extent, strides in digits:
        if extent == 1:
            continue
        if found and found[-1][1] == tuple(extent * stride for stride in strides):
            found[-1] = (found[-1][0] * extent, strides)
        else:
            found.append((extent, strides))
    return found


def blocks(digits: Sequence[JointDigit], shape: Sequence[int]) -> list[list[JointDigit]]:
    """Digits sorted into the dims of a row-major tensor of ``shape`` that they walk by their first stride.

    Raises :class:`NotStrided` unless the digits visit every element of the tensor exactly once.
    """
    rest = sorted((digit for digit in digits if digit[0] > 1), key=lambda digit: -digit[1][0])
    found: list[list[JointDigit]] = [[] for _ in shape]
    reached = 1
    for dim in reversed(range(len(shape))):
        wanted = shape[dim]
        while wanted > 1:
            if not rest or rest[-1][1][0] != reached:
                raise NotStrided("the result is not stored element for element")
            extent, strides = rest.pop()
            taken = min(extent, wanted)
            if extent % taken or wanted % taken:
                raise NotStrided(f"a dim of the result mixes {extent} elements with {wanted}")
            if taken < extent:
                rest.append((extent // taken, tuple(stride * taken for stride in strides)))
            found[dim].insert(0, (taken, strides))
            wanted //= taken
            reached *= taken
    if rest:
        raise NotStrided("the result is stored more than once")
    return found
