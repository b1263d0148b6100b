"""The benchmark from outside: a child process measures, this one collects rows and survives whatever the child does.

One child measures workload after workload, so that torch is loaded once. If it dies or takes too long, the workload it
was at becomes a row that says so, and a new child goes on with the next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO

from mlirstitch.driver.bench.bounds import bounds, shortfalls
from mlirstitch.driver.bench.comparison import print_comparison
from mlirstitch.driver.bench.peers import comparable
from mlirstitch.driver.bench.rows import BenchRequest, Row, check_json_path, print_table, write_rows
from mlirstitch.driver.console import DEBUG_VARIABLE, progress

LAST_WORDS = 2000
"""Characters of a dead child's stderr that are kept in the row."""


def run_benchmark(request: BenchRequest, json_path: str | None = None) -> list[Row]:
    """Measure every workload of the request, print the table on stdout, write the rows as JSON if asked to.

    ``json_path`` "-" is stdout; the table goes to stderr then.
    One row per workload in the order of the request, whatever happens. Progress goes to stderr. Raises MlirstitchError
    before anything is measured if the file cannot be written.
    """
    check_json_path(json_path)
    with progress("bench") as show:

        def on_start(workload: str) -> None:
            show(f"{workload} ({request.workloads.index(workload) + 1} of {len(request.workloads)})")

        rows = measure_all(request, on_start)
    text = sys.stderr if json_path == "-" else sys.stdout
    print_table(rows, request, text)
    print_comparison(rows, text)
    write_rows(json_path, {"request": asdict(request), "rows": [_with_bounds(row) for row in rows]})
    return rows


def _with_bounds(row: Row) -> Row:
    """The row with the bounds that it has to keep, and those it does not, if figures of others are recorded."""
    if not comparable(row):
        return row
    return {**row, "bounds": [bound.to_json() for bound in bounds(row)], "shortfalls": shortfalls(row)}


def measure_all(request: BenchRequest, on_start: Callable[[str], None] = lambda workload: None) -> list[Row]:
    """The rows of the request. ``on_start`` is called with each workload's name when its turn comes."""
    rows: list[Row] = []
    left = list(request.workloads)
    while left:
        end = _one_child(replace(request, workloads=tuple(left)), on_start)
        rows += end.rows
        left = left[len(end.rows) :]
        # A child that dies before it takes up any workload would do so again.
        lost, left = (left[:1], left[1:]) if end.started else (left, [])
        rows += [{**request.blank_row(name), "status": end.status, "message": end.message} for name in lost]
    return rows


@dataclass(frozen=True)
class _End:
    """What one child delivered. ``status`` and ``message`` tell why it ended too early, if it did."""

    rows: list[Row]
    started: bool
    status: str = ""
    message: str = ""


def _one_child(request: BenchRequest, on_start: Callable[[str], None]) -> _End:
    """Let one child measure as many workloads of the request as it survives."""
    rows: list[Row] = []
    started = False
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "mlirstitch.driver.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get(DEBUG_VARIABLE) else stderr,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _send(child.stdin, request)
            with _Watchdog(child, request.timeout).watching() as watchdog:
                for line in child.stdout:
                    event = json.loads(line)
                    watchdog.restart()
                    if "start" in event:
                        started = True
                        on_start(event["start"])
                    else:
                        rows.append(event["row"])
                child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        if watchdog.fired:
            return _End(rows, started, "timeout", f"took more than {request.timeout:g} s")
        if child.returncode or len(rows) < len(request.workloads):
            return _End(rows, started, "crash", _how_it_ended(child.returncode, stderr))
        return _End(rows, started)


def _send(pipe: IO[bytes], request: BenchRequest) -> None:
    try:
        pipe.write(json.dumps(asdict(request)).encode())
        pipe.close()
    except BrokenPipeError:
        pass  # the child died at once: its exit code tells


def _how_it_ended(code: int, stderr: IO[bytes]) -> str:
    stderr.seek(0)
    words = stderr.read().decode(errors="replace")[-LAST_WORDS:].strip()
    how = f"the process died by {signal.Signals(-code).name}" if code < 0 else f"the process ended with code {code}"
    return f"{how}: {words}" if words else how


class _Watchdog:
    """Kills a child that says nothing for too long."""

    def __init__(self, child: subprocess.Popen[bytes], limit: float) -> None:
        self._child = child
        self._limit = limit
        self._timer: threading.Timer | None = None
        self.fired = False

    @contextmanager
    def watching(self) -> Iterator[_Watchdog]:
        self.restart()
        try:
            yield self
        finally:
            self._stop()

    def restart(self) -> None:
        """The child gave a sign of life: wait anew."""
        self._stop()
        self._timer = threading.Timer(self._limit, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self.fired = True
        self._child.kill()
