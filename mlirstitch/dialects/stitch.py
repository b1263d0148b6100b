"""The ``stitch`` dialect: discardable attributes on upstream ops, each with a typed accessor, and their verifier.

There is no op or type of our own, so that IR of every level parses in a stock mlir-opt. :data:`ATTRIBUTES` is the one
table; the documentation is generated from it. ``KIND.get(op)`` reads, ``KIND.set(op, "light")`` writes; attributes of
function arguments and results are reached with ``ROLE.of_argument(function, 0)`` and so on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.schedule import Schedule, read_integer, schedule_from_attribute, schedule_to_attribute
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import PassError, TargetError
from mlirstitch.options import CompileOptions
from mlirstitch.target import TARGETS, Target
from mlirstitch.target_file import check_constants, with_constants

T = TypeVar("T")
PREFIX = "stitch."
ARGUMENT, RESULT = "argument of func.func", "result of func.func"
_GROUPS = {ARGUMENT: "arg_attrs", RESULT: "res_attrs"}

DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "bool": "i1",
}
"""Element type in tensors for every value of ``stitch.dtype``."""


@dataclass(frozen=True)
class Codec(Generic[T]):
    """How a Python value is kept in an attribute. ``read`` raises ValueError or PassError for another attribute."""

    name: str
    write: Callable[[T], ir.Attribute]
    read: Callable[[ir.Attribute], T]


def _read_as(kind: type, attr: ir.Attribute) -> Any:
    if not isinstance(attr, kind):
        raise ValueError(f"is {attr}")
    return attr


def _read_integer(attr: ir.Attribute) -> int:
    value = read_integer(attr)
    if value is None:
        raise ValueError(f"is {attr}")
    return value


def _write_fields(fields: dict[str, ir.Attribute]) -> ir.Attribute:
    return ir.DictAttr.get(fields)


def _read_fields(attr: ir.Attribute) -> dict[str, ir.Attribute]:
    return {named.name: named.attr for named in _read_as(ir.DictAttr, attr)}


def _write_constants(constants: Mapping[str, float]) -> ir.Attribute:
    kind, unknown = ir.F64Type.get(), ir.Location.unknown()
    return ir.DictAttr.get({name: ir.FloatAttr.get(kind, value, unknown) for name, value in constants.items()})


def _read_constants(attr: ir.Attribute) -> dict[str, float]:
    found = {name: _read_as(ir.FloatAttr, value).value for name, value in _read_fields(attr).items()}
    try:
        check_constants(found)
    except TargetError as error:
        raise ValueError(f"one of them is wrong: {error.message}") from error
    return found


def _array_of(codec: Codec[T]) -> Codec[tuple[T, ...]]:
    return Codec(
        f"array of {codec.name}",
        lambda values: ir.ArrayAttr.get([codec.write(value) for value in values]),
        lambda attr: tuple(codec.read(entry) for entry in _read_as(ir.ArrayAttr, attr)),
    )


STRING: Codec[str] = Codec("string", lambda v: ir.StringAttr.get(v), lambda a: _read_as(ir.StringAttr, a).value)
INTEGER: Codec[int] = Codec(
    "integer",
    lambda v: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), v),
    _read_integer,
)
INTEGERS: Codec[tuple[int, ...]] = Codec(
    "array<i64>", lambda v: ir.DenseI64ArrayAttr.get(list(v)), lambda a: tuple(_read_as(ir.DenseI64ArrayAttr, a))
)
BOOL: Codec[bool] = Codec("bool", lambda v: ir.BoolAttr.get(v), lambda a: _read_as(ir.BoolAttr, a).value)
UNIT: Codec[bool] = Codec("unit", lambda _: ir.UnitAttr.get(), lambda a: _read_as(ir.UnitAttr, a) is not None)
FIELDS: Codec[dict[str, ir.Attribute]] = Codec("dictionary", _write_fields, _read_fields)
CONSTANTS: Codec[Mapping[str, float]] = Codec("dictionary of f64", _write_constants, _read_constants)
SCHEDULE_CODEC: Codec[Schedule] = Codec("schedule", schedule_to_attribute, schedule_from_attribute)


@dataclass(frozen=True)
class StitchAttribute(Generic[T]):
    """One attribute: name, where it may stand, type, legal values, documentation.

    Attributes:
        name: with the dialect's prefix.
        places: op names (``linalg.*`` for a whole dialect), :data:`ARGUMENT` or :data:`RESULT`.
        codec: how the value is kept.
        doc: one line.
        choices: the legal values of a string, or of every string of an array; empty if open.
    """

    name: str
    places: tuple[str, ...]
    codec: Codec[T]
    doc: str
    choices: tuple[str, ...] = ()

    def get(self, op: ir.Operation) -> T | None:
        """The value on ``op``, or None. Raises :class:`PassError` for an attribute of another type or value."""
        return self._decode(op, op.attributes[self.name]) if self.name in op.attributes else None

    def require(self, op: ir.Operation) -> T:
        """The value on ``op``. Raises :class:`PassError` if there is none."""
        value = self.get(op)
        if value is None:
            writer = "stitch-set-module-attributes" if op.name == "builtin.module" else "the earlier stages"
            raise refusal(op, f"the attribute {self.name} is missing", f"run {writer} first")
        return value

    def set(self, op: ir.Operation, value: T) -> None:
        """Write the value on ``op``."""
        op.attributes[self.name] = self._encode(op, value)

    def remove(self, op: ir.Operation) -> None:
        """Take the attribute off ``op`` if it is there."""
        if self.name in op.attributes:
            del op.attributes[self.name]

    def of_argument(self, function: ir.Operation, number: int) -> T | None:
        """The value on an argument of a function, or None."""
        return self._of_group(function, ARGUMENT, number)

    def of_result(self, function: ir.Operation, number: int) -> T | None:
        """The value on a result of a function, or None."""
        return self._of_group(function, RESULT, number)

    def of_arguments(self, function: ir.Operation) -> list[T | None]:
        """The value on every argument of a function, or None; linear, where asking for each by itself is quadratic."""
        return self.of_group(function, ARGUMENT)

    def of_results(self, function: ir.Operation) -> list[T | None]:
        """The value on every result of a function, or None."""
        return self.of_group(function, RESULT)

    def set_argument(self, function: ir.Operation, number: int, value: T) -> None:
        """Write the value on an argument of a function."""
        self._set_group(function, ARGUMENT, number, value)

    def set_result(self, function: ir.Operation, number: int, value: T) -> None:
        """Write the value on a result of a function."""
        self._set_group(function, RESULT, number, value)

    def set_arguments(self, function: ir.Operation, values: Sequence[T | None]) -> None:
        """Write a value on every argument of a function for which there is one; linear, as :meth:`of_arguments` is."""
        entries = group_attributes(function, ARGUMENT)
        for entry, value in zip(entries, values, strict=True):
            if value is not None:
                entry[self.name] = self._encode(function, value)
        self._write_group(function, ARGUMENT, entries)

    def check(self, op: ir.Operation, attr: ir.Attribute) -> None:
        """Raise :class:`PassError` unless ``attr`` has this attribute's type and a legal value."""
        self._decode(op, attr)

    def _decode(self, op: ir.Operation, attr: ir.Attribute) -> T:
        try:
            value = self.codec.read(attr)
        except PassError as error:
            raise refusal(op, error.message, error.hint) from None
        except ValueError as error:
            raise refusal(op, f"{self.name} must be of type {self.codec.name} but {error}", self.doc) from None
        values = (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()
        wrong = [entry for entry in values if self.choices and entry not in self.choices]
        if wrong:
            listed = ", ".join(self.choices)
            raise refusal(op, f"{self.name} = {wrong[0]!r} is not one of {listed}", f"choose one of {listed}")
        return value

    def _encode(self, op: ir.Operation, value: T) -> ir.Attribute:
        with op.context:
            attr = self.codec.write(value)
        self.check(op, attr)
        return attr

    def _of_group(self, function: ir.Operation, place: str, number: int) -> T | None:
        entries = group_attributes(function, place)
        attr = entries[number].get(self.name) if number < len(entries) else None
        return None if attr is None else self._decode(function, attr)

    def of_group(self, function: ir.Operation, place: str) -> list[T | None]:
        """:meth:`of_arguments` or :meth:`of_results`, by ``place``."""
        found = [entry.get(self.name) for entry in group_attributes(function, place)]
        return [None if attr is None else self._decode(function, attr) for attr in found]

    def _set_group(self, function: ir.Operation, place: str, number: int, value: T) -> None:
        entries = group_attributes(function, place)
        entries[number][self.name] = self._encode(function, value)
        self._write_group(function, place, entries)

    @staticmethod
    def _write_group(function: ir.Operation, place: str, entries: Sequence[dict[str, ir.Attribute]]) -> None:
        with function.context:
            function.attributes[_GROUPS[place]] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in entries])


