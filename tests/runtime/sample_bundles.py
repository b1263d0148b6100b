"""Small bundles written by hand, and a device whose kernels are Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.dtypes import tensor_bytes
from mlirstitch.runtime.emulated_device import EmulatedDevice
from mlirstitch.runtime.program import (
    Argument,
    Buffer,
    Copy,
    Launch,
    LibraryCall,
    Mutation,
    Operand,
    Program,
    Signature,
    Step,
    Value,
)

TARGET = {"chip": "sm_80", "ptx": "7.0"}


def add_ptx(*names: str) -> str:
    """A module of kernels ``(a, b, y)``, f32, ``y[i] = a[i] + b[i]``, one thread an element, no bounds test."""
    return "//\n.version 7.0\n.target sm_80\n.address_size 64\n" + "".join(_ADD.replace("NAME", name) for name in names)


_ADD = """
.visible .entry NAME(
	.param .u64 .ptr .align 1 NAME_param_0,
	.param .u64 .ptr .align 1 NAME_param_1,
	.param .u64 .ptr .align 1 NAME_param_2
)
{
	.reg .b32 	%r<8>;
	.reg .b64 	%rd<11>;

	ld.param.b64 	%rd1, [NAME_param_0];
	ld.param.b64 	%rd2, [NAME_param_1];
	ld.param.b64 	%rd3, [NAME_param_2];
	cvta.to.global.u64 	%rd4, %rd3;
	cvta.to.global.u64 	%rd5, %rd2;
	cvta.to.global.u64 	%rd6, %rd1;
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	mov.u32 	%r3, %tid.x;
	mad.lo.s32 	%r4, %r1, %r2, %r3;
	mul.wide.u32 	%rd7, %r4, 4;
	add.s64 	%rd8, %rd6, %rd7;
	add.s64 	%rd9, %rd5, %rd7;
	add.s64 	%rd10, %rd4, %rd7;
	ld.global.b32 	%r5, [%rd8];
	ld.global.b32 	%r6, [%rd9];
	add.rn.f32 	%r7, %r5, %r6;
	st.global.b32 	[%rd10], %r7;
	ret;
}
"""

Kernel = Callable[..., None]


class HostDevice(EmulatedDevice):
    """The emulated device's memory with kernels written in Python: name -> function of typed, flat arrays."""

    def __init__(self, kernels: dict[str, Kernel] | None = None) -> None:
        super().__init__()
        self.kernels: dict[str, Kernel] = {"add": _add} | (kernels or {})
        self.launched: list[str] = []

    def load_ptx(self, text: str, name: str) -> Any:
        return name

    def launch(self, module: Any, step: Launch, arguments: Sequence[np.ndarray], *, count: bool) -> dict[str, Any]:
        self.launched.append(step.kernel)
        self.kernels[step.kernel](*arguments)
        return {"launches": 1, "bytes": {"read": 8, "written": 4}}


def _add(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> None:
    y.view(np.float32)[...] = a.view(np.float32) + b.view(np.float32)


def buffer(index: int, role: Any, name: str, shape: Sequence[int], dtype: Any = "float32", offset: int | None = None):
    """A buffer of the right number of bytes."""
    return Buffer(index, role, name, tuple(shape), dtype, tensor_bytes(shape, dtype), offset)


def launch(
    buffers: Sequence[Buffer], kernel: str, arguments: Sequence[tuple[int, str]], module: str = "kernels", **fields: Any
) -> Launch:
    """One thread an element of the last argument, one block."""
    threads = max(1, int(np.prod(buffers[arguments[-1][0]].shape, dtype=int)))
    return Launch(
        module,
        kernel,
        fields.pop("grid", (1, 1, 1)),
        fields.pop("block", (threads, 1, 1)),
        tuple(Argument(b, a, buffers[b].bytes, buffers[b].bytes) for b, a in arguments),  # type: ignore[arg-type]
        stitch_cluster=kernel,
        template="elementwise",
        source=fields.pop("source", ("model.py:7",)),
        **fields,
    )


def value_of(b: Buffer) -> Value:
    return Value(b.name, b.shape, b.dtype, b.id)


def program(
    buffers: Sequence[Buffer], steps: Sequence[Step], *, mutated: Sequence[int] = (), name: str = "main"
) -> Program:
    """Inputs and outputs in order of their buffers; the arena as large as the temporaries need."""
    temporaries = [b for b in buffers if b.arena_offset is not None]
    end = max((b.arena_offset + b.bytes for b in temporaries if b.arena_offset is not None), default=0)
    signature = Signature(
        tuple(value_of(b) for b in buffers if b.role == "input"),
        tuple(value_of(b) for b in buffers if b.role == "output"),
        tuple(Mutation(buffers[k].name, k) for k in mutated),
    )
    return Program(
        name, (0,), signature, -(-end // 256) * 256, sum(b.bytes for b in temporaries), tuple(buffers), tuple(steps)
    )


def add_bundle(count: int = 8) -> Bundle:
    """``y = (x + w) + w`` by two launches over a temporary."""
    buffers = [
        buffer(0, "input", "x", [count]),
        buffer(1, "weight", "w", [count]),
        buffer(2, "temporary", "t", [count], offset=0),
        buffer(3, "output", "y", [count]),
    ]
    steps = [
        launch(buffers, "add", [(0, "read"), (1, "read"), (2, "write")]),
        launch(buffers, "add", [(2, "read"), (1, "read"), (3, "write")], source=("model.py:9", "model.py:10")),
    ]
    weights = {"w": np.arange(count, dtype=np.float32)}
    return Bundle(TARGET, (program(buffers, steps),), {"kernels": add_ptx("add")}, weights)


def counter_bundle() -> Bundle:
    """In place: ``state += x`` for an input, ``total += x`` for a weight; the output is the new state."""
    buffers = [
        buffer(0, "input", "x", [4]),
        buffer(1, "input", "state", [4]),
        buffer(2, "weight", "total", [4]),
        buffer(3, "output", "y", [4]),
    ]
    steps: list[Step] = [
        launch(buffers, "add", [(0, "read"), (1, "read"), (3, "write")]),
        launch(buffers, "add", [(0, "read"), (2, "read"), (2, "write")]),
        Copy(3, 1, 16, ("model.py:3",)),
    ]
    weights = {"total": np.zeros(4, np.float32)}
    return Bundle(TARGET, (program(buffers, steps, mutated=[1, 2]),), {"kernels": add_ptx("add")}, weights)


def library_call(routine: str, operands: Sequence[tuple[Buffer, str]], **attributes: Any) -> LibraryCall:
    return LibraryCall(
        routine,
        tuple(Operand(b.id, access, b.shape, b.dtype) for b, access in operands),  # type: ignore[arg-type]
        attributes,
        stitch_cluster="cluster",
    )
