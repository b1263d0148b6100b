"""Launches over a chip's limits are refused with numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlirstitch.errors import PassError
from mlirstitch.lowering.launch_limits import Launch, check_launch
from mlirstitch.target import Target

FITS = Launch("k", (2**31 - 1, 65_535, 65_535), (1024, 1, 1), 512, 179 * 1024, 48 * 1024, "model.py:3")


def test_a_launch_at_every_limit_is_accepted() -> None:
    check_launch(FITS, Target.parse("sm_90"))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (replace(FITS, grid=(2**31, 1, 1)), "grid size along x is 2147483648"),
        (replace(FITS, grid=(1, 65_536, 1)), "grid size along y is 65536, the limit is 65535"),
        (replace(FITS, grid=(1, 1, 65_536)), "grid size along z"),
        (replace(FITS, grid=(0, 1, 1)), "grid size along x is 0"),
        (replace(FITS, block=(1025, 1, 1)), "block size along x is 1025"),
        (replace(FITS, block=(1, 1, 65)), "block size along z is 65"),
        (replace(FITS, block=(64, 32, 1)), "threads per block is 2048, the limit is 1024"),
        (replace(FITS, arguments=513), "bytes of arguments is 4104, the limit is 4096"),
        (replace(FITS, static_shared=48 * 1024 + 4), "static shared memory is 49156"),
        (replace(FITS, dynamic_shared=180 * 1024), "shared memory per block is 233472, the limit is 232448"),
        (replace(FITS, grid=(16, 1, 1), cluster=(16, 1, 1)), "blocks of a thread-block cluster is 16, the limit is 8"),
        (replace(FITS, grid=(16, 1, 1), cluster=(0, 1, 1)), "blocks of a thread-block cluster is 0"),
        (replace(FITS, grid=(12, 1, 1), cluster=(8, 1, 1)), "grid size along x is 12, not a multiple of the 8 blocks"),
        (replace(FITS, grid=(133, 1, 1), cooperative=True), "blocks that wait for each other is 133, the limit is 132"),
    ],
)
def test_a_launch_over_a_limit_is_refused_with_kernel_number_and_line(launch: Launch, message: str) -> None:
    with pytest.raises(PassError, match=message) as caught:
        check_launch(launch, Target.parse("sm_90"))
    assert caught.value.source == "model.py:3"
    assert "kernel k" in caught.value.message


def test_clusters_need_a_chip_that_has_them() -> None:
    launch = replace(FITS, grid=(16, 1, 1), dynamic_shared=0, cluster=(8, 1, 1))
    check_launch(launch, Target.parse("sm_90"))
    with pytest.raises(PassError, match="blocks of a thread-block cluster is 8, the limit is 1"):
        check_launch(launch, Target.parse("sm_80"))


def test_empty_shared_memory_and_no_arguments_are_fine() -> None:
    check_launch(Launch("k", (1, 1, 1), (32, 1, 1), 0, 0, 0), Target.parse("sm_75"))
