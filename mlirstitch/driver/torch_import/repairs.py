"""Repairs of the imported linalg text that need the IR: NaN in maximum and minimum, small constants, attributes.

Needs neither torch nor torch_mlir: it works on the text in the compiler's own MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from mlirstitch.dialects import parse_module
from mlirstitch.dialects.walk import walk
from mlirstitch.driver.torch_import.splicing import Cut, splice

# arith.cmpf predicates (ArithBase.td): o = ordered, u = unordered; oge, ogt, ole, olt = 3, 2, 5, 4.
_GREATER = {2, 3, 9, 10}
_LESS = {4, 5, 11, 12}


@dataclass(frozen=True)
class Labels:
    """Attributes of ``@main``: one dictionary of strings an argument and a result."""

    arguments: Sequence[Mapping[str, str]]
    results: Sequence[Mapping[str, str]]


def finish(text: str, labels: Labels, literals: Mapping[int, str], cuts: Sequence[Cut] = ()) -> str:
    """Parse the importer's text, repair it, and print it with locations.

    ``literals`` maps an argument's position to the text of the dense attribute that replaces it; ``cuts`` are the ops
    that were cut out of the program.
    """
    module = parse_module(text)
    with module.context:
        function = next(op.operation for op in module.body.operations if op.operation.name == "func.func")
        splice(function, cuts)
        _label(function, labels)
        _write_literals(function, literals)
        # Only these are kept while ops are erased: the bindings do not know of other handles to an erased op.
        for op in [op for op in walk(module.operation) if op.name == "linalg.generic"]:
            _repair_extrema(op.regions[0].blocks[0])
        module.operation.verify()
        return str(module.operation.get_asm(enable_debug_info=True))


def _label(function: ir.Operation, labels: Labels) -> None:
    """Write the attributes; arguments past the labelled ones are constants that get none."""
    count = len(function.regions[0].blocks[0].arguments)
    arguments = [*labels.arguments, *({} for _ in range(count - len(labels.arguments)))]
    for key, entries in (("arg_attrs", arguments), ("res_attrs", labels.results)):
        function.attributes[key] = ir.ArrayAttr.get(
            [ir.DictAttr.get({k: ir.StringAttr.get(v) for k, v in entry.items() if v}) for entry in entries]
        )


def _write_literals(function: ir.Operation, literals: Mapping[int, str]) -> None:
    block = function.regions[0].blocks[0]
    for position in sorted(literals, reverse=True):
        argument = block.arguments[position]
        attribute = ir.Attribute.parse(f"{literals[position]} : {argument.type}")
        with ir.InsertionPoint.at_block_begin(block), function.location:
            constant = ir.Operation.create("arith.constant", [argument.type], attributes={"value": attribute})
        argument.replace_all_uses_with(constant.results[0])
        block.erase_argument(position)
    if literals:
        results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
        signature = ir.FunctionType.get([a.type for a in block.arguments], results)
        kept = [e for i, e in enumerate(ir.ArrayAttr(function.attributes["arg_attrs"])) if i not in literals]
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(kept)


def _repair_extrema(block: ir.Block) -> None:
    """Turn ``x > y ? x : y`` on floats into ``arith.maximumf``, and likewise for the minimum.

    The importer writes every aten maximum, minimum, clamp and ReLU as compare and select within one body, which loses
    NaN on one side; a program's own ``torch.where(x > y, x, y)`` stands in two bodies here and is not touched.
    """
    for op in list(block.operations):
        select = op.operation
        if select.name != "arith.select" or not isinstance(select.results[0].type, ir.FloatType):
            continue
        condition, chosen, other = select.operands
        compare = condition.owner
        if not isinstance(compare, (ir.Operation, ir.OpView)) or compare.operation.name != "arith.cmpf":
            continue
        left, right = compare.operation.operands
        predicate = ir.IntegerAttr(compare.operation.attributes["predicate"]).value
        if {left, right} != {chosen, other} or left == right or predicate not in _GREATER | _LESS:
            continue
        takes_larger = (predicate in _GREATER) == (chosen == left)
        build = arith.MaximumFOp if takes_larger else arith.MinimumFOp
        with ir.InsertionPoint(select), select.location:
            replacement = build(chosen, other)
        select.results[0].replace_all_uses_with(replacement.result)
        select.erase()
        if not any(True for _ in compare.operation.results[0].uses):
            compare.operation.erase()


def leftovers(module_text: str) -> Iterator[str]:
    """Names of ops in the text that the compiler does not take (``tm_tensor.scan``, ``scf.for``)."""
    seen = dict.fromkeys(re.findall(r'"?\b((?:tm_tensor|torch|torch_c|ml_program|scf|complex)\.[\w.]+)', module_text))
    yield from seen
