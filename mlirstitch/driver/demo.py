"""``make demo``: a BERT layer from PyTorch to PTX, run on the emulated device and compared with eager.

``python -m mlirstitch.driver.demo [FOLDER]`` writes the bundle into FOLDER (demo-out).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlirstitch.driver.console import note, progress, report_error
from mlirstitch.driver.report.quantities import byte_size, count, seconds
from mlirstitch.driver.report.summary import Summary

WORKLOAD = "bert_layer"
BUNDLE = "bert_layer.bundle"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0, or that of the error that was printed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        demonstrate(Path(given[0] if given else "demo-out"))
        return 0
    except BaseException as error:
        return report_error(error)


def demonstrate(folder: Path) -> None:
    """Compile, run, compare; print the findings on stdout. Raises MlirstitchError if the results are wrong."""
    import torch

    from mlirstitch.driver.bench.accuracy import worst_output
    from mlirstitch.driver.bench.workloads import get
    from mlirstitch.driver.compile import compile
    from mlirstitch.driver.report.summary import summarise
    from mlirstitch.errors import MlirstitchError
    from mlirstitch.target import Target

    program = get(WORKLOAD).build("small")
    shape = ", ".join(map(str, program.inputs[0].shape))
    weights = sum(weight.numel() for weight in program.module.parameters())
    print(f"A BERT layer in PyTorch: input [{shape}], {weights:,} random weights, float32.")
    with progress("compiling") as show:
        compiled = compile(program.module, program.inputs, on_phase=show)
    print(f"Compiled for {compiled.target} in {seconds(sum(compiled.timings.values()))}.\n")

    summary = summarise(compiled.launch_plan, Target.parse(compiled.target))
    print("\n".join(comparison(compiled.report, summary)))

    bundle = folder / BUNDLE
    compiled.save(bundle)
    with progress("running on the emulated device"):
        results, report = compiled.run_with_report(*program.inputs)
    with torch.no_grad():
        wide = program.to(torch.float64)
        reference = wide.module(*wide.inputs)
        worst = worst_output(results, program.module(*program.inputs), reference)
    print(f"\nRan on the emulated device: {count(report.launches, 'launch', 'launches')} in {seconds(report.seconds)}.")
    print(f"Largest error against eager in float64: {worst.compiled:.1e} (eager in float32: {worst.eager:.1e}).")

    print(f"\nPTX:    {', '.join(str(path) for path in sorted(bundle.glob('kernels/*.ptx')))}")
    print(f"Bundle: {bundle}")
    note(f"\nNext: .venv/bin/mlirstitch explain {bundle}")
    if not worst.allowed:
        raise MlirstitchError(f"the compiled layer is off by {worst.compiled:.1e}, eager by {worst.eager:.1e}")


def comparison(report: Mapping[str, Any], after: Summary) -> Iterator[str]:
    """Lines of the table: launches and bytes with one kernel per op, and stitched. ``report`` is the compiler's."""
    contractions = sum(op["kind"] == "compute" for cluster in report["clusters"] for op in cluster["ops"])
    launches = after.launches
    rows = [
        ("", "one kernel per op", "stitched"),
        ("kernels of memory-bound ops", str(report["launches_before"] - contractions), str(launches.memory_bound)),
        ("contractions", str(contractions), str(launches.compute_bound)),
        ("bytes touched", byte_size(report["bytes_before"]), byte_size(after.bytes.arguments)),
    ]
    if launches.copies:
        rows.insert(3, ("copies", "0", str(launches.copies)))
    for title, left, right in rows:
        yield f"{title:<28}  {left:>17}  {right:>10}"


if __name__ == "__main__":
    sys.exit(main())