def group_attributes(function: ir.Operation, place: str) -> list[dict[str, ir.Attribute]]:
    """The attributes of every argument (``place`` = :data:`ARGUMENT`) or result of a function, by name."""
    key = _GROUPS[place]
    if key in function.attributes:
        return [{e.name: e.attr for e in ir.DictAttr(entry)} for entry in ir.ArrayAttr(function.attributes[key])]
    signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return [{} for _ in (signature.inputs if place == ARGUMENT else signature.results)]


_CHOICES = {option.name: option.metadata["choices"] for option in dataclasses.fields(CompileOptions)}

TARGET = StitchAttribute("stitch.target", ("builtin.module",), STRING, "chip to compile for", tuple(TARGETS))
NUMERICS = StitchAttribute(
    "stitch.numerics", ("builtin.module",), STRING, "numerics contract of the compilation", _CHOICES["numerics"]
)
LIBRARY_MODE = StitchAttribute(
    "stitch.library", ("builtin.module",), STRING, "whether contractions may be library calls", _CHOICES["library"]
)
TARGET_CONSTANTS = StitchAttribute(
    "stitch.target_constants",
    ("builtin.module",),
    CONSTANTS,
    "constants of the chip that were measured (--target-constants)",
)
GRID_COMPOSITION = StitchAttribute(
    "stitch.grid_composition", ("builtin.module",), UNIT, "blocks may wait for each other in cooperative launches"
)
NAME = StitchAttribute("stitch.name", (ARGUMENT, RESULT), STRING, "the user's name of the tensor")
ROLE = StitchAttribute(
    "stitch.role", (ARGUMENT,), STRING, "what the argument is to the caller", ("input", "weight", "constant")
)
DTYPE = StitchAttribute(
    "stitch.dtype", (ARGUMENT, RESULT), STRING, "dtype of the tensor; tells int8 from uint8", tuple(DTYPES)
)
MUTATES = StitchAttribute(
    "stitch.mutates", (RESULT,), STRING, "stitch.name of the argument whose new contents this result is"
)
KIND = StitchAttribute(
    "stitch.kind",
    ("linalg.*", "tensor.*"),
    STRING,
    "class of the op, which decides what it may share a kernel with",
    ("light", "expensive", "reduction", "movement", "compute", "scan", "scatter"),
)
APPROXIMATE = StitchAttribute(
    "stitch.approximate",
    ("arith.*", "math.*"),
    UNIT,
    "computed by the approximation that the chip has, written where numerics is fast-math",
)
CLUSTER = StitchAttribute("stitch.cluster", ("func.func",), UNIT, "the function is one cluster: it becomes one kernel")
MEMBER = StitchAttribute(
    "stitch.cluster",
    ("linalg.*", "tensor.*"),
    INTEGERS,
    "numbers of the clusters that compute the op; several where each computes it for itself. Before stitch-cluster: "
    "ops with the same number become one cluster",
)
KEEP_TOGETHER = StitchAttribute(
    "stitch.keep_together",
    ("linalg.*", "tensor.*"),
    _array_of(STRING),
    "names of sets: ops of one set share a kernel, with what lies between them; read by stitch-cluster",
)
KEEP_APART = StitchAttribute(
    "stitch.keep_apart",
    ("linalg.*", "tensor.*"),
    _array_of(STRING),
    "sides, 'left of REQUEST' or 'right of REQUEST': no kernel holds ops of both; read by stitch-cluster",
)
NEVER_FUSE = StitchAttribute(
    "stitch.never_fuse",
    ("linalg.*", "tensor.*"),
    STRING,
    "the request that makes the op a kernel of its own; read by stitch-cluster",
)
APART = StitchAttribute(
    "stitch.apart",
    ("func.func",),
    _array_of(FIELDS),
    "tensors that go from one cluster to another through memory: clusters, places of the ops in them, ops, lines, "
    "rule, detail, tensor, bytes",
)
CLUSTER_NAME = StitchAttribute(
    "stitch.cluster", ("gpu.launch_func", "func.call"), STRING, "name of the cluster function this step computes"
)
SCHEDULE = StitchAttribute(
    "stitch.schedule",
    ("func.func",),
    SCHEDULE_CODEC,
    "how the cluster runs: template, grid, block, vector, shared_bytes, parameters, schemes, scratch, tickets, "
    "thread_block_cluster, cooperative, parts (the schedules of the independent parts of a packed kernel)",
)
TUNED = StitchAttribute(
    "stitch.tuned",
    ("func.func",),
    _array_of(FIELDS),
    "schedules that --tune compared, the compiler's own choice first: schedule, cost (counted or estimated), "
    "picoseconds",
)
COOPERATIVE = StitchAttribute(
    "stitch.cooperative", ("gpu.launch_func",), UNIT, "all blocks must run at the same time: they wait for each other"
)
LIBRARY_OP = StitchAttribute(
    "stitch.library", ("linalg.*",), STRING, "library routine (a linalg op's name) that computes this op"
)
LIBRARY = StitchAttribute(
    "stitch.library", ("func.func", "func.call"), STRING, "library routine (a linalg op's name) that computes this"
)
NOALIAS = StitchAttribute(
    "stitch.noalias", (ARGUMENT, RESULT), BOOL, "false: this buffer of the cluster may overlap another one"
)
BUFFERS = StitchAttribute(
    "stitch.buffers",
    ("func.func",),
    _array_of(FIELDS),
    "all buffers of @main: arguments, outputs, tickets, temporaries",
)
RESULTS = StitchAttribute("stitch.results", ("func.func",), INTEGERS, "number of the buffer that holds each result")
COPIES = StitchAttribute(
    "stitch.copies", ("func.func",), _array_of(INTEGERS), "(from, to) buffer numbers to copy after the last call"
)
ARENA_BYTES = StitchAttribute("stitch.arena_bytes", ("func.func",), INTEGER, "size of the arena, bytes")
TEMPORARY_BYTES = StitchAttribute(
    "stitch.temporary_bytes", ("func.func",), INTEGER, "what the temporaries would take without sharing, bytes"
)
READS = StitchAttribute("stitch.reads", ("func.call",), INTEGERS, "buffer number of every operand")
WRITES = StitchAttribute("stitch.writes", ("func.call",), INTEGERS, "buffer number of every result")
WORKSPACE = StitchAttribute(
    "stitch.workspace", ("func.call",), INTEGERS, "numbers of the buffers the kernel works in: scratch, then tickets"
)
BUFFER = StitchAttribute(
    "stitch.buffer", (ARGUMENT, "memref.view"), FIELDS, "the tensor in this memref: role, name, shape, dtype"
)
ARENA = StitchAttribute("stitch.arena", ("memref.alloc",), UNIT, "the one allocation of all temporaries")
ACCESS = StitchAttribute(
    "stitch.access",
    ("gpu.launch_func", "func.call"),
    _array_of(STRING),
    "whether the step reads or writes each of its arguments",
    ("read", "write", "readwrite"),
)
TEMPLATE = StitchAttribute("stitch.template", ("gpu.launch_func",), STRING, "template that emitted the kernel")
BOUND = StitchAttribute(
    "stitch.kind",
    ("gpu.launch_func",),
    STRING,
    "what bounds the kernel: compute_bound holds a contraction or convolution",
    ("memory_bound", "compute_bound"),
)
TOUCHED = StitchAttribute(
    "stitch.touched",
    ("gpu.launch_func", "gpu.func"),
    INTEGERS,
    "bytes of each argument that the kernel can touch at most, re-reads not counted",
)
TRAFFIC = StitchAttribute(
    "stitch.traffic", ("gpu.launch_func", "gpu.func"), INTEGERS, "bytes the kernel loads or stores of each argument"
)
DYNAMIC_SHARED = StitchAttribute(
    "stitch.dynamic_shared",
    ("gpu.func",),
    INTEGER,
    "bytes of dynamic shared memory, where a kernel needs more than its schedule asks for",
)
ROUTINE_ATTRIBUTES = StitchAttribute(
    "stitch.attributes", ("func.call",), FIELDS, "strides, dilations, indexing maps of the library routine"
)
ROUTINE_DTYPES = StitchAttribute(
    "stitch.dtypes", ("func.call",), _array_of(STRING), "dtype of every argument of a library call", tuple(DTYPES)
)
ROUTINE_STRIDES = StitchAttribute(
    "stitch.strides",
    ("func.call",),
    _array_of(INTEGERS),
    "strides in elements of each argument of a library call, where one is not contiguous",
)
ROUTINE_OFFSETS = StitchAttribute(
    "stitch.offsets", ("func.call",), INTEGERS, "first element of each argument of a library call, where one is not 0"
)
ROUTINE_EPILOGUE = StitchAttribute(
    "stitch.epilogue",
    ("func.call",),
    FIELDS,
    "what a library call does with the product: alpha, beta, numbers of the arguments addend and bias, activation",
)
ROUTINE_SHAPES = StitchAttribute(
    "stitch.shapes", ("func.call",), _array_of(INTEGERS), "shape in which a library routine sees each argument"
)

