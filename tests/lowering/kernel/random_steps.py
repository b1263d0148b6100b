"""How random programs grow: each function draws one step, or a few that belong together, and appends them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from random_pointwise import FLOAT_FUNCTIONS, Map, functions_of, map_of
from random_program import DTYPES, Known, TensorType
from random_reductions import kinds_of
from random_scans import SCAN_KINDS

if TYPE_CHECKING:
    from random_clusters import Grower

Shape = tuple[int, ...]


def _drawn(grower: Grower, low: int, high: int) -> int:
    return grower.draw(st.integers(low, high))


def _some_dims(grower: Grower, rank: int) -> tuple[int, ...]:
    """At least one of ``rank`` dims, ascending."""
    mask = _drawn(grower, 1, (1 << rank) - 1)
    return tuple(d for d in range(rank) if mask >> d & 1)


# Element-wise ---------------------------------------------------------------------------------------------------


def _spread(grower: Grower, numbers: Sequence[int]) -> tuple[Shape, tuple[Map, ...]]:
    """A shape over which all values can be read, and how: equal extents meet, others span new dims.

    Now and then the first value is read transposed, or the shape has a dim that no operand has.
    """
    shape: list[int] = list(grower.values[numbers[0]].type.shape)
    order = list(map_of(len(shape)))
    if len(shape) > 1 and _drawn(grower, 0, 7) == 7:
        order = list(grower.draw(st.permutations(order)))
        shape = [n for _, n in sorted(zip(order, shape, strict=True))]
    maps: list[list[int | None]] = [list(order)]
    for number in numbers[1:]:
        over: list[int | None] = []
        taken: set[int] = set()
        highest = len(shape)
        for extent in reversed(grower.values[number].type.shape):
            matching = [d for d in range(len(shape)) if shape[d] == extent and d not in taken]
            below = [d for d in matching if d < highest]
            if extent == 1 and not matching:
                over.append(None)
                continue
            if not matching:
                shape.append(extent)
                matching = below = [len(shape) - 1]
            at = (below or matching)[-1]
            taken.add(at)
            highest = at
            over.append(at)
        maps.append(over[::-1])
    if len(shape) < 5 and _drawn(grower, 0, 9) == 9:
        at, extent = _drawn(grower, 0, len(shape)), grower.draw(st.sampled_from((1, 2, 3, 8, 33)))
        shape.insert(at, extent)
        maps = [[loop if loop is None or loop < at else loop + 1 for loop in over] for over in maps]
    # Where the shape is 1 a map may say 0 as well.
    return tuple(shape), tuple(tuple(over) for over in maps)


def pointwise(grower: Grower) -> int | None:
    """Any element-wise function of values of one type."""
    first = grower.pick()
    if first is None:
        return None
    dtype = grower.values[first].type.dtype
    name = grower.draw(st.sampled_from(sorted(functions_of(dtype))))
    return apply(grower, name, [first, *_more(grower, first, functions_of(dtype)[name].arity - 1)])


def _more(grower: Grower, first: int, count: int) -> list[int]:
    """Further operands of the type of ``first``, of the same shape more often than not."""
    kind = grower.values[first].type
    found: list[int] = []
    for _ in range(count):
        if _drawn(grower, 0, 1) == 0:
            number = grower.pick(lambda known: known.type == kind)
        else:
            number = grower.pick(lambda known: known.type.dtype == kind.dtype)
        found.append(first if number is None else number)
    return found


def apply(grower: Grower, name: str, numbers: Sequence[int]) -> int | None:
    """One element-wise function of given values."""
    shape, maps = _spread(grower, numbers)
    if math.prod(shape) > grower.most or len(shape) > 5:
        return None
    return grower.add("pointwise", numbers, name, shape, maps)


def select(grower: Grower) -> int | None:
    """One of two values, as a bool says."""
    condition = grower.pick(lambda known: known.type.dtype.is_bool)
    first = grower.pick()
    if condition is None or first is None:
        return compare(grower)
    numbers = [first, *_more(grower, first, 1)]
    shape, maps = _spread(grower, [*numbers, condition])
    if math.prod(shape) > grower.most or len(shape) > 5:
        return None
    return grower.add("select", [condition, *numbers], shape, (maps[2], *maps[:2]))


def compare(grower: Grower) -> int | None:
    """A bool of two values of one type."""
    first = grower.pick(lambda known: known.is_exact and not known.type.dtype.is_bool)
    if first is None:
        return None
    kind = grower.values[first].type
    second = grower.pick(lambda known: known.is_exact and known.type.dtype == kind.dtype)
    name = grower.draw(st.sampled_from(("less", "at_least", "equal")))
    return apply(grower, name, [first, first if second is None else second])


def cast(grower: Grower) -> int | None:
    """A cast to any type."""
    number = grower.pick()
    if number is None:
        return None
    target = grower.draw(st.sampled_from(sorted(DTYPES)))
    if target == grower.values[number].type.dtype.name:
        return None
    shape, maps = _spread(grower, [number])
    return grower.add("cast", [number], target, shape, maps[0]) if math.prod(shape) <= grower.most else None


# Movement -------------------------------------------------------------------------------------------------------


def _of_rank(low: int, high: int = 5) -> Callable[[Known], bool]:
    return lambda known: low <= len(known.type.shape) <= high


def transpose(grower: Grower) -> int | None:
    number = grower.pick(_of_rank(2))
    if number is None:
        return None
    order = grower.draw(st.permutations(range(len(grower.values[number].type.shape))))
    return grower.add("transpose", [number], tuple(order))


def cut(grower: Grower) -> int | None:
    """A slice, strided or not; dims of size 1 may vanish. Of no elements MLIR allows no slice."""
    number = grower.pick(lambda known: bool(known.type.shape) and known.type.elements > 0)
    if number is None:
        return None
    offsets, sizes, strides = [], [], []
    for extent in grower.values[number].type.shape:
        low = _drawn(grower, 0, extent) if _drawn(grower, 0, 1) else 0
        stride = grower.draw(st.sampled_from((1, 1, 1, 2, 3)))
        most = (extent - low + stride - 1) // stride
        sizes.append(most if _drawn(grower, 0, 2) < 2 else _drawn(grower, 0, most))
        offsets.append(min(low, max(extent - 1, 0)))
        strides.append(stride)
    # A dropped dim that has a neighbour of size 1 would be ambiguous.
    ones = [d for d, size in enumerate(sizes) if size == 1]
    dropped = tuple(ones) if ones and _drawn(grower, 0, 1) else ()
    return grower.add("slice", [number], tuple(offsets), tuple(sizes), tuple(strides), dropped)


def insert(grower: Grower) -> int | None:
    """A value written into a larger one. MLIR allows none into no elements."""
    target = grower.pick(lambda known: bool(known.type.shape) and known.type.elements > 0)
    if target is None:
        return None
    kind = grower.values[target].type

    def fits(known: Known) -> bool:
        shape = known.type.shape
        same = known.type.dtype == kind.dtype and len(shape) == len(kind.shape)
        return same and all(a <= b for a, b in zip(shape, kind.shape, strict=True))

    source = grower.pick(fits)
    if source is None:
        return None
    offsets, strides = [], []
    for size, extent in zip(grower.values[source].type.shape, kind.shape, strict=True):
        widest = (extent - 1) // (size - 1) if size > 1 else 1
        stride = _drawn(grower, 1, min(widest, 3)) if size > 1 else 1
        offsets.append(_drawn(grower, 0, extent - ((size - 1) * stride + 1 if size else 1)))
        strides.append(stride)
    return grower.add("insert", [source, target], tuple(offsets), tuple(strides))


def concat(grower: Grower) -> int | None:
    first = grower.pick(_of_rank(1))
    if first is None:
        return None
    kind = grower.values[first].type
    dim = _drawn(grower, 0, len(kind.shape) - 1)

    def fits(known: Known) -> bool:
        shape = known.type.shape
        same = known.type.dtype == kind.dtype and len(shape) == len(kind.shape)
        return same and all(a == b or d == dim for d, (a, b) in enumerate(zip(shape, kind.shape, strict=True)))

    numbers = [first]
    for _ in range(_drawn(grower, 1, 2)):
        number = grower.pick(fits)
        numbers.append(first if number is None else number)
    return grower.add("concat", numbers, dim)


def pad(grower: Grower) -> int | None:
    number = grower.pick(_of_rank(1))
    if number is None:
        return None
    kind = grower.values[number].type
    low, high = (tuple(_drawn(grower, 0, 3) for _ in kind.shape) for _ in range(2))
    value = bool(_drawn(grower, 0, 1)) if kind.dtype.is_bool else _drawn(grower, 0, 2)
    return grower.add("pad", [number], low, high, value)


def reshape(grower: Grower) -> int | None:
    """Neighbouring dims become one, or one becomes several."""
    number = grower.pick()
    if number is None:
        return None
    shape = grower.values[number].type.shape
    if len(shape) > 1 and _drawn(grower, 0, 1):
        cuts = _drawn(grower, 0, (1 << (len(shape) - 1)) - 1)
        groups: list[list[int]] = [[0]]
        for d in range(1, len(shape)):
            if cuts >> (d - 1) & 1:
                groups.append([d])
            else:
                groups[-1].append(d)
        target = tuple(math.prod(shape[d] for d in group) for group in groups)
        if target == shape:
            return None
        if len(target) == 1 and target[0] == 1 and _drawn(grower, 0, 1):
            return grower.add("reshape", [number], (), ())
        return grower.add("reshape", [number], target, tuple(map(tuple, groups)))
    if not shape:
        ones = (1,) * _drawn(grower, 1, 3)
        return grower.add("reshape", [number], ones, ())
    dim = _drawn(grower, 0, len(shape) - 1)
    divisors = [n for n in (1, 2, 3, 4, 5, 7, 8, 16, 32) if shape[dim] and shape[dim] % n == 0]
    if not divisors or len(shape) > 4:
        return None
    inner = grower.draw(st.sampled_from(divisors))
    pair = (shape[dim] // inner, inner) if _drawn(grower, 0, 1) else (inner, shape[dim] // inner)
    expanded = (*shape[:dim], *pair, *shape[dim + 1 :])
    groups_of = [(d,) if d < dim else (d, d + 1) if d == dim else (d + 1,) for d in range(len(shape))]
    return grower.add("reshape", [number], expanded, tuple(groups_of))


def flip(grower: Grower) -> int | None:
    number = grower.pick(_of_rank(1))
    if number is None:
        return None
    return grower.add("flip", [number], _some_dims(grower, len(grower.values[number].type.shape)))


def triangle(grower: Grower) -> int | None:
    number = grower.pick(_of_rank(2))
    return None if number is None else grower.add("triangle", [number], _drawn(grower, -2, 2))


def gather(grower: Grower) -> int | None:
    table = grower.pick(lambda known: bool(known.type.shape) and max(known.type.shape) > 0)
    places = grower.pick(lambda known: known.type.dtype.is_integer)
    if table is None or places is None:
        return None
    shape = grower.values[table].type.shape
    dim = grower.draw(st.sampled_from([d for d, n in enumerate(shape) if n]))
    size = grower.values[table].type.elements // shape[dim] * grower.values[places].type.elements
    return grower.add("gather", [table, places], dim) if size <= grower.most else None


def iota(grower: Grower) -> int | None:
    number = grower.pick(_of_rank(1))
    if number is None:
        return None
    shape = grower.values[number].type.shape
    dtype = grower.draw(st.sampled_from(("int64", "float32", "int32", "int8")))
    return grower.add("iota", [], shape, _drawn(grower, 0, len(shape) - 1), dtype)


# Reductions -----------------------------------------------------------------------------------------------------


def _loops(grower: Grower, rank: int) -> tuple[int, ...]:
    """Which loop runs over which dim; most often in order."""
    return tuple(grower.draw(st.permutations(range(rank)))) if _drawn(grower, 0, 5) == 5 else map_of(rank)


def reduce(grower: Grower) -> int | None:
    """Any reduction over any dims."""
    number = grower.pick(_of_rank(1))
    if number is None:
        return None
    kind = grower.values[number].type
    rank = len(kind.shape)
    dims = grower.draw(st.sampled_from(((rank - 1,), (0,), _some_dims(grower, rank))))
    name = grower.draw(st.sampled_from(kinds_of(kind.dtype)))
    keep = bool(_drawn(grower, 0, 1))
    numbers = [number]
    if name == "onto":
        shape = tuple(1 if d in dims else n for d, n in enumerate(kind.shape) if keep or d not in dims)
        start = grower.pick(lambda known: known.type.dtype == kind.dtype and known.type.shape == shape)
        if start is None:
            name = "sum"
        else:
            numbers.append(start)
    return grower.add("reduce", numbers, name, dims, keep, _loops(grower, rank))


def position(grower: Grower) -> int | None:
    """The first place of an extreme value."""
    number = grower.pick(lambda known: bool(known.type.shape) and not known.type.dtype.is_bool and known.is_exact)
    if number is None:
        return None
    rank = len(grower.values[number].type.shape)
    dim = rank - 1 if _drawn(grower, 0, 1) else _drawn(grower, 0, rank - 1)
    kind = grower.draw(st.sampled_from(("maximum", "minimum")))
    index = grower.draw(st.sampled_from(("int64", "int64", "int32")))
    return grower.add("position", [number], kind, dim, bool(_drawn(grower, 0, 1)), _loops(grower, rank), index)


def matmul(grower: Grower) -> int | None:
    left = grower.pick(lambda known: len(known.type.shape) == 2 and not known.type.dtype.is_bool)
    if left is None:
        return None
    kind = grower.values[left].type
    right = grower.pick(
        lambda known: (
            known.type.dtype == kind.dtype and len(known.type.shape) == 2 and known.type.shape[0] == kind.shape[1]
        )
    )
    return None if right is None else grower.add("matmul", [left, right])


def scan(grower: Grower) -> int | None:
    """A prefix scan of a dim of several elements; of one the compiler refuses it, as it does a total that is read."""
    number = grower.pick(lambda known: max(known.type.shape, default=0) > 1)
    if number is None:
        return None
    shape = grower.values[number].type.shape
    dim = grower.draw(st.sampled_from([d for d, n in enumerate(shape) if n > 1]))
    return grower.add("scan", [number], grower.draw(st.sampled_from(SCAN_KINDS)), dim, _drawn(grower, 0, 3) < 3)


def scatter(grower: Grower) -> int | None:
    """Rows of one value combined with rows of another, at places that a third one names."""
    target = grower.pick(lambda known: bool(known.type.shape) and not known.type.dtype.is_bool)
    named = grower.pick(lambda known: known.type.dtype.name in ("int64", "int32") and len(known.type.shape) == 1)
    if target is None or named is None:
        return None
    kind, count = grower.values[target].type, grower.values[named].type.shape[0]
    dim = _drawn(grower, 0, len(kind.shape) - 1)
    shape = tuple(count if d == dim else n for d, n in enumerate(kind.shape))
    updates = grower.pick(lambda known: known.type == TensorType(shape, kind.dtype))
    if updates is None:
        return None
    return grower.add("scatter", [named, updates, target], grower.draw(st.sampled_from(SCAN_KINDS[:3])), dim)


# Chains ---------------------------------------------------------------------------------------------------------


def _along(grower: Grower, number: int, kind: str, dims: Sequence[int]) -> int | None:
    rank = len(grower.values[number].type.shape)
    return grower.add("reduce", [number], kind, tuple(dims), True, map_of(rank))


def _with_rows(grower: Grower, name: str, full: int, rows: int | None) -> int | None:
    """A function of a value and one with extents of 1 that broadcasts against it."""
    if rows is None:
        return None
    shape = grower.values[full].type.shape
    small = grower.values[rows].type.shape
    over = tuple(None if n == 1 and shape[d] != 1 else d for d, n in enumerate(small))
    return grower.add("pointwise", [full, rows], name, shape, (map_of(len(shape)), over))


def _alone(grower: Grower, name: str, number: int) -> int | None:
    """A function of one value, of the same shape."""
    shape = grower.values[number].type.shape
    return grower.add("pointwise", [number], name, shape, (map_of(len(shape)),))


def _float_with_dims(grower: Grower) -> tuple[int, tuple[int, ...]] | None:
    number = grower.pick(lambda known: bool(known.type.shape) and known.type.dtype.is_float)
    if number is None:
        return None
    rank = len(grower.values[number].type.shape)
    return number, ((rank - 1,) if _drawn(grower, 0, 2) < 2 else _some_dims(grower, rank))


def softmax(grower: Grower) -> int | None:
    """Over any dims, with the largest value subtracted; the last step may be missing."""
    found = _float_with_dims(grower)
    if found is None:
        return None
    number, dims = found
    shifted = _with_rows(grower, "subtract", number, _along(grower, number, "maximum", dims))
    if shifted is None:
        return None
    power = _alone(grower, "decay", shifted)
    return None if power is None else _with_rows(grower, "divide", power, _along(grower, power, "sum", dims))


def layer_norm(grower: Grower) -> int | None:
    """Mean, deviations, mean of their squares, and the quotient by its root."""
    found = _float_with_dims(grower)
    if found is None:
        return None
    number, dims = found
    shape = grower.values[number].type.shape
    count = math.prod(shape[d] for d in dims)
    mean = _divided(grower, _along(grower, number, "sum", dims), count)
    deviation = _with_rows(grower, "subtract", number, mean)
    if deviation is None:
        return None
    variance = _divided(grower, _along(grower, deviation, "sum_of_squares", dims), count)
    inverse = None if variance is None else _alone(grower, "inverse_root", variance)
    return _with_rows(grower, "multiply", deviation, inverse)


def _divided(grower: Grower, number: int | None, count: int) -> int | None:
    return None if number is None else grower.add("divide_by", [number], count)


def rows_and_columns(grower: Grower) -> int | None:
    """Sums of one value over its last dims and over its first ones."""
    number = grower.pick(lambda known: len(known.type.shape) > 1 and not known.type.dtype.is_bool)
    if number is None:
        return None
    rank = len(grower.values[number].type.shape)
    cut_at = _drawn(grower, 1, rank - 1)
    for dims in (tuple(range(cut_at)), tuple(range(cut_at, rank))):
        kind = grower.draw(st.sampled_from(("sum", "sum", "maximum")))
        grower.add("reduce", [number], kind, dims, False, map_of(rank))
    return number


def embedding_gradient(grower: Grower) -> int | None:
    """Rows of a value taken at places and added back to where they came from."""
    named = grower.pick(lambda known: known.type.dtype.name in ("int64", "int32") and len(known.type.shape) == 1)
    table = grower.pick(lambda known: bool(known.type.elements and known.type.shape) and not known.type.dtype.is_bool)
    if named is None or table is None:
        return None
    size = grower.values[table].type.elements // grower.values[table].type.shape[0]
    if size * grower.values[named].type.elements > grower.most:
        return None
    rows = grower.add("gather", [table, named], 0)
    return None if rows is None else grower.add("scatter", [named, rows, table], "sum", 0)


def chain(grower: Grower) -> int | None:
    """Several functions of one value in a row, expensive ones among them."""
    number = grower.pick(lambda known: known.type.dtype.is_float)
    names = sorted(name for name, function in FLOAT_FUNCTIONS.items() if function.arity == 1 and not function.jumps)
    for _ in range(_drawn(grower, 2, 5)):
        if number is None:
            return None
        number = apply(grower, grower.draw(st.sampled_from(names)), [number])
    return number


STEPS: tuple[Callable[[Grower], int | None], ...] = (
    *(pointwise,) * 5,
    *(reduce,) * 4,
    *(chain, select, cast, cast, compare),
    *(transpose, cut, insert, concat, pad, reshape, reshape, flip, triangle, gather, iota),
    *(position, matmul, softmax, layer_norm, softmax, layer_norm, rows_and_columns, rows_and_columns),
    *(scan, scan, scatter, embedding_gradient),
)
