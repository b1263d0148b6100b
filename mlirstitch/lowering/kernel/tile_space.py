"""The space of a ``tile`` kernel: two axes along which tensors are contiguous, a batch, and what crosses between them.

*Axis 0* is the one along which the first output is contiguous, *axis 1* the one along which most of the bytes that are
not contiguous along axis 0 are. A tensor that varies along both axes *lies along* the one along which it is contiguous.
A value that depends only on tensors lying along one axis, and is needed by an output that lies along the other, is
*staged*: written to shared memory by threads that walk along the one axis, and read by threads that walk along the
other. Everything else a thread computes where it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.body import byte_size, memory_type
from mlirstitch.lowering.kernel.digits import Placement, place_outputs, strides_of
from mlirstitch.lowering.kernel.flat_kernel import flat_elements
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.index_expr import Expr, Symbol, delinearize, evaluate, linearize, symbol
from mlirstitch.lowering.kernel.linalg_body import LinalgOp
from mlirstitch.lowering.kernel.reach import Key, Point, Reach
from mlirstitch.lowering.kernel.tensor_program import Argument, Choice, Computed, Node, TensorProgram

AXES = (0, 1)
GROUP = 64
"""Elements that an axis has at least, if neighbouring digits are contiguous with it."""

SECTOR = 32
"""Bytes of global memory that are moved together."""

BOTH = 3
REDUCED = 4
"""Mark of what depends on a reduction: it is not known when values cross."""


@dataclass(frozen=True, eq=False)
class Staged:
    """A value that crosses in shared memory: ``point`` in terms of the digits, computed along axis ``source``."""

    point: Point
    source: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return bytes_of(self.point.node)


@dataclass(frozen=True, eq=False)
class Access:
    """Elements of ``size`` bytes at ``offset`` (in terms of the digits); ``axis`` is the one they lie along, or -1."""

    offset: Expr
    size: int
    axis: int


@dataclass(frozen=True, eq=False)
class TileSpace:
    """See the module's documentation.

    Attributes:
        placement: where outputs and inputs lie.
        axes: digits of axis 0 and of axis 1, outermost first.
        batch: the other digits.
        accesses: loads and stores that vary along both axes.
        sides: the axis along which each output is computed and stored.
        staged: what crosses.
    """

    placement: Placement
    axes: tuple[tuple[Symbol, ...], tuple[Symbol, ...]]
    batch: tuple[Symbol, ...]
    accesses: tuple[Access, ...]
    sides: tuple[int, ...]
    staged: tuple[Staged, ...]

    def extent(self, axis: int) -> int:
        """Elements along an axis."""
        return extent_of(self.axes[axis])

    @property
    def batches(self) -> int:
        """Elements of the batch."""
        return extent_of(self.batch)

    def widest(self, axis: int) -> int:
        """The most elements that every access along ``axis`` can take at once: 16 bytes of the widest, aligned."""
        inner = self.axes[axis][-1]
        sizes = [access.size for access in self.accesses] + [item.element_bytes for item in self.staged]
        width = min(8, 16 // max(sizes))
        width = math.gcd(width, inner.high + 1)
        for access in self.accesses:
            if access.axis == axis:
                others = [stride for name, stride in (strides_of(access.offset) or {}).items() if name != inner]
                width = math.gcd(width, access.offset.const, *others)
        return width

    @staticmethod
    def of(program: TensorProgram) -> TileSpace:
        """Derive the space. Raises :class:`PassError` if nothing has to cross."""
        elements = flat_elements(program)
        for node in program.nodes.values():
            if isinstance(node, Computed) and node.is_reduction:
                raise PassError("a reduction does not run over tiles")
        if not elements or not permutes(program):
            raise PassError("nothing is transposed")
        placement = place_outputs(program)
        stores = placement.offsets(program)
        loads = [(linearize(indices, node.shape), bytes_of(node)) for node, indices in placement.reach.loads()]
        sizes = [bytes_of(node) for node in program.outputs]
        everything = [*zip(stores, sizes, strict=True), *loads]
        axes = _axes(placement, stores[0], everything)
        accesses = [Access(offset, size, lies_along(offset, axes)) for offset, size in everything]
        sides = tuple(max(0, access.axis) for access in accesses[: len(stores)])
        points = [Point(node, place) for node, place in zip(program.outputs, placement.places, strict=True)]
        roots = list(zip(points, sides, strict=True))
        inside = {*axes[0], *axes[1]}
        space = TileSpace(
            placement,
            axes,
            tuple(name for name in placement.digits if name not in inside),
            tuple(access for access in accesses if varies(access.offset, axes) == BOTH),
            sides,
            staged_values(placement.reach, axes, roots),
        )
        if not space.staged:
            raise PassError("no value that is contiguous in one direction is needed in another")
        return space


def extent_of(digits: Sequence[Symbol]) -> int:
    """Values that some digits take together."""
    return math.prod(name.high + 1 for name in digits)


def bytes_of(node: Node) -> int:
    """Bytes of an element of a value in memory."""
    return byte_size(memory_type(node.element))


def permutes(program: TensorProgram) -> bool:
    """Whether some linalg op moves another dim to the end, which a transpose of contiguous dims does in canonical form.

    Views do not: the neighbours of an element stay what they are.
    """
    return any(_crosses(node.linalg) for node in program.nodes.values() if isinstance(node, Computed))


def _crosses(linalg: LinalgOp) -> bool:
    """Whether two operands both vary along both of the dims in which they are contiguous."""
    orders = [[mapped.dim for mapped in maps if _is_wide(linalg, mapped.dim)] for maps in linalg.maps]
    pairs = combinations([order for order in orders if order], 2)
    return any(one[-1] != two[-1] and one[-1] in two and two[-1] in one for one, two in pairs)


def _is_wide(linalg: LinalgOp, dim: int | None) -> bool:
    return dim is not None and linalg.extents[dim] > 1


def _axes(
    placement: Placement, first: Expr, accesses: Sequence[tuple[Expr, int]]
) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]]:
    """The digits of both axes. Raises :class:`PassError` if all is contiguous along one."""
    inner = _unit(first)
    if inner is None:
        raise PassError("the first output does not follow its dims")
    weights: dict[Symbol, int] = {}
    follow: dict[Symbol, Expr] = {}
    for offset, size in accesses:
        name = _unit(offset)
        strides = strides_of(offset)
        if name is not None and strides is not None and name != inner and inner in strides:
            weights[name] = weights.get(name, 0) + extent_of(list(strides)) * size
            follow.setdefault(name, offset)
    if not weights:
        raise PassError("every tensor is contiguous in one direction")
    other = max(weights, key=lambda name: (weights[name], -placement.digits.index(name)))
    across = _contiguous(first, inner, {other})
    return across, _contiguous(follow[other], other, set(across))


def _unit(offset: Expr) -> Symbol | None:
    """The digit along which an offset is contiguous."""
    return next((atom for atom, stride in offset.terms if stride == 1 and isinstance(atom, Symbol)), None)


def _contiguous(offset: Expr, inner: Symbol, taken: set[Symbol]) -> tuple[Symbol, ...]:
    """``inner`` and, while there are few elements, the digits that continue it in memory."""
    by_stride = {stride: name for name, stride in (strides_of(offset) or {}).items()}
    digits = [inner]
    while extent_of(digits) < GROUP:
        following = by_stride.get(extent_of(digits))
        if following is None or following in taken:
            break
        digits.insert(0, following)
    return tuple(digits)


def varies(offset: Expr, axes: tuple[tuple[Symbol, ...], ...]) -> int:
    """Along which axes (bit set) an offset varies."""
    return sum(1 << axis for axis in AXES if any(name in offset.symbols for name in axes[axis]))


def lies_along(offset: Expr, axes: tuple[tuple[Symbol, ...], ...]) -> int:
    """The axis along which memory at an offset is contiguous, if the offset varies along both; else -1."""
    strides = strides_of(offset)
    if strides is None or varies(offset, axes) != BOTH:
        return -1
    return next((axis for axis in AXES if strides.get(axes[axis][-1]) == 1), -1)


def staged_values(
    reach: Reach, axes: tuple[tuple[Symbol, ...], ...], roots: Sequence[tuple[Point, int]]
) -> tuple[Staged, ...]:
    """What crosses: the values furthest down that lie along one axis, or what is loaded if those are fewer bytes.

    ``roots`` are the values to compute, each with the axis along which that is done.
    """
    sources = _Sources(reach, axes)
    values: dict[Key, Staged] = {}
    leaves: dict[Key, Staged] = {}
    for point, side in roots:
        sources.collect(point, 1 - side, sources.crossing, values)
        sources.collect(point, 1 - side, sources.loaded, leaves)
    wide, narrow = (sum(item.element_bytes for item in found.values()) for found in (values, leaves))
    return tuple((leaves if narrow < wide else values).values())


class _Sources:
    """Along which axes the tensors lie that a value depends on."""

    def __init__(self, reach: Reach, axes: tuple[tuple[Symbol, ...], ...]) -> None:
        self._reach = reach
        self._axes = axes
        self._known: dict[Key, int] = {}

    def of(self, point: Point) -> int:
        """The axes, as a bit set, with :data:`REDUCED`."""
        known = self._known.get(point.key)
        if known is None:
            known = REDUCED if isinstance(point.node, Computed) and point.node.is_reduction else 0
            if isinstance(point.node, Argument):
                axis = lies_along(linearize(point.indices, point.node.shape), self._axes)
                known = 0 if axis < 0 else 1 << axis
            for operand in self._reach.operands(point):
                known |= self.of(operand)
            self._known[point.key] = known
        return known

    def collect(
        self, root: Point, source: int, choose: Callable[[Point, int], Point | None], found: dict[Key, Staged]
    ) -> None:
        """Add to ``found`` what ``choose`` picks among the values below ``root`` that lie along ``source`` only."""
        stack, seen = [root], set[Key]()
        while stack:
            point = stack.pop()
            if point.key in seen or not self.of(point) >> source & 1:
                continue
            seen.add(point.key)
            chosen = choose(point, source)
            if chosen is not None:
                found.setdefault(chosen.key, Staged(chosen, source))
            elif not isinstance(point.node, Choice):  # what is under a condition is read where it is needed
                stack.extend(reversed(self._reach.operands(point)))

    def crossing(self, point: Point, source: int) -> Point | None:
        """The value itself if all it depends on lies along ``source``; before a cast, if that is narrower."""
        if self.of(point) != 1 << source:
            return None
        while True:
            below = [operand for operand in self._reach.operands(point) if self.of(operand)]
            narrower = len(below) == 1 and bytes_of(below[0].node) < bytes_of(point.node)
            if not narrower or isinstance(point.node, Choice):
                return point
            point = below[0]

    def loaded(self, point: Point, source: int) -> Point | None:
        """The value if it is read from memory, or chosen among such."""
        return point if isinstance(point.node, Argument | Choice) and self.of(point) == 1 << source else None


# Sectors --------------------------------------------------------------------------------------------------------


def sectors_of_tiles(space: TileSpace) -> int:
    """Sectors that a warp touches for 32 elements of every access, each walked along the axis it lies along."""
    return sum(_sectors(access.offset, access.size, _walk(space, max(0, access.axis))) for access in space.accesses)


def sectors_along(space: TileSpace, axis: int) -> int:
    """The same if all are walked along one axis."""
    points = _walk(space, axis)
    return sum(_sectors(access.offset, access.size, points) for access in space.accesses)


def _walk(space: TileSpace, axis: int) -> list[dict[Symbol, int]]:
    """Digits of 32 elements side by side along an axis, in the middle of the space."""
    fast, slow = space.extent(axis), space.extent(1 - axis)
    points: list[dict[Symbol, int]] = []
    for number in range(WARP):
        point = _digits(space.axes[axis], number % fast)
        point |= _digits(space.axes[1 - axis], min(slow - 1, slow // 2 + number // fast))
        points.append(point | _digits(space.batch, space.batches // 2))
    return points


def sectors_of_pass(program: TensorProgram, space: TileSpace) -> int:
    """The same for a warp that walks along the elements of every output in their order in memory."""
    elements = program.outputs[0].elements
    position = symbol("flat", elements)
    reach = Reach([Point(node, delinearize(position.expr, node.shape)) for node in program.outputs])
    accesses = [(position.expr, bytes_of(node)) for node in program.outputs]
    accesses += [(linearize(indices, node.shape), bytes_of(node)) for node, indices in reach.loads()]
    longest = max(space.extent(axis) for axis in AXES)
    start = elements // 2 // WARP * WARP
    points = [{position: min(elements - 1, start + number)} for number in range(WARP)]
    wide = [(offset, size) for offset, size in accesses if offset.high - offset.low >= longest]
    return sum(_sectors(offset, size, points) for offset, size in wide)


def _digits(digits: Sequence[Symbol], position: int) -> dict[Symbol, int]:
    found: dict[Symbol, int] = {}
    for name in reversed(digits):
        position, found[name] = divmod(position, name.high + 1)
    return found


def _sectors(offset: Expr, size: int, points: Sequence[dict[Symbol, int]]) -> int:
    return len({evaluate(offset, point) * size // SECTOR for point in points})
