"""The compiler's front door: a model or IR in, a :class:`Compiled` program out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mlirstitch.driver.cache import Store, open_cache
from mlirstitch.driver.cache.keys import program_key
from mlirstitch.driver.compiled import Compiled, Program
from mlirstitch.driver.console import note
from mlirstitch.driver.sources import Source, read_source, read_spec
from mlirstitch.driver.stage_result import StageResult
from mlirstitch.driver.tensors import as_array
from mlirstitch.errors import MlirstitchError
from mlirstitch.options import KERNELS_TEXT_NAME, LEVELS, CompileOptions
from mlirstitch.runtime import Bundle, decode_program, read_bundle
from mlirstitch.target import Target
from mlirstitch.target_file import target_from

OnPhase = Callable[[str], None]
OnNote = Callable[[str], None]


def compile(
    x: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    on_phase: OnPhase | None = None,
    **options: Any,
) -> Compiled:
    """Compile a PyTorch model or MLIR to PTX and a launch plan.

    Args:
        x: an ``nn.Module``, a function of tensors, an ``ExportedProgram``; or MLIR (text, path, or a module of the
            ``mlir`` package) with one public function ``@main`` on static ranked tensors.
        example_inputs: positional example arguments of a model: a tuple, or one tensor. Shapes and dtypes are fixed.
        example_kwargs: keyword example arguments of a model.
        on_phase: called with the name of every phase as it begins.
        options: fields of :class:`mlirstitch.CompileOptions` (``target="sm_90"``, ``numerics``, ``library``, ``dump``,
            ...); ``MLIRSTITCH_*`` variables stand in for those not given.

    Returns:
        A callable: torch tensors or numpy arrays in, the same kind out, in the model's own structure. A module's
        weights are used where they lie: a later in-place change is seen by the next call.

    Raises:
        MlirstitchError: an unknown option, target, op, type or shape; the message names it, the user's source line, the
            reason and a way out.
    """
    chosen = _options(options)
    started = time.perf_counter()
    if on_phase is not None:
        on_phase("import")
    source = read_source(x, example_inputs, example_kwargs)
    return _compile(source, chosen, on_phase, note, {"import": time.perf_counter() - started})


def compile_spec(
    spec: str,
    text: str | None,
    options: CompileOptions,
    *,
    on_phase: OnPhase | None = None,
    on_input: Callable[[str], None] | None = None,
    on_note: OnNote = note,
) -> Compiled:
    """Compile what the command line names: a ``.mlir`` path, ``-`` with its ``text``, or ``file.py:factory``.

    ``on_input`` receives the IR text before any stage runs on it, ``on_note`` what the user should know though it does
    no harm. Raises as :func:`compile` does.
    """
    target_from(options.target, options.target_constants)
    started = time.perf_counter()
    if on_phase is not None:
        on_phase("import")
    source = read_spec(spec, text)
    if on_input is not None:
        on_input(source.text)
    return _compile(source, options, on_phase, on_note, {"import": time.perf_counter() - started})


def load(path: str | Path, *, device: str = "emulator") -> Program:
    """A saved bundle, ready to be called. Raises :class:`mlirstitch.BundleError`."""
    return Program(read_bundle(path), device=device)


def _options(options: dict[str, Any]) -> CompileOptions:
    target = options.pop("target", None)
    if isinstance(target, Target):
        target = target.chip
    chosen = CompileOptions.from_environment(target=target, **options)
    target_from(chosen.target, chosen.target_constants)
    return chosen


def _compile(
    source: Source, options: CompileOptions, on_phase: OnPhase | None, on_note: OnNote, timings: Mapping[str, float]
) -> Compiled:
    options = source.with_requests(options)
    store = open_cache(options, on_note)
    key = ""
    if store is not None:
        key = program_key(source.text, source.name, from_model=source.calling is not None, options=options)
    result = _stages_result(source, options, on_phase, store, key)
    texts = dict(result.texts)
    if "ptx" in texts:
        texts["ptx"] = "\n".join(result.ptx[name] for name in sorted(result.ptx))

    plan = decode_program(result.program) if result.program is not None and "ptx" in texts else None

    @cache
    def make_report() -> dict[str, Any]:
        return _kept_report(texts.get("stitched", ""), store, key)

    def make_bundle() -> Bundle:
        if plan is None:
            raise MlirstitchError(
                f"the compilation stopped at level {options.to_level}: there is no PTX to run or to save",
                hint="compile to level ptx, the default",
            )
        target = Target.parse(result.settings["target"])
        return Bundle(
            target={"chip": target.chip, "ptx": target.ptx_version},
            programs=(plan,),
            modules=result.ptx,
            weights={name: as_array(tensor, name) for name, tensor in source.weights.items()},
            options={name: value for name, value in result.settings.items() if name != "target"},
            producer={"name": "mlirstitch", "version": _version()},
            calling=source.calling.to_json() if source.calling is not None else {},
            report=make_report(),
            files=_texts_for_readers(texts, result.kernels_text),
        )

    return Compiled(
        texts,
        {**timings, **result.timings},
        make_bundle,
        make_report=make_report,
        launch_plan=plan,
        modules=result.ptx if plan is not None else None,
        out_spec=source.trees[1] if source.trees is not None else None,
    )


def _stages_result(
    source: Source, options: CompileOptions, on_phase: OnPhase | None, store: Store | None, key: str
) -> StageResult:
    """What the stages leave: as it was kept, or made and kept. A dump shows stages, so it runs them."""
    if store is not None and not options.dump:
        if on_phase is not None:
            on_phase("look into the cache")
        started = time.perf_counter()
        content = store.get("program", key)
        if content is not None:
            found = StageResult.decode(content)
            return replace(found, timings={"cache": time.perf_counter() - started})
    result = _run_stages(source, options, on_phase, store)
    if store is not None:
        store.put("program", key, result.encode())
    return result


def _run_stages(source: Source, options: CompileOptions, on_phase: OnPhase | None, store: Store | None) -> StageResult:
    try:
        from mlirstitch.dialects import parse_module
        from mlirstitch.driver.stages import run_stages
        from mlirstitch.driver.tuning import tuner_of
    except ModuleNotFoundError as error:
        raise MlirstitchError(
            f"compiling needs the package {error.name}, which is not installed",
            hint="pip install mlirstitch with its dependencies; running a saved bundle needs numpy alone",
        ) from error

    started = time.perf_counter()
    module = parse_module(source.text, source.name)
    if source.calling is None and options.to_level != LEVELS[0]:  # a plan for several devices asks for the roles
        _all_arguments_are_inputs(module.operation)
    parsing = {"parse": time.perf_counter() - started}
    show = on_phase or (lambda _: None)
    tune = tuner_of(options, store, lambda text: show(f"tune {text}"))
    result = run_stages(module, options, source_name=source.name, on_stage=on_phase, store=store, tune=tune)
    return replace(result, timings={**parsing, **result.timings})


def _all_arguments_are_inputs(module: Any) -> None:
    """IR comes without weights, also where it was dumped from a model that had some: the caller passes them all."""
    from mlirstitch.dialects import stitch
    from mlirstitch.passes.structured import main_function

    main = main_function(module)
    if main is None:
        return
    roles = stitch.ROLE.of_arguments(main)
    if any(role is not None for role in roles):
        stitch.ROLE.set_arguments(main, ["input" if role is not None else None for role in roles])


def _kept_report(stitched: str, store: Store | None, key: str) -> dict[str, Any]:
    """The report as it was kept, or made and kept."""
    content = store.get("report", key) if store is not None else None
    if content is not None:
        return json.loads(content)
    report = _report(stitched)
    if store is not None:
        store.put("report", key, json.dumps(report).encode())
    return report


def _report(stitched: str) -> dict[str, Any]:
    """What stitching did; ``stitched`` is the text of that level, "" if this compilation did not stitch."""
    if not stitched:
        return {}
    import mlirstitch.lowering  # noqa: F401  the report asks the templates what their kernels take
    from mlirstitch.dialects import parse_module
    from mlirstitch.passes.stitching.explain import report

    # The same data that comes back from disk: lists, not tuples.
    return json.loads(json.dumps(report(parse_module(stitched).operation)))


def _texts_for_readers(texts: Mapping[str, str], kernels_text: str) -> dict[str, str]:
    """What a bundle keeps beside the product: the stitched module, and the text that ``.loc`` lines of PTX refer to."""
    kept = {"stitched.mlir": texts.get("stitched", ""), KERNELS_TEXT_NAME: kernels_text}
    return {name: text for name, text in kept.items() if text}


def _version() -> str:
    import mlirstitch

    return mlirstitch.__version__
