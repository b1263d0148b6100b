"""What a launch plan says about the touched part of every argument: never too little, and a slice where it is one."""

from __future__ import annotations

import pytest

import mlirstitch
from mlirstitch.driver.bench.workloads import get
from mlirstitch.runtime.program import Launch

import torch  # isort: skip


@pytest.mark.parametrize("name", ["dien", "swin_block", "bert_layer_train", "xent_fwd_bwd", "adam"])
def test_what_a_kernel_writes_it_touches_in_full(name: str) -> None:
    program = get(name).traced("small", torch.float32)
    plan = mlirstitch.compile(program.module, program.inputs).launch_plan
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    assert launches
    for launch in launches:
        for argument in launch.arguments:
            assert argument.touched is not None
            assert argument.touched <= min(argument.bytes, argument.traffic)
            if argument.access == "write" and plan.buffers[argument.buffer].role != "temporary":
                assert argument.touched == argument.bytes, (launch.kernel, argument)


class Steps(torch.nn.Module):
    """Reads one time step of a long sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, 3] * 2).tanh()


def test_a_kernel_that_reads_one_time_step_touches_that_step() -> None:
    plan = mlirstitch.compile(Steps(), [torch.zeros(4, 100, 16)]).launch_plan
    (launch,) = (step for step in plan.steps if isinstance(step, Launch))
    assert [argument.touched for argument in launch.arguments] == [4 * 16 * 4, 4 * 16 * 4]
    assert [argument.bytes for argument in launch.arguments] == [4 * 100 * 16 * 4, 4 * 16 * 4]
