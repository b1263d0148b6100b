"""What distinguishes two plan files: rules, orders, the mesh, and what they cost when they were written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlirstitch.driver.partition.plan_file import PlanFile
from mlirstitch.driver.report.quantities import byte_size, seconds
from mlirstitch.passes.partitioning.plan_record import mesh_json


def difference(first: PlanFile, second: PlanFile) -> dict[str, Any]:
    """Fields that differ, rules and orders that one alone has, and the costs of both where both are known.

    Returns:
        ``changed``: name to [first, second]; ``rules`` and ``order``: ``removed`` and ``added``, and ``moved``, whether
        the rules are the same in another order; ``cost``: name to [first, second].
    """
    pairs = {
        "name": (first.name, second.name),
        "mesh": (_mesh(first), _mesh(second)),
        "micro_batches": (first.micro_batches, second.micro_batches),
        "recompute": (first.recomputed, second.recomputed),
        "function": (first.structure, second.structure),
        "arguments": ([list(a) for a in first.arguments], [list(a) for a in second.arguments]),
    }
    return {
        "changed": {name: list(pair) for name, pair in pairs.items() if pair[0] != pair[1]},
        "rules": _lists(first.rules, second.rules),
        "order": _lists(first.order, second.order),
        "cost": {
            name: [first.cost[name], second.cost[name]]
            for name in ("seconds", "bubble", "peak_bytes", "collectives")
            if name in first.cost and name in second.cost
        },
    }


def difference_text(found: Mapping[str, Any], first: str, second: str) -> str:
    """The difference for a person."""
    lines = [f"--- {first}", f"+++ {second}"]
    for name, (one, other) in found["changed"].items():
        if name == "function":
            lines.append("function: another one, whose ops have other numbers")
        elif name == "arguments":
            lines += [f"argument {a}: {b} -> {c}" for a, b, c in _arguments(one, other)]
        else:
            lines.append(f"{name}: {_shown(one)} -> {_shown(other)}")
    for name in ("rules", "order"):
        part = found[name]
        lines += [f"- {_one_line(item)}" for item in part["removed"]] + [
            f"+ {_one_line(item)}" for item in part["added"]
        ]
        if part["moved"]:
            lines.append(f"{name}: the same, given in another order")
    if len(lines) == 2:
        lines.append("the same plan")
    lines += [f"{name}: {_cost(name, one)} -> {_cost(name, other)}" for name, (one, other) in found["cost"].items()]
    return "\n".join(lines)


def _lists(first: Sequence[Any], second: Sequence[Any]) -> dict[str, Any]:
    ours, theirs = [_key(item) for item in first], [_key(item) for item in second]
    removed, added = _only(ours, theirs), _only(theirs, ours)
    return {"removed": removed, "added": added, "moved": not removed and not added and ours != theirs}


def _only(texts: Iterable[str], others: Iterable[str]) -> list[Any]:
    left = Counter(others)
    found: list[Any] = []
    for text in texts:
        if left[text]:
            left[text] -= 1
        else:
            found.append(json.loads(text))
    return found


def _key(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _mesh(file: PlanFile) -> Any:
    data = mesh_json(file.mesh)
    return data if "devices" in data else str(file.mesh)


def _arguments(one: Sequence[Any], other: Sequence[Any]) -> list[tuple[str, str, str]]:
    before, after = ({name: f"{list(shape)} {element}" for name, shape, element in side} for side in (one, other))
    names = dict.fromkeys((*before, *after))
    return [
        (name, before.get(name, "none"), after.get(name, "none"))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _one_line(item: Mapping[str, Any]) -> str:
    if "rule" in item:
        rest = ", ".join(f"{key}={json.dumps(value)}" for key, value in item.items() if key != "rule")
        return f"{item['rule']}({rest})"
    first, then = (
        item[side]["ops"] + "".join(f" at {axis}={place}" for axis, place in item[side].get("at", {}).items())
        for side in ("first", "then")
    )
    return f"order({first} before {then})"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cost(name: str, value: Any) -> str:
    if name == "seconds":
        return seconds(value)
    if name == "peak_bytes":
        return byte_size(value)
    if name == "bubble":
        return f"{100 * value:.1f} %"
    return ", ".join(f"{kind} {number}" for kind, number in value.items()) or "none"
