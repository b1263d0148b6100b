"""The tests of the reference engine that do not need its extra checks, run on the JIT engine."""

from __future__ import annotations

from typing import Any

import ptx_text
import pytest
import test_counters
import test_launch
import test_warp_instructions

from mlirstitch.runtime import emulator

_MODULES = (ptx_text, test_counters, test_launch, test_warp_instructions)


def _run(text: str, args: Any, block: Any = 32, grid: Any = 1, **options: Any) -> emulator.LaunchCounters:
    module = emulator.load(text)
    result = module.launch("k", grid, block, args, **{"checks": False, "engine": "jit", **options})
    assert module.engine_of("k") == "jit", module.fallback("k")
    return result


@pytest.fixture(autouse=True)
def jit(monkeypatch: pytest.MonkeyPatch) -> None:
    """``run`` of the shared tests goes to the JIT engine."""
    for module in _MODULES:
        if hasattr(module, "run"):
            monkeypatch.setattr(module, "run", _run)


for _module in _MODULES:
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and "cooperative" not in _name:
            globals()[f"test_{_module.__name__.removeprefix('test_')}_{_name.removeprefix('test_')}"] = _test
