"""What an imported program promises: arguments, weights, results, mutations, trees, source lines, refusals."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_harness import assert_equals_eager, evaluate, user_results

from mlirstitch.dialects import parse_module, stitch
from mlirstitch.dialects.locations import source_lines
from mlirstitch.dialects.walk import walk
from mlirstitch.driver.import_torch import import_model
from mlirstitch.driver.reference import run
from mlirstitch.errors import ImportFailure

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor, nn  # isort: skip

HERE = __file__


def line_of(marker: str) -> str:
    """``file:line`` of the line of this file that ends in the marker comment."""
    lines = Path(HERE).read_text().splitlines()
    return f"{HERE}:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# {marker}'))}"


class Layer(nn.Module):
    """Tied weights, buffers of both kinds, a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(9, 9)
        self.register_buffer("offset", torch.full((4,), 0.5), persistent=False)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.table = torch.arange(4.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))  # first
        return self.second(hidden) * self.scale + self.offset + self.table  # second


def roles(module: Callable[..., Any], *inputs: Tensor) -> dict[str, str]:
    return {a.name: a.role for a in import_model(module, inputs).arguments}


# ---------------------------------------------------------------- arguments and weights
def test_weights_are_arguments_tied_ones_once_unused_ones_not_at_all() -> None:
    found = roles(Layer(), torch.randn(2, 4))
    assert sum(name.endswith(".weight") for name in found) == 1
    assert not any(name.startswith("unused") for name in found)
    assert found["scale"] == "weight"
    assert found["offset"] == found["table"] == "constant"
    assert found["x"] == "input"


def test_weights_are_the_modules_own_tensors() -> None:
    module, x = Layer(), torch.randn(2, 4)
    model = import_model(module, (x,))
    by_name = {model.arguments[i].name: t for i, t in model.weights.items()}
    assert by_name["first.bias"] is module.first.bias
    assert by_name["table"].data_ptr() == module.table.data_ptr()
    with torch.no_grad():
        module.first.bias.add_(1.0)
        module.get_buffer("scale").mul_(3.0)
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(user_results(model, [x])[0], expected, rtol=1e-5, atol=1e-5)


def test_attributes_in_the_text_say_the_same_as_the_python_values() -> None:
    model = import_model(Layer(), (torch.randn(2, 4),))
    module = parse_module(model.mlir)
    stitch.verify(module.operation)
    function = module.body.operations[0].operation
    for i, argument in enumerate(model.arguments):
        assert stitch.NAME.of_argument(function, i) == argument.name
        assert stitch.ROLE.of_argument(function, i) == argument.role
        assert stitch.DTYPE.of_argument(function, i) == argument.dtype
    assert stitch.NAME.of_result(function, 0) == model.results[0].name == "output"


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool]
)
def test_types_that_the_ir_does_not_tell_apart_are_named(dtype: torch.dtype) -> None:
    model = import_model(lambda x: x.clone(), (torch.ones(3).to(dtype),))
    assert model.arguments[0].dtype == model.results[0].dtype == str(dtype).removeprefix("torch.")


def test_literals_become_dense_constants_and_closures_arguments() -> None:
    table = torch.arange(1000.0)
    model = import_model(lambda x: x + torch.tensor([1.0, 2.0, 3.0]) + table[:3], (torch.zeros(3),))
    assert "dense<[1.000000e+00, 2.000000e+00, 3.000000e+00]>" in model.mlir
    assert [a.role for a in model.arguments] == ["constant", "input"]
    np.testing.assert_array_equal(user_results(model, [torch.zeros(3)])[0], [1, 3, 5])
    table.add_(1.0)
    np.testing.assert_array_equal(user_results(model, [torch.zeros(3)])[0], [2, 4, 6])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool])