ATTRIBUTES: tuple[StitchAttribute[Any], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, StitchAttribute)
)
"""Every attribute of the dialect, in the order of the levels that introduce them."""


def target_of(module: ir.Operation) -> Target:
    """The chip a module is compiled for, and what the compiler may do with it. Raises :class:`PassError` if unknown."""
    chip = Target.parse(TARGET.require(module)).override(grid_composition=bool(GRID_COMPOSITION.get(module)))
    return with_constants(chip, TARGET_CONSTANTS.get(module) or {})


def verify(module: ir.Operation) -> None:
    """Check that every ``stitch.*`` attribute is known, stands where it may, and has a legal value of its type.

    Further: ``stitch.dtype`` agrees with the element type, ``stitch.mutates`` names an argument. Raises
    :class:`PassError` at the op's location.
    """
    for op in walk(module):
        for place, name, attr in _entries(op):
            _find(op, place, name).check(op, attr)
        if op.name == "func.func":
            _check_dtypes(op)
            _check_mutations(op)


def _entries(op: ir.Operation) -> Iterator[tuple[str, str, ir.Attribute]]:
    """(place, name, attribute) of every stitch attribute on an op and on its arguments and results."""
    for name in op.attributes:
        if name.startswith(PREFIX):
            yield op.name, name, op.attributes[name]
    if op.name == "func.func":
        for place, key in _GROUPS.items():
            if key not in op.attributes:
                continue
            for entry in group_attributes(op, place):
                for name, attr in entry.items():
                    if name.startswith(PREFIX):
                        yield place, name, attr


