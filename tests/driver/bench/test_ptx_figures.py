"""Counting in PTX text."""

from __future__ import annotations

import pytest

from mlirstitch.driver.bench.ptx_figures import GlobalAccess, figures_of, kernel_texts
from mlirstitch.errors import MlirstitchError

PTX = """
.version 7.8
.visible .entry first(
	.param .u64 .ptr .align 16 first_param_0,
	.param .u64 .ptr .align 16 first_param_1,
	.param .u64 first_param_2
)
.maxntid 64, 1, 1
{
	.reg .pred 	%p<2>;
	.reg .b64 	%rd<9>;
$L__func_begin0:
	// demoted variable; a comment counts for nothing
	.shared .align 16 .b8 slots[20];
	.shared .align 16 .u32 flag;
	.local .align 4 .b8 depot[12];
	ld.param.b64 	%rd1, [first_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
	ld.param.b64 	%rd3, [first_param_1];
	ld.param.b64 	%rd7, [first_param_2];
	.loc	1 4 0
	add.s64 	%rd4, %rd2, 16;
	mad.lo.s64 	%rd5, %rd6, 4, %rd3;
	ld.global.nc.v4.b32 	{%r1, %r2, %r3, %r4}, [%rd4+64];
	ld.global.b32 	%r5, [%rd7];
	shfl.sync.bfly.b32 	%r6, %r1, 16, 31, -1;
	@%p1 bra 	$L__BB0_2;
	bar.sync 	0;
$L__BB0_2:
	@!%p1 barrier.cluster.arrive.aligned;
	@%p1 st.global.v2.b16 	[%rd5], {%rs1, %rs2};
	ret;
}
.visible .entry second(
	.param .u64 second_param_0
)
{
	ld.global.b32 	%r1, [%rd1];
	ret;
}
"""


def test_every_kernel_of_a_module_is_found():
    assert list(kernel_texts(PTX)) == ["first", "second"]


def test_statements_and_what_they_are():
    figures = figures_of(kernel_texts(PTX)["first"])
    assert figures.statements == 19
    assert (figures.shuffles, figures.barriers) == (1, 2)
    assert (figures.shared_bytes, figures.local_bytes) == (36, 12)


def test_accesses_are_traced_to_the_arguments():
    assert figures_of(kernel_texts(PTX)["first"]).accesses == (
        GlobalAccess(0, False, 128, True),
        GlobalAccess(2, False, 32, False),
        GlobalAccess(1, True, 32, False),
    )
    assert figures_of(kernel_texts(PTX)["second"]).accesses == (GlobalAccess(-1, False, 32, False),)


def test_a_kernel_without_an_end_is_refused():
    with pytest.raises(MlirstitchError, match="has no end"):
        kernel_texts(PTX.replace("}", ""))