def test_literals_of_every_type(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(x == torch.tensor([[1, 0, 1]], dtype=dtype), torch.tensor([[1, 0, 1]], dtype=dtype), x)

    assert_equals_eager(function, torch.ones(2, 3).to(dtype))


def test_large_masks_and_ranges_stay_computed() -> None:
    def function(x: Tensor) -> Tensor:
        return x.masked_fill(~torch.ones(64, 64).tril().bool(), 0.0) + torch.arange(64)

    model = import_model(function, (torch.ones(64, 64),))
    assert [a.role for a in model.arguments] == ["input"]
    assert len(model.mlir) < 20_000
    assert "dense_resource" not in model.mlir


CONSTANTS: dict[str, Callable[[Tensor], Any]] = {
    "compare": lambda x: (torch.full((2,), -3.0) < 0, torch.full((2,), -3.0) == -3, torch.full((2,), -3).double() >= 0),
    "multiply": lambda x: torch.full((2,), -3.0) * -2,
    "remainder": lambda x: (torch.full((2,), -3) % 2, torch.full((2,), -3) // 2),
    "select": lambda x: torch.where(torch.full((2,), -3.0) < 0, x, x * 2),
    "uint8": lambda x: torch.full((2,), 203, dtype=torch.uint8) + 100,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_ops_of_constants_are_not_folded_wrongly(name: str) -> None:
    assert_equals_eager(lambda x: (CONSTANTS[name](x), x), torch.randn(2))


# ---------------------------------------------------------------- fake and meta weights
def test_meta_weights_are_never_allocated() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(200_000, 200_000), nn.LayerNorm(200_000))
    model = import_model(module, (torch.empty(1, 200_000, device="meta"),))
    assert all(t.is_meta for t in model.weights.values())
    assert module[0].weight.is_meta
    assert model.arguments[0].shape == (200_000, 200_000)


def test_fake_weights_are_never_allocated() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        module = nn.Linear(200_000, 200_000)
        x = torch.empty(1, 200_000)
    model = import_model(module, (x,))
    assert [a.shape for a in model.arguments] == [(200_000, 200_000), (200_000,), (1, 200_000)]


# ---------------------------------------------------------------- mutation
def test_training_statistics_of_batch_norm_come_first_among_the_results() -> None:
    module, x = nn.BatchNorm2d(3).train(), torch.randn(4, 3, 5, 5)
    model = import_model(module, (x,))
    assert {r.mutates for r in model.results} == {"running_mean", "running_var", "num_batches_tracked", ""}
    assert list(model.mutations) == [0, 1, 2]
    results = evaluate(model, [x])
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(results[3], expected, rtol=1e-5, atol=1e-5)
    for position, argument in model.mutations.items():
        updated = module.get_buffer(model.arguments[argument].name).numpy()
        np.testing.assert_allclose(results[position], updated, rtol=1e-6, atol=1e-7)


def test_an_input_changed_in_place_is_a_result() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        x[0] = 5.0
        return x * y

    model = import_model(function, (torch.zeros(2, 3), torch.ones(2, 3)))
    assert model.mutations == {0: 0}
    assert model.results[0].mutates == "x"
    updated, product = evaluate(model, [torch.zeros(2, 3), torch.full((2, 3), 2.0)])
    np.testing.assert_array_equal(updated, [[5, 5, 5], [1, 1, 1]])
    np.testing.assert_array_equal(product, updated * 2)


# ---------------------------------------------------------------- trees
Pair = namedtuple("Pair", ["left", "right"])


def test_nested_inputs_kwargs_and_fixed_values() -> None:
    def function(x: Tensor, pair: tuple[Tensor, int], *, state: dict[str, Tensor], flag: bool = True) -> Any:
        y = x + pair[0] * pair[1]
        return {"sum": y + state["h"], "rest": [x, None, 7, y] if flag else []}

    x, p, h = torch.ones(2), torch.full((2,), 2.0), torch.full((2,), 3.0)
    model = import_model(function, (x, (p, 10)), example_kwargs={"state": {"h": h}, "flag": True})
    assert [model.arguments[i].name for i in model.inputs] == ["x", "pair[0]", "state['h']"]
    leaves = model.calling.flatten_arguments((x, (p, 10)), {"state": {"h": h}, "flag": True})
    built = model.calling.build_results(user_results(model, leaves))
    np.testing.assert_array_equal(built["sum"], [24, 24])
    assert built["rest"][1:3] == [None, 7]
    np.testing.assert_array_equal(built["rest"][3], [21, 21])


def test_outputs_that_are_inputs_views_or_the_same_value_twice() -> None:
    def function(x: Tensor) -> Any:
        y = x * 2
        return Pair(x, y), y, y.t(), x[0], y

    x = torch.randn(2, 3)
    model = assert_equals_eager(function, x)
    assert len(model.results) == 6
    assert model.out_spec.num_leaves == 6


def test_names_of_arguments_are_distinct() -> None:
    class Confusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.x

    names = [a.name for a in import_model(Confusing(), (torch.ones(2),)).arguments]
    assert len(set(names)) == 2


# ---------------------------------------------------------------- source lines
def lines_in(text: str) -> set[str]:
    module = parse_module(text)
    return {line for op in walk(module.operation) for line in source_lines(op.location)}


def test_every_op_names_the_users_line() -> None:
    model = import_model(Layer(), (torch.randn(2, 4),))
    assert {line_of("first"), line_of("second")} <= lines_in(model.mlir)
    module = parse_module(model.mlir)
    linalg_ops = [op for op in walk(module.operation) if op.name.startswith("linalg.") and op.name != "linalg.yield"]
    assert linalg_ops
    assert all(source_lines(op.location) for op in linalg_ops)


def scaled(x: Tensor) -> Tensor:
    return torch.softmax(x * 3, -1)  # scaled


def test_lines_of_plain_functions_and_what_they_call() -> None:
    lines = lines_in(import_model(lambda x: scaled(x) + 1, (torch.randn(2, 3),)).mlir)
    assert line_of("scaled") in lines
    assert not any("torch_import" in line for line in lines)


def training_step(w: Tensor, x: Tensor) -> Any:
    def loss(w: Tensor) -> Tensor:
        return torch.tanh(x @ w).square().mean()  # loss

    gradient, value = torch.func.grad_and_value(loss)(w)
    return value, w - 0.1 * gradient  # update


def test_a_training_step_is_expanded_and_keeps_its_lines() -> None:
    model = assert_equals_eager(training_step, torch.randn(3, 3), torch.randn(4, 3))
    assert {line_of("loss"), line_of("update")} <= lines_in(model.mlir)


def test_the_same_program_gives_the_same_text_in_every_process() -> None:
    code = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from test_import_torch import Layer, import_model
import torch
print(hashlib.sha256(import_model(Layer(), (torch.ones(2, 4),)).mlir.encode()).hexdigest())
"""
    digests = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(Path(HERE).parent)],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


# ---------------------------------------------------------------- refusals
def sorting(x: Tensor) -> Tensor:
    return (x * 2).sort(-1)[0]  # sorting


def counting(x: Tensor) -> Tensor:
    return (x > 0).nonzero()  # counting


def branching(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x  # branching


REFUSALS: dict[str, tuple[Callable[..., Any], str]] = {
    "sort": (sorting, r"aten.sort.*\(float32\[2, 3\]\) -> float32\[2, 3\], int64\[2, 3\]"),
    "data-dependent shape": (counting, r"aten.nonzero.*dynamic"),
    "data-dependent branch": (branching, "torch.export cannot trace"),
    "top-k": (lambda x: x.topk(2), "aten.topk"),
    "several values under a mask": (
        lambda x: torch.index_put(x, (x > 0,), x[0]),
        r"aten.index_put.*not supported",
    ),
    "random numbers": (lambda x: x + torch.rand_like(x), "aten.rand_like"),
    "dropout": (lambda x: F.dropout(x, 0.5), "aten.dropout"),
    "dropout in attention": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
        "dropout 0.5",
    ),
    "complex numbers": (lambda x: torch.fft.fft(x).abs(), "complex"),
    "no lowering": (lambda x: torch.lgamma(x) + 1, r"aten.lgamma.default\(float32\[2, 3\]\)"),
    "no result": (lambda x: None, "returns no tensor"),
    "no tensor": (lambda x: 3, "returns no tensor"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_compiled_is_refused_with_op_shapes_and_a_way_out(name: str) -> None:
    function, message = REFUSALS[name]
    with pytest.raises(ImportFailure, match=message) as caught:
        import_model(function, (torch.randn(2, 3),))
    assert caught.value.hint


@pytest.mark.parametrize("function", [sorting, counting, branching])
def test_a_refusal_names_the_users_line(function: Callable[..., Any]) -> None:
    with pytest.raises(ImportFailure) as caught:
        import_model(function, (torch.randn(2, 3),))
    assert caught.value.source == line_of(function.__name__)


def test_users_files_may_lie_in_folders_named_as_libraries_are(tmp_path: Path) -> None:
    path = tmp_path / "mlirstitch" / "torch" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text("def branching(x):\n    return x * 2 if x.sum() > 0 else x\n")
    with pytest.raises(ImportFailure) as caught:
        import_model(runpy.run_path(str(path))["branching"], (torch.randn(2, 3),))
    assert caught.value.source == f"{path}:2"
    assert "TORCH_LOGS" not in str(caught.value)


def test_dynamic_shapes_are_refused() -> None:
    with pytest.raises(ImportFailure, match="dynamic shapes"):
        import_model(scaled, (torch.randn(2, 3),), dynamic={"x": {0: "batch"}})
    batch = torch.export.Dim("batch")
    program = torch.export.export(nn.ReLU(), (torch.randn(2, 3),), dynamic_shapes=({0: batch},))
    with pytest.raises(ImportFailure, match="dynamic"):
        import_model(program)


def test_a_value_that_is_no_program_is_refused() -> None:
    with pytest.raises(ImportFailure, match="cannot import a value of type int"):
        import_model(3)  # type: ignore[arg-type]


def test_mixed_types_that_crash_the_importer_are_converted_before() -> None:
    """Each of these ended the process in torch_mlir."""
    small = torch.arange(1, 13).reshape(3, 4)
    for dtype in (torch.uint8, torch.int8):
        x = small.to(dtype)
        assert_equals_eager(lambda x: (x // 3, x % 3, x**0.5, x @ x.t(), F.linear(x, x)), x)
        assert_equals_eager(lambda x: F.conv1d(x[None], x[:, None, :2], groups=3), x)


# ---------------------------------------------------------------- exported programs
def test_an_exported_program_is_imported_as_it_is() -> None:
    x = torch.randn(2, 4)
    module = Layer()
    model = import_model(torch.export.export(module, (x,)))
    np.testing.assert_allclose(user_results(model, [x])[0], module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_modules_that_switch_gradients_off_are_imported() -> None:
    class Frozen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                y = x * 2
            return y + x

    x = torch.randn(3)
    program = torch.export.export(Frozen(), (x.requires_grad_(),))
    model = import_model(program)
    np.testing.assert_allclose(run(model.mlir, [x.detach().numpy()])[0], (x * 3).detach().numpy(), rtol=1e-6)


def test_text_has_one_public_function_and_no_foreign_ops() -> None:
    text = import_model(Layer(), (torch.randn(2, 4),)).mlir
    assert text.count("func.func") == 1
    assert "func.func @main" in text
    assert not re.search(r"\btorch\.|torch_c\.|tm_tensor\.", text)
