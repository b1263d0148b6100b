"""The launch plan as data: what docs/manifest.md calls a program, read off the host function.

The host function is the same at the gpu, nvvm and ptx levels, and so is the program.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

from mlir import ir
from mlir.dialects import gpu

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal, source_lines
from mlirstitch.errors import PassError
from mlirstitch.lowering.buffers import Buffer, host_function
from mlirstitch.passes.structured import block_ops, constant_of

Json = dict[str, Any]

_PLAIN = ("arith.constant", "func.return")


def host_program(module: ir.Operation) -> Json:
    """The program dictionary of a module at the gpu, nvvm or ptx level (schema: docs/manifest.md, "A program").

    Raises :class:`PassError` for an op that a launch plan cannot hold.
    """
    return _Reader(host_function(module)).program()


class _Reader:
    """Walks a host function once, numbering buffers as they appear."""

    def __init__(self, main: ir.Operation) -> None:
        self.main = main
        self.buffers: list[Buffer] = []
        self.numbers: dict[ir.Value, int] = {}
        self.steps: list[Json] = []
        self.arena: ir.Value | None = None
        self.arena_bytes = 0

    def program(self) -> Json:
        arguments = self.main.regions[0].blocks[0].arguments
        for number, (argument, fields) in enumerate(zip(arguments, stitch.BUFFER.of_arguments(self.main), strict=True)):
            if fields is None:
                raise PassError(
                    f"argument {number} of @main does not say which buffer it is",
                    hint="lower from the stitched level, or give it a stitch.buffer attribute",
                )
            self._add(argument, Buffer.of_attributes(fields))
        for op in block_ops(self.main):
            self._visit(op)
        return {
            "name": "main",
            "devices": [0],
            "signature": self._signature(),
            "arena_bytes": self.arena_bytes,
            "temporary_bytes": sum(buffer.bytes for buffer in self.buffers if buffer.role == "temporary"),
            "buffers": [_buffer_json(number, buffer) for number, buffer in enumerate(self.buffers)],
            "steps": self.steps,
        }

    def _add(self, value: ir.Value, buffer: Buffer) -> None:
        kind = ir.MemRefType(value.type)
        element = "i8" if buffer.dtype == "bool" else stitch.DTYPES[buffer.dtype]
        if kind.shape != [buffer.elements] or str(kind.element_type) != element:
            raise refusal(
                self.main,
                f"buffer {buffer.name!r} is described as {buffer.dtype} {list(buffer.shape)}, but it lies in {kind}",
                "stitch.buffer and the memref must agree",
            )
        self.numbers[value] = len(self.buffers)
        self.buffers.append(buffer)

    def _visit(self, op: ir.Operation) -> None:
        if op.name in _PLAIN:
            return
        if op.name == "memref.alloc" and self.arena is None:
            self.arena = op.results[0]
            self.arena_bytes = ir.MemRefType(self.arena.type).shape[0]
        elif op.name == "memref.view" and op.operands[0] == self.arena:
            buffer = Buffer.of_attributes(stitch.BUFFER.require(op))
            self._add(op.results[0], replace(buffer, offset=_constant(op.operands[1])))
        elif op.name == "gpu.launch_func":
            self.steps.append(self._launch(op))
        elif op.name == "func.call":
            self.steps.append(self._library_call(op))
        elif op.name == "memref.copy":
            self.steps.append(self._copy(op))
        else:
            raise refusal(
                op,
                "a launch plan cannot hold this op",
                "the host function holds launches, library calls and copies of whole buffers",
            )

    def _launch(self, op: ir.Operation) -> Json:
        view = cast(gpu.LaunchFuncOp, op.opview)
        module, kernel = ir.SymbolRefAttr(op.attributes["kernel"]).value
        numbers = [self._number(op, value) for value in view.kernelOperands]
        access = stitch.ACCESS.require(op)
        traffic = stitch.TRAFFIC.require(op)
        touched = stitch.TOUCHED.get(op) or tuple(self.buffers[number].bytes for number in numbers)
        if not len(numbers) == len(access) == len(traffic) == len(touched):
            raise refusal(op, "stitch.access, stitch.traffic and stitch.touched need one entry an argument")
        shared = view.dynamicSharedMemorySize
        return {
            "op": "launch",
            "module": module,
            "kernel": kernel,
            "grid": [_constant(size) for size in (view.gridSizeX, view.gridSizeY, view.gridSizeZ)],
            "block": [_constant(size) for size in (view.blockSizeX, view.blockSizeY, view.blockSizeZ)],
            "shared_bytes": 0 if shared is None else _constant(shared),
            "cooperative": bool(stitch.COOPERATIVE.get(op)),
            "thread_block_cluster": [
                1 if size is None else _constant(size)
                for size in (view.clusterSizeX, view.clusterSizeY, view.clusterSizeZ)
            ],
            "arguments": [
                {
                    "buffer": number,
                    "access": how,
                    "bytes": self.buffers[number].bytes,
                    "touched": reached,
                    "traffic": moved,
                }
                for number, how, moved, reached in zip(numbers, access, traffic, touched, strict=True)
            ],
            "stitch_cluster": stitch.CLUSTER_NAME.require(op),
            "template": stitch.TEMPLATE.require(op),
            "kind": stitch.BOUND.require(op),
            "source": list(source_lines(op.location)),
        }

    def _library_call(self, op: ir.Operation) -> Json:
        shapes = [list(shape) for shape in stitch.ROUTINE_SHAPES.require(op)]
        access = stitch.ACCESS.require(op)
        dtypes = stitch.ROUTINE_DTYPES.require(op)
        numbers = [self._number(op, value) for value in op.operands]
        operands: list[Json] = [
            {"buffer": number, "access": how, "shape": shape, "dtype": dtype}
            for number, how, shape, dtype in zip(numbers, access, shapes, dtypes, strict=True)
        ]
        strides = stitch.ROUTINE_STRIDES.get(op) or (None,) * len(operands)
        offsets = stitch.ROUTINE_OFFSETS.get(op) or (0,) * len(operands)
        for operand, steps, offset in zip(operands, strides, offsets, strict=True):
            contiguous = _contiguous(operand["shape"])
            whole = math.prod(operand["shape"]) == self.buffers[operand["buffer"]].elements
            if (steps is not None and list(steps) != contiguous) or not whole:
                operand["strides"] = list(steps or contiguous)
            if offset:
                operand["offset"] = offset
        epilogue = stitch.ROUTINE_EPILOGUE.get(op)
        return {
            "op": "library",
            "routine": stitch.LIBRARY.require(op),
            "operands": operands,
            "attributes": {name: _plain(value) for name, value in stitch.ROUTINE_ATTRIBUTES.require(op).items()},
            **({"epilogue": {name: _scalar(value) for name, value in sorted(epilogue.items())}} if epilogue else {}),
            "stitch_cluster": stitch.CLUSTER_NAME.require(op),
            "kind": "compute_bound",
            "source": list(source_lines(op.location)),
        }

    def _copy(self, op: ir.Operation) -> Json:
        source, target = (self._number(op, value) for value in op.operands)
        size = self.buffers[source].bytes
        return {"op": "copy", "from": source, "to": target, "bytes": size, "source": list(source_lines(op.location))}

    def _number(self, op: ir.Operation, value: ir.Value) -> int:
        if value not in self.numbers:
            raise refusal(op, "an operand is neither an argument nor a view of the arena")
        return self.numbers[value]

    def _signature(self) -> Json:
        """Inputs in order; outputs in the order of the results; arguments with new contents."""
        results = stitch.RESULTS.require(self.main)
        unknown = [number for number in results if not 0 <= number < len(self.buffers)]
        if unknown:
            raise refusal(
                self.main,
                f"stitch.results names buffer {unknown[0]} of {len(self.buffers)}",
                "results are numbers of buffers: arguments first, then views of the arena",
            )
        outputs = [number for number in results if self.buffers[number].role == "output"]
        inputs = [number for number, buffer in enumerate(self.buffers) if buffer.role == "input"]
        mutated = [number for number, buffer in enumerate(self.buffers) if buffer.mutated]
        return {
            "inputs": [self._value_json(number) for number in inputs],
            "outputs": [self._value_json(number) for number in outputs],
            "mutated": [{"name": self.buffers[number].name, "buffer": number} for number in mutated],
        }

    def _value_json(self, number: int) -> Json:
        buffer = self.buffers[number]
        return {"name": buffer.name, "shape": list(buffer.shape), "dtype": buffer.dtype, "buffer": number}


def _buffer_json(number: int, buffer: Buffer) -> Json:
    data: Json = {
        "id": number,
        "role": buffer.role,
        "name": buffer.name,
        "shape": list(buffer.shape),
        "dtype": buffer.dtype,
        "bytes": buffer.bytes,
    }
    if buffer.offset is not None:
        data["arena_offset"] = buffer.offset
    return data


def _contiguous(shape: list[int]) -> list[int]:
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _scalar(attribute: ir.Attribute) -> Any:
    """A number or a string."""
    for kind in (ir.FloatAttr, ir.IntegerAttr, ir.StringAttr):
        if isinstance(attribute, kind):
            return attribute.value
    raise PassError(f"stitch.epilogue holds {attribute}, neither a number nor a string")


def _plain(attribute: ir.Attribute) -> Any:
    """Integer lists, and lists of them, as Python lists."""
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return list(attribute)
    return [_plain(entry) for entry in ir.ArrayAttr(attribute)]


def _constant(value: ir.Value) -> int:
    """The value of an ``arith.constant``. Raises :class:`PassError` for anything else."""
    attribute = constant_of(value)
    if not isinstance(attribute, ir.IntegerAttr):
        raise PassError(f"a launch plan needs a constant, not {value}", hint="fold launch sizes and offsets first")
    return attribute.value
