"""Training steps: torch's numbers, what the arguments and results are called, and what is refused."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from import_harness import evaluate
from training_harness import MakeOptimizer, assert_trains_as_torch, imported

import mlirstitch
from mlirstitch.dialects import parse_module, stitch
from mlirstitch.dialects.locations import source_lines
from mlirstitch.dialects.walk import walk
from mlirstitch.driver.import_step import import_step
from mlirstitch.errors import ImportFailure, LaunchError

import torch  # isort: skip  after import_step, which loads MLIR in the right order
import torch.nn.functional as F

from torch import Tensor, nn  # isort: skip

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from mlirstitch.driver.bench import training_models as models
from mlirstitch.driver.bench.training_models import TrainingCase

SGD = partial(torch.optim.SGD, lr=0.1)
NESTEROV = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True)
# A large epsilon: where a gradient is all but zero Adam would blow up rounding errors.
ADAM = partial(torch.optim.Adam, lr=1e-2, weight_decay=1e-2, eps=1e-3)
ADAMW = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3)

SMALL: dict[str, tuple[Callable[[], TrainingCase], MakeOptimizer]] = {
    "fused attention": (partial(models.transformer_block, batch=2, sequence=6, causal=True, fused_attention=True), SGD),
    "GPT, tied": (partial(models.gpt, 1, batch=2, sequence=6, vocabulary=24, tied=True), ADAM),
    "convolutions": (partial(models.cnn, batch=4, channels=8), NESTEROV),
    "soft mixture": (partial(models.moe, batch=2), ADAMW),
    "switch mixture": (partial(models.moe, batch=2, routing="top1"), SGD),
    "shifted windows": (partial(models.swin_block, batch=2), ADAM),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_trains_as_in_torch(name: str) -> None:
    build, make = SMALL[name]
    step = assert_trains_as_torch(build(), make)
    assert "tm_tensor" not in step.mlir


@pytest.mark.slow
@pytest.mark.parametrize("make", [NESTEROV, ADAM, ADAMW], ids=["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize(
    "build",
    [
        *models.CASES.values(),
        partial(models.gpt, fused_attention=True),
        partial(models.gpt, tied=True),
        partial(models.evoformer_block, forwards=3),
    ],
    ids=[*models.CASES, "gpt_fused_attention", "gpt_tied", "evoformer_3_forwards"],
)
def test_every_model_of_the_benchmark_trains_as_in_torch(
    build: Callable[[], TrainingCase], make: MakeOptimizer
) -> None:
    # In a third step of the Evoformer a ReLU opens in float32 that is shut in float64.
    assert_trains_as_torch(build(), make, steps=2)


class Checkpointed(nn.Module):
    """The backward runs the forward again instead of keeping what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class DoubledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class CustomGradient(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return DoubledGradient.apply(super().forward(input))


@pytest.mark.parametrize(
    "build",
    [
        Checkpointed,
        partial(CustomGradient, 8, 8),
        lambda: weight_norm(nn.Linear(8, 8)),
        pytest.param(Recurrent, marks=pytest.mark.slow),
        pytest.param(lambda: spectral_norm(nn.Linear(8, 8)), marks=pytest.mark.slow),
        pytest.param(partial(nn.TransformerEncoderLayer, 8, 2, 16, 0.0, batch_first=True), marks=pytest.mark.slow),
    ],
    ids=["checkpoint", "custom gradient", "weight norm", "LSTM", "spectral norm", "encoder layer"],
)
def test_what_torch_offers_to_write_models_with(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build()
    assert_trains_as_torch(TrainingCase(model, F.mse_loss, (torch.randn(2, 5, 8),), (torch.randn(2, 5, 8),)), ADAMW)


def test_float64_weights_train_in_float64() -> None:
    case = models.mlp(batch=4, width=4, hidden=6)
    wide = TrainingCase(case.model.double(), case.loss, (case.inputs[0].double(),), (case.targets[0].double(),))
    assert_trains_as_torch(wide, ADAMW, tolerance=1e-12)


# Optimizers -------------------------------------------------------------------------------------------------------


def two_groups(weights: Any) -> torch.optim.Optimizer:
    first, *rest = weights
    return torch.optim.AdamW([{"params": [first], "lr": 0.1, "weight_decay": 0.5}, {"params": rest}], lr=1e-2, eps=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        SGD,
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        partial(torch.optim.SGD, lr=0.1, weight_decay=0.1, maximize=True),
        partial(torch.optim.SGD, lr=torch.tensor(0.25)),
        partial(torch.optim.Adam, lr=1e-2, eps=1e-3, amsgrad=True),
        partial(torch.optim.Adam, lr=1e-2, eps=1e-3, betas=(0.0, 0.5), weight_decay=0.1),
        partial(torch.optim.AdamW, lr=torch.tensor(1e-2), eps=1e-3, weight_decay=0.1, maximize=True),
        two_groups,
    ],
    ids=["plain", "momentum", "maximize", "rate tensor", "amsgrad", "betas", "AdamW", "groups"],
)
def test_options_of_the_optimizer_are_honoured(make: MakeOptimizer) -> None:
    assert_trains_as_torch(models.mlp(batch=4, width=4, hidden=6), make, steps=3)


@pytest.mark.parametrize("make", [NESTEROV, two_groups], ids=["SGD", "AdamW"])
def test_training_goes_on_where_the_optimizer_stands(make: MakeOptimizer) -> None:
    assert_trains_as_torch(models.mlp(batch=4, width=4, hidden=6), make, steps=2, warm_up=2)


def test_the_first_step_of_adam_has_all_digits_of_its_bias_correction() -> None:
    make = partial(torch.optim.Adam, lr=1.0, eps=1e-3, betas=(0.9, 0.9999))  # updates as large as the weights
    assert_trains_as_torch(models.mlp(batch=4, width=4, hidden=6), make, steps=1)


@pytest.mark.parametrize("limit", [1e-2, 1e2], ids=["clipped", "untouched"])
def test_gradients_are_clipped_by_their_common_norm(limit: float) -> None:
    assert_trains_as_torch(models.mlp(batch=4, width=4, hidden=6), SGD, clip_norm=limit)


def test_gradients_are_clipped_by_value() -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    step = import_step(model, Tensor.sum, SGD(model.parameters()), torch.tensor([[3.0, 0.25]]), clip_value=0.5)
    mlirstitch.compile(step, cache="off")(torch.tensor([[3.0, 0.25]]))
    torch.testing.assert_close(model.weight.detach(), before - 0.1 * torch.tensor([[0.5, 0.25]]))


def test_a_learning_rate_that_is_a_tensor_is_looked_up_at_every_step() -> None:
    model, rate = nn.Linear(2, 1, bias=False), torch.tensor(0.5)
    before = model.weight.detach().clone()
    step = import_step(model, Tensor.sum, torch.optim.SGD(model.parameters(), lr=rate), torch.ones(1, 2))
    program = mlirstitch.compile(step, cache="off")
    rate.fill_(0.25)
    program(torch.ones(1, 2))
    torch.testing.assert_close(model.weight.detach(), before - 0.25)


# Arguments and results --------------------------------------------------------------------------------------------


def test_everything_has_a_name_and_a_role_and_what_changes_a_result() -> None:
    case = models.cnn(batch=2)
    step = imported(case, ADAM(case.model.parameters()))
    roles = {a.name: a.role for a in step.arguments}
    assert roles["first_norm.running_mean"] == roles["classify.bias"] == roles["optimizer.step"] == "weight"
    assert roles["optimizer.exp_avg_sq.first.weight"] == "weight"
    assert [name for name, role in roles.items() if role == "input"] == ["x", "classes"]
    untouched = set(roles) - {r.mutates for r in step.results}
    assert untouched == {"x", "classes"}
    assert [r.name for r in step.results if not r.mutates] == ["loss"]
    main = parse_module(step.mlir).body.operations[0].operation
    assert stitch.NAME.of_arguments(main) == [a.name for a in step.arguments]


def test_a_tied_weight_is_one_argument_with_one_state() -> None:
    case = models.tied(batch=2, sequence=4)
    names = [a.name for a in imported(case, ADAM(case.model.parameters())).arguments]
    assert "words.weight" in names
    assert not [name for name in names if "head" in name]
    assert len([name for name in names if name.endswith("exp_avg.words.weight")]) == 1


class Frozen(nn.Module):
    """A frozen weight, one that the loss does not reach, statistics that stand still, inactive dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.used = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4).eval()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.dropout(F.dropout(self.used(torch.relu_(self.frozen(x))), 0.5, training=False)))


def test_only_what_torch_changes_is_changed() -> None:
    case = TrainingCase(Frozen(), F.mse_loss, (torch.randn(3, 4),), (torch.randn(3, 4),))
    make = partial(torch.optim.AdamW, lr=0.1, eps=1e-3, weight_decay=0.5)
    step = assert_trains_as_torch(case, make)
    names = {a.name for a in step.arguments}
    assert "frozen.weight" in names
    assert "unused.weight" not in names
    assert "norm.running_mean" not in {r.mutates for r in step.results}


class Scaled(nn.Module):
    """Buffers: written in place, assigned, not part of the state; a tensor that is none; one written in the program."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)
        self.table = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.get_buffer("count").add_(1)
        self.mean = self.mean * 0.5 + y.detach().mean(0) * 0.5
        return (y - self.mean) * self.scale * torch.tensor([1.0, 2.0, 3.0]) + self.table * self.table


def test_buffers_and_constants_of_every_kind() -> None:
    weights = torch.rand(3)
    case = TrainingCase(Scaled(), lambda y, t: ((y - t) ** 2 * weights).mean(), (torch.randn(5, 3),), (torch.randn(3),))
    step = assert_trains_as_torch(case, NESTEROV)
    roles = {a.name: a.role for a in step.arguments}
    assert roles["scale"] == "constant"
    assert {"count", "mean"} <= {r.mutates for r in step.results}
    assert list(roles.values()).count("constant") == 3  # scale, table, weights of the loss; the literal is in the text


def test_a_loss_may_look_at_weights() -> None:
    case = models.mlp(batch=4, width=4, hidden=6)

    def decayed(y: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(y, t) + 0.1 * sum(p.square().sum() for p in case.model.parameters())

    step = import_step(case.model, decayed, SGD(case.model.parameters()), case.inputs, targets=case.targets)
    results = {
        r.mutates or r.name: v for r, v in zip(step.results, evaluate(step, (*case.inputs, *case.targets)), strict=True)
    }
    bias, loss = case.model.get_parameter("expand.bias"), decayed(case.model(*case.inputs), *case.targets)
    (gradient,) = torch.autograd.grad(loss, [bias])
    torch.testing.assert_close(torch.from_numpy(results["loss"]), loss.detach())
    torch.testing.assert_close(torch.from_numpy(results["expand.bias"]), (bias - 0.1 * gradient).detach())


def test_a_model_may_return_its_own_loss_and_take_keywords() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor, *, labels: Tensor, smoothing: float) -> Tensor:
            return F.cross_entropy(self.inner(x), labels, label_smoothing=smoothing)

    x, labels, model = torch.randn(4, 2), torch.tensor([0, 1, 1, 0]), Model()
    expected = model(x, labels=labels, smoothing=0.25).detach()
    step = import_step(model, None, SGD(model.parameters()), x, kwargs={"labels": labels, "smoothing": 0.25})
    loss = mlirstitch.compile(step, cache="off")(x, labels=labels, smoothing=0.25)
    torch.testing.assert_close(loss, expected)


def line_of(marker: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# {marker}'))}"


class TwoLines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x * self.weight)  # first line
        return torch.sigmoid(y).sum()  # second line


def test_a_gradient_has_the_line_of_its_forward_op_and_the_update_that_of_the_import() -> None:
    model = TwoLines()
    step = import_step(model, None, SGD(model.parameters()), torch.randn(3))  # import
    module = parse_module(step.mlir)
    lines = [
        (next(iter(source_lines(op.location)), ""), [inner.name for inner in walk(op)])
        for op in walk(module.operation)
        if op.name == "linalg.generic"
    ]
    by_line = {line: [ops for at, ops in lines if at == line] for line, _ in lines}
    assert len(by_line[line_of("first line")]) > 2  # product and tanh, and the gradients of both
    assert len(by_line[line_of("second line")]) > 2
    assert any("arith.subf" in ops for ops in by_line[line_of("import")])


# Weights without values -------------------------------------------------------------------------------------------


def test_a_model_on_the_meta_device_is_planned_but_not_run() -> None:
    case = models.gpt_large(1, batch=4)
    step = imported(case, ADAMW(case.model.parameters()))
    assert max(w.numel() for w in step.weights.values()) > 6e8
    assert all(w.is_meta for i, w in step.weights.items() if step.arguments[i].name != "optimizer.step")
    small = nn.Linear(4, 4, bias=False, device="meta")
    program = mlirstitch.compile(
        import_step(small, Tensor.sum, ADAMW(small.parameters()), torch.ones(2, 4)), cache="off"
    )
    assert program.launch_plan.steps
    with pytest.raises(LaunchError, match="has no data"):
        program(torch.ones(2, 4))


def test_fake_weights_give_the_same_program_as_real_ones() -> None:
    real = models.mlp(batch=4, width=4, hidden=6)
    with FakeTensorMode():
        fake = models.mlp(batch=4, width=4, hidden=6)
        optimizer = ADAMW(fake.model.parameters())
    steps = [imported(real, ADAMW(real.model.parameters())), imported(fake, optimizer)]
    assert steps[0].mlir == steps[1].mlir


# What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(torch.optim.RMSprop, lr=0.1), "RMSprop is not supported\n.*SGD, Adam, AdamW"),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5), "parameter group 0: dampening=0.5"),
        (partial(torch.optim.Adam, differentiable=True), "differentiable=True"),
        (partial(torch.optim.SGD, lr=torch.tensor([0.1])), r"learning rate has the shape \[1\]"),
        (lambda weights: torch.optim.SGD([*weights, nn.Parameter(torch.ones(7))], lr=0.1), r"shape \[7\] that is no"),
        (lambda weights: "adam", "a str is no optimizer"),
    ],
)
def test_an_optimizer_that_has_no_form_here_is_refused(make: Callable[..., Any], message: str) -> None:
    case = models.mlp(batch=4, width=4, hidden=6)
    with pytest.raises(ImportFailure, match=message):
        imported(case, make(case.model.parameters()))


