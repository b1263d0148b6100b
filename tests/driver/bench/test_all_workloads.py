"""Every workload compiles, gives eager's numbers and moves the predicted bytes. One child process a test."""

import pytest

from mlirstitch.driver.bench import workloads
from mlirstitch.driver.bench.rows import BenchRequest
from mlirstitch.driver.bench.runner import measure_all

ONE_LAUNCH = ["softmax", "attn_scores", "layernorm", "rmsnorm", "gelu_bias_res_ln", "adam", "log_softmax"]
HALF = ("softmax", "ln_fwd_bwd", "xent_fwd_bwd", "groupnorm", "bert_layer")
"""In half precision without the slow tests: rows, rows with columns, several axes, contractions."""


def check(request):
    rows = measure_all(request)
    assert [row["workload"] for row in rows] == list(request.workloads)
    assert [f"{row['workload']}: {row['message']}" for row in rows if row["status"] != "ok"] == []
    return {row["workload"]: row for row in rows}


def test_all_small_workloads_give_the_numbers_of_eager():
    check(BenchRequest(tuple(workloads.names())))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_gives_the_numbers_of_eager(dtype):
    check(BenchRequest(HALF, dtype=dtype))


def test_library_calls_give_the_numbers_of_eager():
    rows = check(BenchRequest(("bert_layer", "crnn"), library="auto"))
    assert rows["bert_layer"]["launches"]["memory_bound"] == 4
    assert rows["bert_layer"]["launches"]["compute_bound"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_library_calls_of_every_workload_give_the_numbers_of_eager(dtype):
    models = [name for name in workloads.names() if workloads.get(name).group != "micro"]
    check(BenchRequest(tuple(models), dtype=dtype, library="auto"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_ptxas_accepts_every_kernel_for_both_chips(dtype):
    check(BenchRequest(tuple(workloads.names()), dtype=dtype, compile_only=True, ptxas=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_all_workloads_give_the_numbers_of_eager_in_half_precision(dtype):
    check(BenchRequest(tuple(workloads.names()), dtype=dtype))


@pytest.mark.slow
def test_all_real_sizes_compile_and_rows_take_one_launch():
    rows = check(BenchRequest(tuple(workloads.names()), size="real", compile_only=True))
    for name in ONE_LAUNCH:
        assert rows[name]["launches"] == {"memory_bound": 1, "compute_bound": 0, "copies": 0}
    bert = rows["bert_base"]
    assert bert["distinct_kernels"] < bert["launches"]["memory_bound"] / 4
    assert sum(bert["compile_seconds"][phase] for phase in ("normalize", "stitch", "lower", "assemble")) < 30
