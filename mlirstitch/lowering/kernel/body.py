"""Scalar ops of bodies on scalars and vectors: what is cloned, what is expanded, how types lie in memory.

Numerics contract: no fast-math flag is set, division is IEEE, ``math.sqrt`` is IEEE (LLVM would print ``sqrt.approx``),
transcendental functions come from libdevice (CUDA's documented bounds are within 4 ulp). The exception are ops that
``normalize-fast-math`` marked with ``stitch.approximate``: they become the chip's approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.lowering.kernel.builder import Builder, Value

_ARITH = frozenset(
    f"arith.{name}"
    for name in (
        *("addf", "subf", "mulf", "divf", "remf", "negf", "maximumf", "minimumf", "maxnumf", "minnumf", "cmpf"),
        *("addi", "subi", "muli", "divsi", "divui", "remsi", "remui", "andi", "ori", "xori", "shli", "shrsi", "shrui"),
        *("maxsi", "maxui", "minsi", "minui", "floordivsi", "ceildivsi", "ceildivui", "cmpi", "select"),
        *("extf", "truncf", "extsi", "extui", "trunci", "sitofp", "uitofp", "fptosi", "fptoui", "bitcast"),
        *("index_cast", "index_castui"),
    )
)
_MATH = frozenset(
    f"math.{name}"
    for name in (
        *("absf", "acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2", "cbrt", "ceil", "copysign", "cos"),
        *("cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fma", "log", "log10", "log1p", "log2", "powf"),
        *("round", "roundeven", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "fpowi", "absi", "ipowi"),
        *("isnan", "isinf", "isfinite"),
    )
)
_MAX_REPEATED_POWER = 4


def op_problem(name: str, types: Sequence[ir.Type]) -> str:
    """Why a body op cannot be lowered, or ""; ``types`` are its operand and result types."""
    if name == "arith.constant":
        return ""
    if name not in _ARITH and name not in _MATH:
        return f"{name} has no lowering to a kernel"
    for kind in types:
        known = isinstance(kind, ir.F16Type | ir.BF16Type | ir.F32Type | ir.F64Type | ir.IndexType)
        if not known and not (isinstance(kind, ir.IntegerType) and kind.width in (1, 8, 16, 32, 64)):
            return f"{name} on {kind} has no lowering to a kernel"
    return ""


def element_of(kind: ir.Type) -> ir.Type:
    """The element type of a vector type; any other type itself."""
    return kind.element_type if isinstance(kind, ir.VectorType) else kind


def width_of(value: Value) -> int:
    """Lanes of a vector value, 0 for a scalar."""
    return value.type.shape[0] if isinstance(value.type, ir.VectorType) else 0


def with_element(value: Value, element: ir.Type) -> ir.Type:
    """The type of ``value`` with another element type."""
    width = width_of(value)
    return ir.VectorType.get([width], element) if width else element


# Memory ---------------------------------------------------------------------------------------------------------


def memory_type(element: ir.Type) -> ir.Type:
    """How an element lies in memory: bools are bytes."""
    if isinstance(element, ir.IntegerType) and element.width == 1:
        return ir.IntegerType.get_signless(8)
    return element


def byte_size(element: ir.Type) -> int:
    """Bytes of one element in memory."""
    if isinstance(element, ir.IntegerType):
        return max(1, element.width // 8)
    if isinstance(element, ir.F64Type):
        return 8
    return 4 if isinstance(element, ir.F32Type) else 2


def from_memory(builder: Builder, value: Value, element: ir.Type) -> Value:
    """A loaded value in its IR type; any byte but 0 is true."""
    if element_of(value.type) == element:
        return value
    zero = builder.integer(0, element_of(value.type))
    width = width_of(value)
    return builder.compare("ne", value, builder.broadcast(zero, width) if width else zero)


def to_memory(builder: Builder, value: Value) -> Value:
    """A value as it is stored."""
    element = element_of(value.type)
    stored = memory_type(element)
    return value if stored == element else builder.emit("arith.extui", with_element(value, stored), [value])


# Ops ------------------------------------------------------------------------------------------------------------


def emit_op(
    builder: Builder, name: str, operands: Sequence[Value], result: ir.Type, attributes: dict[str, ir.Attribute]
) -> Value:
    """One body op on scalars or vectors (scalar operands are broadcast); ``result`` is the scalar result type."""
    width = max((width_of(v) for v in operands), default=0)
    if width:
        operands = [builder.broadcast(v, width) for v in operands]
    kind = ir.VectorType.get([width], result) if width else result
    special = _SPECIAL.get(name)
    if stitch.APPROXIMATE.name in attributes:
        attributes = {key: value for key, value in attributes.items() if key != stitch.APPROXIMATE.name}
        special = _APPROXIMATE.get(name, special)
    if special is not None:
        value = special(builder, list(operands), kind, attributes)
        if value is not None:
            return value
    return builder.emit(name, kind, operands, attributes)


Special = Callable[[Builder, list[Value], ir.Type, dict[str, ir.Attribute]], "Value | None"]


def _number(builder: Builder, value: float, kind: ir.Type) -> Value:
    scalar = builder.number(value, element_of(kind))
    return builder.broadcast(scalar, kind.shape[0]) if isinstance(kind, ir.VectorType) else scalar


def _sqrt(builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]) -> Value | None:
    (x,) = operands
    element = element_of(kind)
    if isinstance(element, ir.F64Type):
        return None
    if not isinstance(element, ir.F32Type):
        wide = with_element(x, ir.F32Type.get())
        root = _sqrt(builder, [builder.emit("arith.extf", wide, [x])], wide, attributes)
        return builder.emit("arith.truncf", kind, [root])
    return per_lane(builder, x, lambda lane: _intrinsic(builder, "llvm.nvvm.sqrt.rn.f", lane))


def _intrinsic(builder: Builder, name: str, operand: Value) -> Value:
    attributes: dict[str, ir.Attribute] = {
        "intrin": ir.StringAttr.get(name),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0]),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
    }
    return builder.emit("llvm.call_intrinsic", operand.type, [operand], attributes)


def extract(builder: Builder, vector: Value, lane: int) -> Value:
    """One lane of a vector."""
    position: dict[str, ir.Attribute] = {"static_position": ir.DenseI64ArrayAttr.get([lane])}
    return builder.emit("vector.extract", element_of(vector.type), [vector], position)


def assemble(builder: Builder, lanes: Sequence[Value]) -> Value:
    """A vector of scalars."""
    return builder.emit("vector.from_elements", ir.VectorType.get([len(lanes)], lanes[0].type), lanes)


def per_lane(builder: Builder, value: Value, function: Callable[[Value], Value]) -> Value:
    """``function`` on a scalar, or on every lane of a vector."""
    width = width_of(value)
    if not width:
        return function(value)
    return assemble(builder, [function(extract(builder, value, lane)) for lane in range(width)])


def _constant_integer(builder: Builder, value: Value) -> int | None:
    attribute = builder.attribute_of(value)
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        attribute = attribute.get_splat_value()
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None


def _extf(builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]) -> Value | None:
    """Halves widen lane by lane: LLVM splits the vector op from the last lane to the first, which costs registers."""
    (x,) = operands
    if not isinstance(element_of(x.type), ir.F16Type):
        return None
    return per_lane(builder, x, lambda lane: builder.emit("arith.extf", element_of(kind), [lane], attributes))


def _fpowi(builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]) -> Value | None:
    """Small constant exponents by repeated multiplication (as eager does), others through ``powf``."""
    base, exponent = operands
    power = _constant_integer(builder, exponent)
    if power is not None and abs(power) <= _MAX_REPEATED_POWER:
        return _repeated(builder, base, power, kind)
    real = builder.emit("arith.sitofp", with_element(exponent, element_of(kind)), [exponent])
    return builder.emit("math.powf", kind, [base, real])


def _repeated(builder: Builder, base: Value, power: int, kind: ir.Type) -> Value:
    one = _number(builder, 1.0, kind)
    if power == 0:
        return one
    result = base
    if abs(power) == 4:
        square = builder.emit("arith.mulf", kind, [base, base])
        result = builder.emit("arith.mulf", kind, [square, square])
    else:
        for _ in range(abs(power) - 1):
            result = builder.emit("arith.mulf", kind, [result, base])
    return builder.emit("arith.divf", kind, [one, result]) if power < 0 else result


def _absi(builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]) -> Value | None:
    (x,) = operands
    negative = builder.compare("slt", x, _number(builder, 0, kind))
    return builder.select(negative, builder.arith("subi", _number(builder, 0, kind), x), x)


def _trunc(builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]) -> Value | None:
    """Towards zero, keeping the sign of zero: floor of the magnitude with the sign of the operand."""
    (x,) = operands
    magnitude = builder.emit("math.floor", kind, [builder.emit("math.absf", kind, [x])])
    return builder.emit("math.copysign", kind, [magnitude, x])


def _floordiv(
    builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]
) -> Value | None:
    """Rounded towards minus infinity: one less than truncated if remainder and divisor differ in sign."""
    return _rounded_division(builder, operands, kind, "floor")


def _ceildiv(
    builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]
) -> Value | None:
    return _rounded_division(builder, operands, kind, "ceil")


def _rounded_division(builder: Builder, operands: list[Value], kind: ir.Type, towards: str) -> Value:
    x, y = operands
    zero, one = _number(builder, 0, kind), _number(builder, 1, kind)
    quotient, rest = builder.arith("divsi", x, y), builder.arith("remsi", x, y)
    signs = builder.compare("slt", builder.arith("xori", rest, y), zero)
    inexact = builder.compare("ne", rest, zero)
    if towards == "floor":
        return builder.select(builder.arith("andi", inexact, signs), builder.arith("subi", quotient, one), quotient)
    same = builder.compare("sge", builder.arith("xori", rest, y), zero)
    return builder.select(builder.arith("andi", inexact, same), builder.arith("addi", quotient, one), quotient)


def _ceildivui(
    builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]
) -> Value | None:
    x, y = operands
    zero, one = _number(builder, 0, kind), _number(builder, 1, kind)
    quotient, rest = builder.arith("divui", x, y), builder.arith("remui", x, y)
    inexact = builder.compare("ne", rest, zero)
    return builder.select(inexact, builder.arith("addi", quotient, one), quotient)


def _ipowi(builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]) -> Value | None:
    """Square and multiply over the bits of the exponent, wrapping; a negative exponent gives 1, -1 or 0."""
    base, exponent = operands
    element = element_of(kind)
    bits = ir.IntegerType(element).width
    zero, one = _number(builder, 0, kind), _number(builder, 1, kind)
    result, square = one, base
    for bit in range(bits):
        if bit:
            square = builder.arith("muli", square, square)
        taken = builder.arith("andi", builder.arith("shrui", exponent, _number(builder, bit, kind)), one)
        result = builder.select(builder.compare("ne", taken, zero), builder.arith("muli", result, square), result)
    minus_one = _number(builder, -1, kind)
    odd = builder.compare("ne", builder.arith("andi", exponent, one), zero)
    of_minus_one = builder.select(odd, minus_one, one)
    inverse = builder.select(builder.compare("eq", base, minus_one), of_minus_one, zero)
    inverse = builder.select(builder.compare("eq", base, one), one, inverse)
    return builder.select(builder.compare("slt", exponent, zero), inverse, result)


def _classify(predicate: int, against_infinity: bool) -> Special:
    """``cmpf predicate, |x|, inf`` or, without infinity, ``cmpf predicate, x, x``."""

    def emit(
        builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]
    ) -> Value | None:
        (x,) = operands
        right = x
        if against_infinity:
            x = builder.emit("math.absf", x.type, [x])
            right = _number(builder, float("inf"), x.type)
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)
        return builder.emit("arith.cmpf", kind, [x, right], {"predicate": number})

    return emit


_OEQ, _OLT, _UNO = 1, 4, 14

_SPECIAL: dict[str, Special] = {
    "arith.extf": _extf,
    "math.sqrt": _sqrt,
    "math.fpowi": _fpowi,
    "math.absi": _absi,
    "math.trunc": _trunc,
    "math.ipowi": _ipowi,
    "math.isnan": _classify(_UNO, False),
    "math.isinf": _classify(_OEQ, True),
    "math.isfinite": _classify(_OLT, True),
    "arith.floordivsi": _floordiv,
    "arith.ceildivsi": _ceildiv,
    "arith.ceildivui": _ceildivui,
}


# Approximations ---------------------------------------------------------------------------------------------------


def _flagged(name: str) -> Special:
    """``name`` with the flag that lets LLVM approximate it, and it alone: ``ex2.approx``, ``rcp.approx``."""

    def emit(
        builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]
    ) -> Value | None:
        return builder.emit(
            name, kind, operands, {**attributes, "fastmath": ir.Attribute.parse("#arith.fastmath<afn>")}
        )

    return emit


def _sqrt_approx(
    builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]
) -> Value | None:
    return per_lane(builder, operands[0], lambda lane: _intrinsic(builder, "llvm.nvvm.sqrt.approx.f", lane))


def _tanh_approx(
    builder: Builder, operands: list[Value], kind: ir.Type, attributes: dict[str, ir.Attribute]
) -> Value | None:
    flags: dict[str, ir.Attribute] = {"fastmathFlags": ir.Attribute.parse("#llvm.fastmath<afn>")}
    return per_lane(builder, operands[0], lambda lane: builder.emit("llvm.intr.tanh", lane.type, [lane], flags))


_APPROXIMATE: dict[str, Special] = {
    "arith.divf": _flagged("arith.divf"),
    "math.exp": _flagged("math.exp"),
    "math.sqrt": _sqrt_approx,
    "math.tanh": _tanh_approx,
}
"""What an op marked ``stitch.approximate`` becomes, on f32. A quotient is marked only if its numerator is 1."""
