"""Element-wise functions of random programs: their bodies, what PyTorch computes, and their errors.

An operand is read through a map, one entry for each of its dims: the loop that runs over it, or None for a dim of
extent 1 that is always read at 0. So permutations and broadcasts of any dims are part of every function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from random_program import BOOL, DTYPES, Body, Dtype, Known, Step, TensorType, Text, exactly, rounded
from torch import Tensor

Map = tuple[int | None, ...]
Error = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
"""From the elements of the operands and their errors: the error of the result before it is rounded."""


@dataclass(frozen=True)
class Function:
    """An element-wise function.

    Attributes:
        body: writes it, given the element type of the operands and their names; returns the name of the result.
        truth: PyTorch.
        error: None for integers and bools.
        units: roundings (see ``random_program.rounded``); None: those of a function of the library.
        scale: size of what is rounded on the way, of the operands; at most that of the result without it.
        result: element type, if not that of the operands.
        jumps: a small error of an operand may change the result by much.
        arity: operands.
    """

    body: Callable[[Body, Dtype, Sequence[str]], str]
    truth: Callable[..., Tensor]
    error: Error | None = None
    units: float | None = 1.0
    scale: Callable[..., Tensor] | None = None
    result: Dtype | None = None
    jumps: bool = False
    arity: int = 1


def _op(name: str) -> Callable[[Body, Dtype, Sequence[str]], str]:
    return lambda body, dtype, names: body.op(name, dtype, *names)


def _with_constant(name: str, value: float) -> Callable[[Body, Dtype, Sequence[str]], str]:
    return lambda body, dtype, names: body.op(name, dtype, names[0], body.constant(value, dtype))


def _of_magnitude(name: str, offset: float | None = None, sign: bool = False) -> Callable[..., str]:
    """A function of the magnitude: of ``|x| + offset``, or of ``-|x|``."""

    def write(body: Body, dtype: Dtype, names: Sequence[str]) -> str:
        value = body.op("math.absf", dtype, names[0])
        if sign:
            value = body.op("arith.negf", dtype, value)
        if offset is not None:
            value = body.op("arith.addf", dtype, value, body.constant(offset, dtype))
        return body.op(name, dtype, value)

    return write


def _compare(predicate: str) -> Callable[[Body, Dtype, Sequence[str]], str]:
    return lambda body, dtype, names: body.compare(predicate, dtype, *names)


def _lipschitz(most: float) -> Error:
    return lambda _, errors: most * sum(errors, torch.zeros(()))


def _product(values: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    (x, y), (dx, dy) = values, errors
    return torch.nan_to_num(x.abs() * dy) + torch.nan_to_num(y.abs() * dx) + dx * dy


def _square(values: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    return 2 * torch.nan_to_num(values[0].abs() * errors[0]) + errors[0] ** 2


def _quotient(values: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    (x, y), (dx, dy) = values, errors
    least = y.abs() - dy
    return torch.where((least > 0.1) | ~y.isfinite(), (dx + (x / y).abs() * dy) / least, torch.inf)


def _root(values: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    size, error = values[0].abs(), errors[0]
    return torch.maximum((size + error).sqrt() - size.sqrt(), size.sqrt() - (size - error).clamp(min=0).sqrt())


def _sigmoid(body: Body, dtype: Dtype, names: Sequence[str]) -> str:
    one = body.constant(1.0, dtype)
    power = body.op("math.exp", dtype, body.op("arith.negf", dtype, names[0]))
    return body.op("arith.divf", dtype, one, body.op("arith.addf", dtype, power, one))


def _safe_quotient(body: Body, dtype: Dtype, names: Sequence[str]) -> str:
    size = body.op("math.absf", dtype, names[1])
    return body.op("arith.divf", dtype, names[0], body.op("arith.addf", dtype, size, body.constant(1.0, dtype)))


def _clamp(body: Body, dtype: Dtype, names: Sequence[str]) -> str:
    low = body.op("arith.maximumf", dtype, names[0], body.constant(-1.0, dtype))
    return body.op("arith.minimumf", dtype, low, body.constant(2.0, dtype))


def _multiply_add(name: str, swapped: bool) -> Callable[[Body, Dtype, Sequence[str]], str]:
    def write(body: Body, dtype: Dtype, names: Sequence[str]) -> str:
        product = body.op("arith.mulf", dtype, names[0], names[1])
        return body.op(name, dtype, *((names[2], product) if swapped else (product, names[2])))

    return write


def _multiply_add_error(values: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    return _product(values[:2], errors[:2]) + errors[2]


def _of_product(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    return torch.nan_to_num(x * y).abs()


FLOAT_FUNCTIONS: dict[str, Function] = {
    "negate": Function(_op("arith.negf"), lambda x: -x, _lipschitz(1)),
    "magnitude": Function(_op("math.absf"), torch.abs, _lipschitz(1)),
    "relu": Function(_with_constant("arith.maximumf", 0.0), torch.relu, _lipschitz(1)),
    "halve": Function(_with_constant("arith.mulf", 0.5), lambda x: x * 0.5, _lipschitz(0.5)),
    "increase": Function(_with_constant("arith.addf", 1.0), lambda x: x + 1, _lipschitz(1)),
    "thirds": Function(_with_constant("arith.divf", 3.0), lambda x: x / 3, _lipschitz(1 / 3)),
    "clamp": Function(_clamp, lambda x: x.clamp(-1, 2), _lipschitz(1)),
    "square": Function(lambda body, t, n: body.op("arith.mulf", t, n[0], n[0]), torch.square, _square),
    "tanh": Function(_op("math.tanh"), torch.tanh, _lipschitz(1), None),
    "erf": Function(_op("math.erf"), torch.erf, _lipschitz(2 / math.sqrt(math.pi)), None),
    "sine": Function(_op("math.sin"), torch.sin, _lipschitz(1), None, lambda x: torch.ones_like(x)),
    "cosine": Function(_op("math.cos"), torch.cos, _lipschitz(1), None, lambda x: torch.ones_like(x)),
    "arctangent": Function(_op("math.atan"), torch.atan, _lipschitz(1), None),
    "decay": Function(_of_magnitude("math.exp", sign=True), lambda x: (-x.abs()).exp(), _lipschitz(1), None),
    "decay_less_1": Function(
        _of_magnitude("math.expm1", sign=True), lambda x: torch.expm1(-x.abs()), _lipschitz(1), None
    ),
    "decay_by_2": Function(_of_magnitude("math.exp2", sign=True), lambda x: torch.exp2(-x.abs()), _lipschitz(1), None),
    "logarithm": Function(
        _of_magnitude("math.log", 1.0), lambda x: (x.abs() + 1).log(), _lipschitz(1), None, lambda x: torch.ones_like(x)
    ),
    "logarithm_1": Function(_of_magnitude("math.log1p"), lambda x: torch.log1p(x.abs()), _lipschitz(1), None),
    "logarithm_2": Function(
        _of_magnitude("math.log2", 1.0),
        lambda x: (x.abs() + 1).log2(),
        _lipschitz(1.5),
        None,
        lambda x: 1.5 * torch.ones_like(x),
    ),
    "root": Function(_of_magnitude("math.sqrt"), lambda x: x.abs().sqrt(), _root),
    "inverse_root": Function(_of_magnitude("math.rsqrt", 1.0), lambda x: (x.abs() + 1).rsqrt(), _lipschitz(0.5), None),
    "sigmoid": Function(_sigmoid, torch.sigmoid, _lipschitz(0.25), 12.0),
    "floor": Function(_op("math.floor"), torch.floor, _lipschitz(1), jumps=True),
    "ceiling": Function(_op("math.ceil"), torch.ceil, _lipschitz(1), jumps=True),
    "round": Function(_op("math.roundeven"), torch.round, _lipschitz(1), jumps=True),
    "truncate": Function(_op("math.trunc"), torch.trunc, _lipschitz(1), jumps=True),
    "add": Function(_op("arith.addf"), torch.add, _lipschitz(1), arity=2),
    "subtract": Function(_op("arith.subf"), torch.sub, _lipschitz(1), arity=2),
    "multiply": Function(_op("arith.mulf"), torch.mul, _product, arity=2),
    "maximum": Function(_op("arith.maximumf"), torch.maximum, _lipschitz(1), arity=2),
    "minimum": Function(_op("arith.minimumf"), torch.minimum, _lipschitz(1), arity=2),
    "divide": Function(_op("arith.divf"), torch.div, _quotient, arity=2),
    "divide_safely": Function(
        _safe_quotient,
        lambda x, y: x / (y.abs() + 1),
        lambda values, errors: _quotient((values[0], values[1].abs() + 1), errors),
        3.0,
        arity=2,
    ),
    "multiply_add": Function(
        _multiply_add("arith.addf", False), lambda x, y, z: x * y + z, _multiply_add_error, 2.0, _of_product, arity=3
    ),
    "multiply_subtract": Function(
        _multiply_add("arith.subf", False), lambda x, y, z: x * y - z, _multiply_add_error, 2.0, _of_product, arity=3
    ),
    "subtract_product": Function(
        _multiply_add("arith.subf", True), lambda x, y, z: z - x * y, _multiply_add_error, 2.0, _of_product, arity=3
    ),
    "less": Function(_compare("olt"), torch.lt, jumps=True, result=BOOL, arity=2),
    "at_least": Function(_compare("oge"), torch.ge, jumps=True, result=BOOL, arity=2),
    "equal": Function(_compare("oeq"), torch.eq, jumps=True, result=BOOL, arity=2),
    "differ": Function(_compare("une"), torch.ne, jumps=True, result=BOOL, arity=2),
    "is_nan": Function(lambda body, t, n: body.compare("uno", t, n[0], n[0]), torch.isnan, jumps=True, result=BOOL),
}


def _signed(signed: str, unsigned: str) -> Callable[[Body, Dtype, Sequence[str]], str]:
    return lambda body, dtype, names: body.op(signed if dtype.is_signed else unsigned, dtype, *names)


def _by_constant(signed: str, unsigned: str, value: int) -> Callable[[Body, Dtype, Sequence[str]], str]:
    return lambda body, dtype, names: body.op(
        signed if dtype.is_signed else unsigned, dtype, names[0], body.constant(value, dtype)
    )


def _integer_compare(signed: str, unsigned: str) -> Callable[[Body, Dtype, Sequence[str]], str]:
    return lambda body, dtype, names: body.compare(signed if dtype.is_signed else unsigned, dtype, *names)


def _integer(value: int) -> Callable[[Tensor], Tensor]:
    """A constant of the type of a tensor."""
    return lambda x: torch.tensor(value, dtype=x.dtype)


INTEGER_FUNCTIONS: dict[str, Function] = {
    "plus_3": Function(_by_constant("arith.addi", "arith.addi", 3), lambda x: x + _integer(3)(x)),
    "times_5": Function(_by_constant("arith.muli", "arith.muli", 5), lambda x: x * _integer(5)(x)),
    "thirds": Function(
        _by_constant("arith.divsi", "arith.divui", 3), lambda x: torch.div(x, _integer(3)(x), rounding_mode="trunc")
    ),
    "floor_7": Function(
        _by_constant("arith.floordivsi", "arith.divui", 7),
        lambda x: torch.div(x, _integer(7)(x), rounding_mode="floor"),
    ),
    "rest_5": Function(_by_constant("arith.remsi", "arith.remui", 5), lambda x: torch.fmod(x, _integer(5)(x))),
    "shift_left": Function(_by_constant("arith.shli", "arith.shli", 2), lambda x: x << _integer(2)(x)),
    "shift_right": Function(_by_constant("arith.shrsi", "arith.shrui", 1), lambda x: x >> _integer(1)(x)),
    "complement": Function(_by_constant("arith.xori", "arith.xori", -1), torch.bitwise_not),
    "add": Function(_op("arith.addi"), torch.add, arity=2),
    "subtract": Function(_op("arith.subi"), torch.sub, arity=2),
    "multiply": Function(_op("arith.muli"), torch.mul, arity=2),
    "maximum": Function(_signed("arith.maxsi", "arith.maxui"), torch.maximum, arity=2),
    "minimum": Function(_signed("arith.minsi", "arith.minui"), torch.minimum, arity=2),
    "and": Function(_op("arith.andi"), torch.bitwise_and, arity=2),
    "or": Function(_op("arith.ori"), torch.bitwise_or, arity=2),
    "xor": Function(_op("arith.xori"), torch.bitwise_xor, arity=2),
    "less": Function(_integer_compare("slt", "ult"), torch.lt, result=BOOL, arity=2),
    "at_least": Function(_integer_compare("sge", "uge"), torch.ge, result=BOOL, arity=2),
    "equal": Function(_compare("eq"), torch.eq, result=BOOL, arity=2),
}

BOOL_FUNCTIONS: dict[str, Function] = {
    "not": Function(lambda body, t, n: body.op("arith.xori", t, n[0], body.constant(True, t)), torch.logical_not),
    "and": Function(_op("arith.andi"), torch.logical_and, arity=2),
    "or": Function(_op("arith.ori"), torch.logical_or, arity=2),
    "xor": Function(_op("arith.xori"), torch.logical_xor, arity=2),
}


def functions_of(dtype: Dtype) -> dict[str, Function]:
    """The functions of operands of an element type."""
    return FLOAT_FUNCTIONS if dtype.is_float else BOOL_FUNCTIONS if dtype.is_bool else INTEGER_FUNCTIONS


# Operands -------------------------------------------------------------------------------------------------------


def placed(tensor: Tensor, over: Map, shape: Sequence[int]) -> Tensor:
    """A tensor as a function over ``shape`` sees it."""
    if not tensor.dim():
        return tensor.expand(tuple(shape))
    dims = [d for d, loop in enumerate(over) if loop is not None]
    dims.sort(key=lambda d: over[d] or 0)
    constant = [d for d, loop in enumerate(over) if loop is None]
    moved = tensor.permute(*constant, *dims).reshape([tensor.shape[d] for d in dims])
    used = {over[d] for d in dims}
    extents = iter(moved.shape)
    return moved.reshape([next(extents) if loop in used else 1 for loop in range(len(shape))]).expand(tuple(shape))


def map_text(over: Map) -> str:
    """The results of an affine map."""
    return ", ".join("0" if loop is None else f"d{loop}" for loop in over)


def map_of(loops: int) -> Map:
    """Every dim with the loop of its number."""
    return tuple(range(loops))


# Ops ------------------------------------------------------------------------------------------------------------


class PointwiseOp:
    """``details``: name of the function, shape of the result, one map an operand."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        name, shape, maps = step.details
        dtype = operands[0].type.dtype
        function = functions_of(dtype)[name]
        if function.jumps and not all(operand.is_exact for operand in operands):
            return None
        values = [placed(known.truth, over, shape) for known, over in zip(operands, maps, strict=True)]
        truth = function.truth(*values)
        if not dtype.is_float or function.result is not None:
            return [exactly(truth, function.result or dtype)]
        errors = [placed(known.error, over, shape) for known, over in zip(operands, maps, strict=True)]
        carried = function.error(values, errors) if function.error is not None else torch.zeros(())
        units = dtype.function_units + 2 if function.units is None else function.units
        if function.jumps or name in ("sigmoid",):
            units = function.units or 1.0
        if name == "sigmoid" and dtype.name == "float16":
            # Here exp(-x) may exceed 65504, and the program divides by infinity.
            carried = carried + torch.where(values[0] - errors[0] < -11.0, truth, 0.0)
        scale = function.scale(*values) if function.scale is not None else None
        return [rounded(truth, carried, dtype, units, scale)]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        name, shape, maps = step.details
        function = functions_of(types[0].dtype)[name]
        body = Body()
        result = function.body(body, types[0].dtype, [f"%a{n}" for n in range(len(names))])
        return write_pointwise(text, shape, maps, names, types, function.result or types[0].dtype, body, result)


