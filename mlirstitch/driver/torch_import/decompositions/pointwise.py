"""Element-wise functions written out, where the importer has none or another one than eager.

Maximum, minimum and clamp are left to the importer: its compare-and-select is turned into ``arith.maximumf`` and
``arith.minimumf`` afterwards (``repairs.py``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

from mlirstitch.driver.torch_import.decompositions.promotion import SMALL_INTEGERS, Elementwise, Half, promoted
from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose

aten = torch.ops.aten


def _float(x: Tensor) -> Tensor:
    """The tensor in the type a float function of it is computed in."""
    return computing(x if x.is_floating_point() else x.to(torch.float32))


def _float_type(*operands: Any) -> torch.dtype:
    return promoted(*operands, kind=KIND.INT_TO_FLOAT)


@decompose(aten.reciprocal.default)
def reciprocal(x: Tensor) -> Tensor:
    """One over x; zero gives infinity, NaN gives NaN."""
    wide = _float(x)
    return torch.div(torch.ones((), dtype=wide.dtype), wide).to(_float_type(x))


@decompose(aten.trunc.default)
def trunc(x: Tensor) -> Any:
    """Rounded towards zero, which keeps its sign."""
    if not x.is_floating_point():
        return x.clone()
    return torch.where(x < 0, torch.ceil(x), torch.floor(x))


@decompose(aten.constant_pad_nd.default)
def constant_pad(x: Tensor, pad: list[int], value: Any = 0) -> Any:
    """Negative padding cuts off: the importer leaves it to ``tensor.pad``, which has no meaning for it."""
    if all(n >= 0 for n in pad):
        return NotImplemented
    for position, (low, high) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.ndim - 1 - position
        first = max(-low, 0)
        x = x.narrow(dim, first, x.shape[dim] - first - max(-high, 0))
    return aten.constant_pad_nd.default(x, [max(n, 0) for n in pad], value)


@decompose(aten.roll.default)
def roll(x: Tensor, shifts: list[int], dims: list[int] | tuple[()] = ()) -> Tensor:
    """By any shift; the importer takes only those shorter than the dim."""
    if x.numel() == 0:
        return x.clone()
    if not dims:
        return aten.roll.default(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        split = -shift % size
        x = torch.cat([x.narrow(dim, split, size - split), x.narrow(dim, 0, split)], dim) if split else x.clone()
    return x


@decompose(aten.flip.default)
def flip(x: Tensor, dims: Any) -> Any:
    return NotImplemented if x.ndim else x.clone()


@decompose(aten.gather.default)
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    """Of a 0-d tensor everything that a legal index names is the one element."""
    return NotImplemented if x.ndim else x.expand(index.shape).clone()


@decompose(aten.gelu.default)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", exact or with their tanh approximation."""
    wide = computing(x)
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
        y = 0.5 * wide * (1.0 + torch.tanh(inner))
    else:
        y = 0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))
    return y.to(x.dtype)


@decompose(aten.log_sigmoid_forward.default)
def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithm of the logistic function, and the e^-|x| that its gradient reuses."""
    wide = computing(x)
    decay = torch.exp(-wide.abs())
    smaller = torch.minimum(wide, torch.zeros((), dtype=wide.dtype))
    return (smaller - torch.log1p(decay)).to(x.dtype), decay.to(x.dtype)


@decompose(aten.fmax.default)
def fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger operand, a NaN losing against a number."""
    return torch.where(a != a, b, torch.where(b != b, a, torch.maximum(a, b)))


@decompose(aten.fmin.default)
def fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller operand, a NaN losing against a number."""
    return torch.where(a != a, b, torch.where(b != b, a, torch.minimum(a, b)))


@decompose(aten.isfinite.default)
def isfinite(x: Tensor) -> Tensor:
    return x.abs() < math.inf if x.is_floating_point() else torch.ones_like(x, dtype=torch.bool)


@decompose(aten.isclose.default)
def isclose(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    close = a == b
    if equal_nan and a.is_floating_point():
        close = close | ((a != a) & (b != b))
    if not a.is_floating_point():
        a, b = a.to(torch.float64), b.to(torch.float64)
    allowed = atol + (b * rtol).abs()
    distance = (a - b).abs()
    return close | ((distance < math.inf) & (distance <= allowed))


def _negative(x: Tensor) -> Tensor:
    """Whether the sign bit is set; the sign of a NaN is not told apart."""
    return (x < 0) | ((x == 0) & (torch.ones((), dtype=x.dtype) / x < 0))


@decompose(aten.signbit.default)
def signbit(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x < 0 if x.dtype not in (torch.uint8, torch.bool) else torch.zeros_like(x, dtype=torch.bool)
    return _negative(computing(x))


@decompose(aten.copysign.Tensor)
def copysign(a: Tensor, b: Tensor) -> Tensor:
    size = _float(a).abs()
    return torch.where(_negative(_float(b)), -size, size).to(_float_type(a, b))


@decompose(aten.hypot.default)
def hypot(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(a^2 + b^2) without overflow: the larger size is taken out of the root."""
    p, q = computing(a).abs(), computing(b).abs()
    large, small = torch.maximum(p, q), torch.minimum(p, q)
    ratio = torch.where(small == large, torch.ones((), dtype=p.dtype), small / large)
    root = large * torch.sqrt(ratio * ratio + 1.0)
    either = (p == math.inf) | (q == math.inf)
    root = torch.where(large == 0, large, torch.where(either, torch.full((), math.inf, dtype=p.dtype), root))
    return root.to(promoted(a, b))


# ---------------------------------------------------------------- sums of products
@decompose(aten.addmm.default)
def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _scaled_sum(bias, torch.mm(a, b), beta, alpha)


@decompose(aten.baddbmm.default)
def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _scaled_sum(bias, torch.bmm(a, b), beta, alpha)


def _scaled_sum(bias: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    if not product.is_floating_point():
        beta, alpha = int(beta), int(alpha)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


# ---------------------------------------------------------------- pooling
def _pooling(overload: Any, half: Half) -> None:
    """Accept [C, H, W] like [1, C, H, W], and sum half types in float32."""
    widen = Elementwise(overload, half=half, numbers=False)

    def rule(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.ndim == 3:
            pooled = overload(x.unsqueeze(0), *args, **kwargs)
            return tuple(p.squeeze(0) for p in pooled) if isinstance(pooled, tuple) else pooled.squeeze(0)
        if x.dtype in SMALL_INTEGERS and half == Half.NEVER:  # a maximum and its index
            values, *index = overload(x.to(torch.int32), *args, **kwargs)
            return (values.to(x.dtype), *index)
        return widen(x, *args, **kwargs) if half != Half.NEVER else NotImplemented

    decompose(overload)(rule)


_pooling(aten.max_pool2d_with_indices.default, Half.NEVER)
_pooling(aten.avg_pool2d.default, Half.ALWAYS)
for _overload in (aten.avg_pool1d.default, aten.avg_pool3d.default):
    decompose(_overload)(Elementwise(_overload, half=Half.ALWAYS, numbers=False))
