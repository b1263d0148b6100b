"""``mlirstitch explain``: what a bundle launches, from the bundle alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlirstitch.driver.report.quantities import byte_size, count
from mlirstitch.driver.report.summary import Summary, summarise, touches
from mlirstitch.runtime.bundle import Bundle, read_bundle
from mlirstitch.runtime.dtypes import describe
from mlirstitch.runtime.program import Copy, Launch, Program, Step, Value
from mlirstitch.target import Target


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel (or calls of one library routine for one cluster, or copies).

    ``bytes`` counts each argument once per launch, ``moved`` is what the launches load and store; both are sums over
    the launches. ``source`` lists the user's lines in order of first appearance.
    """

    name: str
    form: str
    kind: str
    launches: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bytes: int
    moved: int
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
        form=launch.template if launch else "library" if not isinstance(first, Copy) else "copy",
        kind="copy" if isinstance(first, Copy) else first.kind,
        launches=len(steps),
        grid=launch.grid if launch else (0, 0, 0),
        block=launch.block if launch else (0, 0, 0),
        bytes=sum(touch.bytes for touch in touched),
        moved=sum(touch.moved for touch in touched),
        source=tuple(dict.fromkeys(line for step in steps for line in step.source)),
    )


def explain_json(path: str | Path) -> str:
    """The report of the bundle at ``path`` as JSON text. Raises BundleError."""
    return json.dumps(explanation(read_bundle(path)), indent=1, sort_keys=True)


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


def explain_text(path: str | Path) -> str:
    """The report of the bundle at ``path`` for a person. Raises BundleError."""
    bundle = read_bundle(path)
    target = Target.parse(bundle.target["chip"])
    lines = [f"{path}: for {target.chip}, written by {bundle.producer['name']} {bundle.producer['version']}"]
    for program in bundle.programs:
        lines += ["", f"program {program.name}", *_signature(program)]
        lines += [f"  {line}" for line in figures(summarise(program, target))]
        lines += ["", "kernels", *_kernel_lines(kernels(program))]
    return "\n".join(lines)


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


def _signature(program: Program) -> Iterator[str]:
    for title, values in (("inputs", program.signature.inputs), ("outputs", program.signature.outputs)):
        for i, value in enumerate(values):
            yield f"  {title if i == 0 else '':<9} {_value(value)}"
    if program.signature.mutated:
        yield f"  {'updates':<9} {', '.join(mutation.name for mutation in program.signature.mutated)}"


def _value(value: Value) -> str:
    return f"{value.name}: {describe(value.dtype, value.shape)}"


def _kernel_lines(found: Sequence[Kernel]) -> Iterator[str]:
    width = max((len(kernel.name) for kernel in found), default=0)
    for kernel in found:
        times = f"{kernel.launches} x"
        shape = f"{_product(kernel.grid)} blocks of {_product(kernel.block)} threads" if kernel.block[0] else ""
        facts = [kernel.kind.replace("_", "-"), kernel.form, shape, f"{byte_size(kernel.moved)} moved"]
        yield f"  {kernel.name:<{width}}  {times:>6}  {', '.join(dict.fromkeys(fact for fact in facts if fact))}"
        if kernel.source:
            yield f"  {'':<{width}}          from {_shortened(kernel.source)}"


def _product(dims: tuple[int, int, int]) -> str:
    return "x".join(str(extent) for extent in dims if extent != 1) or "1"


def _shortened(source: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(source[:limit])
    return shown if len(source) <= limit else f"{shown} and {len(source) - limit} more"
