"""Plan files: the rules of a plan as versioned JSON, for the function and the mesh they were made for.

A file holds what :class:`~mlirstitch.passes.partitioning.plan_record.RecordedPlan` kept: rules and op-orders. What the
plan cost, and the constants it was costed with, are a record for people: reading a file computes them anew.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlirstitch.driver.partition.figures import Figures
from mlirstitch.driver.partition.partitioned import Partitioned
from mlirstitch.errors import InternalError, MlirstitchError, PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.graph import Graph
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plan_record import Rule, mesh_json, read_mesh, read_numbers, replay, written
from mlirstitch.target import Links, Target
from mlirstitch.target_file import constants_of

FORMAT, VERSION = "mlirstitch-plan", 1
SCHEMA_FILE = Path(__file__).with_name("plan_file.schema.json")
SUFFIX = ".json"


@dataclass(frozen=True)
class PlanFile:
    """A plan as data.

    Attributes:
        path: where it was read, for messages.
        name: what the plan was called.
        mesh: the devices it is for.
        micro_batches: how many were asked for, None for the plan's own choice.
        structure: digest of the function without its extents.
        arguments: name, shape and element type of every argument of the function.
        recomputed: ops of the function that the backward pass computes again; ``structure`` has them twice.
        rules, order: as :func:`~mlirstitch.passes.partitioning.plan_record.replay` takes them.
        cost: what it cost when it was written, or empty.
    """

    path: str
    name: str
    mesh: Mesh
    micro_batches: int | None
    structure: str
    arguments: tuple[tuple[str, tuple[int, ...], str], ...]
    recomputed: str
    rules: tuple[Mapping[str, Any], ...]
    order: tuple[Mapping[str, Any], ...]
    cost: Mapping[str, Any]

    def apply(self, plan: Plan, *, other_shapes: bool = False) -> None:
        """Give a plan these rules.

        Args:
            plan: over the function and the mesh that the file was made for.
            other_shapes: the same function with other extents may be planned too.

        Raises:
            PlanError: another function, other shapes, another mesh, or a rule that does not fit.
        """
        if plan.mesh != self.mesh:
            raise PlanError(
                f"{self.path} is a plan for the mesh {self.mesh}, not for {plan.mesh}",
                hint="leave out --mesh, or make a plan for this mesh",
            )
        graph = plan.graph
        if structure_of(graph) != self.structure:
            raise PlanError(
                f"{self.path} is a plan for another function{self._difference(graph)}",
                hint="its rules name ops by number: make a plan for this function",
            )
        different = [(a, b) for a, b in zip(self.arguments, arguments_of(graph), strict=True) if a != b]
        if different and not other_shapes:
            (name, shape, element), (_, other, other_element) = different[0]
            raise PlanError(
                f"{self.path} is a plan for {name} of shape {list(shape)} ({element}), not {list(other)} "
                f"({other_element})",
                hint="--other-shapes applies its rules to these shapes and costs them anew",
            )
        replay(plan, self.rules, self.order)

    def recompute(self, plan: Plan) -> tuple[int, ...]:
        """The ops to compute again, of a plan over the function as it is given.

        Raises :class:`PlanError` if it has no such ops.
        """
        try:
            return read_numbers(self.recomputed, len(plan.graph.ops), "op")
        except PlanError as error:
            raise PlanError(f"{self.path}: recompute: {error.message}", hint=error.hint) from error

    def _difference(self, graph: Graph) -> str:
        known, found = [name for name, *_ in self.arguments], [name for name, *_ in arguments_of(graph)]
        missing = next((name for name in known if name not in found), None)
        added = next((name for name in found if name not in known), None)
        if missing is not None:
            return f": this one has no argument {missing}"
        return f": it has no argument {added}" if added is not None else ""


def plan_data(made: Partitioned, name: str, cost: Figures) -> dict[str, Any]:
    """The JSON of a partitioned function's plan. Raises :class:`InternalError` if it does not say the whole plan."""
    placed = made.program.placed
    plan = made.plan
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "mesh": mesh_json(placed.mesh),
        "micro_batches": plan.micro_batches,
        "function": {
            "structure": structure_of(placed.graph),
            "arguments": [
                {"name": argument, "shape": list(shape), "element": element}
                for argument, shape, element in arguments_of(placed.graph)
            ],
        },
        "recompute": written(plan.recomputed),
        "rules": plan.rules,
        "order": plan.order_rules(),
        "costed_with": _constants(made.target, made.links),
        "cost": {
            "seconds": cost.seconds,
            "bubble": cost.bubble,
            "peak_bytes": cost.peak_bytes,
            "collectives": {row.kind: row.count for row in cost.communication},
        },
    }
    again = Plan(placed.graph, placed.mesh, micro_batches=plan.micro_batches)
    decode_plan(data, "plan").apply(again)
    if again.place() != placed:
        raise InternalError("the plan has something that its rules as data do not say")
    return data


