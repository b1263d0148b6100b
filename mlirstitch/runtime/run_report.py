"""What one run did: time and counted facts per step; as JSON and as a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class StepReport:
    """One executed step.

    Attributes:
        position: index in the program's steps.
        op: "launch", "library" or "copy".
        name: kernel, routine, or "copy".
        stitch_cluster, kind, source: as in the manifest ("" where a step has none).
        start, seconds: since the start of the run, and duration; seconds of wall-clock time on the host.
        argument_bytes: bytes of all tensors the step touches, once each.
        counters: what the device counted, or None.
    """

    position: int
    op: str
    name: str
    stitch_cluster: str
    kind: str
    source: tuple[str, ...]
    start: float
    seconds: float
    argument_bytes: int
    counters: Mapping[str, Any] | None


@dataclass(frozen=True)
class KernelReport:
    """All launches of one kernel: number, seconds, bytes of their arguments, counters added up (None: not counted)."""

    name: str
    launches: int
    seconds: float
    argument_bytes: int
    counters: Mapping[str, Any] | None


@dataclass(frozen=True)
class RunReport:
    """One run of a program on a device; ``seconds`` is the whole run, copies of inputs and outputs included."""

    program: str
    device: str
    seconds: float
    arena_bytes: int
    temporary_bytes: int
    steps: tuple[StepReport, ...]

    @property
    def launches(self) -> int:
        """Number of kernel launches."""
        return sum(step.op == "launch" for step in self.steps)

    def totals(self) -> dict[str, Any]:
        """Sums of the device's counters over all steps."""
        return add_counters(step.counters for step in self.steps if step.counters is not None)

    def by_kernel(self) -> tuple[KernelReport, ...]:
        """The launches of every kernel together, in order of their first launch."""
        groups: dict[str, list[StepReport]] = {}
        for step in self.steps:
            if step.op == "launch":
                groups.setdefault(step.name, []).append(step)
        return tuple(
            KernelReport(
                name,
                len(steps),
                sum(step.seconds for step in steps),
                sum(step.argument_bytes for step in steps),
                add_counters(step.counters for step in steps if step.counters is not None)
                if any(step.counters is not None for step in steps)
                else None,
            )
            for name, steps in groups.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data: all fields, plus ``launches``, ``kernels`` and ``totals``."""
        kernels = [asdict(kernel) for kernel in self.by_kernel()]
        return {**asdict(self), "launches": self.launches, "kernels": kernels, "totals": self.totals()}

    def chrome_trace(self) -> str:
        """The run in Chrome's trace event format, for chrome://tracing or ui.perfetto.dev."""
        events: list[dict[str, Any]] = [
            {
                "ph": "M",
                "pid": 0,
                "tid": 0,
                "name": "process_name",
                "args": {"name": f"{self.program} on {self.device}"},
            }
        ]
        for step in self.steps:
            detail = {"cluster": step.stitch_cluster, "source": list(step.source), "bytes": step.argument_bytes}
            if step.counters is not None:
                detail["counters"] = dict(step.counters)
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": 0,
                    "name": step.name,
                    "cat": step.kind or step.op,
                    "ts": step.start * 1e6,
                    "dur": step.seconds * 1e6,
                    "args": detail,
                }
            )
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, sort_keys=True) + "\n"


def add_counters(many: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum counters name by name; nested mappings are summed inside."""
    total: dict[str, Any] = {}
    for counters in many:
        for name, value in counters.items():
            if isinstance(value, Mapping):
                total[name] = add_counters([total.get(name, {}), value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return total
