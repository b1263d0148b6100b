"""The table of the compiler: which stage leads from which level to which, and by which passes.

Every stage is a pipeline that ``mlirstitch-opt`` runs as well. :func:`run_stages` runs a slice of the table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mlir import ir

from mlirstitch import lowering
from mlirstitch.dialects import invariants, parse_module, stitch
from mlirstitch.dialects.bindings import print_op
from mlirstitch.driver.cache.device_code import device_code_keys, keep_device_code, restore_device_code
from mlirstitch.driver.cache.store import Store
from mlirstitch.driver.stage_result import StageResult
from mlirstitch.errors import InternalError, MlirstitchError, PipelineError
from mlirstitch.lowering.canonical import CANONICAL_NAME, canonical_text
from mlirstitch.lowering.host_program import host_program
from mlirstitch.lowering.nvvm_to_ptx import VerifyChip, extract_ptx
from mlirstitch.options import LEVELS, CompileOptions
from mlirstitch.passes.normalize import NORMALIZE_PASSES
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.pipeline_text import pass_text
from mlirstitch.passes.reproducer import write_reproducer
from mlirstitch.passes.stitching import STITCH_PASSES
from mlirstitch.passes.stitching.cluster import StitchCluster
from mlirstitch.passes.stitching.control import StitchControl
from mlirstitch.target_file import check_chip, constants_digest, read_target_file

__all__ = ["STAGES", "Stage", "StageResult", "run_stages", "select_stages"]

_OPTION_ATTRIBUTES = ("target", "numerics", "library")


@dataclass(frozen=True)
class Stage:
    """One step of the compiler.

    Attributes:
        name: shown while it runs; key of its time.
        start, end: level before and after.
        passes: pipeline elements, in order; empty for the identity.
    """

    name: str
    start: str
    end: str
    passes: tuple[str, ...]

    @property
    def pipeline(self) -> str:
        """Pipeline text, anchored on ``builtin.module``; "" for the identity."""
        return f"builtin.module({','.join(self.passes)})" if self.passes else ""


STAGES: tuple[Stage, ...] = (
    Stage("normalize", "linalg", "linalg", NORMALIZE_PASSES),
    Stage("partition", "linalg", "partitioned", ()),
    Stage("stitch", "partitioned", "stitched", STITCH_PASSES),
    Stage("plan and emit", "stitched", "gpu", lowering.STITCHED_TO_GPU),
    Stage("lower", "gpu", "nvvm", lowering.GPU_TO_NVVM),
    Stage("assemble", "nvvm", "ptx", lowering.NVVM_TO_PTX),
)
"""All stages in order. Without a partition plan the partition is the identity: one device."""


def select_stages(options: CompileOptions) -> tuple[Stage, ...]:
    """The stages from ``options.from_level`` to ``options.to_level``.

    Raises :class:`PipelineError` if the compiler would have to go backwards. From linalg to linalg is normalisation.
    """
    first, last = LEVELS.index(options.from_level), LEVELS.index(options.to_level)
    if first > last:
        raise PipelineError(
            f"cannot get from level {options.from_level} back to {options.to_level}",
            hint=f"levels in order: {', '.join(LEVELS)}",
        )
    return tuple(s for s in STAGES if first <= LEVELS.index(s.start) and LEVELS.index(s.end) <= last)


def run_stages(
    source: str | ir.Module,
    options: CompileOptions,
    *,
    source_name: str = "-",
    on_stage: Callable[[str], None] | None = None,
    store: Store | None = None,
    tune: Callable[[ir.Module], None] | None = None,
) -> StageResult:
    """Run the stages that ``options`` selects on a module, which is changed in place, or on a text.

    ``options.dump`` names a folder that receives ``NN_<level>.mlir`` for the input and after every stage, the canonical
    text of the clusters, and the PTX and the program when they exist; each ``.mlir`` file can be fed back. ``on_stage``
    is called with the name of every stage before it runs. Device code is taken from ``store`` and left there, if there
    is one. ``tune`` is called with the stitched module, whose schedules it may change.

    Raises:
        MlirstitchError: malformed text, or IR that breaks the promises of its level.
        PassError: a stage refuses the module. With ``options.reproducer`` set, a folder that repeats it is left there.
        InternalError: a stage broke; the folder is left in any case, in the working folder by default.
    """
    stages = tuple(_with_control(stage, options) for stage in select_stages(options))
    _check_control(options)
    module = parse_module(source, source_name) if isinstance(source, str) else source
    run = _Run(module, options, on_stage or (lambda _: None), store, tune)
    run.start()
    for stage in stages:
        run.stage(stage)
    return run.result()


_REQUESTS = {"keep_together": "together", "keep_apart": "apart", "never_fuse": "never"}
"""Options of a compilation, and those of ``stitch-control`` that they become."""


def _with_control(stage: Stage, options: CompileOptions) -> Stage:
    """The stage that clusters, with the requests of the options in front; any other as it is."""
    given = {name: getattr(options, field) for field, name in _REQUESTS.items() if getattr(options, field)}
    if not given or StitchCluster.NAME not in stage.passes:
        return stage
    return replace(stage, passes=(pass_text(StitchControl(**given)), *stage.passes))


def _check_control(options: CompileOptions) -> None:
    """Raise :class:`PipelineError` for requests about ops that the input does not have any more."""
    asked = [name for name in _REQUESTS if getattr(options, name)]
    if asked and LEVELS.index(options.from_level) >= LEVELS.index("stitched"):
        raise PipelineError(
            f"option {asked[0]}: at level {options.from_level} the ops are in their kernels already",
            hint="start at level linalg or partitioned",
        )


class _Run:
    """One run over the table: the module and what has been collected from it so far."""

    def __init__(
        self,
        module: ir.Module,
        options: CompileOptions,
        on_stage: Callable[[str], None],
        store: Store | None,
        tune: Callable[[ir.Module], None] | None,
    ) -> None:
        self.module = module
        self.options = options
        self.on_stage = on_stage
        self.store = store
        self.tune = tune
        self.level = options.from_level
        self.texts: dict[str, str] = {}
        self.timings: dict[str, float] = {}
        self.kernels_text = ""
        self.files = 0

    def start(self) -> None:
        """Write what later passes read of the options, and take the first text."""
        if self.level == "linalg":
            invariants.check(self.module, "input")
            values = " ".join(f"{name}={getattr(self.options, name)}" for name in _OPTION_ATTRIBUTES)
            values += f" grid-composition={self.options.grid_composition}"
            run_pipeline(self.module, f"builtin.module(stitch-set-module-attributes{{{values}}})")
        else:
            attributes = self.module.operation.attributes
            with self.module.context:
                for name in _OPTION_ATTRIBUTES:
                    if f"stitch.{name}" not in attributes:
                        attributes[f"stitch.{name}"] = ir.StringAttr.get(getattr(self.options, name))
                if self.options.grid_composition == "on":
                    attributes["stitch.grid_composition"] = ir.UnitAttr.get()
            invariants.check(self.module, self.level)
        self._set_constants()
        self._collect()

    def _set_constants(self) -> None:
        """Write the constants of the target file that the options name."""
        if self.options.target_constants:
            operation = self.module.operation
            found = read_target_file(self.options.target_constants)
            check_chip(found, stitch.TARGET.require(operation))
            stitch.TARGET_CONSTANTS.set(operation, found.constants)

    def stage(self, stage: Stage) -> None:
        self.on_stage(stage.name)
        with self._timed(stage.name), self._reproducing(stage):
            if stage.end == "ptx" and self.store is not None:
                self._assemble(stage, self.store)
            elif stage.pipeline:
                run_pipeline(self.module, stage.pipeline)
            invariants.check(self.module, stage.end)
            self.level = stage.end
        if stage.end == "stitched" and self.tune is not None:
            self.on_stage("tune")
            with self._timed("tune"):
                self.tune(self.module)
        self._collect()

    def _assemble(self, stage: Stage, store: Store) -> None:
        """Take device code that was assembled before, or assemble it and keep it."""
        run_pipeline(self.module, f"builtin.module({VerifyChip.NAME})")
        operation = self.module.operation
        keys = device_code_keys(operation, stitch.target_of(operation))
        if not restore_device_code(operation, keys, store):
            run_pipeline(self.module, stage.pipeline)
            keep_device_code(self.module.operation, keys, store)

    def result(self) -> StageResult:
        """The result; with a dump folder, PTX and program are written too."""
        operation = self.module.operation
        reached = LEVELS.index(self.level)
        program = host_program(operation) if reached >= LEVELS.index("gpu") else None
        ptx = extract_ptx(operation) if self.level == "ptx" else {}
        if program is not None:
            self._write("program.json", json.dumps(program, indent=1))
        for name, text in ptx.items():
            self._write(f"{name}.ptx", text)
        settings = {name: ir.StringAttr(operation.attributes[f"stitch.{name}"]).value for name in _OPTION_ATTRIBUTES}
        constants = stitch.TARGET_CONSTANTS.get(operation)
        if constants is not None:
            settings["target_constants"] = constants_digest(constants)
        return StageResult(self.texts, self.kernels_text, ptx, program, self.timings, settings)

    def _collect(self) -> None:
        text = print_op(self.module.operation, locations=True)
        self.texts[self.level] = text
        self._write(f"{self.files:02d}_{self.level}.mlir", text)
        self.files += 1
        if self.level == "stitched":
            self.kernels_text = canonical_text(self.module.operation)
            self._write(CANONICAL_NAME, self.kernels_text)

    def _write(self, name: str, text: str) -> None:
        if not self.options.dump:
            return
        folder = Path(self.options.dump)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text if text.endswith("\n") else text + "\n")
        except OSError as error:
            raise PipelineError(f"cannot write the dump folder {folder}: {error.strerror}") from error

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.timings[name] = time.perf_counter() - started

    @contextmanager
    def _reproducing(self, stage: Stage) -> Iterator[None]:
        """Leave a folder that repeats a failure of ``stage``, where :func:`run_stages` promises one."""
        before = self.module.operation.clone()
        try:
            yield
        except MlirstitchError as error:
            if self.options.reproducer or isinstance(error, InternalError):
                error.reproducer = str(write_reproducer(before, stage.pipeline, self.options.reproducer or ".", error))
            raise
