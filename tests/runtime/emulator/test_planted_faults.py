"""Every planted fault is found at its line, whatever the order of execution; its sound twin has no finding."""

from __future__ import annotations

import re

import pytest
from planted_faults import Fault, read_faults

from mlirstitch.errors import LaunchError

FAULTS = read_faults()
_SEEDS = (0, 1, 2)


def test_there_are_at_least_forty_faults_of_different_names() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_at_its_line(fault: Fault) -> None:
    for seed in _SEEDS:
        with pytest.raises(LaunchError, match=fault.finds) as caught:
            fault.run(sound=False, seed=seed)
        place = re.match(r"kernel 'k', PTX line (\d+) \(", str(caught.value))
        assert place is not None
        assert int(place.group(1)) in fault.lines(), str(caught.value)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_sound_twin_has_no_finding(fault: Fault) -> None:
    for seed in _SEEDS:
        fault.run(sound=True, seed=seed)
