"""``mlirstitch explain --why A B``: whether two ops share a kernel, where the value between them lives, and why not.

Answers come from the report in a bundle. Ops are named as a person sees them: ``3.1`` is op 1 of cluster 3, ``3`` every
op of cluster 3, ``model.py:42`` (or ``:42``) the ops of a source line, anything else a pattern of the op's label or
name (``sum``, ``exp*``, ``linalg.matmul``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mlirstitch.errors import MlirstitchError

_NUMBERED = re.compile(r"(\d+)(?:\.(\d+))?")
_LINE = re.compile(r"(?P<path>[^:]*)(?P<place>(?::\d+){1,2})")

LIVES_IN = {
    "thread": "a register: both are computed by the same thread",
    "warp": "registers, exchanged by shuffles inside a warp",
    "block": "shared memory, behind a barrier of the block",
    "cluster": "the shared memory of the blocks of a thread-block cluster",
    "grid": "scratch in global memory, written and read inside one launch",
}
"""Where a value lives between two ops of one kernel, by its scheme."""


@dataclass(frozen=True, order=True)
class Op:
    """One op of one cluster: the numbers a person names it by, its label, its name and the user's source line."""

    cluster: int
    position: int
    label: str
    name: str
    line: str

    @property
    def id(self) -> str:
        """``cluster.position``."""
        return f"{self.cluster}.{self.position}"

    def __str__(self) -> str:
        return f"{self.id} {self.label}" + (f" ({self.line})" if self.line else "")


@dataclass(frozen=True)
class Pair:
    """A tensor that goes from one op to another.

    Attributes:
        producer, consumer: the ops.
        tensor, bytes: its type and size.
        together: whether one kernel computes both.
        rule: the scheme of the value if together, else the rule that keeps them apart.
        reason, detail: the rule in words, and what the code generator answered.
    """

    producer: Op
    consumer: Op
    tensor: str
    bytes: int
    together: bool
    rule: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Answer:
    """What :func:`why` found.

    Attributes:
        pairs: every tensor from an op of the first sort to one of the second, or, where they are given the other way
            round, from the second to the first.
        path: if there is none, the tensors of a shortest way from the one to the other; () if neither depends on the
            other.
        producers, consumers: the ops that the two names match.
    """

    pairs: tuple[Pair, ...]
    path: tuple[Pair, ...]
    producers: tuple[Op, ...]
    consumers: tuple[Op, ...]


def all_ops(report: Mapping[str, Any]) -> list[Op]:
    """Every op of every cluster, in order."""
    return [
        Op(cluster["number"], position, op["label"], op["name"], op["line"])
        for cluster in report.get("clusters", ())
        for position, op in enumerate(cluster["ops"])
    ]


def all_pairs(report: Mapping[str, Any]) -> list[Pair]:
    """Every producer-consumer pair of a program, those of one kernel and those left apart, by consumer and producer."""
    ops = {(op.cluster, op.position): op for op in all_ops(report)}
    found = [*_together(report, ops), *_apart(report, ops)]
    return sorted(found, key=lambda pair: (pair.consumer, pair.producer))


def _together(report: Mapping[str, Any], ops: Mapping[tuple[int, int], Op]) -> Iterator[Pair]:
    for cluster in report.get("clusters", ()):
        number, library = cluster["number"], cluster["library"]
        for pair in cluster["pairs"]:
            reason = f"the library routine {library} computes both" if library else LIVES_IN[pair["scheme"]]
            yield Pair(
                ops[number, pair["producer"]],
                ops[number, pair["consumer"]],
                pair["tensor"],
                pair["bytes"],
                True,
                library or pair["scheme"],
                reason,
                "",
            )


def _apart(report: Mapping[str, Any], ops: Mapping[tuple[int, int], Op]) -> Iterator[Pair]:
    for pair in report.get("apart", ()):
        yield Pair(
            ops[pair["producer"], pair["producer_position"]],
            ops[pair["consumer"], pair["consumer_position"]],
            pair["tensor"],
            pair["bytes"],
            False,
            pair["rule"],
            pair["reason"],
            pair["detail"],
        )


def why(report: Mapping[str, Any], first: str, second: str) -> Answer:
    """Why the ops named ``first`` and ``second`` share a kernel, or do not.

    Raises:
        MlirstitchError: a name matches no op of the program.
    """
    ops = all_ops(report)
    producers, consumers = matching(ops, first), matching(ops, second)
    pairs = all_pairs(report)
    for sources, targets in ((producers, consumers), (consumers, producers)):
        ends = set(sources), set(targets)
        direct = tuple(pair for pair in pairs if pair.producer in ends[0] and pair.consumer in ends[1])
        if direct:
            return Answer(direct, (), tuple(sources), tuple(targets))
    for sources, targets in ((producers, consumers), (consumers, producers)):
        path = _shortest_path(pairs, sources, set(targets))
        if path:
            return Answer((), path, tuple(sources), tuple(targets))
    return Answer((), (), tuple(producers), tuple(consumers))


def matching(ops: Sequence[Op], wanted: str) -> list[Op]:
    """The ops that a name stands for. Raises :class:`MlirstitchError` if there is none."""
    found = [op for op in ops if _matches(op, wanted)]
    if not found:
        labels = ", ".join(sorted({op.label for op in ops}))
        raise MlirstitchError(
            f"no op of the program matches {wanted!r}",
            hint=f"name a cluster (3), an op of one (3.1), a source line (model.py:42) or a label: {labels}",
        )
    return found


def _matches(op: Op, wanted: str) -> bool:
    numbered = _NUMBERED.fullmatch(wanted)
    if numbered:
        position = numbered[2]
        return op.cluster == int(numbered[1]) and (position is None or op.position == int(position))
    line = _LINE.fullmatch(wanted)
    if line:
        return _on_line(op.line, line["path"], line["place"])
    return fnmatchcase(op.label, wanted) or fnmatchcase(op.name, wanted)


def _on_line(line: str, path: str, place: str) -> bool:
    """Whether a source line is the one that ``path`` (its last parts, or "") and ``place`` (line, or line and column)
    name."""
    match = _LINE.fullmatch(line)
    if match is None:
        return False
    same_file = not path or match["path"] == path or match["path"].endswith("/" + path)
    return same_file and (match["place"] == place or match["place"].startswith(place + ":"))


def _shortest_path(pairs: Sequence[Pair], sources: Iterable[Op], targets: set[Op]) -> tuple[Pair, ...]:
    """Breadth first, in the order of ``pairs``."""
    following: dict[Op, list[Pair]] = {}
    for pair in pairs:
        following.setdefault(pair.producer, []).append(pair)
    reached: dict[Op, Pair | None] = dict.fromkeys(sources)
    queue = list(reached)
    for op in queue:
        for pair in following.get(op, ()):
            if pair.consumer not in reached:
                reached[pair.consumer] = pair
                queue.append(pair.consumer)
                if pair.consumer in targets:
                    return _way_back(reached, pair)
    return ()


def _way_back(reached: Mapping[Op, Pair | None], last: Pair) -> tuple[Pair, ...]:
    path = [last]
    while (before := reached[path[-1].producer]) is not None:
        path.append(before)
    return tuple(reversed(path))
