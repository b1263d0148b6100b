"""``stitch.schedule``: how one cluster runs, as a value and as an attribute of a cluster function.

``{template = "row", grid = array<i64: 32, 1, 1>, block = array<i64: 256, 1, 1>, vector = 4 : i64,
shared_bytes = 0 : i64, parameters = {mode = "warp", rows_per_block = 4 : i64}, schemes = [[3, "warp"]]}``
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from mlir import ir

from mlirstitch.errors import PassError

_FIELDS = {
    *("template", "grid", "block", "vector", "shared_bytes", "parameters", "schemes", "scratch", "tickets"),
    *("thread_block_cluster", "cooperative", "parts"),
}

_SCRATCH_TYPES = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64")
SCHEMES = ("thread", "warp", "block", "cluster", "grid")
"""Composition schemes of a sub-root; the fourth is that of a thread-block cluster."""


@dataclass(frozen=True)
class Schedule:
    """How one cluster runs.

    Attributes:
        template: name of the template that emits it.
        grid: blocks along x, y, z.
        block: threads along x, y, z.
        vector: elements a thread handles per access.
        shared_bytes: dynamic shared memory, bytes (static shared memory is declared in the kernel).
        parameters: further integers or strings the template needs (``{"rows_per_block": 4, "mode": "warp"}``).
        schemes: composition scheme of every sub-root (see :data:`SCHEMES`), by position among the cluster's ops. They
            follow from the other fields.
        scratch: (element type in memory, elements) of every buffer in global memory that the kernel needs for itself
            while it runs; arguments of the kernel behind its outputs. Contents are undefined when it starts.
        tickets: counters (i32, 0 whenever no kernel runs) it needs; the last argument, if any.
        thread_block_cluster: blocks along x, y, z of a thread-block cluster, which run at the same time and reach each
            other's shared memory; (1, 1, 1) for none.
        cooperative: whether blocks wait for others through global memory, so that all must run at the same time.
        parts: for a packed kernel, how each of its independent parts runs: the first takes the first ``grid`` blocks
            of the launch, the next the blocks behind them, and so on. A part has no parts, and no schemes: those stand
            in the schedule of the whole, by position among all ops.
    """

    template: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    vector: int = 1
    shared_bytes: int = 0
    parameters: tuple[tuple[str, int | str], ...] = field(default=())
    schemes: tuple[tuple[int, str], ...] = field(default=())
    scratch: tuple[tuple[str, int], ...] = field(default=())
    tickets: int = 0
    thread_block_cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    parts: tuple[Schedule, ...] = ()

    @property
    def cluster_blocks(self) -> int:
        """Thread blocks of a thread-block cluster, 1 where the launch has none."""
        return math.prod(self.thread_block_cluster)

    def parameter(self, name: str, default: Any = None) -> Any:
        """The named parameter, or ``default``."""
        return dict(self.parameters).get(name, default)


def schedule_to_attribute(schedule: Schedule) -> ir.Attribute:
    """The attribute for ``schedule``, in the current context."""
    fields: dict[str, ir.Attribute] = {}
    if schedule.scratch:
        fields["scratch"] = ir.ArrayAttr.get(
            [ir.ArrayAttr.get([ir.StringAttr.get(kind), _integer(size)]) for kind, size in schedule.scratch]
        )
    if schedule.tickets:
        fields["tickets"] = _integer(schedule.tickets)
    if schedule.thread_block_cluster != (1, 1, 1):
        fields["thread_block_cluster"] = ir.DenseI64ArrayAttr.get(list(schedule.thread_block_cluster))
    if schedule.cooperative:
        fields["cooperative"] = ir.UnitAttr.get()
    if schedule.parts:
        fields["parts"] = ir.ArrayAttr.get([schedule_to_attribute(part) for part in schedule.parts])
    return ir.DictAttr.get(
        {
            **fields,
            "template": ir.StringAttr.get(schedule.template),
            "grid": ir.DenseI64ArrayAttr.get(list(schedule.grid)),
            "block": ir.DenseI64ArrayAttr.get(list(schedule.block)),
            "vector": _integer(schedule.vector),
            "shared_bytes": _integer(schedule.shared_bytes),
            "parameters": ir.DictAttr.get(
                {n: _integer(v) if isinstance(v, int) else ir.StringAttr.get(v) for n, v in schedule.parameters}
            ),
            "schemes": ir.ArrayAttr.get(
                [ir.ArrayAttr.get([_integer(position), ir.StringAttr.get(name)]) for position, name in schedule.schemes]
            ),
        }
    )


def schedule_from_attribute(attribute: ir.Attribute) -> Schedule:
    """Read :func:`schedule_to_attribute`; all fields but ``template``, ``grid`` and ``block`` may be left out.

    Raises :class:`PassError` naming the field for anything that is not a schedule.
    """
    if not isinstance(attribute, ir.DictAttr):
        raise PassError(f"stitch.schedule is not a dictionary: {attribute}")
    fields = {named.name: named.attr for named in attribute}
    unknown = sorted(set(fields) - _FIELDS)
    missing = [name for name in ("template", "grid", "block") if name not in fields]
    if unknown or missing:
        problem = f"has the unknown field {unknown[0]!r}" if unknown else f"lacks {missing[0]!r}"
        raise PassError(f"stitch.schedule {problem}: {attribute}", hint=f"fields: {', '.join(sorted(_FIELDS))}")
    parameters, schemes, scratch = fields.get("parameters"), fields.get("schemes"), fields.get("scratch")
    if parameters is not None and not isinstance(parameters, ir.DictAttr):
        raise PassError(f"stitch.schedule: parameters is not a dictionary: {parameters}")
    if schemes is not None and not isinstance(schemes, ir.ArrayAttr):
        raise PassError(f"stitch.schedule: schemes is not an array: {schemes}")
    if scratch is not None and not isinstance(scratch, ir.ArrayAttr):
        raise PassError(f"stitch.schedule: scratch is not an array: {scratch}")
    if "cooperative" in fields and not isinstance(fields["cooperative"], ir.UnitAttr):
        raise PassError(f"stitch.schedule: cooperative is not a unit: {fields['cooperative']}")
    extents = fields.get("thread_block_cluster")
    parts = fields.get("parts")
    if parts is not None and not isinstance(parts, ir.ArrayAttr):
        raise PassError(f"stitch.schedule: parts is not an array: {parts}")
    return Schedule(
        template=_string(fields["template"], "template"),
        grid=_triple(fields["grid"], "grid"),
        block=_triple(fields["block"], "block"),
        vector=_size(fields["vector"], "vector") if "vector" in fields else 1,
        shared_bytes=_size(fields["shared_bytes"], "shared_bytes") if "shared_bytes" in fields else 0,
        parameters=tuple((named.name, _integer_or_string(named.attr, named.name)) for named in parameters or ()),
        schemes=tuple(_scheme(entry) for entry in schemes or ()),
        scratch=tuple(_scratch(entry) for entry in scratch or ()),
        tickets=_size(fields["tickets"], "tickets") if "tickets" in fields else 0,
        thread_block_cluster=_triple(extents, "thread_block_cluster") if extents is not None else (1, 1, 1),
        cooperative="cooperative" in fields,
        parts=tuple(_part(entry) for entry in parts or ()),
    )


def _part(attribute: ir.Attribute) -> Schedule:
    part = schedule_from_attribute(attribute)
    for name, found in (("parts", part.parts), ("schemes", part.schemes)):
        if found:
            raise PassError(
                f"stitch.schedule: a part has {name} of its own: {attribute}",
                hint=f"write the {name} in the schedule of the whole kernel",
            )
    return part


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def read_integer(attribute: ir.Attribute) -> int | None:
    """The value of an integer attribute of at most 64 bits, None for any other: MLIR aborts where asked for more."""
    if not isinstance(attribute, ir.IntegerAttr):
        return None
    kind = attribute.type
    is_wide = isinstance(kind, ir.IntegerType) and kind.width > 64
    return None if is_wide else attribute.value


def _number(attribute: ir.Attribute, field: str) -> int:
    value = read_integer(attribute)
    if value is None:
        raise PassError(f"stitch.schedule: {field} is not an integer of at most 64 bits: {attribute}")
    return value


def _size(attribute: ir.Attribute, field: str) -> int:
    value = _number(attribute, field)
    if value < 0:
        raise PassError(f"stitch.schedule: {field} is {value}, less than 0")
    return value


def _string(attribute: ir.Attribute, field: str) -> str:
    if not isinstance(attribute, ir.StringAttr):
        raise PassError(f"stitch.schedule: {field} is not a string: {attribute}")
    return attribute.value


def _integer_or_string(attribute: ir.Attribute, field: str) -> int | str:
    return attribute.value if isinstance(attribute, ir.StringAttr) else _number(attribute, field)


def _triple(attribute: ir.Attribute, field: str) -> tuple[int, int, int]:
    values = tuple(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else ()
    if len(values) != 3 or min(values) < 0:
        raise PassError(f"stitch.schedule: {field} is not array<i64: x, y, z> of sizes: {attribute}")
    return values[0], values[1], values[2]


def _scheme(attribute: ir.Attribute) -> tuple[int, str]:
    parts = list(attribute) if isinstance(attribute, ir.ArrayAttr) else []
    if len(parts) != 2:
        raise PassError(f'stitch.schedule: a scheme is not [position, "name"]: {attribute}')
    position, name = _size(parts[0], "schemes"), _string(parts[1], "schemes")
    if name not in SCHEMES:
        raise PassError(f"stitch.schedule: there is no scheme {name!r}", hint=f"schemes: {', '.join(SCHEMES)}")
    return position, name


def _scratch(attribute: ir.Attribute) -> tuple[str, int]:
    parts = list(attribute) if isinstance(attribute, ir.ArrayAttr) else []
    if len(parts) != 2 or _number(parts[1], "scratch") < 1:
        raise PassError(f'stitch.schedule: a scratch buffer is not ["type", elements]: {attribute}')
    kind = _string(parts[0], "scratch")
    if kind not in _SCRATCH_TYPES:
        raise PassError(f"stitch.schedule: no scratch buffer has the type {kind}", hint=", ".join(_SCRATCH_TYPES))
    return kind, _number(parts[1], "scratch")