def _find(op: ir.Operation, place: str, name: str) -> StitchAttribute[Any]:
    known = [attribute for attribute in ATTRIBUTES if attribute.name == name]
    for attribute in known:
        if place in attribute.places or f"{place.partition('.')[0]}.*" in attribute.places:
            return attribute
    if not known:
        from difflib import get_close_matches  # only errors need it

        close = get_close_matches(name, [attribute.name for attribute in ATTRIBUTES], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise refusal(op, f"the attribute {name} is unknown", hint + "docs/stitch-attributes.md lists the attributes")
    places = ", ".join(place for attribute in known for place in attribute.places)
    where = place if place in _GROUPS else op.name
    raise refusal(op, f"the attribute {name} may not stand on {where}", f"it belongs on {places}")


def _check_dtypes(function: ir.Operation) -> None:
    signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    for place, types in ((ARGUMENT, list(signature.inputs)), (RESULT, list(signature.results))):
        for number, dtype in enumerate(DTYPE.of_group(function, place)):
            kind = types[number]
            if dtype is not None and isinstance(kind, ir.RankedTensorType) and str(kind.element_type) != DTYPES[dtype]:
                raise refusal(
                    function,
                    f"stitch.dtype of {place.partition(' ')[0]} {number} is {dtype}, but the tensor is {kind}",
                    f"{dtype} tensors have the element type {DTYPES[dtype]}",
                )


def _check_mutations(function: ir.Operation) -> None:
    names = [entry[NAME.name] for entry in group_attributes(function, ARGUMENT) if NAME.name in entry]
    for number, entry in enumerate(group_attributes(function, RESULT)):
        target = entry.get(MUTATES.name)
        if target is not None and target not in names:
            listed = ", ".join(str(name) for name in names) or "none has a name"
            raise refusal(function, f"result {number} mutates {target}, which is no argument", f"arguments: {listed}")
