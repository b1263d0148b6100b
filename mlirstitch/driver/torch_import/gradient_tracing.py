"""Tracing of autograd: which settings of torch it takes, and how ops of the backward get a line of the user's.

A gradient is computed outside the user's code. Autograd keeps the Python stack at which each of its nodes was made
(anomaly mode); hooks put it in force again while the node computes its gradient.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._traceback import CapturedTraceback

from mlirstitch.driver.torch_import.exporting import user_frames, whole_user_stacks


@contextmanager
def tracing_gradients(tracer: str) -> Iterator[None]:
    """Attention written out, no hidden mutation, and user lines on every op.

    ``tracer`` is the file that calls the user's program: frames up to its last one are not the user's.
    """
    with ExitStack() as stack:
        stack.enter_context(enable_python_dispatcher())  # batch norm: the form that says what it changes
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(whole_user_stacks(tracer))
        stack.enter_context(fx_traceback.preserve_node_meta())
        stack.enter_context(_stacks_of_autograd(tracer))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", UserWarning)  # anomaly mode says that it is slow
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))  # its recurrent layers are one op
        stack.enter_context(torch.autograd.detect_anomaly(check_nan=False))
        yield


@contextmanager
def _stacks_of_autograd(tracer: str) -> Iterator[None]:
    """Let anomaly mode keep the user's frames alone."""

    def format_stack() -> list[str]:
        frames = user_frames(CapturedTraceback.extract().summary(), tracer).format()
        return frames[:-1]  # the last one is this function

    original = fx_traceback.format_stack
    fx_traceback.format_stack = format_stack
    try:
        yield
    finally:
        fx_traceback.format_stack = original


def carry_stacks_backward(loss: Tensor) -> None:
    """Give what is traced while ``loss`` is differentiated the lines of the ops whose gradients it computes.

    A sum of gradients has the line of the last op that contributed.
    """
    if loss.grad_fn is None:
        return
    seen, waiting = {loss.grad_fn}, deque([loss.grad_fn])
    while waiting:
        node: Any = waiting.popleft()
        node.register_prehook(_putting("".join(node.metadata.get("traceback_", []))))
        for source, _ in node.next_functions:
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)


def _putting(stack: str) -> Callable[[Any], None]:
    def hook(gradients: Any) -> None:
        set_stack(stack)

    return hook


def stack_of(source: str) -> str:
    """The stack trace that stands for the line ``source`` (``file.py:12``); "" for ""."""
    file, _, line = source.rpartition(":")
    return f'  File "{file}", line {line}, in step\n' if file else ""


def set_stack(stack: str) -> None:
    """What is traced from here on gets this stack trace, or its own if it is ""."""
    fx_traceback.set_stack_trace([stack] if stack else [])
