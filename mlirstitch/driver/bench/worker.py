"""The child of the benchmark: reads a request on stdin, measures, and writes one JSON line per event on stdout.

Events are ``{"start": workload}`` and ``{"row": {...}}``. An error that Python can catch becomes a row; anything that
kills the process is seen by the parent.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from mlirstitch.driver.bench.measure import measure
from mlirstitch.driver.bench.rows import BenchRequest, Row
from mlirstitch.errors import MlirstitchError


def main() -> int:
    """Entry of the child."""
    # Whatever libraries print on stdout must not mix with the events: keep the pipe, and point stdout at stderr.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(event: dict[str, Any]) -> None:
        events.write(json.dumps(event, allow_nan=False) + "\n")
        events.flush()

    data = json.load(sys.stdin)
    request = BenchRequest(**{**data, "workloads": tuple(data["workloads"])})
    for workload in request.workloads:
        send({"start": workload})
        send({"row": measured_row(workload, request)})
    return 0


def measured_row(workload: str, request: BenchRequest) -> Row:
    """Measure one workload; an exception becomes a row with status "error" and its message."""
    blank = request.blank_row(workload)
    try:
        return measure(workload, request).to_row(blank)
    except MlirstitchError as error:
        return {**blank, "status": "error", "message": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {**blank, "status": "error", "message": f"internal error: {type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main())
