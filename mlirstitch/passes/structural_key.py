"""What an op computes, as a value that can be compared and hashed: equal keys, equal results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

from mlir import ir


def structural_key(
    op: ir.Operation, name: Callable[[ir.Value], Hashable], left_out: Collection[str] = ()
) -> tuple[Hashable, ...]:
    """Name, attributes, types, operands and regions of an op, without locations.

    ``name`` says what stands for a value that the op, or its regions, take from outside; ``left_out`` names attributes
    that do not count. The key holds attributes and
    types of the op's context, and is of use as long as that lives.
    """
    return _key(op, {}, name, left_out)


def _key(
    op: ir.Operation, inside: dict[ir.Value, int], name: Callable[[ir.Value], Hashable], left_out: Collection[str]
) -> tuple[Hashable, ...]:
    operands = tuple(
        ("inside", inside[value]) if value in inside else ("outside", name(value)) for value in op.operands
    )
    attributes = tuple((key, op.attributes[key]) for key in sorted(op.attributes) if key not in left_out)
    types = tuple(value.type for value in op.results)
    regions: list[Hashable] = []
    for region in op.regions:
        for block in region.blocks:
            for value in block.arguments:
                inside[value] = len(inside)
            body: list[Hashable] = [tuple(value.type for value in block.arguments)]
            for child in block.operations:
                body.append(_key(child.operation, inside, name, left_out))
                for value in child.results:
                    inside[value] = len(inside)
            regions.append(tuple(body))
    return op.name, attributes, types, operands, tuple(regions)
