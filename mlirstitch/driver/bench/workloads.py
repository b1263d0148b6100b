"""The registry of benchmark workloads: published layer sizes ("real") and the same programs on a few KiB ("small").

``small`` programs are built with random weights and run. ``real`` programs are exported with fake tensors: shapes and
types without storage, so that a 12-layer BERT costs no memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from mlirstitch.driver.bench import attention_models as attention
from mlirstitch.driver.bench import functions
from mlirstitch.driver.bench import sequence_models as sequence
from mlirstitch.driver.torch_import.exporting import expand_gradients
from mlirstitch.errors import MlirstitchError

SIZES = ("small", "real")
DTYPES: dict[str, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SEED = 0


@dataclass(frozen=True)
class Size:
    """One size of a workload: keyword arguments of the model's constructor and of its inputs."""

    inputs: Mapping[str, int]
    model: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A workload that can be called: ``module(*inputs)`` in eager mode."""

    module: nn.Module
    inputs: tuple[Tensor, ...]

    def to(self, dtype: torch.dtype) -> Program:
        """The same values in another floating-point type (integers stay), in storage of its own."""
        module = _convert(copy.deepcopy(self.module), dtype)
        return Program(module, tuple(_cast(value.clone(), dtype) for value in self.inputs))


@dataclass(frozen=True)
class Workload:
    """One program in two sizes.

    Attributes:
        name: as in result tables.
        group: "micro" (a function) or "model".
        model: builds the module from the size's model arguments.
        inputs: builds the inputs from the size's input arguments; float tensors are float32 here.
        sizes: arguments by size name.
        training: the program takes its weights as further inputs (first) and returns gradients.
    """

    name: str
    group: str
    model: Callable[..., nn.Module]
    inputs: Callable[..., tuple[Tensor, ...]]
    sizes: Mapping[str, Size]
    training: bool = False

    def build(self, size: str, dtype: torch.dtype = torch.float32) -> Program:
        """Random weights and inputs with a fixed seed. Raises MlirstitchError for an unknown size."""
        arguments = self._size(size)
        torch.manual_seed(SEED)
        module = _convert(self.model(**arguments.model).eval(), dtype)
        inputs = tuple(_cast(value, dtype) for value in self.inputs(**arguments.inputs))
        if self.training:
            weights = tuple(value.detach() for _, value in module.named_parameters())
            inputs = (*weights, *inputs)
        return Program(module, inputs)

    def traced(self, size: str, dtype: torch.dtype = torch.float32) -> Program:
        """As :meth:`build`, with gradients already expanded into the forward graph (``make_fx``) if it trains."""
        program = self.build(size, dtype)
        if not self.training:
            return program
        return Program(expand_gradients(program.module, program.inputs), program.inputs)

    def export(self, size: str, dtype: torch.dtype = torch.float32) -> ExportedProgram:
        """The program exported with fake tensors: nothing of the size of a weight is allocated."""
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            program = self.traced(size, dtype)
            return torch.export.export(program.module, program.inputs, strict=False)

    def _size(self, size: str) -> Size:
        if size not in self.sizes:
            raise MlirstitchError(f"workload {self.name} has no size {size!r}", hint=f"sizes: {', '.join(self.sizes)}")
        return self.sizes[size]


def _convert(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Give every float weight and buffer the type, in place. ``Module.to`` cannot do it to fake tensors."""
    for part in list(module.modules()):
        for name, value in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(_cast(value.detach(), dtype), requires_grad=False))
        for name, value in list(part.named_buffers(recurse=False)):
            setattr(part, name, _cast(value, dtype))
    return module


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


class FunctionModule(nn.Module):
    """A function of tensors as a module without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class TrainingStep(nn.Module):
    """Forward and backward of ``sum(model(x, ...) * gradient)``.

    Takes the model's weights in the order of ``named_parameters``, then the model's inputs, then the gradient of the
    output. Returns the output, the gradient of ``x``, and those of the weights.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        names = [name for name, _ in self.model.named_parameters()]
        weights, (x, *rest, gradient) = tensors[: len(names)], tensors[len(names) :]

        def run(x: Tensor, *values: Tensor) -> Tensor:
            return torch.func.functional_call(self.model, dict(zip(names, values, strict=True)), (x, *rest))

        result, vjp = torch.func.vjp(run, x, *weights)[:2]
        return (result, *vjp(gradient))


WORKLOADS: dict[str, Workload] = {}


def names() -> list[str]:
    """Names of all workloads in table order."""
    return list(WORKLOADS)


