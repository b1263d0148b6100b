"""What stitching did, read off a stitched module: clusters, their cost before and after, and the pairs left apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import source_line, source_lines
from mlirstitch.dialects.schedule import Schedule, schedule_from_attribute
from mlirstitch.passes.stitching.cluster_name import op_label
from mlirstitch.passes.stitching.fusion_plan import RULES, Rule
from mlirstitch.passes.stitching.graph import Graph, build_graph, tensor_bytes
from mlirstitch.passes.stitching.independent import independent_parts
from mlirstitch.passes.stitching.prediction import predict
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import block_ops, functions, main_function, symbol_name
from mlirstitch.target import Target


@dataclass(frozen=True)
class OpReport:
    """One op of a cluster: name, what it does in a word, kind, the user's source line, scheme of its value (or "")."""

    name: str
    label: str
    kind: str
    line: str
    scheme: str


@dataclass(frozen=True)
class PairReport:
    """An op of a cluster and another that reads its result inside the kernel.

    ``producer`` and ``consumer`` are places among the cluster's ops; ``scheme`` says where the value lives: "thread" (a
    register), "warp" (registers, by shuffles), "block" (shared memory), "cluster" (the shared memory of several
    blocks) or "grid" (scratch in global memory).
    """

    producer: int
    consumer: int
    tensor: str
    bytes: int
    scheme: str


@dataclass(frozen=True)
class PartReport:
    """A part of a packed kernel, which has a range of the blocks.

    Attributes:
        scheme: how it shares the launch: "pack".
        template, grid, block, vector: its schedule.
        ops: places of its ops among those of the cluster; left out where parts that read a tensor in one pass are one.
    """

    scheme: str
    template: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    vector: int
    ops: tuple[int, ...]


@dataclass(frozen=True)
class TriedReport:
    """A schedule that tuning compared: its text in the IR, what it costs, how that was found, and whether it was taken.

    ``cost`` is "counted" (on the emulated device) or "estimated" (by the latency evaluator).
    """

    schedule: str
    cost: str
    picoseconds: int
    chosen: bool


@dataclass(frozen=True)
class ClusterReport:
    """One call of a cluster function.

    Attributes:
        number: position among the calls.
        function: name of the cluster function; calls of one function share a kernel.
        lines: the user's source lines of this call.
        ops: what the kernel computes; fills, constants and reshapes are left out.
        pairs: every tensor that goes from one of them to another, in order of consumers.
        library: routine that computes it, or "".
        template, grid, block, vector, shared_bytes: the schedule; "" and zeros for a library call.
        parameters: what else the template was told, by name.
        parts: the independent parts of a packed kernel, none for others.
        bytes_read, bytes_written: sizes of the tensors it reads and writes.
        bytes_before: the same, summed over one kernel for every op.
        launches_saved: kernels that one kernel for every op would need, less one.
        registers: of a thread, an estimate; 0 for a library call.
        resident_blocks: that run on a multiprocessor at the same time; 0 for a library call.
        predicted_seconds: what the latency evaluator expects from launch to end; None for a library call.
        limited_by: its longest term: "memory", "issue", "latency", or "".
        seconds_saved: what one kernel for every op would take more, as the delta evaluator expects.
        tuned: the schedules that tuning compared, the compiler's own choice first; none without it.
    """

    number: int
    function: str
    lines: tuple[str, ...]
    ops: tuple[OpReport, ...]
    pairs: tuple[PairReport, ...]
    library: str
    template: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    vector: int
    shared_bytes: int
    parameters: dict[str, int | str]
    parts: tuple[PartReport, ...]
    bytes_read: int
    bytes_written: int
    bytes_before: int
    launches_saved: int
    registers: int
    resident_blocks: int
    predicted_seconds: float | None
    limited_by: str
    seconds_saved: float
    tuned: tuple[TriedReport, ...]


@dataclass(frozen=True)
class ApartReport:
    """A tensor that goes from one cluster to another through memory, and why.

    ``producer`` and ``consumer`` are numbers of clusters, the positions places among their ops. ``reason`` says the
    rule in words; ``detail`` is what the templates answered.
    """

    producer: int
    consumer: int
    producer_position: int
    consumer_position: int
    producer_op: str
    consumer_op: str
    producer_line: str
    consumer_line: str
    tensor: str
    bytes: int
    rule: str
    reason: str
    detail: str


