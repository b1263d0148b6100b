"""A picture of a dependency graph: boxes in layers, lines between them. Positions only; the template draws them.

Layers are the topological generations of the graph (networkx). A line to the next layer is a curve; one that skips
layers runs in a lane of its own to the right of the boxes, so that no line crosses a box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

_PITCH = 40.0
_COLUMN_GAP = 16.0
_LANE = 14.0
_MARGIN = 12.0
_CHARACTER = 6.7
"""Width of a character of the font, pixels."""


@dataclass(frozen=True)
class Box:
    """What is drawn for a node.

    Attributes:
        key: identifies the node.
        label: the text in the box.
        title: what is shown when the pointer rests on it.
        style: CSS classes.
        hue: degrees on the colour circle, or -1 for none.
    """

    key: str
    label: str
    title: str
    style: str
    hue: int


@dataclass(frozen=True)
class Line:
    """What is drawn for a tensor between two nodes: keys of both, label, pointer text, CSS classes, width in pixels."""

    source: str
    target: str
    label: str
    title: str
    style: str
    width: float = 1.5


@dataclass(frozen=True)
class PlacedBox:
    """A box with the pixels of its upper left corner and its size."""

    box: Box
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class PlacedLine:
    """A line with its SVG path, and the place of its label (pixels) with the side of it that lies there."""

    line: Line
    path: str
    label_x: float
    label_y: float
    anchor: str = "start"


@dataclass(frozen=True)
class Picture:
    """Everything with its place, and the size of the whole, pixels."""

    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    lines: tuple[PlacedLine, ...]


def draw(boxes: Sequence[Box], lines: Sequence[Line], *, pitch: float = _PITCH) -> Picture:
    """Place boxes and lines; ``pitch`` is the gap between layers, pixels. The graph must have no cycle."""
    layers = _layers(boxes, lines)
    height = 26.0
    widths = {box.key: max(44.0, len(box.label) * _CHARACTER + 20) for box in boxes}
    rows = [sum(widths[key] for key in layer) + _COLUMN_GAP * (len(layer) - 1) for layer in layers]
    inner = max(rows, default=0.0)
    depth: dict[str, int] = {}
    placed: dict[str, PlacedBox] = {}
    by_key = {box.key: box for box in boxes}
    for number, (layer, row) in enumerate(zip(layers, rows, strict=True)):
        x = _MARGIN + (inner - row) / 2
        for key in layer:
            depth[key] = number
            placed[key] = PlacedBox(by_key[key], x, _MARGIN + number * (height + pitch), widths[key], height)
            x += widths[key] + _COLUMN_GAP
    lanes = _lanes(lines, depth)
    count = max(lanes.values(), default=-1) + 1
    right = _MARGIN + inner + _LANE
    direct = [line for number, line in enumerate(lines) if number not in lanes]
    fan_out = Counter(line.source for line in direct)
    fan_in = Counter(line.target for line in direct)
    return Picture(
        width=_MARGIN * 2 + inner + (_LANE * (count + 1) if count else 0),
        height=_MARGIN * 2 + len(layers) * height + max(len(layers) - 1, 0) * pitch,
        boxes=tuple(placed[box.key] for box in boxes),
        lines=tuple(
            _lane_line(line, placed, right + _LANE * lanes[number])
            if number in lanes
            else _direct_line(
                line, placed[line.source], placed[line.target], fan_in[line.target] - fan_out[line.source]
            )
            for number, line in enumerate(lines)
        ),
    )


def _layers(boxes: Sequence[Box], lines: Sequence[Line]) -> list[list[str]]:
    """Keys layer by layer; within a layer a node stands where those it reads stand, on average."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(box.key for box in boxes)
    graph.add_edges_from((line.source, line.target) for line in lines)
    order = {box.key: place for place, box in enumerate(boxes)}
    across: dict[str, float] = {}
    layers: list[list[str]] = []
    for generation in nx.topological_generations(graph):
        layer = sorted(generation, key=order.__getitem__)
        middle = {key: _mean([across[source] for source in graph.predecessors(key)]) for key in layer}
        layer.sort(key=lambda key: (middle[key], order[key]))
        across.update({key: place - (len(layer) - 1) / 2 for place, key in enumerate(layer)})
        layers.append(layer)
    return layers


def _mean(values: list[float]) -> float:
    return sum(sorted(values)) / len(values) if values else 0.0


def _lanes(lines: Sequence[Line], depth: dict[str, int]) -> dict[int, int]:
    """Number of a line that skips layers -> its lane, 0 next to the boxes; lines of one source share a lane."""
    spans: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if depth[line.target] - depth[line.source] > 1:
            spans.setdefault(line.source, []).append(number)
    reach = {source: max(depth[lines[number].target] for number in numbers) for source, numbers in spans.items()}
    ends: list[int] = []
    lanes: dict[int, int] = {}
    for source in sorted(spans, key=lambda source: (depth[source], reach[source])):
        lane = next((lane for lane, end in enumerate(ends) if end < depth[source]), len(ends))
        ends[lane : lane + 1] = [reach[source]]
        lanes.update(dict.fromkeys(spans[source], lane))
    return lanes


def _direct_line(line: Line, source: PlacedBox, target: PlacedBox, meeting: int) -> PlacedLine:
    """A curve; its label stands by the source where lines meet (> 0), by the target where they part (< 0)."""
    x0, y0 = source.x + source.width / 2, source.y + source.height
    x1, y1 = target.x + target.width / 2, target.y
    middle = (y0 + y1) / 2
    path = f"M{x0:.0f},{y0:.0f} C{x0:.0f},{middle:.0f} {x1:.0f},{middle:.0f} {x1:.0f},{y1:.0f}"
    if meeting > 0:
        return PlacedLine(line, path, x0 + 5, y0 + 12)
    if meeting < 0:
        return PlacedLine(line, path, x1 + 6, y1 - 7)
    return PlacedLine(line, path, (x0 + x1) / 2 + 5, middle + 4)


def _lane_line(line: Line, placed: dict[str, PlacedBox], lane: float) -> PlacedLine:
    """From the source's lower edge to the right, down in the lane, and back to the target's upper edge."""
    source, target = placed[line.source], placed[line.target]
    x0, y0 = source.x + source.width * 0.75, source.y + source.height
    x1, y1 = target.x + target.width * 0.75, target.y
    below, above = y0 + 9, y1 - 9
    path = (
        f"M{x0:.0f},{y0:.0f} Q{x0:.0f},{below:.0f} {x0 + 9:.0f},{below:.0f} H{lane - 9:.0f} "
        f"Q{lane:.0f},{below:.0f} {lane:.0f},{below + 9:.0f} V{above - 9:.0f} "
        f"Q{lane:.0f},{above:.0f} {lane - 9:.0f},{above:.0f} H{x1 + 9:.0f} "
        f"Q{x1:.0f},{above:.0f} {x1:.0f},{y1:.0f}"
    )
    return PlacedLine(line, path, lane - 10, above - 3, "end")