def write_pointwise(
    text: Text,
    shape: tuple[int, ...],
    maps: Sequence[Map],
    names: Sequence[str],
    types: Sequence[TensorType],
    dtype: Dtype,
    body: Body,
    result: str,
) -> list[str]:
    """A generic without reductions."""
    kind = TensorType(shape, dtype)
    out = (text.empty(kind), kind)
    all_maps = [map_text(over) for over in (*maps, map_of(len(shape)))]
    inputs = list(zip(names, types, strict=True))
    return text.generic(all_maps, [False] * len(shape), inputs, [out], body, [result])


class DivideByOp:
    """``details``: a number, by which every element is divided."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        (number,) = step.details
        (known,) = operands
        if not known.type.dtype.is_float or number > known.type.dtype.most:
            return None
        if not number:
            return [exactly(known.truth / 0.0, known.type.dtype)]
        return [rounded(known.truth / number, known.error / number, known.type.dtype, 2.0)]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        (number,) = step.details
        shape, dtype = types[0].shape, types[0].dtype
        body = Body()
        result = body.op("arith.divf", dtype, "%a0", body.constant(float(number), dtype))
        return write_pointwise(text, shape, [map_of(len(shape))], names, types, dtype, body, result)


class SelectOp:
    """``details``: shape, three maps. The first operand is a bool."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        shape, maps = step.details
        condition, left, right = (placed(k.truth, over, shape) for k, over in zip(operands, maps, strict=True))
        truth = torch.where(condition, left, right)
        dtype = operands[1].type.dtype
        if not dtype.is_float:
            return [exactly(truth, dtype)]
        errors = [placed(k.error, over, shape) for k, over in zip(operands[1:], maps[1:], strict=True)]
        return [Known(TensorType(shape, dtype), truth, torch.where(condition, *errors))]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        shape, maps = step.details
        body = Body()
        result = body.select("%a0", types[1].dtype, "%a1", "%a2")
        return write_pointwise(text, shape, maps, names, types, types[1].dtype, body, result)


