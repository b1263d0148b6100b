"""What the page shows, as values that the template prints: everything comes from the bundle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from mlirstitch.driver.bench.ptx_figures import figures_of, kernel_texts
from mlirstitch.driver.report.explain import Kernel, kernels
from mlirstitch.driver.report.explain_text import CONSTANTS, constants_text, tuned_text
from mlirstitch.driver.report.library_text import epilogue_text, operand_texts, order_text
from mlirstitch.driver.report.page.picture import Box, Line, Picture, draw
from mlirstitch.driver.report.quantities import byte_size, count, seconds
from mlirstitch.driver.report.summary import summarise
from mlirstitch.driver.report.why import LIVES_IN, Op, Pair, all_ops, all_pairs
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.program import Launch, LibraryCall, Step
from mlirstitch.target import Target

_LOC = re.compile(r"\t\.loc\s+\d+ (\d+) \d+.*")
_CANONICAL = "kernels.stitched.mlir"
_PLACE = re.compile(r"(?P<path>.+?)(?P<place>(?::\d+){1,2})")
_GOLDEN_ANGLE = 137.508
_COMMENT_WIDTH = 110


@dataclass(frozen=True)
class Bar:
    """One quantity before and after stitching; ``share`` is after / before in percent, 0 to 100."""

    title: str
    before: str
    after: str
    share: float


@dataclass(frozen=True)
class ClusterView:
    """One cluster.

    Attributes:
        number, title: its number and the name of its function.
        style, hue: "library", "compute" or "memory", and its colour in degrees.
        kernel: the kernel that computes it, or "".
        badges, facts: texts, and texts with titles.
        ops: every op, its kind, and where its value lives.
        inside, reads, read_by: pairs of two of its ops, and those with an op of another cluster.
        picture: its ops and what goes between them.
    """

    number: int
    title: str
    style: str
    hue: int
    kernel: str
    badges: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    ops: tuple[tuple[Op, str, tuple[str, ...]], ...]
    inside: tuple[Pair, ...]
    reads: tuple[Pair, ...]
    read_by: tuple[Pair, ...]
    picture: Picture


@dataclass(frozen=True)
class KernelView:
    """One kernel: figures from the launch plan, facts as (title, text), and its PTX ("" for a library routine)."""

    kernel: Kernel
    clusters: tuple[int, ...]
    facts: tuple[tuple[str, str], ...]
    ptx: str


@dataclass(frozen=True)
class PageView:
    """Everything on the page.

    Attributes:
        bars: totals before and after.
        facts: (title, text) about the bundle.
        clusters, kernels: in order of their first run.
        apart: every pair left apart.
        picture: the clusters and what goes between them.
        data: what the script on the page needs: ops, pairs and parts.
        files: path -> short name of every source file.
    """

    title: str
    bars: tuple[Bar, ...]
    facts: tuple[tuple[str, str], ...]
    clusters: tuple[ClusterView, ...]
    kernels: tuple[KernelView, ...]
    apart: tuple[Pair, ...]
    picture: Picture
    data: Mapping[str, Any]
    files: Mapping[str, str]


def page_view(bundle: Bundle, title: str) -> PageView:
    """The page of a bundle; all programs of it launch the clusters of one report."""
    report = bundle.report
    ops, pairs = all_ops(report), all_pairs(report)
    apart = tuple(pair for pair in pairs if not pair.together)
    steps = [step for program in bundle.programs for step in program.steps]
    hues = _hues(report)
    clusters = tuple(_clusters(report, ops, pairs, steps, hues))
    return PageView(
        title=title,
        bars=tuple(_bars(report)),
        facts=tuple(_facts(bundle)),
        clusters=clusters,
        kernels=tuple(_kernels(bundle, report)),
        apart=apart,
        picture=_cluster_picture(clusters, apart),
        data=page_data(report),
        files=_short_names([op.line for op in ops] + [line for step in steps for line in step.source]),
    )


def page_data(report: Mapping[str, Any]) -> dict[str, Any]:
    """Ops, pairs and parts in short rows: what ``page.js`` answers from."""
    ops, pairs = all_ops(report), all_pairs(report)
    place = {op: number for number, op in enumerate(ops)}
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    rows = [
        [
            *(place[pair.producer], place[pair.consumer], text(pair.tensor), text(byte_size(pair.bytes))),
            *(int(pair.together), text(pair.rule), text(pair.reason), text(pair.detail)),
        ]
        for pair in pairs
    ]
    return {
        "ops": [[op.cluster, op.position, op.label, op.name, op.line] for op in ops],
        "pairs": rows,
        "texts": list(texts),
        "parts": {
            str(cluster["number"]): [part["ops"] for part in cluster["parts"]]
            for cluster in report.get("clusters", ())
            if cluster.get("parts")
        },
    }


_TOTALS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Launches", "launches", str),
    ("Bytes read and written", "bytes", byte_size),
    ("Predicted time of generated kernels", "predicted_seconds", seconds),
)
"""Title, name in the report and form of the totals that have a before and an after."""


def _bars(report: Mapping[str, Any]) -> Iterator[Bar]:
    if not report.get("clusters"):
        return
    for title, name, shown in _TOTALS:
        before, after = report.get(f"{name}_before"), report.get(name)
        if before is None or after is None:
            continue
        yield Bar(title, shown(before), shown(after), 100 * after / before if before else 100.0)


def _facts(bundle: Bundle) -> Iterator[tuple[str, str]]:
    target = Target.parse(bundle.target["chip"])
    yield "target", f"{target.chip}, PTX {bundle.target['ptx']}"
    yield "written by", f"{bundle.producer['name']} {bundle.producer['version']}"
    options = {name: value for name, value in sorted(bundle.options.items()) if name != CONSTANTS}
    if options:
        yield "options", ", ".join(f"{name} {value}" for name, value in options.items())
    if constants_text(bundle):
        yield "constants", constants_text(bundle)
    for program in bundle.programs:
        summary = summarise(program, target)
        launches, moved = summary.launches, summary.bytes
        prefix = f"{program.name}: " if len(bundle.programs) > 1 else ""
        yield (
            f"{prefix}launches",
            (
                f"{launches.memory_bound} memory-bound, {launches.compute_bound} compute-bound, "
                f"{count(launches.copies, 'copy', 'copies')}; {count(summary.distinct_kernels, 'distinct kernel')}"
            ),
        )
        yield (
            f"{prefix}bytes",
            (
                f"{byte_size(moved.arguments)} touched, {byte_size(moved.memory_bound)} of it memory-bound; "
                f"{byte_size(moved.traffic)} traffic"
            ),
        )
        yield (
            f"{prefix}temporaries",
            (f"{byte_size(summary.peak_temporary_bytes)}, {byte_size(summary.temporary_bytes)} without sharing"),
        )


def _hues(report: Mapping[str, Any]) -> dict[str, int]:
    """A colour for every cluster function, far from that of its neighbours; calls of one function share it."""
    names = dict.fromkeys(cluster["function"] for cluster in report.get("clusters", ()))
    return {name: round(210 + number * _GOLDEN_ANGLE) % 360 for number, name in enumerate(names)}


def _clusters(
    report: Mapping[str, Any],
    ops: Sequence[Op],
    pairs: Sequence[Pair],
    steps: Sequence[Step],
    hues: Mapping[str, int],
) -> Iterator[ClusterView]:
    launches = {step.stitch_cluster: step.kernel for step in steps if isinstance(step, Launch)}
    calls = {step.stitch_cluster: step for step in steps if isinstance(step, LibraryCall)}
    by_cluster: dict[int, list[Op]] = {}
    for op in ops:
        by_cluster.setdefault(op.cluster, []).append(op)
    inside: dict[int, list[Pair]] = {}
    reads: dict[int, list[Pair]] = {}
    read_by: dict[int, list[Pair]] = {}
    for pair in pairs:
        if pair.together:
            inside.setdefault(pair.consumer.cluster, []).append(pair)
        else:
            reads.setdefault(pair.consumer.cluster, []).append(pair)
            read_by.setdefault(pair.producer.cluster, []).append(pair)
    for cluster in report.get("clusters", ()):
        number, members = cluster["number"], by_cluster.get(cluster["number"], [])
        compute = any(op["kind"] == "compute" for op in cluster["ops"])
        style = "library" if cluster["library"] else "compute" if compute else "memory"
        yield ClusterView(
            number=number,
            title=cluster["function"],
            style=style,
            hue=hues[cluster["function"]],
            kernel=launches.get(cluster["function"], ""),
            badges=tuple(_badges(cluster, compute, calls.get(cluster["function"]))),
            facts=(*_call_facts(calls.get(cluster["function"])), *_cluster_facts(cluster)),
            ops=tuple(
                (op, entry["kind"], _lives_in(op, entry["scheme"], inside.get(number, ()), read_by.get(number, ())))
                for op, entry in zip(members, cluster["ops"], strict=True)
            ),
            inside=tuple(inside.get(number, ())),
            reads=tuple(reads.get(number, ())),
            read_by=tuple(read_by.get(number, ())),
            picture=_op_picture(members, inside.get(number, []), hues[cluster["function"]]),
        )


def _lives_in(op: Op, scheme: str, inside: Sequence[Pair], read_by: Sequence[Pair]) -> tuple[str, ...]:
    """Schemes of an op's value for readers in its kernel ("library": inside a routine); "memory" if others read it."""
    own = [pair.rule if pair.rule in LIVES_IN else "library" for pair in inside if pair.producer == op]
    found = dict.fromkeys([scheme] if scheme else own)
    if not found or any(pair.producer == op for pair in read_by):
        found["memory"] = None
    return tuple(found)


