"""What a bundle launches, from the bundle alone: as data and as JSON. ``explain_text`` is the form for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlirstitch.driver.report.library_text import epilogue_text
from mlirstitch.driver.report.summary import summarise, touches
from mlirstitch.runtime.bundle import Bundle, read_bundle
from mlirstitch.runtime.program import Copy, Launch, LibraryCall, Program, Step
from mlirstitch.target import Target


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel (or calls of one library routine for one cluster, or copies).

    ``form`` is the template, "library" or "copy"; ``cluster`` names the cluster function in the compiler's report.
    ``bytes`` counts each argument once per launch, ``moved`` is what the launches load and store; both are sums over
    the launches. ``epilogue`` is what a library routine stores instead of the bare product, or "". ``source`` lists the
    user's lines in order of first appearance.
    """

    name: str
    cluster: str
    form: str
    kind: str
    launches: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bytes: int
    moved: int
    epilogue: str
    source: tuple[str, ...]


def kernels(program: Program) -> list[Kernel]:
    """The distinct kernels of a program, in order of first launch. Copies come as one entry, last."""
    groups: dict[str, list[Step]] = {}
    for step in program.steps:
        groups.setdefault(_name(step), []).append(step)
    found = [_kernel(name, steps) for name, steps in groups.items()]
    return sorted(found, key=lambda kernel: kernel.kind == "copy")


def _name(step: Step) -> str:
    if isinstance(step, Copy):
        return "copy"
    return step.kernel if isinstance(step, Launch) else f"{step.routine} ({step.stitch_cluster})"


def _kernel(name: str, steps: Sequence[Step]) -> Kernel:
    first = steps[0]
    launch = first if isinstance(first, Launch) else None
    touched = [touch for step in steps for touch in touches(step)]
    return Kernel(
        name=name,
        cluster="" if isinstance(first, Copy) else first.stitch_cluster,
        form=launch.template if launch else "library" if not isinstance(first, Copy) else "copy",
        kind="copy" if isinstance(first, Copy) else first.kind,
        launches=len(steps),
        grid=launch.grid if launch else (0, 0, 0),
        block=launch.block if launch else (0, 0, 0),
        bytes=sum(touch.bytes for touch in touched),
        moved=sum(touch.moved for touch in touched),
        epilogue=epilogue_text(first) if isinstance(first, LibraryCall) else "",
        source=tuple(dict.fromkeys(line for step in steps for line in step.source)),
    )


def explain_text_or_json(path: str | Path, cluster: int | None, why: tuple[str, str] | None, as_json: bool) -> str:
    """What ``mlirstitch explain`` prints: the whole report, one cluster, or why two ops are together or apart.

    Raises BundleError, or MlirstitchError for a cluster or an op that the program does not have.
    """
    from mlirstitch.driver.report.explain_text import explain_text
    from mlirstitch.driver.report.why_text import cluster_of, cluster_text, why_json, why_text

    if cluster is None and why is None:
        return explain_json(path) if as_json else explain_text(path)
    report = read_bundle(path).report
    if why is not None:
        return _json(why_json(report, *why)) if as_json else why_text(report, *why)
    number = cluster or 0
    return _json(cluster_of(report, number)) if as_json else cluster_text(report, number)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def explain_json(path: str | Path) -> str:
    """The report of the bundle at ``path`` as JSON text. Raises BundleError."""
    return _json(explanation(read_bundle(path)))


def explanation(bundle: Bundle) -> dict[str, Any]:
    """Target, signature, figures and kernels of every program, and the compiler's own report."""
    target = Target.parse(bundle.target["chip"])
    return {
        "target": dict(bundle.target),
        "options": dict(bundle.options),
        "producer": dict(bundle.producer),
        "programs": [
            {
                "name": program.name,
                "signature": asdict(program.signature),
                "summary": summarise(program, target).to_json(),
                "kernels": [asdict(kernel) for kernel in kernels(program)],
            }
            for program in bundle.programs
        ],
        "compiler": dict(bundle.report),
    }
