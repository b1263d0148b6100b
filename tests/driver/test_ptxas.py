"""Reports of ptxas."""

from __future__ import annotations

import os

import pytest

from mlirstitch.driver import ptxas
from mlirstitch.driver.ptxas import check, find_ptxas
from mlirstitch.errors import MlirstitchError

PTX = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry add(.param .u64 p)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  .shared .align 4 .b8 slots[256];
  ld.param.b64 %rd1, [p];
  mov.u32 %r2, slots;
  st.shared.b32 [%r2], %r2;
  ld.shared.b32 %r1, [%r2];
  st.global.b32 [%rd1], %r1;
  ret;
}
"""


def test_the_assembler_of_the_dev_extra_is_found() -> None:
    path = find_ptxas()
    assert path is not None
    assert os.access(path, os.X_OK)


def test_an_accepted_kernel_is_reported_with_its_cost() -> None:
    report = check(PTX, "sm_90")
    assert report.accepted
    assert report.errors == ()
    use = report.kernels["add"]
    assert use.registers > 0
    assert use.shared == 256
    assert (use.stack, use.spill_stores, use.spill_loads) == (0, 0, 0)
    assert report.spilling == ()


def test_refused_ptx_gives_a_report_with_the_error_lines() -> None:
    report = check(PTX.replace("ld.param.b64", "ld.nonsense.b64"), "sm_90")
    assert not report.accepted
    assert "module.ptx" in report.errors[0]


def test_ptx_for_a_newer_chip_is_refused() -> None:
    assert not check(PTX.replace("sm_80", "sm_90"), "sm_80").accepted


def test_without_an_assembler_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    with pytest.raises(MlirstitchError, match="nvidia-cuda-nvcc"):
        check(PTX, "sm_90")


def test_spills_are_read_from_the_assemblers_words() -> None:
    output = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "ptxas info    : Function properties for a\n"
        "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, 384 bytes cmem[0]\n"
    )
    report = ptxas._parse("sm_90", 0, output)
    assert report.kernels["a"] == ptxas.KernelUse(255, 16, 8, 12, 0)
    assert report.spilling == ("a",)