def _badges(cluster: Mapping[str, Any], compute: bool, call: LibraryCall | None) -> Iterator[str]:
    yield f"library {cluster['library']}" if cluster["library"] else cluster["template"]
    if call is not None and epilogue_text(call):
        yield epilogue_text(call)
    if compute and not cluster["library"]:
        yield "contraction"
    yield count(len(cluster["ops"]), "op")
    yield byte_size(cluster["bytes_read"] + cluster["bytes_written"])
    if cluster.get("predicted_seconds"):
        yield seconds(cluster["predicted_seconds"])


def _call_facts(call: LibraryCall | None) -> Iterator[tuple[str, str]]:
    """What a library call stores, and which operands it addresses in place."""
    if call is not None:
        yield "library", f"{call.routine}: stores {epilogue_text(call) or 'product'}"
        if order_text(call):
            yield "dims in memory", order_text(call)
        yield from operand_texts(call)


def _cluster_facts(cluster: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    moved = cluster["bytes_read"] + cluster["bytes_written"]
    if not cluster["library"]:
        yield "schedule", _schedule(cluster)
        parameters = ", ".join(f"{name} {value}" for name, value in sorted(cluster.get("parameters", {}).items()))
        if parameters:
            yield "parameters", parameters
    for number, part in enumerate(cluster.get("parts", ())):
        members = ", ".join(f"{cluster['number']}.{op}" for op in part["ops"])
        yield f"{part['scheme']} {number}", _schedule(part) + (f"; ops {members}" if members else "")
    read, written = byte_size(cluster["bytes_read"]), byte_size(cluster["bytes_written"])
    unfused = f"{byte_size(moved)} against {byte_size(cluster['bytes_before'])} with one kernel per op"
    yield "bytes", f"{read} read, {written} written; {unfused}"
    yield "launches saved", str(cluster["launches_saved"])
    if cluster["shared_bytes"]:
        yield "dynamic shared memory", byte_size(cluster["shared_bytes"])
    if cluster.get("tuned"):
        yield "tuned", tuned_text(cluster["tuned"])
    if cluster.get("registers"):
        yield "registers", f"about {cluster['registers']} a thread"
    if cluster.get("resident_blocks"):
        yield "blocks at a time", f"{cluster['resident_blocks']} a multiprocessor"
    if cluster.get("predicted_seconds"):
        limit = f", limited by {cluster['limited_by']}" if cluster.get("limited_by") else ""
        yield "predicted time", f"{seconds(cluster['predicted_seconds'])} a launch{limit}"
    if cluster.get("seconds_saved"):
        yield "time saved", f"{seconds(cluster['seconds_saved'])}, against one kernel per op"


def _schedule(schedule: Mapping[str, Any]) -> str:
    blocks, threads = _product(schedule["grid"]), _product(schedule["block"])
    return f"{schedule['template']}: {blocks} blocks of {threads} threads, vectors of {schedule['vector']}"


def _product(dims: Sequence[int]) -> str:
    return " x ".join(str(extent) for extent in dims if extent != 1) or "1"


def _op_picture(members: Sequence[Op], pairs: Sequence[Pair], hue: int) -> Picture:
    boxes = [Box(op.id, f"{op.id} {op.label}", str(op), "op", hue) for op in members]
    lines = [
        Line(
            *(pair.producer.id, pair.consumer.id, ""),
            f"{pair.tensor}, {byte_size(pair.bytes)}\n{pair.rule}: {pair.reason}",
            f"inside scheme-{pair.rule}" if pair.rule.isidentifier() else "inside",
        )
        for pair in pairs
    ]
    return draw(boxes, lines, pitch=24)


def _cluster_picture(clusters: Sequence[ClusterView], apart: Sequence[Pair]) -> Picture:
    boxes = [
        Box(
            str(view.number),
            f"{view.number}  {_brief(view.title)}",
            f"cluster {view.number}: {view.title}\n{', '.join(view.badges)}\n"
            + ", ".join(op.label for op, _, _ in view.ops[:16])
            + (" ..." if len(view.ops) > 16 else ""),
            view.style,
            view.hue,
        )
        for view in clusters
    ]
    grouped: dict[tuple[int, int], list[Pair]] = {}
    for pair in apart:
        grouped.setdefault((pair.producer.cluster, pair.consumer.cluster), []).append(pair)
    return draw(boxes, [_cluster_line(*ends, pairs) for ends, pairs in grouped.items()])


def _cluster_line(producer: int, consumer: int, pairs: Sequence[Pair]) -> Line:
    """One line for all tensors between two clusters; a tensor that several ops read counts once."""
    total = sum({(pair.producer, pair.tensor): pair.bytes for pair in pairs}.values())
    needed = all(pair.rule in ("library", "compute") for pair in pairs)
    title = "\n".join(
        f"{pair.producer.id} {pair.producer.label} → {pair.consumer.id} {pair.consumer.label}: {pair.tensor}, "
        f"{byte_size(pair.bytes)}: {pair.reason}"
        for pair in pairs
    )
    width = 1.2 + min(3.0, len(str(total)) / 4)
    style = "apart needed" if needed else "apart"
    return Line(str(producer), str(consumer), byte_size(total), title, style, width)


def _brief(function: str) -> str:
    name = re.sub(r"^cluster_\d+_", "", function)
    return name if len(name) <= 30 else name[:29] + "…"


def _kernels(bundle: Bundle, report: Mapping[str, Any]) -> Iterator[KernelView]:
    lines = bundle.files.get(_CANONICAL, "").splitlines()
    texts: dict[str, str] = {}
    for name in sorted(bundle.modules):
        texts.update(kernel_texts(bundle.modules[name]))
    numbers: dict[str, list[int]] = {}
    for cluster in report.get("clusters", ()):
        numbers.setdefault(cluster["function"], []).append(cluster["number"])
    seen: set[str] = set()
    for program in bundle.programs:
        for kernel in kernels(program):
            if kernel.name in seen:
                continue
            seen.add(kernel.name)
            ptx = texts.get(kernel.name, "") if kernel.block[0] else ""
            facts = tuple(_kernel_facts(kernel, _first_step(program.steps, kernel), ptx))
            yield KernelView(kernel, tuple(numbers.get(kernel.cluster, ())), facts, _with_lines(ptx, lines))


def _first_step(steps: Sequence[Step], kernel: Kernel) -> Launch | None:
    return next((step for step in steps if isinstance(step, Launch) and step.kernel == kernel.name), None)


def _kernel_facts(kernel: Kernel, launch: Launch | None, ptx: str) -> Iterator[tuple[str, str]]:
    yield "kind", f"{kernel.kind.replace('_', '-')}, {kernel.form}"
    if kernel.block[0]:
        yield "launch", f"{_product(kernel.grid)} blocks of {_product(kernel.block)} threads"
    if launch is not None and launch.cooperative:
        yield "cooperative", "all blocks run at the same time"
    if launch is not None and launch.thread_block_cluster != (1, 1, 1):
        yield "thread-block clusters", f"{_product(launch.thread_block_cluster)} blocks"
    if kernel.epilogue:
        yield "stores", kernel.epilogue
    yield "bytes", f"{byte_size(kernel.bytes)} touched, {byte_size(kernel.moved)} moved, in all launches"
    if ptx:
        figures = figures_of(ptx)
        dynamic = launch.shared_bytes if launch is not None else 0
        yield "shared memory", f"{byte_size(figures.shared_bytes)} static, {byte_size(dynamic)} dynamic"
        yield (
            "PTX",
            (
                f"{count(figures.statements, 'statement')}, {count(figures.barriers, 'barrier')}, "
                f"{count(figures.shuffles, 'shuffle')}"
            ),
        )


def _with_lines(ptx: str, lines: Sequence[str]) -> str:
    """The PTX with the op's text behind every ``.loc`` line; ``lines`` is the text they refer to."""

    def annotate(match: re.Match[str]) -> str:
        number = int(match[1])
        text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return f"{match[0]}  // {text[:_COMMENT_WIDTH]}" if text else match[0]

    return _LOC.sub(annotate, ptx)


def _short_names(lines: Sequence[str]) -> dict[str, str]:
    """Source path -> its last part, or the whole path where two files have the same last part."""
    matches = [_PLACE.fullmatch(line) for line in lines]
    paths = list(dict.fromkeys(match["path"] for match in matches if match is not None))
    names = [PurePosixPath(path).name for path in paths]
    return {path: name if names.count(name) == 1 else path for path, name in zip(paths, names, strict=True)}


def short_line(line: str, files: Mapping[str, str]) -> str:
    """A source line with the short name of its file."""
    match = _PLACE.fullmatch(line)
    return files.get(match["path"], match["path"]) + match["place"] if match else line
