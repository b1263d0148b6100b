"""The tuner: for every different cluster, a few schedules are tried and the cheapest is written on the function.

The schedule that the compiler chose by itself is always among those tried, and ties go to it, so that no kernel of a
tuned program costs more, by the cost that was compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.schedule import Schedule, schedule_from_attribute, schedule_to_attribute
from mlirstitch.driver.cache.keys import digest, target_text
from mlirstitch.driver.cache.store import Store
from mlirstitch.driver.console import bar
from mlirstitch.driver.tuning.costs import COUNTED, ESTIMATED, cost_for, counted_seconds, estimated_seconds
from mlirstitch.driver.tuning.isolated import cluster_text, settings_text
from mlirstitch.errors import MlirstitchError, PassError
from mlirstitch.options import CompileOptions
from mlirstitch.passes.stitching.template import MOST_CANDIDATES, Cluster, find_candidates
from mlirstitch.passes.structured import functions, symbol_name
from mlirstitch.target import Target

KIND = "tuning"

ESTIMATE_MARGIN = 0.05
"""By which share an estimate must be lower than that of the compiler's own choice: estimates are no more exact."""

RANKED_FOR_EACH = 4
"""Candidates that the latency evaluator ranks for each schedule that is tried."""

_PICO = 1e-12

Costs = Callable[[ir.Operation, Schedule, Target], float]


@dataclass(frozen=True)
class Tried:
    """One schedule and what it costs, picoseconds."""

    schedule: Schedule
    picoseconds: int


@dataclass(frozen=True)
class Tuning:
    """What was tried for one cluster, the compiler's own choice first, and how costs were found."""

    cost: str
    tried: tuple[Tried, ...]

    @property
    def best(self) -> Tried:
        """The cheapest; of equals the first. An estimate has to be lower by :data:`ESTIMATE_MARGIN` to count."""
        own, cheapest = self.tried[0], min(self.tried, key=lambda tried: tried.picoseconds)
        margin = ESTIMATE_MARGIN if self.cost == ESTIMATED else 0.0
        return cheapest if cheapest.picoseconds < own.picoseconds * (1 - margin) else own


class Tuner:
    """Tunes the clusters of stitched modules.

    Args:
        limit: schedules tried for a cluster, the compiler's own choice among them.
        store: where results are kept from one run to the next, or None.
        on_progress: called with a bar, the cluster and the number of the schedule before each is tried.
        counted: replaces the cost by running, in tests.
    """

    def __init__(
        self,
        limit: int,
        store: Store | None,
        on_progress: Callable[[str], None],
        counted: Costs = counted_seconds,
    ) -> None:
        self._limit = limit
        self._store = store
        self._on_progress = on_progress
        self._counted = counted

    def __call__(self, module: ir.Module) -> None:
        """Write ``stitch.schedule`` and ``stitch.tuned`` on the cluster functions of a stitched module."""
        operation = module.operation
        target = stitch.target_of(operation)
        found = [f for f in functions(operation) if stitch.SCHEDULE.get(f) is not None]
        known: dict[str, Tuning] = {}
        with module.context, ir.Location.unknown(module.context):
            for number, function in enumerate(found):
                title = f"{bar(number, len(found))} {symbol_name(function)}"
                key = self._key(operation, function, target)
                if key not in known:
                    known[key] = self._kept(key) or self._tune(function, target, key, title)
                _write(function, known[key])

    def _key(self, module: ir.Operation, function: ir.Operation, target: Target) -> str:
        parts = {"cluster": cluster_text(function), "settings": settings_text(module), "target": target_text(target)}
        default = str(function.attributes[stitch.SCHEDULE.name])
        return digest(KIND, {**parts, "default": default, "limit": self._limit})

    def _kept(self, key: str) -> Tuning | None:
        content = self._store.get(KIND, key) if self._store is not None else None
        return _decode(content) if content is not None else None

    def _tune(self, function: ir.Operation, target: Target, key: str, title: str) -> Tuning:
        schedules = self._schedules(function, target)
        cost = cost_for(function)
        try:
            tuning = self._compare(function, schedules, target, cost, title)
        except MlirstitchError:
            if cost == ESTIMATED:
                raise
            # It does not run on the values it was given: that says nothing about those of the user.
            tuning = self._compare(function, schedules, target, ESTIMATED, title)
        if self._store is not None:
            self._store.put(KIND, key, _encode(tuning))
        return tuning

    def _compare(
        self, function: ir.Operation, schedules: list[Schedule], target: Target, cost: str, title: str
    ) -> Tuning:
        """The cost of every schedule that has one; raises what the first one, the compiler's own choice, raises."""
        evaluate = self._counted if cost == COUNTED else estimated_seconds
        tried: list[Tried] = []
        for number, schedule in enumerate(schedules):
            self._on_progress(f"{title}, schedule {number + 1} of {len(schedules)}")
            try:
                tried.append(Tried(schedule, round(evaluate(function, schedule, target) / _PICO)))
            except MlirstitchError:
                if number == 0:
                    raise
        return Tuning(cost, tuple(tried))

    def _schedules(self, function: ir.Operation, target: Target) -> list[Schedule]:
        """The compiler's own choice, then the candidates that the latency evaluator likes best."""
        default = stitch.SCHEDULE.require(function)
        ranked: list[tuple[float, int, Schedule]] = []
        most = min(MOST_CANDIDATES, RANKED_FOR_EACH * self._limit)
        for number, schedule in enumerate(find_candidates(Cluster.of_function(function), target, most)):
            try:
                if schedule != default:
                    ranked.append((estimated_seconds(function, schedule, target), number, schedule))
            except PassError:
                continue
        ranked.sort(key=lambda entry: entry[:2])
        return [default, *(schedule for _, _, schedule in ranked[: self._limit - 1])]


def tuner_of(options: CompileOptions, store: Store | None, on_progress: Callable[[str], None]) -> Tuner | None:
    """The tuner that the options ask for, or None. Raises MlirstitchError if the limit is no number above zero."""
    text = options.tune_limit
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise MlirstitchError(
            f"option tune_limit: {text!r} is not a whole number above zero", hint="give schedules a cluster, such as 4"
        )
    return Tuner(int(text), store, on_progress) if options.tune == "on" else None


def _write(function: ir.Operation, tuning: Tuning) -> None:
    stitch.SCHEDULE.set(function, tuning.best.schedule)
    entries = [
        {
            "cost": ir.StringAttr.get(tuning.cost),
            "picoseconds": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), tried.picoseconds),
            "schedule": schedule_to_attribute(tried.schedule),
        }
        for tried in tuning.tried
    ]
    stitch.TUNED.set(function, tuple(entries))


def _encode(tuning: Tuning) -> bytes:
    tried = [[str(schedule_to_attribute(entry.schedule)), entry.picoseconds] for entry in tuning.tried]
    return json.dumps({"cost": tuning.cost, "tried": tried}).encode()


def _decode(content: bytes) -> Tuning:
    data = json.loads(content)
    tried = (Tried(schedule_from_attribute(ir.Attribute.parse(text)), cost) for text, cost in data["tried"])
    return Tuning(data["cost"], tuple(tried))