def get(name: str) -> Workload:
    """The workload of that name. Raises MlirstitchError, listing the names, if there is none."""
    if name not in WORKLOADS:
        raise MlirstitchError(f"unknown workload {name!r}", hint=f"workloads: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def select(text: str) -> list[str]:
    """Names from ``"all"`` or a comma-separated list. Raises MlirstitchError for an unknown or empty one."""
    if text == "all":
        return names()
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    if not chosen:
        raise MlirstitchError("no workload named", hint=f"workloads: all, {', '.join(WORKLOADS)}")
    return [get(name).name for name in chosen]


def _micro(name: str, function: Callable[..., Any], inputs: Callable[..., tuple[Tensor, ...]], **sizes: Size) -> None:
    gradients = name.endswith("_fwd_bwd")
    WORKLOADS[name] = Workload(name, "micro", lambda: FunctionModule(function), inputs, sizes, gradients)


def _model(
    name: str,
    model: Callable[..., nn.Module],
    inputs: Callable[..., tuple[Tensor, ...]],
    *,
    small: Size,
    real: Size,
    training: bool = False,
) -> None:
    WORKLOADS[name] = Workload(name, "model", model, inputs, {"small": small, "real": real}, training)


def _tokens(limit: int, *shape: int) -> Tensor:
    return torch.randint(0, limit, shape)


def _rows(rows: int, columns: int) -> tuple[Tensor, ...]:
    return (torch.randn(rows, columns),)


def _rows_and_columns(*kinds: str) -> Callable[..., tuple[Tensor, ...]]:
    """Inputs by kind: "row" is ``[rows, columns]``, "column" is ``[columns]``."""

    def inputs(rows: int, columns: int) -> tuple[Tensor, ...]:
        shapes = {"row": (rows, columns), "column": (columns,)}
        return tuple(torch.randn(*shapes[kind]) for kind in kinds)

    return inputs


def _attention_scores(batch: int, heads: int, length: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, heads, length, length), torch.zeros(batch, 1, 1, length)


def _adam(elements: int) -> tuple[Tensor, ...]:
    p, g, m, v = (torch.randn(elements) for _ in range(4))
    return p, g, m, v.abs(), torch.tensor(3.0)


def _logits(rows: int, classes: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, classes), _tokens(classes, rows)


def _images(batch: int, channels: int, side: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, channels, side, side), torch.randn(channels), torch.randn(channels)


def _batch_norm(batch: int, channels: int, side: int) -> tuple[Tensor, ...]:
    image, mean, weight = _images(batch, channels, side)
    return image, mean, torch.randn(channels).abs(), weight, torch.randn(channels)


_micro(
    "softmax",
    functions.softmax,
    _rows,
    small=Size({"rows": 256, "columns": 1024}),
    real=Size({"rows": 49152, "columns": 512}),
)
_micro(
    "log_softmax",
    functions.log_softmax,
    _rows,
    small=Size({"rows": 256, "columns": 1024}),
    real=Size({"rows": 4096, "columns": 30522}),
)
_micro(
    "attn_scores",
    functions.attention_scores,
    _attention_scores,
    small=Size({"batch": 2, "heads": 4, "length": 64}),
    real=Size({"batch": 8, "heads": 12, "length": 512}),
)
_micro(
    "layernorm",
    functions.layer_norm,
    _rows_and_columns("row", "column", "column"),
    small=Size({"rows": 256, "columns": 256}),
    real=Size({"rows": 16384, "columns": 768}),
)
_micro(
    "rmsnorm",
    functions.rms_norm,
    _rows_and_columns("row", "column"),
    small=Size({"rows": 256, "columns": 256}),
    real=Size({"rows": 8192, "columns": 4096}),
)
_micro(
    "gelu_bias_res_ln",
    functions.gelu_bias_residual_layer_norm,
    _rows_and_columns("row", "column", "row", "column", "column"),
    small=Size({"rows": 256, "columns": 256}),
    real=Size({"rows": 16384, "columns": 3072}),
)
_micro("adam", functions.adam, _adam, small=Size({"elements": 65536}), real=Size({"elements": 7087872}))
_micro(
    "xent_fwd_bwd",
    functions.cross_entropy_with_gradient,
    _logits,
    small=Size({"rows": 128, "classes": 1000}),
    real=Size({"rows": 4096, "classes": 30522}),
)
_micro(
    "ln_fwd_bwd",
    functions.layer_norm_with_gradient,
    _rows_and_columns("row", "column", "column", "row"),
    small=Size({"rows": 256, "columns": 256}),
    real=Size({"rows": 16384, "columns": 768}),
)
_micro(
    "bn_relu",
    functions.batch_norm_relu,
    _batch_norm,
    small=Size({"batch": 4, "channels": 32, "side": 28}),
    real=Size({"batch": 32, "channels": 256, "side": 56}),
)
_micro(
    "groupnorm",
    functions.group_norm,
    _images,
    small=Size({"batch": 2, "channels": 64, "side": 16}),
    real=Size({"batch": 8, "channels": 320, "side": 64}),
)


def _embedded(batch: int, length: int, width: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, length, width),)


def _embedded_with_mask(batch: int, length: int, width: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, length, width), torch.zeros(batch, 1, 1, length)


def _embedded_with_mask_and_gradient(batch: int, length: int, width: int) -> tuple[Tensor, ...]:
    return (*_embedded_with_mask(batch, length, width), torch.randn(batch, length, width))


def _token_ids(batch: int, length: int, vocabulary: int) -> tuple[Tensor, ...]:
    return _tokens(vocabulary, batch, length), _tokens(2, batch, length), torch.ones(batch, length)


