"""The mesh: places, parts, groups, and texts."""

from __future__ import annotations

import pytest

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh


def test_the_last_axis_moves_fastest() -> None:
    mesh = Mesh.of(dp=2, tp=3)
    assert dict(mesh.coordinates())[4] == {"dp": 1, "tp": 1}
    assert mesh.device({"dp": 1, "tp": 2}) == 5
    assert mesh.size == 6


def test_every_device_is_found_at_its_place() -> None:
    mesh = Mesh((("a", 2), ("b", 2)), (7, 3, 0, 5))
    assert [mesh.device(place) for _, place in mesh.coordinates()] == [7, 3, 0, 5]


def test_a_part_has_the_other_axes_and_its_own_devices() -> None:
    part = Mesh.of(pp=2, dp=2, tp=2).at(pp=1, tp=0)
    assert part == Mesh((("dp", 2),), (4, 6))


def test_groups_differ_in_their_axes_alone() -> None:
    mesh = Mesh.of(a=2, b=2, c=2)
    assert mesh.groups(("b",)) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert mesh.groups(()) == [(device,) for device in range(8)]


def test_members_of_a_group_stand_in_the_order_of_the_axes_as_named() -> None:
    mesh = Mesh.of(a=2, b=2)
    assert mesh.groups(("a", "b")) == [(0, 1, 2, 3)]
    assert mesh.groups(("b", "a")) == [(0, 2, 1, 3)]


@pytest.mark.parametrize("text", ["dp=2,tp=4", " dp=2, tp=4 "])
def test_texts_are_read(text: str) -> None:
    mesh = Mesh.parse(text)
    assert mesh == Mesh.of(dp=2, tp=4)
    assert Mesh.parse(str(mesh)) == mesh


def test_no_axes_are_one_device() -> None:
    assert Mesh.parse("").devices == (0,)
    assert str(Mesh.of()) == "one device"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp", "cannot read 'dp'"),
        ("dp=x", "cannot read 'dp=x'"),
        ("dp=-1", "cannot read 'dp=-1'"),
        ("dp=2,dp=2", "cannot read 'dp=2'"),
        ("d p=2", "'d p' is not a name"),
        ("dp=0", "size 0"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Mesh.parse(text)


@pytest.mark.parametrize(
    ("axes", "devices", "message"),
    [
        ((("a", 2),), (0, 1, 2), "takes 2 devices, 3 are given"),
        ((("a", 2),), (1, 1), "a device stands twice"),
        ((("a", 1), ("a", 1)), (0,), "repeat a name"),
    ],
)
def test_meshes_that_are_none_are_refused(
    axes: tuple[tuple[str, int], ...], devices: tuple[int, ...], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        Mesh(axes, devices)


@pytest.mark.parametrize(("axis", "place", "message"), [("pp", 0, "no axis 'pp'"), ("dp", 2, "2 is none of them")])
def test_parts_that_are_none_are_refused(axis: str, place: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Mesh.of(dp=2).at(**{axis: place})
