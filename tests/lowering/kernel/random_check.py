"""Compiles a random program, runs it under the sanitizer, and compares it with what PyTorch computes.

``python tests/lowering/kernel/random_check.py FOLDER`` runs a case again that a failed test left in a folder.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import mlir.ir as ir
import numpy as np
import torch
from random_ops import computed, linalg_text
from random_program import Dtype, Input, Known, Program, Step, TensorType, input_values

from mlirstitch.dialects import new_context, stitch
from mlirstitch.driver.stages import run_stages
from mlirstitch.options import CompileOptions
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.stitching import STITCH_PASSES
from mlirstitch.passes.stitching.template import Cluster, templates
from mlirstitch.passes.structured import functions
from mlirstitch.runtime import Bundle, decode_program
from mlirstitch.runtime.executor import Executor
from mlirstitch.runtime.sanitized_device import SanitizedDevice
from mlirstitch.target import Target

FOLDER = Path("random-cluster-failures")
CHIP = "sm_90"


@dataclass(frozen=True)
class Case:
    """A program and how it is compiled and run.

    Attributes:
        seed: draws the orders in which blocks and warps run, and the schedules.
        most_ops: ops in one kernel; 0 leaves them to the clusterer.
        any_schedule: each kernel has any schedule of any template that applies, not the best.
    """

    program: Program
    seed: int
    most_ops: int = 0
    any_schedule: bool = False


def check(case: Case) -> None:
    """Raises whatever the compiler or the device raises, or AssertionError where a result is wrong.

    The exception then has a note: the text, and the command that runs the case again.
    """
    values = computed(case.program)
    text = linalg_text(case.program, values)
    try:
        results = run(case, text)
        for position, (number, result) in enumerate(zip(case.program.outputs, results, strict=True)):
            compare(f"output {position} (value {number})", result, values[number])
    except Exception as error:
        error.add_note(_reproducer(case, text))
        raise


def run(case: Case, text: str) -> list[np.ndarray]:
    """Outputs of the compiled program: twice, in different orders of blocks and warps, with the same bits."""
    bundle = compile_case(case, text)
    arrays = [_laid_out(given) for given in case.program.inputs]
    loaded: dict[str, Any] = {}
    first, second = (Executor(bundle, _Device(2 * case.seed + k, loaded)).run(arrays) for k in range(2))
    for position, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one.tobytes() == other.tobytes(), f"output {position} depends on the order of blocks and warps"
    return first


class _Device(SanitizedDevice):
    """The sanitized device; several share what they loaded."""

    def __init__(self, seed: int, loaded: dict[str, Any]) -> None:
        super().__init__(seed=seed)
        self._loaded = loaded

    def load_ptx(self, text: str, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = super().load_ptx(text, name)
        return self._loaded[name]


def compile_case(case: Case, text: str) -> Bundle:
    """The program with the clusters and schedules that the case asks for."""
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        run_stages(module, CompileOptions(to_level="partitioned"))
        passes = list(STITCH_PASSES)
        if case.most_ops:
            passes[0] += f"{{max-ops={case.most_ops}}}"
        run_pipeline(module, f"builtin.module({','.join(passes[:-1])})")
        if case.any_schedule:
            _draw_schedules(module, random.Random(case.seed))
        run_pipeline(module, f"builtin.module({passes[-1]})")
        lowered = run_stages(module, CompileOptions(from_level="stitched"))
    if lowered.program is None:
        raise AssertionError("there is no launch plan")
    target = Target.parse(CHIP)
    return Bundle(
        target={"chip": target.chip, "ptx": target.ptx_version},
        programs=(decode_program(lowered.program),),
        modules=lowered.ptx,
        weights={},
    )


def _draw_schedules(module: ir.Module, rng: random.Random) -> None:
    """Give every kernel any legal schedule: of any template that applies, each with the same share."""
    target = Target.parse(CHIP)
    for function in functions(module.operation):
        if stitch.CLUSTER.name in function.attributes:
            with function.location:
                cluster = Cluster.of_function(function)
                offering = [t for t in templates() if t.applies(cluster, target) is None]
                if offering:
                    # Each candidate takes a dry run: not all of them are asked for.
                    few = rng.choice(offering).candidates(cluster, target, rng.choice((1, 2, 4, 8, 16, 48)))
                    if few:  # a template may apply, but have no schedule that the chip can run
                        stitch.SCHEDULE.set(function, rng.choice(few[len(few) // 2 :]))


def compare(what: str, result: np.ndarray, known: Known) -> None:
    """Every element within the bound of its error; integers, bools, NaN and infinities equal."""
    dtype, shape = known.type.dtype, known.type.shape
    assert result.shape == shape, f"{what} has the shape {result.shape}, not {shape}"
    assert result.dtype == _numpy_type(dtype), f"{what} is {result.dtype}, not {dtype.name}"
    if not dtype.is_float:
        wanted = known.truth.numpy()
        wrong = np.argwhere(result != wanted)
        assert not len(wrong), _difference(what, result, wanted, wrong)
        return
    wanted, found = known.truth.numpy(), result.astype(np.float64)
    finite = np.isfinite(wanted)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        close = np.abs(found - wanted) <= np.broadcast_to(known.error.numpy(), wanted.shape)
    wrong = np.argwhere(~np.where(finite, close, same))
    assert not len(wrong), _difference(what, found, wanted, wrong, known.error.numpy())


def _difference(what: str, found: np.ndarray, wanted: np.ndarray, wrong: np.ndarray, error: object = None) -> str:
    lines = [f"{what}, {found.dtype}{list(found.shape)}: {len(wrong)} of {found.size} elements are wrong"]
    for place in map(tuple, wrong[:5]):
        bound = "" if error is None else f" +- {np.broadcast_to(np.asarray(error), found.shape)[place]:.3g}"
        lines.append(f"  at {list(map(int, place))}: {found[place]}, not {wanted[place]}{bound}")
    return "\n".join(lines)


def _numpy_type(dtype: Dtype) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype.name == "bfloat16" else dtype.name)


def _laid_out(given: Input) -> np.ndarray:
    """The input as the caller's array."""
    values = input_values(given)
    if given.type.dtype.name == "bfloat16":
        array = values.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        array = values.numpy()
    if given.layout == "transposed" and array.ndim:
        return np.ascontiguousarray(array.T).T
    if given.layout == "sliced" and array.ndim:
        wide = np.repeat(array, 2, axis=-1)
        return wide[..., ::2]
    return array


# Reproducers ----------------------------------------------------------------------------------------------------


def _reproducer(case: Case, text: str) -> str:
    """Leave the case in a folder; returns what to tell."""
    source = repr(case)
    folder = FOLDER / hashlib.sha256(source.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.txt").write_text(source + "\n")
    (folder / "main.mlir").write_text(text)
    how = f"seed {case.seed}, most_ops {case.most_ops}, any_schedule {case.any_schedule}"
    return f"{how}; run it again with\npython {Path(__file__).resolve()} {folder.resolve()}\n{text}"


def read_case(folder: Path) -> Case:
    """The case that a failed test left."""
    names = (Case, Program, Input, Step, TensorType, Dtype)
    scope = {kind.__name__: kind for kind in names} | {"torch": torch}
    return eval((folder / "case.txt").read_text(), scope)


def main(arguments: Sequence[str]) -> None:
    """Run the cases of some folders again."""
    for folder in map(Path, arguments):
        check(read_case(folder))
        print(f"{folder}: right")


if __name__ == "__main__":
    main(sys.argv[1:])
