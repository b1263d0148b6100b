"""``mbarrier``: barriers that are objects in shared memory.

A 64-bit word holds (opaque to programs): pending arrivals in bits 0-19, expected arrivals of a phase in bits 20-39, the
parity of the phase in bit 40, and pending transaction bytes (biased) in bits 41-62. The state that ``arrive`` returns
is the word before.
"""

from __future__ import annotations

from collections.abc import Callable

_COUNT = (1 << 20) - 1
_BIAS = 1 << 20
PHASE = 1 << 40


class FaultyBarrier(Exception):
    """What is wrong with an operation on a barrier."""


def initial(count: int) -> int:
    """The word of a barrier for ``count`` arrivals."""
    if not 1 <= count <= _COUNT:
        raise FaultyBarrier(f"initialises a barrier for {count} arrivals, 1 to {_COUNT} are possible")
    return count | count << 20 | _BIAS << 41


def _fields(word: int) -> tuple[int, int, int, int]:
    return word & _COUNT, word >> 20 & _COUNT, word >> 40 & 1, (word >> 41) - _BIAS


def _word(pending: int, expected: int, phase: int, transactions: int) -> int:
    if pending == 0 and transactions == 0:
        pending, phase = expected, phase ^ 1
    return pending | expected << 20 | phase << 40 | (transactions + _BIAS) << 41


def arrive(word: int, count: int, transactions: int = 0, drop: bool = False) -> int:
    """``arrive``: ``count`` arrivals less to wait for, after ``transactions`` more bytes are expected.

    With ``drop`` the later phases expect as many less.
    """
    pending, expected, phase, bytes_left = _fields(word)
    if expected == 0:
        raise FaultyBarrier("arrives at a barrier that is not initialised")
    if count > pending:
        raise FaultyBarrier(f"arrives {count} times at a barrier that waits for {pending} arrivals")
    if drop:
        expected -= count
    return _word(pending - count, expected, phase, bytes_left + transactions)


def expect(word: int, transactions: int) -> int:
    """``expect_tx`` (positive) and ``complete_tx`` (negative) bytes."""
    pending, expected, phase, bytes_left = _fields(word)
    if expected == 0:
        raise FaultyBarrier("uses a barrier that is not initialised")
    return _word(pending, expected, phase, bytes_left + transactions)


def passed(word: int, state: int) -> bool:
    """``test_wait``: whether the phase of ``state`` is complete."""
    return bool((word ^ state) & PHASE)


def passed_parity(word: int, parity: int) -> bool:
    """``test_wait.parity``: whether the phase of this parity is complete."""
    return (word >> 40 & 1) != (parity & 1)


def pending(state: int) -> int:
    """``pending_count``."""
    return state & _COUNT


Operation = Callable[[int, int], int]
"""New word from the old one and the operand."""

OPERATIONS: dict[str, Operation] = {
    "init": lambda word, operand: initial(operand),
    "inval": lambda word, operand: 0,
    "arrive": lambda word, operand: arrive(word, operand),
    "arrive_drop": lambda word, operand: arrive(word, operand, drop=True),
    "arrive_expect_tx": lambda word, operand: arrive(word, 1, operand),
    "expect_tx": lambda word, operand: expect(word, operand),
    "complete_tx": lambda word, operand: expect(word, -operand),
    "test_wait": lambda word, operand: word,
    "test_wait_parity": lambda word, operand: word,
}
"""By the name the emitter gives an instruction."""
