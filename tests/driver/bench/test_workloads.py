import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from mlirstitch.driver.bench import workloads
from mlirstitch.errors import MlirstitchError


def test_there_are_23_workloads_in_both_sizes():
    assert len(workloads.names()) == 23
    for name in workloads.names():
        assert set(workloads.get(name).sizes) == set(workloads.SIZES)


@pytest.mark.parametrize("name", workloads.names())
def test_small_programs_run_in_eager_mode_and_give_finite_tensors(name):
    program = workloads.get(name).build("small")
    for value in tree_leaves(program.module(*program.inputs)):
        assert value.isfinite().all()


def test_building_twice_gives_the_same_values():
    first, second = (workloads.get("bert_layer").build("small") for _ in range(2))
    assert all(map(torch.equal, first.inputs, second.inputs))
    assert all(map(torch.equal, first.module.parameters(), second.module.parameters()))


def test_half_precision_programs_hold_no_float32_weights_or_inputs():
    program = workloads.get("crnn").build("small", torch.bfloat16)
    floats = [v for v in (*program.module.state_dict().values(), *program.inputs) if v.is_floating_point()]
    assert {value.dtype for value in floats} == {torch.bfloat16}


def test_conversion_to_float64_keeps_the_values_and_the_original():
    program = workloads.get("dien").build("small", torch.bfloat16)
    wide = program.to(torch.float64)
    for narrow, value in zip(program.module.parameters(), wide.module.parameters(), strict=True):
        assert value.dtype == torch.float64
        assert torch.equal(narrow.double(), value)
    assert {p.dtype for p in program.module.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_real_sizes_export_without_storage(dtype):
    exported = workloads.get("bert_base").export("real", dtype)
    assert all(isinstance(value, FakeTensor) for value in exported.state_dict.values())
    assert sum(value.numel() for value in exported.state_dict.values()) > 100_000_000
    assert {value.dtype for value in exported.state_dict.values()} == {dtype}


def test_training_steps_return_the_gradient_of_every_weight():
    program = workloads.get("bert_layer_train").build("small")
    weights = len(list(program.module.parameters()))
    results = program.module(*program.inputs)
    assert len(results) == 2 + weights
    assert [gradient.shape for gradient in results[2:]] == [weight.shape for weight in program.inputs[:weights]]


def test_traced_training_step_computes_what_the_module_computes():
    workload = workloads.get("xent_fwd_bwd")
    program, traced = workload.build("small"), workload.traced("small")
    for wanted, got in zip(program.module(*program.inputs), traced.module(*traced.inputs), strict=True):
        torch.testing.assert_close(got, wanted)


def test_selection_keeps_the_order_asked_for():
    assert workloads.select(" softmax,adam ") == ["softmax", "adam"]
    assert workloads.select("all") == workloads.names()


@pytest.mark.parametrize("text", ["", ",", "softmax,nope"])
def test_selection_refuses_unknown_and_empty_names_and_lists_the_known(text):
    with pytest.raises(MlirstitchError, match="bert_layer_train"):
        workloads.select(text)


def test_an_unknown_size_is_refused():
    with pytest.raises(MlirstitchError, match="no size 'huge'"):
        workloads.get("softmax").build("huge")
