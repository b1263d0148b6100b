"""What collectives and messages cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlirstitch.errors import TargetError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.link_cost import LinkCost, broadcast_cost, messages_cost
from mlirstitch.target import LINKS, Link, Links

SMALL = Links("small", Link(1e-6, 100e9), Link(1e-5, 10e9), 4, 1e12)


def test_collectives_take_latency_by_depth_and_bytes_by_bandwidth():
    cost = LinkCost(Mesh.of(a=4), SMALL)
    size = 400_000_000
    assert cost.all_gather(("a",), size).seconds == pytest.approx(2e-6 + 3e-3)
    assert cost.reduce_scatter(("a",), size).seconds == pytest.approx(2e-6 + 3e-3)
    assert cost.all_to_all(("a",), size).seconds == pytest.approx(2e-6 + 3e-3)
    assert cost.all_reduce(("a",), size).seconds == pytest.approx(2e-6 + 6e-3)
    assert cost.all_reduce(("a",), size).bytes == 600_000_000


def test_one_reduction_costs_no_more_than_three_by_parts():
    mesh = Mesh.of(a=2, b=2, c=2)
    cost = LinkCost(mesh, LINKS["dgx-h100"])
    size = 1 << 20
    once = cost.reduce_scatter(("a", "b", "c"), size).seconds
    parts = sum(cost.reduce_scatter((axis,), size >> n).seconds for n, axis in enumerate(mesh.names))
    assert once <= parts * (1 + 1e-12)


def test_a_group_of_one_costs_nothing():
    cost = LinkCost(Mesh.of(a=1, b=2), SMALL)
    for charge in (cost.all_gather, cost.all_reduce, cost.reduce_scatter, cost.all_to_all):
        assert charge(("a",), 1000).seconds == 0


def test_axes_between_hosts_are_slow_and_members_of_a_host_share_their_ports():
    cost = LinkCost(Mesh.of(dp=2, tp=4), SMALL)
    assert not cost.crosses(("tp",))
    assert cost.crosses(("dp",))
    size = 80_000_000
    assert cost.all_gather(("dp",), size).seconds == pytest.approx(1e-5 + size / 2 / 10e9)
    assert cost.all_gather(("dp", "tp"), size).seconds == pytest.approx(2e-6 + 1e-5 + size * 7 / 8 / 40e9)
    assert cost.all_to_all(("dp", "tp"), size).seconds == pytest.approx(2e-6 + 1e-5 + size / 2 / 10e9)


def test_the_numbers_of_the_devices_say_which_host_they_are_in():
    mesh = Mesh((("a", 2), ("b", 2)), (0, 4, 1, 5))
    cost = LinkCost(mesh, SMALL)
    assert not cost.crosses(("a",))
    assert cost.crosses(("b",))


def test_the_host_with_fewest_members_bounds_a_group():
    cost = LinkCost(Mesh((("a", 3),), (0, 1, 4)), SMALL)
    assert cost.group(("a",)).per_host == 1
    assert cost.all_gather(("a",), 30_000_000).seconds == pytest.approx(1e-6 * math.log2(1.5) + 1e-5 + 20e6 / 10e9)


def test_a_device_waits_for_its_messages_and_its_busiest_direction():
    def numbers(*values: int):
        return np.array(values, dtype=np.int64)

    two = messages_cost(SMALL, numbers(0, 1), numbers(2, 2), numbers(1, 1), numbers(10**6, 10**6))
    assert two.seconds == pytest.approx(2e-6 + 2e6 / 100e9)
    assert two.bytes == 2 * 10**6
    spread = messages_cost(SMALL, numbers(0, 1), numbers(1, 0), numbers(1, 1), numbers(10**6, 10**6))
    assert spread.seconds == pytest.approx(1e-6 + 1e6 / 100e9)
    far = messages_cost(SMALL, numbers(0), numbers(4), numbers(1), numbers(10**6))
    assert far.seconds == pytest.approx(1e-5 + 1e6 / 10e9)
    assert messages_cost(SMALL, numbers(3), numbers(3), numbers(1), numbers(10**6)).seconds == 0


def test_a_broadcast_is_a_tree():
    charge = broadcast_cost(SMALL, {0: [1, 2, 3]}, 10**6)
    assert charge.seconds == pytest.approx(2e-6 + 1e6 / 100e9)
    assert broadcast_cost(SMALL, {0: [5]}, 10**6).seconds == pytest.approx(1e-5 + 1e6 / 10e9)


def test_every_group_gets_its_exchange():
    cost = LinkCost(Mesh.of(dp=2, sp=4), SMALL)
    charge = cost.exchange(("sp",), [({"sp": 0}, {"sp": 1}, 1000), ({"sp": 2}, {"sp": 1}, 1000)])
    assert charge.seconds == pytest.approx(2e-6 + 2000 / 100e9)
    assert charge.bytes == 2000


def test_links_have_names_and_refuse_others():
    assert Links.parse(" DGX-H100 ") is LINKS["dgx-h100"]
    with pytest.raises(TargetError, match="dgx-a100"):
        Links.parse("token-ring")
    assert math.isclose(LINKS["dgx-h100"].override(devices_per_host=4).inside.bandwidth, 450e9)
