"""Which engine runs a launch, and what is said if it is not the one wanted."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from ptx_text import kernel

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import emulator
from mlirstitch.runtime.emulated_device import ENGINE_VARIABLE, EmulatedDevice
from mlirstitch.runtime.emulator.jit import compiler
from mlirstitch.runtime.emulator.jit.compiler import CACHED_KERNELS, Compiler
from mlirstitch.runtime.emulator.jit.emit import Specialisation

_STORE = kernel("mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; st.global.b32 [%d1], %r0;", 1)
_TANH = kernel("ld.global.b32 %r1, [%a0]; tanh.approx.f32 %r1, %r1; st.global.b32 [%a0], %r1;", 1)


def _run(text: str, **options: Any) -> emulator.EmulatedModule:
    module = emulator.load(text)
    module.launch("k", 1, 32, [np.zeros(32, np.float32)], **options)
    return module


def test_extra_checks_need_the_reference_engine_and_their_absence_does_not() -> None:
    assert _run(_STORE).engine_of("k") == "reference"
    assert _run(_STORE, checks=False).engine_of("k") == "jit"
    assert _run(_STORE, checks=False, engine="reference").engine_of("k") == "reference"
    assert _run(_STORE, checks=False, seed=1).engine_of("k") == "reference"
    assert _run(_STORE, sanitize=True).fallback("k") == ""


_COUNT = kernel(
    "ld.global.b32 %r1, [%a0];\nmov.b32 %r2, 0;\n$l: add.u32 %r1, %r1, 1; add.u32 %r2, %r2, 1;\n"
    "setp.lt.u32 %p1, %r2, 200000; @%p1 bra $l;\nst.global.b32 [%a0], %r1;",
    1,
)


def test_short_launches_run_on_the_reference_engine_and_repeated_ones_on_machine_code() -> None:
    module = emulator.load(_STORE)
    out = np.zeros(32, np.int32)
    engines = []
    for _ in range(10):
        module.launch("k", 1, 32, [out], checks=None)
        engines.append(module.engine_of("k"))
    assert engines == ["reference"] * 8 + ["jit"] * 2
    assert out.tolist() == list(range(32))


def test_a_launch_that_turns_out_long_starts_again_on_machine_code_with_memory_and_counters_as_they_were() -> None:
    module = emulator.load(_COUNT)
    out = np.full(1, 5, np.int32)
    counted = module.launch("k", 1, 1, [out], checks=None)
    assert module.engine_of("k") == "jit"
    assert out[0] == 200_005
    again = emulator.load(_COUNT).launch("k", 1, 1, [np.full(1, 5, np.int32)], engine="reference")
    assert counted == again


def test_an_endless_loop_within_the_callers_own_small_budget_is_a_finding() -> None:
    with pytest.raises(LaunchError, match="still running after 1000 instructions"):
        emulator.load(_COUNT).launch("k", 1, 1, [np.zeros(1, np.int32)], checks=None, budget=1000)


def test_kernel_with_an_instruction_the_jit_engine_lacks_falls_back_and_says_which() -> None:
    module = _run(_TANH, checks=False)
    assert module.engine_of("k") == "reference"
    assert "'tanh.approx.f32'" in module.fallback("k")
    assert "PTX line" in module.fallback("k")


def test_cooperative_launches_fall_back_and_say_so() -> None:
    module = _run(_STORE, checks=False, cooperative=True)
    assert (module.engine_of("k"), "cooperative" in module.fallback("k")) == ("reference", True)


def test_fallback_without_a_wish_for_checks_has_them_all() -> None:
    """The engine that has them runs anyway."""
    body = "setp.eq.u32 %p1, %r0, 0; @%p1 bra $a;\nmov.b32 %r9, 1;\n$a: tanh.approx.f32 %r9, %r9;"
    module = emulator.load(kernel(body))
    with pytest.raises(LaunchError, match="which it has not written"):
        module.launch("k", 1, 32, [], checks=None)


@pytest.mark.parametrize("reason", ["no mlir", "wrong order"])
def test_without_a_usable_mlir_the_reference_engine_runs(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(compiler, "unavailable", lambda: reason)
    module = _run(_STORE, checks=False)
    assert (module.engine_of("k"), module.fallback("k")) == ("reference", reason)


def _in_a_child(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("first", "then", "good"),
    [("mlir.ir", "torch_mlir", True), ("torch_mlir", "mlir.ir", False), ("torch_mlir", "json", False)],
)
def test_load_order_of_the_native_packages_is_recognised(first: str, then: str, good: bool) -> None:
    code = (
        "import sys, types\n"
        f"for name in ({first!r}, {then!r}): sys.modules[name] = types.ModuleType(name)\n"
        "from mlirstitch.runtime.emulator.jit.compiler import wrong_order\nprint(wrong_order())"
    )
    assert (_in_a_child(code) == "") == good


def test_the_emulator_imports_neither_mlir_nor_the_jit_engine_before_a_launch() -> None:
    code = (
        "import sys\nfrom mlirstitch.runtime import emulator\n"
        "print([n for n in sys.modules if n == 'mlir' or n.startswith('mlir.') or 'emulator.jit' in n])"
    )
    assert _in_a_child(code) == "[]"


def test_device_takes_the_engine_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_VARIABLE, "reference")
    module = EmulatedDevice().load_ptx(_STORE, "m")
    module.launch("k", 1, 32, [np.zeros(32, np.float32)], checks=None)
    assert module.engine_of("k") == "reference"
    monkeypatch.setenv(ENGINE_VARIABLE, "fastest")
    with pytest.raises(LaunchError, match="unknown engine 'fastest'") as caught:
        EmulatedDevice()
    assert caught.value.hint == "engines: auto, jit, reference"


def test_machine_code_is_found_again_and_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Compiler()
    built: list[str] = []

    def compile_anew(kernel: Any, special: Specialisation) -> Any:
        built.append(kernel.name)
        return len(built)

    monkeypatch.setattr(cache, "_compile", compile_anew)
    k = emulator.load(_STORE).engine("k").kernel
    special = Specialisation((32, 1, 1), (1, 1, 1), False)
    first: Any = cache.compile("0", k, special)
    assert cache.compile("0", k, special) is first
    for number in range(1, CACHED_KERNELS):
        cache.compile(str(number), k, special)
        cache.compile("0", k, special)
    assert len(built) == CACHED_KERNELS
    cache.compile("one more", k, special)
    cache.compile("0", k, special)
    assert len(built) == CACHED_KERNELS + 1
    cache.compile("1", k, special)
    assert len(built) == CACHED_KERNELS + 2


def test_launches_from_several_threads_do_not_disturb_each_other() -> None:
    import threading

    body = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %d0, %r3, 4;
add.u64 %d1, %a0, %d0; add.u32 %r4, %r3, %s1; st.global.b32 [%d1], %r4;"""
    module = emulator.load(kernel(body, 1, ["u32"]))
    outputs = [np.zeros(128 * 64, np.uint32) for _ in range(4)]

    def launch(number: int) -> None:
        for _ in range(5):
            module.launch("k", 64, 128, [outputs[number], np.uint32(number)], checks=False, engine="jit")

    threads = [threading.Thread(target=launch, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, output in enumerate(outputs):
        np.testing.assert_array_equal(output, np.arange(128 * 64, dtype=np.uint32) + number)