class CastOp:
    """``details``: name of the target, shape, map of the only operand."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        name, shape, over = step.details
        (known,), target = operands, DTYPES[name]
        value, source = placed(known.truth, over, shape), known.type.dtype
        if target.is_float:
            wide = value.double()
            error = placed(known.error, over, shape) if source.is_float else torch.zeros_like(wide)
            if source.is_float and target.bits >= source.bits and (source.bits, target.bits) != (16, 16):
                return [Known(TensorType(shape, target), wide, error)]
            return [rounded(wide, error, target)]
        if source.is_float and not target.is_bool:
            bounds = torch.iinfo(target.torch)
            low, high = float(bounds.min), float(min(bounds.max, 2**40))
            fits = value.isfinite() & (value > low - 1) & (value < high)
            if not known.is_exact or not bool(fits.all()):
                return None
        if source.is_float and not known.is_exact:
            return None
        return [exactly(value.to(target.torch), target)]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        name, shape, over = step.details
        source, target = types[0].dtype, DTYPES[name]
        body = Body()
        result = _convert(body, source, target, "%a0")
        return write_pointwise(text, shape, [over], names, types, target, body, result)


def _convert(body: Body, source: Dtype, target: Dtype, value: str) -> str:
    if target.is_bool and not source.is_bool:
        return body.compare("une" if source.is_float else "ne", source, value, body.constant(0, source))
    if source.element == target.element:
        return value
    if source.is_float and target.is_float:
        if source.bits == target.bits:
            value, source = body.convert("arith.extf", value, source.element, "f32"), DTYPES["float32"]
        name = "arith.extf" if target.bits > source.bits else "arith.truncf"
    elif source.is_float:
        name = "arith.fptosi" if target.is_signed else "arith.fptoui"
    elif target.is_float:
        name = "arith.sitofp" if source.is_signed else "arith.uitofp"
    elif target.bits < source.bits:
        name = "arith.trunci"
    else:
        name = "arith.extsi" if source.is_signed else "arith.extui"
    return body.convert(name, value, source.element, target.element)
