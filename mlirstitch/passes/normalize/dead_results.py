"""Drop results, inputs and inits of ``linalg.generic`` that nobody reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.normalize.dead_code import needed_ops
from mlirstitch.passes.structured import (
    Structured,
    block_ops,
    build_empty,
    build_generic,
    clone_into_body,
    defining_op,
    element_type,
    functions,
    has_uses,
    shape_of,
    structured,
)


@register_pass
@dataclass(frozen=True)
class DropDeadResults(Pass):
    """Rebuild generics without dead results, unread inputs and unread inits.

    Softmax, amax and logsumexp come with an unused i64 index result, which doubles their reduction; without it they are
    plain maxima. A dead result stays if its running value feeds a live one (the maximum that an argmax compares with).
    An input that the body does not read goes if the other operands still determine the iteration space. An init that
    the body does not read becomes ``tensor.empty``, so that no false dependence is left.
    """

    NAME = "normalize-dead-results"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in reversed(block_ops(function)):
                if child.name != "linalg.generic":
                    continue
                view = structured(child)
                if view is not None:
                    _shrink(view)


def _shrink(view: Structured) -> None:
    if not any(has_uses(result) for result in view.op.results):
        view.op.erase()
        return
    live = _live_results(view)
    count = len(view.inputs)
    _, used = needed_ops(view.body, tuple(view.yielded[i] for i in live))
    arguments = list(view.body.arguments)
    inputs = [i for i in range(count) if arguments[i] in used]
    inputs = _determining_inputs(view, inputs, live)
    unread = [i for i in live if arguments[count + i] not in used and not _is_empty(view.inits[i])]
    if len(live) == len(view.inits) and len(inputs) == count and not unread:
        return
    _rebuild(view, inputs, live, frozenset(unread))


def _live_results(view: Structured) -> list[int]:
    """Results with uses, plus those whose running value a live result reads."""
    live = {i for i, result in enumerate(view.op.results) if has_uses(result)}
    running = view.body.arguments[len(view.inputs) :]
    while True:
        _, used = needed_ops(view.body, tuple(view.yielded[i] for i in sorted(live)))
        grown = live | {i for i, argument in enumerate(running) if argument in used}
        if grown == live:
            return sorted(live)
        live = grown


def _determining_inputs(view: Structured, inputs: list[int], live: list[int]) -> list[int]:
    """``inputs``, plus the first dropped ones that are needed to determine every iteration dim."""
    kept = list(inputs)
    maps = [view.maps[i] for i in kept] + [view.init_maps[i] for i in live]
    seen = {expr.position for m in maps for expr in m.results if isinstance(expr, ir.AffineDimExpr)}
    for i in range(len(view.inputs)):
        here = {expr.position for expr in view.maps[i].results if isinstance(expr, ir.AffineDimExpr)}
        if i not in kept and here - seen:
            kept.append(i)
            seen |= here
    return sorted(kept)


def _is_empty(value: ir.Value) -> bool:
    op = defining_op(value)
    return op is not None and op.name == "tensor.empty"


def _rebuild(view: Structured, inputs: list[int], live: list[int], unread: frozenset[int]) -> None:
    location = view.op.location
    count = len(view.inputs)
    arguments = [view.body.arguments[i] for i in inputs] + [view.body.arguments[count + i] for i in live]
    ops, _ = needed_ops(view.body, tuple(view.yielded[i] for i in live))

    def body(new_arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        mapping: dict[ir.Value, ir.Value] = dict(zip(arguments, new_arguments, strict=True))
        clone_into_body(ops, mapping, ir.InsertionPoint.current)
        return [mapping.get(view.yielded[i], view.yielded[i]) for i in live]

    with ir.InsertionPoint(view.op):
        inits = [
            build_empty(shape_of(view.inits[i]), element_type(view.inits[i]), location)
            if i in unread
            else view.inits[i]
            for i in live
        ]
        new = build_generic(
            [view.inputs[i] for i in inputs],
            inits,
            [view.maps[i] for i in inputs] + [view.init_maps[i] for i in live],
            view.iterators,
            body,
            location,
        )
    for position, i in enumerate(live):
        view.op.results[i].replace_all_uses_with(new.results[position])
    view.op.erase()