def test_an_optimizer_with_hooks_is_refused() -> None:
    case = models.mlp(batch=4, width=4, hidden=6)
    optimizer = SGD(case.model.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(ImportFailure, match="step hooks"):
        imported(case, optimizer)


def test_counters_that_differ_between_weights_are_refused() -> None:
    case = models.mlp(batch=4, width=4, hidden=6)
    optimizer = ADAM(case.model.parameters())
    case.loss(case.model(*case.inputs), *case.targets).backward()
    optimizer.step()
    optimizer.state[case.model.get_parameter("expand.bias")]["step"].add_(1)
    with pytest.raises(ImportFailure, match=r"1 steps for expand.weight and 2 for expand.bias"):
        imported(case, optimizer)


class Refused(nn.Module):
    """A linear layer, and something done to it by ``how``."""

    def __init__(self, how: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.how = how

    def forward(self, x: Tensor) -> Any:
        return self.how(self.inner(x), x)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda y, x: y.mean(0), r"the loss is float32\[4\], not a 0-d float"),
        (lambda y, x: (y.sum(), y), "the loss is a tuple"),
        (lambda y, x: x.sum(), "depends on no weight"),
        (lambda y, x: y.detach().sum(), "depends on no weight"),
        (lambda y, x: F.dropout(y).sum(), r"test_import_step.py:\d+: aten.*put dropout into eval mode"),
        (lambda y, x: y[y > 0].sum(), "depend on tensor contents"),
    ],
)
def test_a_step_that_cannot_be_compiled_is_refused(how: Callable[[Tensor, Tensor], Any], message: str) -> None:
    case = TrainingCase(Refused(how), lambda loss: loss, (torch.randn(3, 4),), ())
    with pytest.raises(ImportFailure) as caught:
        imported(case, SGD(case.model.parameters()))
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


