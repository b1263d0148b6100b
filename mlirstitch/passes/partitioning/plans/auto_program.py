"""One mesh axis as an integer program: which loop of every op it cuts, and which dim of every stored argument.

Every op and every argument chooses one of its options (one-hot). A value that is computed in one layout and read in
another costs its conversion, once for all readers that want the same. This is the program of Alpa (arXiv 2201.12959,
section 4.2), with two differences: conversions that readers share are paid once, and choices and conversions are tied
by flows (the conversions that leave an option add up to it), whose relaxation is nearly integral. HiGHS solves it.

What is not modelled: sums that stay partial through linear ops, and communication that runs while ops compute. The
caller simulates what comes out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.layout import Layout

SECONDS = 20.0
"""How long HiGHS may take for one axis; it then gives the best it has."""
_GAP = 1e-3
_INFEASIBLE = 2


@dataclass(frozen=True)
class Option:
    """One choice of a node.

    Attributes:
        seconds: what it costs by itself.
        bytes: what a device keeps because of it.
    """

    seconds: float
    bytes: int = 0


@dataclass(frozen=True)
class Flow:
    """A value that one node makes and another reads.

    Attributes:
        source, reader: positions of the nodes.
        value: number of the value; flows of one value from one node to one layout are paid once.
        wanted: the layout that every option of the reader wants.
        seconds: of the conversion, by option of the source and of the reader; infinite if there is none.
    """

    source: int
    reader: int
    value: int
    wanted: tuple[Layout, ...]
    seconds: tuple[tuple[float, ...], ...]


class _Rows:
    """Rows of a sparse matrix with their bounds."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, entries: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self._entries += [(len(self._low), column, factor) for column, factor in entries]
        self._low.append(low)
        self._high.append(high)

    def constraint(self, columns: int) -> LinearConstraint:
        rows, places, factors = zip(*self._entries, strict=True)
        matrix = coo_array((factors, (rows, places)), shape=(len(self._low), columns)).tocsr()
        low: Any = np.array(self._low)  # scipy's type says float, and its documentation array
        high: Any = np.array(self._high)
        return LinearConstraint(matrix, low, high)


def solve(
    nodes: Sequence[Sequence[Option]], flows: Sequence[Flow], memory: int | None = None, seconds: float = SECONDS
) -> tuple[int, ...]:
    """The cheapest choice of one option for every node.

    Args:
        nodes: options of each.
        flows: between them.
        memory: bytes that the chosen options may keep together.
        seconds: limit of the solver.

    Raises:
        PlanError: no choice keeps the memory, or none was found in time.
    """
    costs: list[float] = [option.seconds for options in nodes for option in options]
    first = np.cumsum([0, *(len(options) for options in nodes)]).tolist()
    choices = len(costs)
    rows, upper = _Rows(), [1.0] * choices
    for start, options in zip(first[:-1], nodes, strict=True):
        rows.add([(start + k, 1.0) for k in range(len(options))], 1, 1)
    paid: dict[tuple[int, int, int, Layout], int] = {}
    for flow in flows:
        _flow_rows(flow, first, rows, costs, upper, paid)
    if memory is not None:
        kept = [option.bytes for options in nodes for option in options]
        rows.add([(k, size / max(memory, 1)) for k, size in enumerate(kept) if size], -np.inf, 1.0)
    scale = max(math.fsum(abs(cost) for cost in costs) / max(len(costs), 1), 1e-30)
    integral = np.array([1] * choices + [0] * (len(costs) - choices))
    highest: Any = np.array(upper)
    found = milp(
        np.array(costs) / scale,
        integrality=integral,
        bounds=Bounds(0, highest),
        constraints=rows.constraint(len(costs)),
        options={"time_limit": seconds, "mip_rel_gap": _GAP},
    )
    if found.x is None:
        reason = "no plan keeps the memory limit" if found.status == _INFEASIBLE else "no plan was found in time"
        raise PlanError(f"plan auto: {reason}", hint="raise the limit, or add devices")
    chosen = found.x[:choices]
    return tuple(int(np.argmax(chosen[a:b])) for a, b in itertools.pairwise(first))


def _flow_rows(
    flow: Flow,
    first: Sequence[int],
    rows: _Rows,
    costs: list[float],
    upper: list[float],
    paid: dict[tuple[int, int, int, Layout], int],
) -> None:
    """Variables of the flow from every option to every option, and of the conversions it needs."""
    sources, readers = len(flow.seconds), len(flow.wanted)
    start = len(costs)
    for i in range(sources):
        costs += [0.0] * readers
        upper += [1.0 if math.isfinite(flow.seconds[i][j]) else 0.0 for j in range(readers)]
    for i in range(sources):
        rows.add([*((start + i * readers + j, 1.0) for j in range(readers)), (first[flow.source] + i, -1.0)], 0, 0)
    for j in range(readers):
        rows.add([*((start + i * readers + j, 1.0) for i in range(sources)), (first[flow.reader] + j, -1.0)], 0, 0)
    for i in range(sources):
        alike: dict[Layout, list[int]] = {}
        for j, layout in enumerate(flow.wanted):
            alike.setdefault(layout, []).append(j)
        for layout, members in alike.items():
            seconds = flow.seconds[i][members[0]]
            if not seconds or not math.isfinite(seconds):
                continue
            key = (flow.source, flow.value, i, layout)
            if key not in paid:
                paid[key] = len(costs)
                costs.append(seconds)
                upper.append(1.0)
            rows.add([(paid[key], 1.0), *((start + i * readers + j, -1.0) for j in members)], 0, np.inf)
