"""Write what later passes may read of the options, and the defaults of argument and result attributes."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects.stitch import GRID_COMPOSITION
from mlirstitch.errors import PassError
from mlirstitch.options import CompileOptions, option
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import main_function
from mlirstitch.target import Target

DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "i1": "bool",
}


@register_pass
@dataclass(frozen=True)
class SetModuleAttributes(Pass):
    """Write ``stitch.target``, ``stitch.numerics`` and ``stitch.library`` on the module, and fill in names and dtypes.

    ``stitch.grid_composition`` is written where it is on.
    An option left empty keeps the attribute that is there, or writes the default. Arguments and results of ``@main``
    without ``stitch.name``, ``stitch.dtype`` or (arguments) ``stitch.role`` get ``arg0``, ``result0``, the signed dtype
    of their element type, and ``input``.
    """

    NAME = "stitch-set-module-attributes"

    target: str = option("", "chip to compile for; empty keeps what the module says, or takes the default")
    numerics: str = option("", "numerics contract: default, strict or fast-math")
    library: str = option("", "who computes contractions: none or auto")
    grid_composition: str = option("", "whether blocks may wait for each other through global memory: off or on")

    def run(self, op: ir.Operation) -> None:
        defaults = CompileOptions()
        for name in ("target", "numerics", "library"):
            key = f"stitch.{name}"
            given = getattr(self, name)
            if given or key not in op.attributes:
                value = given or getattr(defaults, name)
                op.attributes[key] = ir.StringAttr.get(value, op.context)
        self._set_grid_composition(op)
        _check(op)
        main = main_function(op)
        if main is not None:
            _fill(main, "arg_attrs", "arg", list(ir.FunctionType(_type(main)).inputs))
            _fill(main, "res_attrs", "result", list(ir.FunctionType(_type(main)).results))

    def _set_grid_composition(self, op: ir.Operation) -> None:
        if self.grid_composition not in ("", "off", "on"):
            problem = f"grid-composition = {self.grid_composition!r} is not one of off, on"
            raise PassError(problem, op=op.name, hint="choose off or on")
        if self.grid_composition == "on":
            GRID_COMPOSITION.set(op, True)
        elif self.grid_composition == "off":
            GRID_COMPOSITION.remove(op)


def _check(module: ir.Operation) -> None:
    """Refuse values that no later pass would understand."""
    Target.parse(ir.StringAttr(module.attributes["stitch.target"]).value)
    for name, choices in (("numerics", ("default", "strict", "fast-math")), ("library", ("none", "auto"))):
        value = ir.StringAttr(module.attributes[f"stitch.{name}"]).value
        if value not in choices:
            raise PassError(
                f"stitch.{name} = {value!r} is not one of {', '.join(choices)}",
                op=module.name,
                hint=f"choose one of {', '.join(choices)}",
            )


def _type(function: ir.Operation) -> ir.Type:
    return ir.TypeAttr(function.attributes["function_type"]).value


def _fill(function: ir.Operation, key: str, prefix: str, types: list[ir.Type]) -> None:
    context = function.context
    given = list(ir.ArrayAttr(function.attributes[key])) if key in function.attributes else [None] * len(types)
    filled = []
    for position, (attr, type_) in enumerate(zip(given, types, strict=True)):
        entries = {} if attr is None else {named.name: named.attr for named in ir.DictAttr(attr)}
        entries.setdefault("stitch.name", ir.StringAttr.get(f"{prefix}{position}", context))
        dtype = DTYPES.get(str(ir.ShapedType(type_).element_type)) if isinstance(type_, ir.ShapedType) else None
        if dtype is not None:
            entries.setdefault("stitch.dtype", ir.StringAttr.get(dtype, context))
        if prefix == "arg":
            entries.setdefault("stitch.role", ir.StringAttr.get("input", context))
        filled.append(ir.DictAttr.get(entries, context))
    if filled:
        function.attributes[key] = ir.ArrayAttr.get(filled, context)
