"""Functions and the ops between them: the outer loop of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mlir import ir

from mlirstitch.dialects import parse_module
from mlirstitch.dialects.locations import describe, source_line
from mlirstitch.driver.reference.elements import NAMED_DTYPES, Elements, is_float
from mlirstitch.driver.reference.indexing import Space
from mlirstitch.driver.reference.structured import Environment, StructuredEvaluator, indexing_maps, scalar_op
from mlirstitch.driver.reference.tensors import TENSOR_OPS, padding
from mlirstitch.errors import LaunchError, MlirstitchError, PassError

PRECISIONS = ("ir", "float64")


def run(module: str | Any, inputs: Sequence[Any], *, function: str = "main", precision: str = "ir") -> list[np.ndarray]:
    """Evaluate a function of linalg-on-tensors IR.

    Args:
        module: MLIR text, or an ``mlir.ir.Module``, or its operation.
        inputs: one array an argument, of its shape and type. i1 takes bool; a signless integer takes the signed and
            the unsigned numpy type of its width; bf16 takes ``ml_dtypes.bfloat16``; ``index`` takes int64.
        function: name of the function to evaluate; functions that it calls may be private.
        precision: "ir" evaluates in the IR's types, "float64" evaluates every float in f64.

    Returns:
        One array a result. A result whose ``stitch.dtype`` says ``uint8`` is given unsigned.

    Raises:
        LaunchError: inputs do not fit, an index leaves its tensor, or a ``cf.assert`` fails.
        PassError: an op or type that the reference does not know.
        MlirstitchError: the text does not parse.
    """
    if precision not in PRECISIONS:
        raise PassError(f"precision {precision!r} is unknown", hint=f"choose one of {', '.join(PRECISIONS)}")
    if isinstance(module, str):
        return run(parse_module(module), inputs, function=function, precision=precision)
    operation = module.operation
    with operation.context:
        return Interpreter(operation, Elements(widen=precision == "float64")).run(function, inputs)


class Interpreter:
    """Evaluates the functions of one module."""

    def __init__(self, module: ir.Operation, elements: Elements) -> None:
        self.elements = elements
        self.functions = {
            ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
            for op in module.regions[0].blocks[0].operations
            if op.operation.name == "func.func"
        }

    def run(self, name: str, inputs: Sequence[Any]) -> list[np.ndarray]:
        """Evaluate the named function on checked inputs; see :func:`run`."""
        if name not in self.functions:
            raise PassError(f"there is no function @{name}", hint=f"functions: {', '.join(self.functions) or 'none'}")
        function = self.functions[name]
        arguments = list(function.regions[0].blocks[0].arguments)
        if len(inputs) != len(arguments):
            raise LaunchError(f"@{name} takes {len(arguments)} arguments, {len(inputs)} were given")
        values = [self._input(v, a.type, i) for i, (v, a) in enumerate(zip(inputs, arguments, strict=True))]
        results = self.call(function, values)
        return [self._output(r, function, i) for i, r in enumerate(results)]

    def call(self, function: ir.Operation, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Evaluate a function's body."""
        if not function.regions[0].blocks:
            raise PassError(f"function {function.attributes['sym_name']} has no body")
        if len(function.regions[0].blocks) != 1:
            raise PassError(f"function {function.attributes['sym_name']} has control flow between blocks")
        block = function.regions[0].blocks[0]
        env: Environment = dict(zip(block.arguments, values, strict=True))
        for op in block.operations:
            if op.operation.name == "func.return":
                return [np.asarray(env[v]) for v in op.operation.operands]
            self.evaluate(op.operation, env)
        raise PassError(f"function {function.attributes['sym_name']} does not return")

    def evaluate(self, op: ir.Operation, env: Environment, space: Space | None = None) -> None:
        """Evaluate one op into ``env``; ``space`` is the iteration space when the op stands in a linalg body."""
        try:
            self._evaluate(op, env, space)
        except MlirstitchError as error:
            if isinstance(error, PassError) and error.op:
                raise
            types = ", ".join(str(v.type) for v in op.operands)
            raise type(error)(
                f"{op.name}({types}): {error.message}", hint=error.hint, source=error.source or source_line(op.location)
            ) from error

    def _evaluate(self, op: ir.Operation, env: Environment, space: Space | None) -> None:
        name = op.name
        if name == "arith.constant":
            env[op.results[0]] = self.elements.constant(op.attributes["value"], op.results[0].type)
        elif scalar_op(op, self.elements, env):
            return
        elif name in TENSOR_OPS:
            env[op.results[0]] = TENSOR_OPS[name](op, self.elements, lambda v: env[v])
        elif name == "linalg.index" and space is not None:
            env[op.results[0]] = space.grid(ir.IntegerAttr(op.attributes["dim"]).value)
        elif name == "tensor.pad":
            self._pad(op, env)
        elif name == "tensor.generate":
            shape = tuple(self._generated_shape(op, env))
            env[op.results[0]] = self._body(op, Space((0,) * len(shape), shape), env, op.results[0].type)
        elif name == "cf.assert":
            if not np.all(env[op.operands[0]]):
                raise LaunchError(f"assertion failed: {ir.StringAttr(op.attributes['msg']).value}")
        elif name == "func.call":
            callee = self.functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            for result, value in zip(op.results, self.call(callee, [env[v] for v in op.operands]), strict=True):
                env[result] = value
        elif name.startswith("linalg.") and op.regions and op.regions[0].blocks and indexing_maps(op):
            for result, value in zip(op.results, self._structured(op, env), strict=True):
                env[result] = value
        else:
            raise PassError(
                "the reference does not know this op",
                op=describe(op),
                source=source_line(op.location),
                hint="it evaluates arith, math, tensor, structured linalg ops, cf.assert and func.call",
            )

    def _structured(self, op: ir.Operation, env: Environment) -> list[np.ndarray]:
        return StructuredEvaluator(op, self.elements, env, self.evaluate).run()

    def _body(self, op: ir.Operation, space: Space, outer: Environment, type_: ir.Type) -> np.ndarray:
        """The body of tensor.pad or tensor.generate, its arguments being the indices."""
        block = op.regions[0].blocks[0]
        env = dict(outer)
        for loop, argument in enumerate(block.arguments):
            env[argument] = space.grid(loop)
        for inner in block.operations:
            if inner.operation.name == "tensor.yield":
                value = np.asarray(env[inner.operation.operands[0]])
                return np.array(np.broadcast_to(value, space.shape), dtype=self.elements.dtype(type_))
            self.evaluate(inner.operation, env, space)
        raise PassError(f"{op.name} has no yield")

    def _pad(self, op: ir.Operation, env: Environment) -> None:
        source = env[op.operands[0]]
        low, high = padding(op, lambda v: env[v])
        shape = tuple(lo + n + hi for lo, n, hi in zip(low, source.shape, high, strict=True))
        result = self._body(op, Space((0,) * len(shape), shape), env, op.results[0].type)
        # Negative padding cuts the source.
        target = tuple(slice(max(lo, 0), s - max(hi, 0)) for lo, s, hi in zip(low, shape, high, strict=True))
        kept = tuple(slice(max(-lo, 0), n - max(-hi, 0)) for lo, n, hi in zip(low, source.shape, high, strict=True))
        result[target] = source[kept]
        env[op.results[0]] = result

    def _generated_shape(self, op: ir.Operation, env: Environment) -> list[int]:
        dynamic = iter(op.operands)
        return [int(env[next(dynamic)]) if n < 0 else n for n in ir.ShapedType(op.results[0].type).shape]

    def _input(self, value: Any, type_: ir.Type, position: int) -> np.ndarray:
        array = np.asarray(value)
        dtype = Elements().dtype(type_)
        shape = list(ir.ShapedType(type_).shape) if isinstance(type_, ir.ShapedType) else []
        same_width = array.dtype.kind in "iu" and dtype.kind == "i" and array.dtype.itemsize == dtype.itemsize
        if array.dtype != dtype and not same_width:
            raise LaunchError(f"argument {position} has type {array.dtype}, {type_} needs {dtype}")
        if len(shape) != array.ndim or any(n >= 0 and n != m for n, m in zip(shape, array.shape, strict=True)):
            raise LaunchError(f"argument {position} has shape {list(array.shape)}, the function takes {type_}")
        return array.view(dtype) if same_width else array.astype(self.elements.dtype(type_), copy=False)

    def _output(self, value: np.ndarray, function: ir.Operation, position: int) -> np.ndarray:
        name = ""
        if "res_attrs" in function.attributes:
            attributes = ir.DictAttr(ir.ArrayAttr(function.attributes["res_attrs"])[position])
            name = ir.StringAttr(attributes["stitch.dtype"]).value if "stitch.dtype" in attributes else ""
        dtype = NAMED_DTYPES.get(name)
        if dtype is None or dtype == value.dtype or is_float(value.dtype) or dtype.itemsize != value.dtype.itemsize:
            return value
        return np.ascontiguousarray(value).reshape(value.shape).view(dtype)