@dataclass(frozen=True)
class StitchReport:
    """Everything :func:`report` found; ``target_constants`` are those of a target file, by name, if there was one."""

    clusters: tuple[ClusterReport, ...]
    apart: tuple[ApartReport, ...]
    target_constants: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Nested dictionaries, lists, strings and numbers, with totals; predicted time is that of generated kernels."""
        predicted = math.fsum(cluster.predicted_seconds or 0.0 for cluster in self.clusters)
        saved = math.fsum(cluster.seconds_saved for cluster in self.clusters)
        return {
            "launches": len(self.clusters),
            "launches_before": sum(1 + cluster.launches_saved for cluster in self.clusters),
            "bytes": sum(cluster.bytes_read + cluster.bytes_written for cluster in self.clusters),
            "bytes_before": sum(cluster.bytes_before for cluster in self.clusters),
            "predicted_seconds": predicted,
            "predicted_seconds_before": predicted + saved,
            **asdict(self),
        }


def report(module: ir.Operation) -> dict[str, Any]:
    """The report of a stitched module as :meth:`StitchReport.to_json` gives it."""
    return read_report(module).to_json()


def read_report(module: ir.Operation) -> StitchReport:
    """The report of a stitched module. Raises :class:`PassError` if it is not one."""
    main = main_function(module)
    if main is None:
        return StitchReport((), (), {})
    bodies = {symbol_name(function): function for function in functions(module)}
    calls = [op for op in block_ops(main) if op.name == "func.call"]
    target = stitch.target_of(module)
    known: dict[str, ClusterReport] = {}  # by function: its calls differ in number and lines alone
    clusters: list[ClusterReport] = []
    with module.context:
        for number, call in enumerate(calls):
            callee = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
            if callee not in known:
                known[callee] = _cluster(call, bodies[callee], target)
            clusters.append(replace(known[callee], number=number, lines=source_lines(call.location)))
    apart = tuple(_apart(entry) for entry in stitch.APART.get(main) or ())
    return StitchReport(tuple(clusters), apart, dict(stitch.TARGET_CONSTANTS.get(module) or {}))


def _cluster(call: ir.Operation, function: ir.Operation, target: Target) -> ClusterReport:
    """The report of a function's first call."""
    graph = build_graph(function)
    prediction = predict(function, graph, target)
    schedule = stitch.SCHEDULE.get(function)
    positions = {op: place for place, op in enumerate(block_ops(function))}
    schemes = dict(schedule.schemes) if schedule is not None else {}
    return ClusterReport(
        number=0,
        function=symbol_name(function),
        lines=(),
        ops=tuple(
            OpReport(
                op.name,
                op_label(op),
                stitch.KIND.get(op) or "",
                source_line(op.location),
                schemes.get(positions[op], ""),
            )
            for op in graph.ops
        ),
        pairs=tuple(_pairs(graph, {graph.number[op]: schemes.get(positions[op], "thread") for op in graph.ops})),
        library=stitch.LIBRARY.get(function) or "",
        template=schedule.template if schedule is not None else "",
        grid=schedule.grid if schedule is not None else (0, 0, 0),
        block=schedule.block if schedule is not None else (0, 0, 0),
        vector=schedule.vector if schedule is not None else 0,
        shared_bytes=schedule.shared_bytes if schedule is not None else 0,
        parameters=dict(schedule.parameters) if schedule is not None else {},
        parts=tuple(_parts(graph, function, schedule)) if schedule is not None else (),
        bytes_read=sum(tensor_bytes(value) for value in call.operands),
        bytes_written=sum(tensor_bytes(value) for value in call.results),
        bytes_before=sum(
            tensor_bytes(value) for node, op in enumerate(graph.ops) for value in (*graph.reads[node], *op.results)
        ),
        launches_saved=max(len(graph.ops) - 1, 0),
        registers=prediction.registers,
        resident_blocks=prediction.resident_blocks,
        predicted_seconds=prediction.seconds,
        limited_by=prediction.limited_by,
        seconds_saved=prediction.saved_seconds,
        tuned=tuple(_tuned(function)),
    )


def _tuned(function: ir.Operation) -> Iterator[TriedReport]:
    chosen = stitch.SCHEDULE.get(function)
    for entry in stitch.TUNED.get(function) or ():
        schedule = entry["schedule"]
        yield TriedReport(
            str(schedule),
            ir.StringAttr(entry["cost"]).value,
            ir.IntegerAttr(entry["picoseconds"]).value,
            schedule_from_attribute(schedule) == chosen,
        )


def _parts(graph: Graph, function: ir.Operation, schedule: Schedule) -> Iterator[PartReport]:
    members: list[tuple[int, ...]] = [()] * len(schedule.parts)
    found = independent_parts(Cluster.of_function(function)) if schedule.parts else ()
    if len(found) == len(members):
        members = [tuple(sorted(graph.number[op] for op in part.ops if op in graph.number)) for part in found]
    for part, ops in zip(schedule.parts, members, strict=True):
        yield PartReport("pack", part.template, part.grid, part.block, part.vector, ops)


def _pairs(graph: Graph, schemes: Mapping[int, str]) -> Iterator[PairReport]:
    """Every tensor that goes from one node to another; ``schemes``: where each node's value lives."""
    for consumer, values in enumerate(graph.reads):
        for value in values:
            producer = graph.producer.get(value)
            if producer is not None:
                yield PairReport(producer, consumer, str(value.type), tensor_bytes(value), schemes[producer])


def _apart(entry: dict[str, ir.Attribute]) -> ApartReport:
    producer, consumer = ir.DenseI64ArrayAttr(entry["clusters"])
    producer_position, consumer_position = ir.DenseI64ArrayAttr(entry["positions"])
    ops = _texts(entry["ops"])
    lines = _texts(entry["lines"])
    rule = ir.StringAttr(entry["rule"]).value
    return ApartReport(
        producer,
        consumer,
        producer_position,
        consumer_position,
        *ops,
        *lines,
        tensor=ir.StringAttr(entry["tensor"]).value,
        bytes=ir.IntegerAttr(entry["bytes"]).value,
        rule=rule,
        reason=RULES[Rule(rule)] if rule in RULES else "",
        detail=ir.StringAttr(entry["detail"]).value if "detail" in entry else "",
    )


def _texts(attr: ir.Attribute) -> tuple[str, str]:
    first, second = (ir.StringAttr(text).value for text in ir.ArrayAttr(attr))
    return first, second
