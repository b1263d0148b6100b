"""Offsets of temporaries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlirstitch.lowering.arena import ALIGNMENT, Lifetime, aligned, assign_offsets

_LIVES = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 6)).map(
        lambda t: Lifetime(t[0], t[1], t[1] + t[2])
    ),
    max_size=25,
)


def _lower_bound(lives: list[Lifetime]) -> int:
    steps = {step for life in lives for step in (life.first, life.last)}
    return max((sum(aligned(life.size) for life in lives if life.first <= s <= life.last) for s in steps), default=0)


@settings(deadline=None, max_examples=60)
@given(_LIVES)
def test_temporaries_alive_together_never_overlap(lives: list[Lifetime]) -> None:
    offsets, arena = assign_offsets(lives)
    for i, a in enumerate(lives):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + a.size <= arena or a.size == 0
        for j, b in enumerate(lives[:i]):
            together = a.first <= b.last and b.first <= a.last and a.size and b.size
            apart = offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]
            assert apart or not together
    assert _lower_bound(lives) <= arena <= sum(aligned(life.size) for life in lives)


def test_temporaries_alive_apart_share_the_same_bytes() -> None:
    offsets, arena = assign_offsets([Lifetime(1000, i, i + 1) for i in range(10)])
    assert arena == 2048
    assert offsets[0] == offsets[2] != offsets[1]


def test_the_tightest_gap_is_taken() -> None:
    # Two large ones leave gaps of 512 and 256 bytes behind; the 256-byte one belongs into the smaller.
    lives = [Lifetime(4096, 0, 9), Lifetime(512, 0, 1), Lifetime(2048, 0, 9), Lifetime(256, 0, 1), Lifetime(256, 2, 9)]
    offsets, _ = assign_offsets(lives)
    assert offsets[4] in (offsets[3], offsets[1])


def test_no_temporaries_need_no_arena() -> None:
    assert assign_offsets([]) == ((), 0)
    assert assign_offsets([Lifetime(0, 0, 3)]) == ((0,), 0)


def test_thousands_of_temporaries_are_placed_in_reasonable_time() -> None:
    offsets, arena = assign_offsets([Lifetime(256 * (1 + i % 7), i, i + 3) for i in range(3000)])
    assert len(offsets) == 3000
    assert arena <= 4 * 7 * 256 * 2
