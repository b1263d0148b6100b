"""Ops of the dist dialect: what is built is read back, and verified."""

from __future__ import annotations

import pytest
from mlir import ir

from mlirstitch.dialects import dist, new_context, parse_module
from mlirstitch.errors import PassError
from mlirstitch.passes.structured import defining_op


def built(shares: dist.Shares) -> tuple[ir.Module, ir.Operation]:
    """A module, and in it a reduce_scatter of 6 rows over two devices."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            whole, part = (ir.RankedTensorType.get([rows, 4], ir.F32Type.get()) for rows in (6, 3))
            source = dist.recv(whole, 1, ir.Location.unknown())
            value = dist.reduce_scatter(source, part, ("tp",), "add", 0, shares, ir.Location.unknown())
        op = defining_op(value)
        assert op is not None
        return module, op


def test_shares_that_follow_each_other_need_no_offsets() -> None:
    _module, op = built(((0, 3), (3, 6)))
    assert "offsets" not in op.attributes
    assert dist.shares_of(op) == ((0, 3), (3, 6))
    assert dist.axes_of(op) == ("tp",)
    assert dist.integer_of(op, "dim") == 0


def test_shares_that_overlap_are_read_back() -> None:
    shares = ((0, 4), (3, 6))
    _module, op = built(shares)
    assert "offsets" in op.attributes
    assert dist.shares_of(op) == shares


def test_a_context_takes_the_dialect_twice() -> None:
    context = new_context()
    dist.load(context)
    assert context.is_registered_operation(dist.ALL_GATHER)


def test_mesh_and_devices_are_read_back() -> None:
    module = parse_module("func.func @main_0() { return }")
    function = module.body.operations[0].operation
    assert dist.devices_of(function) == ()
    dist.set_mesh(function, (("dp", 2), ("tp", 1)), (0, 1))
    assert dist.mesh_of(function) == {"dp": 2, "tp": 1}
    assert dist.devices_of(function) == (0, 1)
    dist.verify_device_program(function)


def test_a_device_program_without_a_mesh_is_refused() -> None:
    module = parse_module("func.func @main_0() attributes {dist.devices = array<i64: 0>} { return }")
    with pytest.raises(PassError, match=r"dist\.mesh is missing"):
        dist.verify_device_program(module.body.operations[0].operation)
