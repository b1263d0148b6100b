"""``mlirstitch explain`` for a person: figures, kernels with their ops and source lines, and what was left apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlirstitch.driver.report.explain import Kernel, kernels
from mlirstitch.driver.report.quantities import byte_size, count, seconds
from mlirstitch.driver.report.summary import Summary, summarise
from mlirstitch.runtime.bundle import Bundle, read_bundle
from mlirstitch.runtime.dtypes import describe
from mlirstitch.runtime.program import Program, Value
from mlirstitch.target import Target

_PLACE = re.compile(r"(?P<path>.+?)(?P<place>(?::\d+){1,2})")
_SHOWN_LINES = 8
CONSTANTS = "target_constants"
"""Name of the option in a bundle's manifest and of the values in its report, where there was a target file."""

_SHOWN_OPS = 16


def explain_text(path: str | Path) -> str:
    """The report of the bundle at ``path``. Raises BundleError."""
    bundle = read_bundle(path)
    target = Target.parse(bundle.target["chip"])
    clusters: Sequence[Mapping[str, Any]] = bundle.report.get("clusters", ())
    apart: Sequence[Mapping[str, Any]] = bundle.report.get("apart", ())
    short = _short_names(bundle)
    lines = [f"{path}: for {target.chip}, written by {bundle.producer['name']} {bundle.producer['version']}"]
    if constants_text(bundle):
        lines += ["", f"constants of the chip: {constants_text(bundle)}"]
    for program in bundle.programs:
        lines += ["", f"program {program.name}", *_signature(program)]
        lines += [f"  {line}" for line in (*figures(summarise(program, target)), *predicted_totals(bundle.report))]
        lines += ["", "kernels", *_kernel_lines(kernels(program), clusters, short)]
    if apart:
        lines += [
            "",
            "left apart (tensors that go through memory between kernels)",
            *_apart_lines(apart, clusters, short),
        ]
    files = [f"  {name}  {path}" for path, name in short.items() if name != path]
    if files:
        lines += ["", "source files", *files]
    return "\n".join(lines)


def constants_text(bundle: Bundle) -> str:
    """How many constants of the chip came from a target file, and what tells them from others; "" if none did."""
    if CONSTANTS not in bundle.options:
        return ""
    held = count(len(bundle.report.get(CONSTANTS, ())), "constant")
    return f"{held} of a target file, SHA-256 {bundle.options[CONSTANTS][:12]}"


def figures(summary: Summary) -> list[str]:
    """Launches, bytes and memory of a program in three lines."""
    launches, moved = summary.launches, summary.bytes
    return [
        f"launches  {launches.memory_bound} memory-bound ({count(summary.distinct_kernels, 'distinct kernel')}), "
        f"{launches.compute_bound} compute-bound, {count(launches.copies, 'copy', 'copies')}",
        f"bytes     {byte_size(moved.arguments)} touched, {byte_size(moved.memory_bound)} of it memory-bound; "
        f"{byte_size(moved.traffic)} traffic, {byte_size(moved.cached_rereads)} re-read from cache",
        f"memory    {byte_size(summary.peak_temporary_bytes)} for temporaries, "
        f"{byte_size(summary.temporary_bytes)} without sharing",
    ]


def predicted_totals(report: Mapping[str, Any]) -> Iterator[str]:
    """Predicted time of all generated kernels, and what it were with one kernel for every op; a line, or none."""
    if report.get("predicted_seconds"):
        after, before = (seconds(report[name]) for name in ("predicted_seconds", "predicted_seconds_before"))
        yield f"predicted {after} in generated kernels, {before} with one kernel per op"


def prediction_text(cluster: Mapping[str, Any]) -> str:
    """Predicted time of one launch and what limits it, registers, resident blocks; "" for a library call."""
    if not cluster.get("registers"):
        return ""
    spent = cluster["predicted_seconds"]
    limited = f", limited by {cluster['limited_by']}" if cluster["limited_by"] else ""
    resident = count(cluster["resident_blocks"], "block")
    return f"{seconds(spent)} predicted{limited}; about {cluster['registers']} registers, {resident} a multiprocessor"


def _signature(program: Program) -> Iterator[str]:
    for title, values in (("inputs", program.signature.inputs), ("outputs", program.signature.outputs)):
        for i, value in enumerate(values):
            yield f"  {title if i == 0 else '':<9} {_value(value)}"
    if program.signature.mutated:
        yield f"  {'updates':<9} {', '.join(mutation.name for mutation in program.signature.mutated)}"


def _value(value: Value) -> str:
    return f"{value.name}: {describe(value.dtype, value.shape)}"


