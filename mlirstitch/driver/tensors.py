"""Tensors of the caller as numpy arrays and back, without importing torch for callers who do not use it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError

Array = np.ndarray[Any, Any]


def is_torch_tensor(value: Any) -> bool:
    """Whether ``value`` is a ``torch.Tensor``; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(value: Any, name: str) -> Array:
    """A numpy view of a tensor or array, sharing its memory. Python numbers become 0-d arrays.

    Raises LaunchError for tensors that have no memory on the host, and for things that are no tensors.
    """
    if isinstance(value, np.ndarray):
        return value
    if is_torch_tensor(value):
        return tensor_to_array(value, name)
    if isinstance(value, np.generic | bool | int | float):
        return np.asarray(value)
    raise LaunchError(
        f"argument {name}: expected a torch tensor or a numpy array, got {type(value).__name__}",
        hint="pass tensors, arrays or numbers in the structure of the example inputs",
    )


def tensor_to_array(tensor: Any, name: str) -> Array:
    """A numpy view of a torch tensor; bfloat16 becomes ``ml_dtypes.bfloat16``. Raises LaunchError if it has no data."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        raise LaunchError(
            f"tensor {name} has no data (a fake or meta tensor)",
            hint="compile-only is possible; to run, use real tensors",
        )
    if tensor.device.type != "cpu":
        raise LaunchError(f"tensor {name} is on {tensor.device}", hint="move it to the CPU: tensor.cpu()")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise LaunchError(f"tensor {name} is not a plain strided tensor", hint="pass tensor.to_dense()")
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        import ml_dtypes

        # A 0-d tensor cannot be viewed as another type in numpy, but in torch it can.
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    try:
        return plain.numpy()
    except TypeError as error:
        raise LaunchError(f"tensor {name}: {tensor.dtype} is not supported") from error


def array_to_tensor(array: Array) -> Any:
    """A torch tensor that shares the array's memory."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