def plan_text(data: Mapping[str, Any]) -> str:
    """The text of a plan file: one rule a line, so that a difference of two files reads well."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list):
            items = ",\n".join(f"    {json.dumps(item)}" for item in value)
            lines.append(f"  {json.dumps(key)}: [\n{items}\n  ]" if value else f"  {json.dumps(key)}: []")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_plan_file(path: str | Path) -> PlanFile:
    """Read a plan file.

    Raises:
        PlanError: not JSON, another format or version, an unknown or missing key, or a value that is not allowed.
        MlirstitchError: the file cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise MlirstitchError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"{path} is no JSON: {error}", hint="a plan file is written by: mlirstitch plan -o FILE.json"
        ) from error
    return decode_plan(data, str(path))


def decode_plan(data: Any, path: str) -> PlanFile:
    """A plan file from its JSON. Raises :class:`PlanError` that names the place and the reason."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanError(f"{path} is no plan file", hint="a plan file is written by: mlirstitch plan -o FILE.json")
    if data.get("version") != VERSION:
        raise PlanError(
            f"{path} has version {data.get('version')!r} of the format", hint=f"this mlirstitch reads version {VERSION}"
        )
    _check_schema(data, path)
    function = data["function"]
    return PlanFile(
        path,
        data.get("name", ""),
        read_mesh(data["mesh"]),
        data.get("micro_batches"),
        function["structure"],
        tuple((a["name"], tuple(a["shape"]), a["element"]) for a in function["arguments"]),
        data.get("recompute", ""),
        tuple(data["rules"]),
        tuple(data["order"]),
        data.get("cost", {}),
    )


def structure_of(graph: Graph) -> str:
    """A digest of what a function computes without extents: names of ops, how they touch which values, ranks."""
    digest = hashlib.sha256()
    for value in graph.values:
        name = value.name if value.producer < 0 else ""
        digest.update(repr((name, len(value.shape), value.element, value.role)).encode())
    for op in graph.ops:
        touched = [[use.value for use in uses] for uses in (op.inputs, op.results)]
        digest.update(repr((op.name, op.kinds, op.combiner, touched)).encode())
    digest.update(repr((graph.arguments, graph.returned, graph.mutated)).encode())
    return digest.hexdigest()


def arguments_of(graph: Graph) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and element type of every argument."""
    values = (graph.values[number] for number in graph.arguments)
    return [(value.name, value.shape, value.element) for value in values]


def _constants(target: Target, links: Links) -> Rule:
    return {"target": target.chip, "constants": constants_of(target), "links": dataclasses.asdict(links)}


def _check_schema(data: Mapping[str, Any], path: str) -> None:
    from jsonschema.exceptions import best_match

    error = best_match(_validator().iter_errors(data))
    if error is not None:
        raise PlanError(f"{path}: {error.json_path}: {error.message}", hint=f"the format is in {SCHEMA_FILE.name}")


@functools.cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
