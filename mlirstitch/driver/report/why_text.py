"""``mlirstitch explain --why`` and ``--cluster`` for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mlirstitch.driver.report.explain_text import prediction_text
from mlirstitch.driver.report.quantities import byte_size, count
from mlirstitch.driver.report.why import Answer, Pair, all_pairs, why
from mlirstitch.errors import MlirstitchError


def why_text(report: Mapping[str, Any], first: str, second: str) -> str:
    """The answer as text. Raises :class:`MlirstitchError` if a name matches no op."""
    return "\n".join(_lines(report, why(report, first, second), first, second))


def why_json(report: Mapping[str, Any], first: str, second: str) -> dict[str, Any]:
    """The answer as nested dictionaries. Raises :class:`MlirstitchError` if a name matches no op."""
    return asdict(why(report, first, second))


def _lines(report: Mapping[str, Any], answer: Answer, first: str, second: str) -> Iterator[str]:
    for pair in answer.pairs:
        yield from _pair_lines(pair)
    if answer.pairs:
        return
    if answer.path:
        yield f"no tensor goes from {first} to {second} directly; the shortest way is"
        for pair in answer.path:
            yield from (f"  {line}" for line in _pair_lines(pair))
        return
    yield f"neither of {first} and {second} depends on the other"
    shared = sorted({op.cluster for op in answer.producers} & {op.cluster for op in answer.consumers})
    for number in shared:
        packed = ", in blocks of their own (pack)" if _in_different_parts(answer, cluster_of(report, number)) else ""
        yield f"  cluster {number} computes both in one kernel{packed}"
    if not shared:
        clusters = (sorted({op.cluster for op in ops}) for ops in (answer.producers, answer.consumers))
        yield "  {} is in {}, {} in {}".format(
            *(text for name, numbers in zip((first, second), clusters, strict=True) for text in (name, _named(numbers)))
        )


def _in_different_parts(answer: Answer, cluster: Mapping[str, Any]) -> bool:
    """The kernel is a packed one, and no part of it computes both."""
    first, second = (
        {op.position for op in ops if op.cluster == cluster["number"]} for ops in (answer.producers, answer.consumers)
    )
    parts = [set(part["ops"]) for part in cluster.get("parts", ())]
    return all(parts) and len(parts) > 1 and not any(first & part and second & part for part in parts)


def _named(numbers: list[int]) -> str:
    return f"cluster{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _pair_lines(pair: Pair) -> Iterator[str]:
    yield f"{pair.producer} -> {pair.consumer}: {pair.tensor}, {byte_size(pair.bytes)}"
    if pair.together:
        yield f"  together  cluster {pair.consumer.cluster}, {pair.rule}: {pair.reason}"
    else:
        yield f"  apart     {pair.rule}: {pair.reason}"
    for answer in pair.detail.split("; ") if pair.detail else ():  # one a template
        yield f"            {answer}"


def cluster_text(report: Mapping[str, Any], number: int) -> str:
    """One cluster: schedule, figures, ops with their numbers, lines and schemes, and what goes in and out.

    Raises :class:`MlirstitchError` if there is no such cluster.
    """
    return "\n".join(_cluster_lines(report, cluster_of(report, number)))


def cluster_of(report: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The report of one cluster. Raises :class:`MlirstitchError` if there is none of that number."""
    clusters = report.get("clusters", ())
    if not 0 <= number < len(clusters):
        raise MlirstitchError(
            f"there is no cluster {number}", hint=f"the program has {count(len(clusters), 'cluster')}, numbered from 0"
        )
    return clusters[number]


def _cluster_lines(report: Mapping[str, Any], cluster: Mapping[str, Any]) -> Iterator[str]:
    yield f"cluster {cluster['number']}: {cluster['function']}"
    if cluster["library"]:
        yield f"  library   {cluster['library']}"
    else:
        blocks, threads = ("x".join(str(extent) for extent in cluster[name]) for name in ("grid", "block"))
        yield (
            f"  schedule  {cluster['template']}: {blocks} blocks of {threads} threads, vectors of {cluster['vector']}, "
            f"{byte_size(cluster['shared_bytes'])} dynamic shared memory"
        )
    for number, part in enumerate(cluster.get("parts", ())):
        blocks, threads = ("x".join(str(extent) for extent in part[name]) for name in ("grid", "block"))
        names = ", ".join(f"{cluster['number']}.{op}" for op in part["ops"])
        yield (
            f"  {part['scheme']} {number:<5}  {part['template']}: {blocks} blocks of {threads} threads, "
            f"vectors of {part['vector']}" + (f"; ops {names}" if names else "")
        )
    moved = cluster["bytes_read"] + cluster["bytes_written"]
    yield (
        f"  bytes     {byte_size(cluster['bytes_read'])} read, {byte_size(cluster['bytes_written'])} written; "
        f"{byte_size(moved)} against {byte_size(cluster['bytes_before'])} with one kernel per op"
    )
    yield f"  launches  {cluster['launches_saved']} saved"
    if prediction_text(cluster):
        yield f"  time      {prediction_text(cluster)}"
    yield "  ops"
    for position, op in enumerate(cluster["ops"]):
        facts = ", ".join(fact for fact in (op["kind"], op["scheme"], op["line"]) if fact)
        yield f"    {cluster['number']}.{position}  {op['label']}  {facts}"
    pairs = [pair for pair in all_pairs(report) if not pair.together]
    for title, found in (
        ("reads from other clusters", [p for p in pairs if p.consumer.cluster == cluster["number"]]),
        ("read by other clusters", [p for p in pairs if p.producer.cluster == cluster["number"]]),
    ):
        if found:
            yield f"  {title}"
            for pair in found:
                yield from (f"    {line}" for line in _pair_lines(pair))
