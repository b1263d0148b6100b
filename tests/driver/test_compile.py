"""compile and load: what goes in, what comes out, and that nothing of the model's own contract gets lost."""

import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path

import mlir.ir as ir
import numpy as np
import pytest
import torch
from torch import nn

import mlirstitch
from mlirstitch.errors import ImportFailure, LaunchError, MlirstitchError, PassError, TargetError

ADD = """
func.func @main(%x: tensor<3x5xf32> {stitch.name = "x"}, %y: tensor<3x5xf32> {stitch.name = "y"}) -> tensor<3x5xf32> {
  %e = tensor.empty() : tensor<3x5xf32>
  %0 = linalg.add ins(%x, %y : tensor<3x5xf32>, tensor<3x5xf32>) outs(%e : tensor<3x5xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}
"""
Pair = namedtuple("Pair", "first second")


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((3, 5), np.float32), rng.random((3, 5), np.float32)


def test_a_module_returns_what_eager_returns():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.LayerNorm(13)).eval()
    x = torch.randn(5, 7)
    compiled = mlirstitch.compile(model, (x,))
    torch.testing.assert_close(compiled(x), model(x).detach(), rtol=1e-5, atol=1e-6)


def test_numpy_in_gives_numpy_out():
    compiled = mlirstitch.compile(lambda x: x * 2, torch.ones(4))
    result = compiled(np.arange(4, dtype=np.float32))
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, [0, 2, 4, 6])


def test_nested_arguments_and_results_keep_their_structure():
    def model(pair, options, *, scale):
        total = pair["a"] + options[0] * scale
        return {"sum": total, "rest": (pair["a"], None, [options[1], 3])}

    a, b, c, scale = torch.randn(4), torch.randn(4), torch.randn(2), torch.tensor(2.0)
    compiled = mlirstitch.compile(model, ({"a": a}, [b, c]), example_kwargs={"scale": scale})
    result = compiled({"a": a}, [b, c], scale=scale)
    expected = model({"a": a}, [b, c], scale=scale)
    assert list(result) == list(expected)
    torch.testing.assert_close(result, expected)


def test_named_tuples_and_ordered_dicts_survive_saving(tmp_path):
    def model(x):
        return Pair(x + 1, OrderedDict(y=x * 2))

    x = torch.randn(6)
    compiled = mlirstitch.compile(model, (x,))
    assert type(compiled(x)) is Pair
    compiled.save(tmp_path / "b")
    loaded = mlirstitch.load(tmp_path / "b")(x)
    torch.testing.assert_close(loaded.first, x + 1)
    torch.testing.assert_close(loaded.second["y"], x * 2)


def test_weights_changed_in_place_are_seen_by_the_next_call():
    model = nn.Linear(3, 2, bias=False)
    x = torch.randn(4, 3)
    compiled = mlirstitch.compile(model, (x,))
    with torch.no_grad():
        model.weight.mul_(3)
    torch.testing.assert_close(compiled(x), model(x).detach())


def test_tied_weights_are_one_array():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    compiled = mlirstitch.compile(Tied(), torch.randn(2, 4))
    assert len(compiled.bundle.weights) == 1


def test_an_input_updated_in_place_is_updated_for_the_caller():
    def model(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.ones(5), torch.full((5,), 3.0)
    compiled = mlirstitch.compile(model, (x.clone(), y))
    result = compiled(x, y)
    torch.testing.assert_close(x, torch.full((5,), 4.0))
    torch.testing.assert_close(result, torch.full((5,), 8.0))


def test_batch_norm_in_training_updates_the_modules_statistics():
    torch.manual_seed(0)
    ours, theirs = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = torch.randn(16, 3)
    compiled = mlirstitch.compile(ours, (x,))
    torch.testing.assert_close(compiled(x), theirs(x).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    assert int(ours.num_batches_tracked) == 1


def test_outputs_that_are_inputs_views_or_the_same_value_twice():
    def model(x):
        y = x + 1
        return x, y, y, y.view(2, 3), x.t()

    x = torch.randn(3, 2)
    compiled = mlirstitch.compile(model, (x,))
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (), (1,), (1, 1, 1)])
def test_empty_scalar_and_unit_tensors(shape):
    def model(x):
        return x * 2 + 1, x.sum()

    x = torch.randn(shape)
    compiled = mlirstitch.compile(model, (x,))
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64],
)
def test_every_dtype_goes_in_and_out(dtype):
    def model(x, y):
        return x + y, x > y, torch.where(x > y, x, y)

    x, y = torch.arange(37).to(dtype), torch.arange(37).flip(0).to(dtype)
    compiled = mlirstitch.compile(model, (x, y))
    torch.testing.assert_close(compiled(x, y), model(x, y), rtol=0, atol=0)


