"""The figures of a partitioned function as text for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlirstitch.driver.partition.figures import Figures
from mlirstitch.driver.report.quantities import byte_size, count, seconds


def figures_text(found: Figures) -> str:
    """Totals, then tables: devices, communication by kind and by link, and what could not be split."""
    devices = sum(len_of(row.devices) for row in found.devices)
    lines = [
        f"plan {found.plan} on {found.mesh} ({count(devices, 'device')})",
        f"  {seconds(found.seconds)} a step, {100 * found.bubble:.1f} % of it without computing (bubble), "
        f"at most {byte_size(found.peak_bytes)} a device",
    ]
    lines += ["", *_device_rows(found), "", *_communication_rows(found)]
    if found.notes:
        lines += ["", "not split, but computed as a whole by all"]
        lines += [f"  over {note.axes}: {note.reason}: ops {note.ops}, first {note.example}" for note in found.notes]
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligned columns; the first to the left, all others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = (t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True)))
        yield f"  {'  '.join(cells)}".rstrip()


def len_of(numbers: str) -> int:
    """How many numbers a text such as ``0-3,8`` stands for."""
    ends = [part.split("-") for part in numbers.split(",") if part]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ends)


def _device_rows(found: Figures) -> Iterator[str]:
    rows = [
        (row.devices, seconds(row.busy), byte_size(row.peak_bytes), byte_size(row.sent_bytes)) for row in found.devices
    ]
    yield from table(("devices", "computes", "peak memory", "sends"), rows)


def _communication_rows(found: Figures) -> Iterator[str]:
    if not found.communication:
        yield "  no communication"
        return
    rows = [(row.kind, str(row.count), byte_size(row.bytes), seconds(row.seconds)) for row in found.communication]
    yield from table(("communication", "count", "bytes a device", "time"), rows)
    yield ""
    links = [
        (row.between, "between hosts" if row.hosts else "inside", str(row.count), byte_size(row.bytes))
        for row in found.links
    ]
    yield from table(("link", "where", "count", "bytes a device"), links)
