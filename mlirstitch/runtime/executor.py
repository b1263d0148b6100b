"""Runs the step list of a bundle on one device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic

import numpy as np

from mlirstitch.errors import BundleError, LaunchError, MlirstitchError
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.call_checks import check_inputs, check_updates
from mlirstitch.runtime.device import Counters, Device, M
from mlirstitch.runtime.dtypes import Array, contiguous, numpy_dtype
from mlirstitch.runtime.program import Argument, Copy, Launch, LibraryCall, Operand, Program, Signature, Step, title
from mlirstitch.runtime.run_report import RunReport, StepReport

OnStep = Callable[[int, int, Step], None]
"""Called after every step with its index, the number of steps, and the step."""


class Executor(Generic[M]):
    """A program loaded on a device, to be run any number of times.

    Weights are read at every run from ``bundle.weights`` if they are shared with the caller, so that changes in place
    are seen. Tensors that a run updates in place (``signature.mutated``) are worked on in private memory and written
    back when the run has succeeded: a failed run leaves the caller's arrays, the weights and the executor as they were.

    Raises :class:`BundleError` if the bundle does not fit the device, :class:`LaunchError` if memory runs out.
    """

    def __init__(self, bundle: Bundle, device: Device[M], *, program: str = "main") -> None:
        bundle.check()
        self._bundle = bundle
        self._device = device
        self._program = bundle.program(program)
        self._lock = threading.Lock()
        self._mutated = {mutation.buffer for mutation in self._program.signature.mutated}
        self._check_device()
        self._modules = {name: device.load_ptx(text, name) for name, text in sorted(bundle.modules.items())}
        self._arena = self._allocate(self._program.arena_bytes, "arena of temporaries")
        self._owned: dict[int, M] = {}
        self._allocate_buffers()

    @property
    def program(self) -> Program:
        """The program that runs."""
        return self._program

    @property
    def signature(self) -> Signature:
        """What a call takes and gives."""
        return self._program.signature

    def run(self, inputs: Sequence[Array], *, on_step: OnStep | None = None) -> list[Array]:
        """Run once. ``inputs`` are arrays in the order of the signature, of exactly its shapes and dtypes, any strides.

        Returns new arrays, one an output (bfloat16 as ``ml_dtypes.bfloat16``). Raises :class:`LaunchError` if an input
        does not fit, before anything runs, or if a step fails.
        """
        return self._run(inputs, on_step, None)

    def run_with_report(
        self, inputs: Sequence[Array], *, on_step: OnStep | None = None
    ) -> tuple[list[Array], RunReport]:
        """As :meth:`run`, and measure every step; the device is synchronized after each."""
        steps: list[StepReport] = []
        start = time.perf_counter()
        outputs = self._run(inputs, on_step, steps)
        seconds = time.perf_counter() - start
        program = self._program
        report = RunReport(
            program.name, self._device.name, seconds, program.arena_bytes, program.temporary_bytes, tuple(steps)
        )
        return outputs, report

    def _check_device(self) -> None:
        reason = self._device.refuses(self._bundle.target)
        if reason is not None:
            raise BundleError(f"the bundle does not run on {self._device.name}: {reason}")
        for position, step in enumerate(self._program.steps):
            if isinstance(step, LibraryCall):
                reason = self._device.library.refuses(step)
                if reason is not None:
                    raise BundleError(
                        f"step {position} ({title(step)}): the library of {self._device.name} refuses it: {reason}",
                        hint="compile with --library none: contractions then become kernels",
                        source=_line(step),
                    )

    def _allocate(self, count: int, label: str) -> M:
        try:
            return self._device.allocate(count, label)
        except (MemoryError, ValueError) as error:
            raise LaunchError(f"no memory for {label}: {count} bytes on {self._device.name}") from error

    def _allocate_buffers(self) -> None:
        for buffer in self._program.buffers:
            label = f"{buffer.role} {buffer.name!r}"
            if buffer.arena_offset is not None:
                self._owned[buffer.id] = self._device.view(self._arena, buffer.arena_offset, buffer.bytes)
            elif buffer.role in ("output", "persistent"):
                self._owned[buffer.id] = self._allocate(buffer.bytes, label)
            if buffer.role == "persistent":
                self._device.clear(self._owned[buffer.id])

    def _run(self, inputs: Sequence[Array], on_step: OnStep | None, reports: list[StepReport] | None) -> list[Array]:
        signature = self._program.signature
        host = dict(zip((v.buffer for v in signature.inputs), check_inputs(signature, inputs), strict=True))
        host.update(
            {b.id: self._bundle.weights[b.name] for b in self._program.buffers if b.role in ("weight", "constant")}
        )
        check_updates(self._program, host)
        with self._lock:
            try:
                memory = self._bind(host)
                self._execute(memory, on_step, reports)
                outputs = [self._fetch(memory[v.buffer], v.dtype, v.shape) for v in signature.outputs]
                updates = [(host[m.buffer], memory[m.buffer]) for m in signature.mutated]
                fetched = [self._fetch(source, array.dtype.name, array.shape) for array, source in updates]
            except BaseException:
                self._reset()
                raise
            for (array, _), new in zip(updates, fetched, strict=True):
                array[...] = new
        return outputs

    def _bind(self, host: dict[int, Array]) -> list[M]:
        """Device memory of every buffer for this run: adopted, or filled from the host."""
        memory = dict(self._owned)
        for index in sorted(host):
            memory[index] = self._on_device(index, host[index])
        self._device.discard(self._arena)
        for buffer in self._program.buffers:
            if buffer.role == "output":
                self._device.discard(memory[buffer.id])
        return [memory[buffer.id] for buffer in self._program.buffers]

    def _on_device(self, index: int, array: Array) -> M:
        buffer = self._program.buffers[index]
        private = index in self._mutated
        adopted = None if private else self._device.adopt(array)
        if adopted is not None:
            return adopted
        resident = index in self._owned
        if not resident:
            self._owned[index] = self._allocate(buffer.bytes, f"{buffer.role} {buffer.name!r}")
        changing = private or buffer.role == "input" or self._bundle.shared_weights
        if changing or not resident:
            self._device.copy_in(self._owned[index], contiguous(array))
        return self._owned[index]

    def _execute(self, memory: list[M], on_step: OnStep | None, reports: list[StepReport] | None) -> None:
        steps = self._program.steps
        origin = time.perf_counter()
        for position, step in enumerate(steps):
            start = time.perf_counter()
            try:
                counters = self._perform(step, memory, reports is not None)
                if reports is not None:
                    self._device.synchronize()
            except MlirstitchError as error:
                where = f"step {position} of {len(steps)} ({title(step)}): "
                line = _line(step)
                # The user's line comes first; a line of the kernel's MLIR text stands in the message.
                inner = f" [{error.source}]" if line and error.source and error.source != line else ""
                raise LaunchError(
                    where + error.message + inner, hint=error.hint, source=line or error.source
                ) from error
            if reports is not None:
                seconds = time.perf_counter() - start
                reports.append(self._report(position, step, start - origin, seconds, counters))
            if on_step is not None:
                on_step(position, len(steps), step)
        self._device.synchronize()

    def _perform(self, step: Step, memory: list[M], count: bool) -> Counters | None:
        if isinstance(step, Launch):
            arguments = [memory[argument.buffer] for argument in step.arguments]
            return self._device.launch(self._modules[step.module], step, arguments, count=count)
        if isinstance(step, LibraryCall):
            self._device.library.run(step, [memory[operand.buffer] for operand in step.operands])
        else:
            self._device.copy(memory[step.destination], memory[step.origin])
        return None

    def _fetch(self, source: M, dtype: str, shape: tuple[int, ...]) -> Array:
        array = np.empty(shape, numpy_dtype(dtype))
        self._device.copy_out(array, source)
        return array

    def _reset(self) -> None:
        """After a failed run: tickets of unfinished reductions must not reach the next run."""
        for buffer in self._program.buffers:
            if buffer.role == "persistent":
                self._device.clear(self._owned[buffer.id])

    def _report(self, position: int, step: Step, start: float, seconds: float, counters: Counters | None) -> StepReport:
        touched: Sequence[Argument | Operand]
        if isinstance(step, Copy):
            kind, cluster, op, name, touched = "", "", "copy", "copy", ()
            size = 2 * step.bytes
        else:
            launch = isinstance(step, Launch)
            op, name = ("launch", step.kernel) if launch else ("library", step.routine)
            touched = step.arguments if launch else step.operands
            kind, cluster = step.kind, step.stitch_cluster
            size = sum(self._program.buffers[index].bytes for index in {item.buffer for item in touched})
        return StepReport(position, op, name, cluster, kind, step.source, start, seconds, size, counters)


def _line(step: Any) -> str:
    return step.source[0] if step.source else ""
