"""What communication costs on the devices of one mesh: latency times the depth of a tree, and bytes over bandwidth.

A collective over g devices takes ``alpha * log2(g)`` and the time to move its bytes. There is no term for the latency
of a ring: with one, a search would take three small reductions for one. A group that spans hosts has the network ports
of all its members in a host at once, as ring collectives use them, but never more than the link inside the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlirstitch.mesh import Mesh
from mlirstitch.target import Links

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Charge:
    """What one execution costs: seconds, and the bytes that the busiest device receives over links."""

    seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Group:
    """Devices that communicate: how many, on how many hosts, and how many of them a host has at least and at most."""

    size: int
    hosts: int
    per_host: int
    most_per_host: int


class LinkCost:
    """Costs of collectives and messages on a mesh."""

    def __init__(self, mesh: Mesh, links: Links) -> None:
        self.mesh = mesh
        self.links = links
        self._groups: dict[tuple[str, ...], Group] = {}

    def host(self, device: int) -> int:
        """The host of a device."""
        return device // self.links.devices_per_host

    def group(self, axes: Sequence[str]) -> Group:
        """The worst of the groups of devices that differ in ``axes`` alone: most hosts, fewest members a host."""
        key = tuple(sorted(axes))
        if key not in self._groups:
            hosts = [Counter(self.host(d) for d in members) for members in self.mesh.groups(key)]
            size = math.prod(self.mesh.sizes[axis] for axis in key)
            members = [count for found in hosts for count in found.values()]
            self._groups[key] = Group(size, max(map(len, hosts)), min(members), max(members))
        return self._groups[key]

    def crosses(self, axes: Sequence[str]) -> bool:
        """Whether devices that differ in ``axes`` stand in different hosts."""
        return self.group(axes).hosts > 1

    def all_gather(self, axes: Sequence[str], after: int) -> Charge:
        """A collective concatenation to ``after`` bytes a device."""
        return self._ring(self.group(axes), after, 1)

    def all_reduce(self, axes: Sequence[str], before: int) -> Charge:
        """A collective reduction of ``before`` bytes a device, all of it to all."""
        return self._ring(self.group(axes), before, 2)

    def reduce_scatter(self, axes: Sequence[str], before: int) -> Charge:
        """A collective reduction of ``before`` bytes a device, a part of it to each."""
        return self._ring(self.group(axes), before, 1)

    def all_to_all(self, axes: Sequence[str], before: int) -> Charge:
        """An exchange of a part of ``before`` bytes by every pair of devices."""
        group, links = self.group(axes), self.links
        if group.size == 1:
            return Charge()
        inside = before * (group.per_host - 1) / group.size / links.inside.bandwidth
        between = before * (group.size - group.per_host) / group.size / links.between.bandwidth
        moving = max(inside, between) if group.hosts > 1 else inside
        return Charge(self._latency(group) + moving, math.ceil(before * (group.size - 1) / group.size))

    def exchange(
        self, axes: Sequence[str], messages: Iterable[tuple[Mapping[str, int], Mapping[str, int], int]]
    ) -> Charge:
        """Messages between places of ``axes`` that differ in them alone, each with its bytes."""
        axes = tuple(axis for axis in self.mesh.names if axis in axes)
        sizes = [self.mesh.sizes[axis] for axis in axes]
        totals: dict[tuple[int, int], list[int]] = {}
        for source, target, size in messages:
            pair = (_number(source, axes, sizes), _number(target, axes, sizes))
            total = totals.setdefault(pair, [0, 0])
            total[0] += 1
            total[1] += size
        grid = np.array(self.mesh.groups(axes), dtype=np.int64)
        pairs = np.array(list(totals), dtype=np.int64).reshape(-1, 2)
        counts, bytes_ = np.array(list(totals.values()), dtype=np.int64).reshape(-1, 2).T
        ends = grid[:, pairs[:, 0]].reshape(-1), grid[:, pairs[:, 1]].reshape(-1)
        return messages_cost(self.links, *ends, np.tile(counts, len(grid)), np.tile(bytes_, len(grid)))

    def exchange_bound(self, axes: Sequence[str], messages: int, largest: int, received: int) -> float:
        """No exchange takes less if a device gets ``messages`` of up to ``largest`` bytes, ``received`` in all."""
        near = self.group(axes).most_per_host - 1
        inside, between = self.links.inside, self.links.between
        if not self.crosses(axes):
            return messages * inside.alpha + received / inside.bandwidth
        far = max(0, messages - near)
        latency = min(messages, near) * min(inside.alpha, between.alpha) + far * between.alpha
        moving = max(0, received - near * largest) / between.bandwidth
        return latency + max(moving, received / (inside.bandwidth + between.bandwidth))

    def host_of(self, place: Mapping[str, int]) -> int:
        """The host of the device at a place; axes it does not name are taken at 0."""
        return self.host(self.mesh.device({**dict.fromkeys(self.mesh.names, 0), **place}))

    def local(self, touched: int) -> Charge:
        """A copy inside of a device that reads and writes ``touched`` bytes in all."""
        return Charge(touched / self.links.memory_bandwidth)

    def _latency(self, group: Group) -> float:
        inside, between = self.links.inside.alpha, self.links.between.alpha
        return inside * math.log2(group.size / group.hosts) + between * math.log2(group.hosts)

    def _ring(self, group: Group, whole: int, rounds: int) -> Charge:
        if group.size == 1:
            return Charge()
        moved = rounds * whole * (group.size - 1) / group.size
        bandwidth = self.links.inside.bandwidth
        if group.hosts > 1:
            ports = self.links.between.bandwidth * group.per_host
            bandwidth = min(bandwidth, ports) if group.per_host > 1 else ports
        return Charge(self._latency(group) + moved / bandwidth, math.ceil(moved))


def twins_cost(source: LinkCost, wanted: LinkCost, size: int) -> Charge:
    """Every device of a mesh sends ``size`` bytes to the device at the same place of another mesh."""
    senders, receivers = (np.array(cost.mesh.devices, dtype=np.int64) for cost in (source, wanted))
    return messages_cost(source.links, senders, receivers, np.ones_like(senders), np.full_like(senders, size))


def broadcast_cost(links: Links, targets: Mapping[int, Sequence[int]], size: int) -> Charge:
    """Every sender gives ``size`` bytes to its receivers, by a tree in which they pass on what they got."""
    seconds = 0.0
    for sender, receivers in targets.items():
        far = any(device // links.devices_per_host != sender // links.devices_per_host for device in receivers)
        link = links.between if far else links.inside
        seconds = max(seconds, link.alpha * math.log2(len(receivers) + 1) + size / link.bandwidth)
    return Charge(seconds, size if targets else 0)


def messages_cost(links: Links, senders: Numbers, receivers: Numbers, counts: Numbers, sizes: Numbers) -> Charge:
    """Messages from ``senders[i]`` to ``receivers[i]``: ``counts[i]`` of them with ``sizes[i]`` bytes in all.

    All links work at once; a device takes one latency a message and the time of its busiest direction. Messages of a
    device to itself cost nothing.
    """
    real = senders != receivers
    senders, receivers, counts, sizes = senders[real], receivers[real], counts[real], sizes[real]
    if not len(senders):
        return Charge()
    between = senders // links.devices_per_host != receivers // links.devices_per_host
    latency = counts * np.where(between, links.between.alpha, links.inside.alpha)
    seconds, received = 0.0, 0
    for ends in (senders, receivers):
        devices, place = np.unique(ends, return_inverse=True)
        waits = np.bincount(place, latency, len(devices))
        inside = np.bincount(place, np.where(between, 0, sizes), len(devices)) / links.inside.bandwidth
        outside = np.bincount(place, np.where(between, sizes, 0), len(devices)) / links.between.bandwidth
        seconds = max(seconds, float(np.max(waits + np.maximum(inside, outside))))
        received = int(np.max(np.bincount(place, sizes, len(devices))))
    return Charge(seconds, received)


def _number(place: Mapping[str, int], axes: Sequence[str], sizes: Sequence[int]) -> int:
    number = 0
    for axis, size in zip(axes, sizes, strict=True):
        number = number * size + place[axis]
    return number