def test_a_step_that_changes_its_input_is_refused() -> None:
    case = models.mlp(batch=4, width=4, hidden=6)
    with pytest.raises(ImportFailure, match="changes its input in place"):
        import_step(
            case.model,
            lambda y, t: (y * t.mul_(2)).sum(),
            SGD(case.model.parameters()),
            case.inputs,
            targets=case.targets,
        )


def test_a_weight_held_from_before_the_import_is_refused() -> None:
    case = models.mlp(batch=4, width=4, hidden=6)
    held = list(case.model.parameters())

    def decayed(y: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(y, t) + held[0].square().sum()

    with pytest.raises(ImportFailure, match=r"uses the tensor of expand.weight from before the import"):
        import_step(case.model, decayed, SGD(held), case.inputs, targets=case.targets)


def test_two_parameters_over_one_memory_are_refused() -> None:
    case = models.mlp(batch=4, width=4, hidden=4)
    case.model.get_submodule("contract").weight = nn.Parameter(case.model.get_parameter("expand.weight").data)
    with pytest.raises(ImportFailure, match=r"expand.weight and contract.weight are two parameters over the same"):
        imported(case, SGD(case.model.parameters()))


def test_gradient_hooks_are_refused() -> None:
    case = models.mlp(batch=4, width=4, hidden=4)
    case.model.get_parameter("expand.bias").register_hook(lambda g: g * 2)
    with pytest.raises(ImportFailure, match=r"weight expand.bias has gradient hooks"):
        imported(case, SGD(case.model.parameters()))


# In every process, and on the device -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_step_gives_the_same_text_in_every_process() -> None:
    code = (
        "import hashlib, mlirstitch, torch\n"
        "from mlirstitch.driver.bench.training_models import gpt\n"
        "case = gpt(1, tied=True)\n"
        "optimizer = torch.optim.AdamW(case.model.parameters())\n"
        "step = mlirstitch.import_step(case.model, case.loss, optimizer, case.inputs, targets=case.targets)\n"
        "print(hashlib.sha256(step.mlir.encode()).hexdigest())\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(texts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALL, "evoformer"])
def test_compiled_steps_train_on_the_emulated_device(name: str) -> None:
    build, make = SMALL.get(name, (partial(models.evoformer_block, batch=1, sequences=3, residues=4), ADAMW))
    case = build()
    model = copy.deepcopy(case.model)
    program = mlirstitch.compile(imported(case, make(case.model.parameters())), cache="off")
    optimizer = make(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        expected = case.loss(model(*case.inputs), *case.targets)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(program(*case.inputs, *case.targets), expected.detach(), rtol=1e-5, atol=1e-6)
    wanted = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for key, value in (*case.model.named_parameters(), *case.model.named_buffers()):
        scale = float(wanted[key].detach().abs().max())
        torch.testing.assert_close(value.detach(), wanted[key].detach(), rtol=0, atol=1e-5 * max(scale, 1e-3))
