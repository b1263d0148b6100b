"""Which engine runs a launch: the JIT engine where it can, else the reference engine, and why."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.ptx.ir import Kernel
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory
from mlirstitch.runtime.emulator.reference.engine import ReferenceEngine
from mlirstitch.runtime.emulator.reference.launch import OutOfBudget

if TYPE_CHECKING:
    from mlirstitch.runtime.emulator.jit.engine import JitEngine

ENGINES = ("auto", "jit", "reference")
"""``auto``: the JIT engine for long launches that it can run, the reference engine for the others."""

_TRIALS = 8
"""Short launches of a kernel before machine code is made for it after all."""
_TRIAL_WORK = 1 << 26
_TRIAL_BUDGETS = (256, 1 << 16)
_TRIAL_BYTES = 1 << 24
"""Bounds of a trial (see :meth:`Engines._try_reference`): threads times instructions, instructions, bytes kept aside.
They keep it below what making machine code costs, some tenths of a second."""

Extents: TypeAlias = tuple[int, int, int]
Work: TypeAlias = tuple[GlobalMemory, bytes, dict[str, int], Extents, Extents, int]
"""Memory, parameters, addresses of module variables, grid, block, bytes of shared memory."""


class Engines:
    """The engines of the kernels of one module, made when they are first needed.

    Attributes:
        used: the engine that ran each kernel last.
        reasons: why the reference engine ran a kernel that the JIT engine was to run.
    """

    def __init__(self, kernels: Mapping[str, Kernel], ptx: str, engine: str) -> None:
        self._kernels = kernels
        self._ptx = ptx
        self._engine = checked(engine)
        self._reference: dict[str, ReferenceEngine] = {}
        self._jit: dict[str, JitEngine] = {}
        self._trials: dict[str, int] = {}
        self.used: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def reference(self, entry: str) -> ReferenceEngine:
        """The reference engine of a kernel."""
        if entry not in self._reference:
            self._reference[entry] = ReferenceEngine(self._kernels[entry])
        return self._reference[entry]

    def run(
        self,
        entry: str,
        work: Work,
        engine: str | None,
        *,
        checks: bool | None,
        budget: int,
        cooperative: bool,
        tally: Tally | None,
        cluster: Extents,
        dynamic_shared_bytes: int,
        seed: int | None,
        defined: Mapping[int, np.ndarray[Any, Any]] | None,
    ) -> dict[str, int]:
        """Run a launch with ``engine`` (None: that of the module); warp instructions by class.

        ``checks`` None asks for all that the engine looks for which runs the kernel.

        Raises :class:`LaunchError` for every finding, and where ``engine`` is "jit" and the launch asks for what only
        the reference engine does.
        """
        wanted = self._engine if engine is None else checked(engine)
        more = bool(checks) or seed is not None or defined is not None
        if wanted == "jit" and more:
            raise LaunchError(
                f"kernel {entry!r}: the JIT engine does not look for uninitialised reads, races and the like",
                hint="pass checks=False, or leave the choice to engine='auto'",
            )
        if wanted == "auto" and checks is None and not cooperative and cluster == (1, 1, 1):
            done = self._try_reference(entry, work, budget, tally, dynamic_shared_bytes)
            if done is not None:
                return done
        if wanted != "reference" and not more:
            reason = self._unfit(entry, cooperative, cluster)
            if not reason:
                from mlirstitch.runtime.emulator.jit.emit import Unsupported

                self.used[entry] = "jit"
                try:
                    return self._jit[entry].run(*work, budget=budget, tally=tally)
                except Unsupported as error:
                    reason = str(error)
            self.reasons[entry] = reason
        self.used[entry] = "reference"
        return self.reference(entry).run(
            *work,
            checks=checks is not False,
            budget=budget,
            cooperative=cooperative,
            tally=tally,
            cluster=cluster,
            dynamic_shared_bytes=dynamic_shared_bytes,
            seed=seed,
            defined=defined,
        )

    def _try_reference(
        self, entry: str, work: Work, budget: int, tally: Tally | None, dynamic_shared_bytes: int
    ) -> dict[str, int] | None:
        """Run a short launch on the reference engine, which needs no machine code and looks for more.

        None, and memory as it was, if the launch turns out to be long or its kernel is launched often: then machine
        code pays. Instructions and launches are counted, not seconds: the same calls run on the same engines.
        """
        memory, _, _, grid, block, _ = work
        least, most = _TRIAL_BUDGETS
        trial = min(_TRIAL_WORK // max(prod(grid) * prod(block), 1), most, budget)
        written = [a for a in memory.allocations if a.writable]
        self._trials[entry] = self._trials.get(entry, 0) + 1
        if entry in self._jit or self._trials[entry] > _TRIALS or trial < least:
            return None
        if sum(a.size for a in written) > _TRIAL_BYTES:
            return None
        before = [a.raw.copy() for a in written]
        counted = [(a.loaded, a.stored) for a in memory.allocations]
        trial_tally = None if tally is None else Tally()
        try:
            classes = self.reference(entry).run(
                *work,
                checks=True,
                budget=trial,
                cooperative=False,
                tally=trial_tally,
                dynamic_shared_bytes=dynamic_shared_bytes,
            )
        except OutOfBudget:
            if trial == budget:
                raise
            for allocation, kept in zip(written, before, strict=True):
                allocation.raw[...] = kept
            for allocation, (loaded, stored) in zip(memory.allocations, counted, strict=True):
                allocation.loaded, allocation.stored = loaded, stored
            return None
        if tally is not None and trial_tally is not None:
            tally.__dict__.update(vars(trial_tally))
        self.used[entry] = "reference"
        return classes

    def _unfit(self, entry: str, cooperative: bool, cluster: Extents) -> str:
        """Why the JIT engine cannot run the kernel, or "" and it is ready."""
        if cluster != (1, 1, 1):
            return "thread-block clusters are left to the reference engine"
        if cooperative:
            return "cooperative launches are left to the reference engine"
        if entry in self._jit:
            return ""
        from mlirstitch.runtime.emulator.jit.compiler import unavailable
        from mlirstitch.runtime.emulator.jit.engine import JitEngine

        reason = unavailable()
        if not reason:
            self._jit[entry] = JitEngine(self._kernels[entry], hashlib.sha256(self._ptx.encode()).hexdigest())
        return reason


def checked(engine: str) -> str:
    """The name of an engine. Raises :class:`LaunchError` for an unknown one."""
    if engine not in ENGINES:
        raise LaunchError(f"unknown engine {engine!r}", hint=f"engines: {', '.join(ENGINES)}")
    return engine
