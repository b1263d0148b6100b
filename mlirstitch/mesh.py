"""The mesh: devices in a grid whose axes have names. Everything a partition plan may know about where devices are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mlirstitch.errors import PlanError


@dataclass(frozen=True)
class Mesh:
    """Devices in a grid, row-major: the last axis moves fastest.

    Attributes:
        axes: name and size of every axis, outermost first.
        devices: number of the device at every place of the grid, row-major.
    """

    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        for name, size in self.axes:
            if not name.isidentifier():
                raise PlanError(f"mesh axis {name!r} is not a name", hint="use names such as dp, tp, pp")
            if type(size) is not int or size < 1:
                raise PlanError(f"mesh axis {name} has size {size!r}", hint="sizes are positive integers")
        if len(set(names)) != len(names):
            raise PlanError(f"mesh axes {', '.join(names)} repeat a name")
        if math.prod(size for _, size in self.axes) != len(self.devices):
            raise PlanError(f"mesh of shape {dict(self.axes)} takes {self.size} devices, {len(self.devices)} are given")
        if len(set(self.devices)) != len(self.devices):
            raise PlanError("a device stands twice in the mesh")
        object.__setattr__(self, "_hash", hash((self.axes, self.devices)))

    def __hash__(self) -> int:
        return self._hash  # computed once: meshes of a thousand devices are keys of large tables

    @classmethod
    def of(cls, **sizes: int) -> Mesh:
        """Devices 0, 1, 2, ... in a grid: ``Mesh.of(dp=2, tp=4)``."""
        return cls(tuple(sizes.items()), tuple(range(math.prod(s if type(s) is int else 0 for s in sizes.values()))))

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """A mesh from a text such as ``dp=2,tp=4``. Raises :class:`PlanError` for another text."""
        sizes: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, size = part.partition("=")
            if not equals or not size.strip().isdigit() or name.strip() in sizes:
                raise PlanError(f"mesh {text!r}: cannot read {part!r}", hint="write a mesh as dp=2,tp=4")
            sizes[name.strip()] = int(size)
        return cls.of(**sizes)

    @property
    def size(self) -> int:
        """How many places the grid has."""
        return math.prod(size for _, size in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, outermost first."""
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every axis by name."""
        return dict(self.axes)

    def coordinates(self) -> Iterator[tuple[int, dict[str, int]]]:
        """Every device with its place in the grid, row-major."""
        places = itertools.product(*(range(size) for _, size in self.axes))
        for device, place in zip(self.devices, places, strict=True):
            yield device, dict(zip(self.names, place, strict=True))

    def device(self, place: Mapping[str, int]) -> int:
        """The device at a place, which gives a coordinate for every axis (others are ignored)."""
        number = 0
        for name, size in self.axes:
            number = number * size + place[name]
        return self.devices[number]

    def at(self, **fixed: int) -> Mesh:
        """The part of the mesh where some axes have a fixed coordinate; it has the other axes.

        Raises :class:`PlanError` for an unknown axis or a coordinate outside of it.
        """
        for name, coordinate in fixed.items():
            if name not in self.sizes:
                raise PlanError(f"the mesh has no axis {name!r}", hint=f"its axes are {', '.join(self.names)}")
            if not 0 <= coordinate < self.sizes[name]:
                raise PlanError(f"axis {name} has {self.sizes[name]} places, {coordinate} is none of them")
        kept = tuple((name, size) for name, size in self.axes if name not in fixed)
        chosen = [device for device, place in self.coordinates() if all(place[n] == c for n, c in fixed.items())]
        return Mesh(kept, tuple(chosen))

    def groups(self, axes: Iterable[str]) -> list[tuple[int, ...]]:
        """The devices that differ in ``axes`` alone, one tuple a group; members in lexicographic order of ``axes``."""
        axes = tuple(axes)
        others = [name for name in self.names if name not in axes]
        found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for device, place in self.coordinates():
            found.setdefault(tuple(place[n] for n in others), []).append((tuple(place[n] for n in axes), device))
        return [tuple(device for _, device in sorted(members)) for members in found.values()]

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes) or "one device"