def test_bool_tensors_and_strided_arguments():
    def model(a, b):
        return a & b, ~a

    a, b = torch.tensor([[True, False], [False, True], [True, True]]).t(), torch.ones(2, 3, dtype=torch.bool)
    torch.testing.assert_close(mlirstitch.compile(model, (a, b))(a, b), model(a, b))


def test_mlir_text_path_and_module_give_the_same_ptx(tmp_path):
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    with ir.Context():
        module = ir.Module.parse(ADD)
    results = [mlirstitch.compile(x) for x in (ADD, path, str(path), module)]
    assert len({compiled.ptx for compiled in results}) == 1
    x, y = arrays()
    np.testing.assert_array_equal(results[0](x, y), x + y)
    np.testing.assert_array_equal(results[0](y=y, x=x), x + y)


def test_an_exported_program_needs_no_example_inputs():
    x = torch.randn(3, 4)
    exported = torch.export.export(nn.Softmax(-1), (x,))
    torch.testing.assert_close(mlirstitch.compile(exported)(x), torch.softmax(x, -1))


def test_a_saved_bundle_answers_as_the_program_in_memory(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1))
    x = torch.randn(3, 8)
    compiled = mlirstitch.compile(model, (x,))
    for name in ("folder", "file.zip"):
        compiled.save(tmp_path / name)
        loaded = mlirstitch.load(tmp_path / name)
        assert torch.equal(loaded(x), compiled(x))
        assert loaded.ptx == compiled.ptx
        assert loaded.report == compiled.report
        # .loc lines of the PTX refer to a text that travels with it.
        assert '.file\t1 "./kernels.stitched.mlir"' in loaded.ptx or '"kernels.stitched.mlir"' in loaded.ptx
        assert "func.func private" in loaded.bundle.files["kernels.stitched.mlir"]


def test_stopping_early_gives_text_but_nothing_to_run():
    compiled = mlirstitch.compile(ADD, to_level="stitched")
    assert "stitch.schedule" in compiled.text("stitched")
    with pytest.raises(MlirstitchError, match="stopped at level stitched"):
        compiled(*arrays())
    with pytest.raises(MlirstitchError, match="no text of level 'gpu'"):
        compiled.text("gpu")


def test_every_level_can_be_fed_back():
    whole = mlirstitch.compile(ADD)
    x, y = arrays()
    for level in ("linalg", "partitioned", "stitched", "gpu"):
        again = mlirstitch.compile(whole.text(level), from_level=level)
        np.testing.assert_array_equal(again(x, y), x + y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, x, y: c(x), "call: expected 2 positional arguments, got 1"),
        (lambda c, x, y: c(x, y, y), "expected 2 positional arguments, got 3"),
        (lambda c, x, y: c(x, y[:2]), r"(?s)y.*\[?3[, x]+5.*2[, x]+5"),
        (lambda c, x, y: c(x, y.astype(np.float64)), r"(?s)y.*float32.*float64"),
        (lambda c, x, y: c(x, "y"), "expected a torch tensor or a numpy array, got str"),
        (lambda c, x, y: c(x, torch.empty(3, 5, device="meta")), "has no data"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(call, message):
    compiled = mlirstitch.compile(ADD)
    with pytest.raises(LaunchError, match=message):
        call(compiled, *arrays())


def test_unknown_things_are_refused_with_a_way_out(tmp_path):
    with pytest.raises(TargetError, match="sm_12345"):
        mlirstitch.compile(ADD, target="sm_12345")
    with pytest.raises(MlirstitchError, match="unknown option 'colour'"):
        mlirstitch.compile(ADD, colour="red")
    with pytest.raises(MlirstitchError, match=r"cannot read .*missing\.mlir"):
        mlirstitch.compile(Path(tmp_path / "missing.mlir"))
    with pytest.raises(ImportFailure, match="a int cannot be compiled"):
        mlirstitch.compile(3)


def test_a_refusal_names_the_op_and_the_users_line():
    def model(x):
        return torch.sort(x).values

    with pytest.raises(MlirstitchError) as caught:
        mlirstitch.compile(model, (torch.randn(4),))
    assert "sort" in str(caught.value)
    assert "test_compile.py" in str(caught.value)
    assert caught.value.hint


def test_dynamic_shapes_are_refused():
    text = ADD.replace("3x5", "?x5")
    with pytest.raises(MlirstitchError) as caught:
        mlirstitch.compile(text)
    assert isinstance(caught.value, PassError | MlirstitchError)
    assert "dynamic" in str(caught.value)


def test_where_mlir_is_missing_compiling_says_what_to_install():
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "mlir":
            raise ModuleNotFoundError("No module named 'mlir'", name="mlir")
sys.meta_path.insert(0, Missing())
import mlirstitch
try:
    mlirstitch.compile("func.func @main() { return }")
except mlirstitch.MlirstitchError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "needs the package mlir, which is not installed\n  hint: pip install" in done.stdout, done.stderr
