from __future__ import annotations

import json

from mlirstitch.runtime.run_report import RunReport, StepReport, add_counters

STEP = StepReport(0, "launch", "k", "cluster_0", "memory_bound", ("m.py:3",), 0.5, 0.25, 96, {"launches": 1})
COPY = StepReport(1, "copy", "copy", "", "", (), 0.75, 0.1, 32, None)
REPORT = RunReport("main", "emulator", 1.0, 256, 512, (STEP, COPY))


def test_a_report_is_plain_json():
    data = json.loads(json.dumps(REPORT.to_json()))
    assert data["launches"] == 1
    assert data["totals"] == {"launches": 1}
    assert data["steps"][0]["source"] == ["m.py:3"]


def test_the_chrome_trace_has_one_complete_event_a_step_in_microseconds():
    events = json.loads(REPORT.chrome_trace())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in steps] == [("k", 5e5, 2.5e5), ("copy", 7.5e5, 1e5)]
    assert steps[0]["args"]["counters"] == {"launches": 1}


def test_counters_are_summed_by_name_and_inside_mappings():
    assert add_counters([{"a": 1, "m": {"x": 2}}, {"m": {"x": 3, "y": 1}, "name": "k", "ok": True}]) == {
        "a": 1,
        "m": {"x": 5, "y": 1},
    }