def _windows(batch: int, side: int, width: int) -> tuple[Tensor, ...]:
    area = attention.SwinBlock.WINDOW**2
    return torch.randn(batch, side, side, width), torch.zeros(side * side // area, 1, area, area)


def _purchases(batch: int, steps: int, vocabulary: int) -> tuple[Tensor, ...]:
    history = (_tokens(vocabulary, batch, steps), _tokens(vocabulary, batch, steps))
    return (*history, _tokens(vocabulary, batch), _tokens(vocabulary, batch), torch.ones(batch, steps))


def _text_line(batch: int, width: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 1, 32, width),)


def _speech(batch: int, length: int, features: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, length, features), torch.zeros(batch, 1, 1, length // 4)


def _alignment(sequences: int, residues: int, cm: int, cz: int) -> tuple[Tensor, ...]:
    return (
        torch.randn(sequences, residues, cm),
        torch.randn(residues, residues, cz),
        torch.ones(sequences, residues),
    )


def _gpt2_block(width: int = 768, heads: int = 12) -> nn.Module:
    return attention.PreNormBlock(width, heads, causal=True, gelu="tanh")


def _vit_block(width: int = 768, heads: int = 12) -> nn.Module:
    return attention.PreNormBlock(width, heads, causal=False, gelu="none", epsilon=1e-6)


def _bert_training_step(**arguments: int) -> nn.Module:
    return TrainingStep(attention.BertLayer(**arguments))


_SMALL_LAYER = {"width": 128, "heads": 4, "hidden": 512}
_SMALL_BLOCK = {"width": 128, "heads": 4}
_SMALL_INPUT = {"batch": 2, "length": 64, "width": 128}

_model(
    "bert_layer",
    attention.BertLayer,
    _embedded_with_mask,
    small=Size(_SMALL_INPUT, _SMALL_LAYER),
    real=Size({"batch": 8, "length": 128, "width": 768}),
)
_model(
    "bert_base",
    attention.Bert,
    _token_ids,
    small=Size({"batch": 2, "length": 64, "vocabulary": 1000}, {"layers": 2, "vocabulary": 1000, **_SMALL_LAYER}),
    real=Size({"batch": 8, "length": 128, "vocabulary": 30522}),
)
_model(
    "gpt2_block",
    _gpt2_block,
    _embedded,
    small=Size(_SMALL_INPUT, _SMALL_BLOCK),
    real=Size({"batch": 4, "length": 1024, "width": 768}),
)
_model(
    "t5_block",
    attention.T5Block,
    _embedded_with_mask,
    small=Size(_SMALL_INPUT, _SMALL_LAYER),
    real=Size({"batch": 8, "length": 512, "width": 512}),
)
_model(
    "vit_block",
    _vit_block,
    _embedded,
    small=Size({"batch": 2, "length": 65, "width": 128}, _SMALL_BLOCK),
    real=Size({"batch": 32, "length": 197, "width": 768}),
)
_model(
    "swin_block",
    attention.SwinBlock,
    _windows,
    small=Size({"batch": 1, "side": 28, "width": 48}, {"width": 48, "heads": 3}),
    real=Size({"batch": 8, "side": 56, "width": 96}),
)
_model(
    "dien",
    sequence.DIEN,
    _purchases,
    small=Size({"batch": 16, "steps": 8, "vocabulary": 1000}, {"steps": 8}),
    real=Size({"batch": 256, "steps": 50, "vocabulary": 1000}, {"steps": 50, "vocabulary": 367983}),
)
_model(
    "crnn",
    sequence.CRNN,
    _text_line,
    small=Size({"batch": 2, "width": 32}, {"divisor": 8, "width": 32}),
    real=Size({"batch": 8, "width": 100}),
)
_model(
    "asr_encoder",
    sequence.SpeechEncoder,
    _speech,
    small=Size(
        {"batch": 2, "length": 64, "features": 40},
        {"layers": 1, "width": 64, "heads": 4, "hidden": 256, "features": 40},
    ),
    real=Size({"batch": 8, "length": 400, "features": 80}, {"layers": 6, "width": 512, "heads": 8}),
)
_model(
    "llama_block",
    attention.LlamaBlock,
    _embedded,
    small=Size(_SMALL_INPUT, {"width": 128, "heads": 4, "key_heads": 2, "hidden": 344}),
    real=Size(
        {"batch": 1, "length": 512, "width": 4096}, {"width": 4096, "heads": 32, "key_heads": 8, "hidden": 14336}
    ),
)
_model(
    "evo_row_attn",
    attention.EvoformerRowAttention,
    _alignment,
    small=Size({"sequences": 8, "residues": 32, "cm": 64, "cz": 32}, {"cm": 64, "cz": 32, "heads": 4, "channels": 16}),
    real=Size({"sequences": 128, "residues": 256, "cm": 256, "cz": 128}),
)
_model(
    "bert_layer_train",
    _bert_training_step,
    _embedded_with_mask_and_gradient,
    small=Size(_SMALL_INPUT, _SMALL_LAYER),
    real=Size({"batch": 8, "length": 128, "width": 768}),
    training=True,
)
