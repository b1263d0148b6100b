"""Chips: how they may be spelt, and limits that hang together."""

from __future__ import annotations

import pytest

from mlirstitch.errors import TargetError
from mlirstitch.target import TARGETS, Target


@pytest.mark.parametrize("text", ["sm_90", " SM_90 ", "90"])
def test_a_chip_may_be_spelt_in_several_ways(text: str) -> None:
    assert Target.parse(text).chip == "sm_90"


def test_a_target_is_taken_as_it_is() -> None:
    small = Target.parse("sm_90").override(sms=2)
    assert Target.parse(small) is small
    assert (small.sms, Target.parse("sm_90").sms) == (2, 132)


def test_an_unknown_chip_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"unknown target 'sm_1'\n  hint: known targets: .*sm_80, .*sm_90"):
        Target.parse("sm_1")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_limits_of_a_chip_hang_together(target: Target) -> None:
    """48 KiB without opting in; a multiprocessor keeps at most 1 KiB of what it has from a block that opts in."""
    assert target.shared_bytes_static == 49152 <= target.shared_bytes_block <= target.shared_bytes_sm
    assert target.shared_bytes_sm - target.shared_bytes_block in (0, 1024)
    assert target.max_threads_per_sm % target.warp_size == 0
    assert target.max_threads_per_block <= target.max_threads_per_sm
    assert target.registers_per_sm % target.max_threads_per_block == 0
