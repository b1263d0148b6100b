"""stitch.schedule as an attribute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mlir import ir

from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.schedule_attribute import schedule_from_attribute, schedule_to_attribute
from mlirstitch.passes.stitching.template import Schedule


def test_a_schedule_survives_the_way_through_text() -> None:
    schedule = Schedule(
        "row", (32, 2, 1), (256, 1, 1), 4, 96, (("mode", "warp"), ("rows_per_block", 4)), ((3, "warp"), (7, "block"))
    )
    with ir.Context():
        text = str(schedule_to_attribute(schedule))
        assert schedule_from_attribute(ir.Attribute.parse(text)) == schedule


@pytest.mark.parametrize("fields", [{"thread_block_cluster": (8, 1, 1)}, {"cooperative": True}])
def test_clusters_and_cooperative_launches_survive_and_are_left_out_elsewhere(
    fields: dict[str, Any],
) -> None:
    plain = Schedule("row", (32, 1, 1), (256, 1, 1))
    schedule = replace(plain, **fields)
    with ir.Context():
        (name,) = fields
        text = str(schedule_to_attribute(schedule))
        assert name in text
        assert schedule_from_attribute(ir.Attribute.parse(text)) == schedule
        assert name not in str(schedule_to_attribute(plain))
    assert schedule.cluster_blocks == (8 if name == "thread_block_cluster" else 1)


def test_parts_survive_the_way_through_text() -> None:
    row = Schedule("row", (4, 1, 1), (64, 1, 1), 4, 0, (("mode", "resident"),), (), (("f32", 8),), 2)
    flat = Schedule("elementwise", (2, 1, 1), (32, 1, 1))
    whole = Schedule("packed", (6, 1, 1), (64, 1, 1), 4, schemes=((3, "warp"),), tickets=2, parts=(row, flat))
    with ir.Context():
        text = str(schedule_to_attribute(whole))
        assert schedule_from_attribute(ir.Attribute.parse(text)) == whole


def test_a_part_has_no_parts_or_schemes_of_its_own() -> None:
    flat = Schedule("elementwise", (2, 1, 1), (32, 1, 1))
    nested = Schedule("packed", (2, 1, 1), (32, 1, 1), parts=(flat,))
    named = Schedule("row", (2, 1, 1), (32, 1, 1), schemes=((0, "warp"),))
    for part, what in ((nested, "parts"), (named, "schemes")):
        with ir.Context(), pytest.raises(PassError, match=f"a part has {what} of its own"):
            schedule_from_attribute(schedule_to_attribute(Schedule("packed", (2, 1, 1), (32, 1, 1), parts=(part,))))


def test_fields_with_a_default_may_be_left_out() -> None:
    with ir.Context():
        attribute = ir.Attribute.parse('{template = "loops", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}')
        assert schedule_from_attribute(attribute) == Schedule("loops", (1, 1, 1), (32, 1, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3 : i64", "not a dictionary"),
        ('{template = "row"}', "lacks 'grid'"),
        ('{template = "row", grid = 3 : i64, block = array<i64: 1, 1, 1>}', "grid is not"),
        ('{template = "row", grid = array<i64: 1, 1>, block = array<i64: 1, 1, 1>}', "grid is not"),
        ("{template = 1 : i64, grid = array<i64: 1, 1, 1>, block = array<i64: 1, 1, 1>}", "template is not"),
        ('{template = "r", grid = array<i64: 1, 1, 1>, block = array<i64: 1, 1, 1>, speed = 1 : i64}', "unknown field"),
        ('{template = "r", grid = array<i64: 1, 1, 1>, block = array<i64: 1, 1, 1>, parts = 1 : i64}', "parts is not"),
        ('{template = "r", grid = array<i64: 1, 1, 1>, block = array<i64: 1, 1, 1>, parts = [1 : i64]}', "dictionary"),
        (
            '{template = "r", grid = array<i64: 1, 1, 1>, block = array<i64: 1, 1, 1>, cooperative = 1 : i64}',
            "cooperative is not a unit",
        ),
        (
            '{template = "r", grid = array<i64: 1, 1, 1>, block = array<i64: 1, 1, 1>, thread_block_cluster = 8 : i64}',
            "thread_block_cluster is not",
        ),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(text: str, message: str) -> None:
    with ir.Context(), pytest.raises(PassError, match=message):
        schedule_from_attribute(ir.Attribute.parse(text))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("vector = 99999999999999999999999 : i128", "vector is not an integer of at most 64 bits"),
        ("parameters = {unroll = 99999999999999999999999 : i128}", "unroll is not an integer of at most 64 bits"),
        ("shared_bytes = -16", "shared_bytes is -16, less than 0"),
        ("tickets = -1", "tickets is -1, less than 0"),
        ("vector = -4", "vector is -4, less than 0"),
        ('schemes = [[-1, "warp"]]', "schemes is -1, less than 0"),
        ('schemes = [[1, "x"]]', "there is no scheme 'x'"),
        ('scratch = [["!no.type", 4]]', "no scratch buffer has the type !no.type"),
        ('scratch = [["i1", 4]]', "no scratch buffer has the type i1"),
    ],
)
def test_numbers_and_names_out_of_range_are_refused(field: str, message: str) -> None:
    """MLIR aborts the process where it is asked for more than 64 bits, or for a buffer of an unknown type."""
    text = f'{{template = "r", grid = array<i64: 1, 1, 1>, block = array<i64: 1, 1, 1>, {field}}}'
    with ir.Context(), pytest.raises(PassError, match=message):
        schedule_from_attribute(ir.Attribute.parse(text))
