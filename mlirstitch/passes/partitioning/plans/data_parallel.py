"""Data parallelism, and ZeRO (Rajbhandari et al., arXiv 1910.02054): cut optimizer state, gradients, weights."""

from __future__ import annotations

from mlirstitch.passes.partitioning.graph import GraphValue
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.splits import refusal_of_split

AXIS = "dp"


def data_parallel(plan: Plan) -> None:
    """Every device computes a part of the batch; gradients are summed over all."""
    plan.trans("batch", space=AXIS)


def zero_1(plan: Plan) -> None:
    """Data parallelism where every device updates a part of every weight and keeps that part's optimizer state."""
    data_parallel(plan)
    _cut_updates(plan)
    for state in _states(plan):
        _store_cut(plan, state)


def zero_2(plan: Plan) -> None:
    """As zero1, and gradients are summed and cut after every micro-batch, so that no device keeps them whole."""
    zero_1(plan)
    plan.reduce_in_every_part(plan.gradients())


def zero_3(plan: Plan) -> None:
    """As zero2, and weights are kept cut and put together for the forward and again for the backward pass."""
    zero_2(plan)
    states = {state.number for state in _states(plan)}
    for argument in _updated(plan):
        if argument.number not in states:
            _store_cut(plan, argument)
            plan.gather_again(argument.name)


def _updated(plan: Plan) -> list[GraphValue]:
    """Arguments that the step gives new contents, in order."""
    mutated = {number for number in plan.graph.mutated if number >= 0}
    return [plan.graph.values[number] for number in plan.graph.arguments if number in mutated]


def _states(plan: Plan) -> list[GraphValue]:
    """Arguments that only the optimizer reads."""
    optimizer = set(plan.optimizer)
    return [argument for argument in _updated(plan) if set(argument.users) <= optimizer]


def _dim(plan: Plan, shape: tuple[int, ...]) -> int | None:
    """The dim to cut a tensor along: the first that the devices divide, else the longest; None if all are short."""
    devices = plan.mesh.sizes[AXIS]
    dims = [dim for dim, extent in enumerate(shape) if extent >= devices]
    return next((d for d in dims if shape[d] % devices == 0), max(dims, key=lambda d: shape[d], default=None))


def _store_cut(plan: Plan, argument: GraphValue) -> None:
    dim = _dim(plan, argument.shape)
    if dim is not None:
        plan.store(argument.name, dim, AXIS)


def _cut_updates(plan: Plan) -> None:
    for number in plan.optimizer:
        op = plan.graph.ops[number]
        loop = _dim(plan, op.loops)
        if loop is not None and refusal_of_split(op, loop) is None and plan.may_cut(number, loop, AXIS):
            plan.trans_op(number, loop, space=AXIS)