def _short_names(bundle: Bundle) -> dict[str, str]:
    """Source path -> its last part, or the whole path where two files have the same last part."""
    lines = [line for program in bundle.programs for kernel in kernels(program) for line in kernel.source]
    paths = list(dict.fromkeys(_path_and_place(line)[0] for line in lines))
    names = [Path(path).name for path in paths]
    return {path: name if names.count(name) == 1 else path for path, name in zip(paths, names, strict=True) if path}


def _kernel_lines(
    found: Sequence[Kernel], clusters: Sequence[Mapping[str, Any]], short: Mapping[str, str]
) -> Iterator[str]:
    width = max((len(kernel.name) for kernel in found), default=0)
    for kernel in found:
        shape = f"{_product(kernel.grid)} blocks of {_product(kernel.block)} threads" if kernel.block[0] else ""
        facts = dict.fromkeys(fact for fact in (kernel.kind.replace("_", "-"), kernel.form, shape) if fact)
        yield f"  {kernel.name:<{width}}  {kernel.launches} x  {', '.join(facts)}"
        calls = [cluster for cluster in clusters if cluster["function"] == kernel.cluster]
        if calls and len(calls[0]["ops"]) > 1:
            yield f"      ops    {_listed([op['label'] for op in calls[0]['ops']], _SHOWN_OPS)}"
        if kernel.epilogue:
            yield f"      stores {kernel.epilogue}"
        if calls and calls[0].get("parts"):
            yield f"      parts  {_listed(part_texts(calls[0]), _SHOWN_LINES)}"
        if calls and calls[0].get("tuned"):
            yield f"      tuned   {tuned_text(calls[0]['tuned'])}"
        if calls and prediction_text(calls[0]):
            yield f"      time   {prediction_text(calls[0])}"
        before = sum(cluster["bytes_before"] for cluster in calls)
        unfused = f"; {byte_size(before)} with one kernel per op" if before > kernel.bytes else ""
        yield f"      bytes  {byte_size(kernel.bytes)} touched, {byte_size(kernel.moved)} moved{unfused}"
        if kernel.source:
            yield f"      from   {_listed([_short(line, short) for line in kernel.source], _SHOWN_LINES)}"


def tuned_text(tried: Sequence[Mapping[str, Any]]) -> str:
    """What tuning compared: how many schedules, by which cost, and what the taken one costs beside the others."""
    taken = next(number for number, entry in enumerate(tried) if entry["chosen"])
    costs = [seconds(entry["picoseconds"] * 1e-12) for entry in tried]
    others = [cost for number, cost in enumerate(costs) if number != taken]
    who = "the compiler's own choice" if taken == 0 else f"choice {taken + 1}, instead of the compiler's at {costs[0]}"
    listed = f"; the others: {', '.join(others)}" if others else ""
    return f"{costs[taken]} {tried[0]['cost']}: {who}, of {count(len(tried), 'schedule')}{listed}"


def part_texts(cluster: Mapping[str, Any]) -> list[str]:
    """The parts of a packed kernel; equal ones that stand next to each other are told once."""
    found: list[tuple[str, int]] = []
    for part in cluster.get("parts", ()):
        text = f"{part['template']}: {_product(part['grid'])} blocks of {_product(part['block'])} threads"
        if found and found[-1][0] == text:
            found[-1] = text, found[-1][1] + 1
        else:
            found.append((text, 1))
    return [f"{times} x {text}" if times > 1 else text for text, times in found]


def _apart_lines(
    apart: Sequence[Mapping[str, Any]], clusters: Sequence[Mapping[str, Any]], short: Mapping[str, str]
) -> Iterator[str]:
    """Pairs between the same two cluster functions, for the same reason, are told once."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for pair in apart:
        producer, consumer = (clusters[pair[end]]["function"] for end in ("producer", "consumer"))
        groups.setdefault((producer, consumer, pair["tensor"], pair["rule"]), []).append(pair)
    for (producer, consumer, tensor, _), pairs in groups.items():
        first = pairs[0]
        times = f"{len(pairs)} x  " if len(pairs) > 1 else ""
        yield f"  {times}{producer} -> {consumer}: {tensor}, {byte_size(first['bytes'])}"
        ends = ((first[f"{end}_op"], _short(first[f"{end}_line"], short)) for end in ("producer", "consumer"))
        yield "      from   {} to {}".format(*(f"{op} ({line})" if line else op for op, line in ends))
        yield "      why    " + ": ".join(text for text in (first["reason"], first["detail"]) if text)


def _short(line: str, short: Mapping[str, str]) -> str:
    path, place = _path_and_place(line)
    return short.get(path, path) + place


def _path_and_place(line: str) -> tuple[str, str]:
    """``file`` and ``:line`` or ``:line:column``."""
    match = _PLACE.fullmatch(line)
    return (match["path"], match["place"]) if match else (line, "")


def _product(dims: tuple[int, int, int]) -> str:
    return "x".join(str(extent) for extent in dims if extent != 1) or "1"


def _listed(items: Sequence[str], limit: int) -> str:
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
