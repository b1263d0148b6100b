"""Which engine runs a launch: the JIT engine where it can, else the reference engine, and why."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.ptx.ir import Kernel
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory
from mlirstitch.runtime.emulator.reference.engine import ReferenceEngine

if TYPE_CHECKING:
    from mlirstitch.runtime.emulator.jit.engine import JitEngine

ENGINES = ("auto", "jit", "reference")
"""``auto``: the JIT engine for launches that it can run, the reference engine for the others."""

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
