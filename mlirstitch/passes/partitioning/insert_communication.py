"""From a plan in the IR to the devices' functions, with the communication that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import plan_attributes
from mlirstitch.options import option
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.partitioning.plan_ir import planned_function, read_plan
from mlirstitch.target import Links, Target


@register_pass
@dataclass(frozen=True)
class InsertCommunication(Pass):
    """Replace a planned function by one function per distinct device program, with ``dist`` ops where parts are moved.

    The plan is what the attributes of the three primitives say. Layouts are searched with the cost model of ``links``;
    the order of the tasks is the one in which they would start on the model of the machine. Orders that contradict each
    other or the data are refused, and the cycle is named.
    """

    NAME = "dist-insert-communication"

    target: str = option("sm_90", "device, for the model of the machine")
    links: str = option("dgx-h100", "links between devices, for the model of the machine")

    def run(self, op: ir.Operation) -> None:
        # Loaded when a plan is there: the search for layouts would lengthen the start of every mlirstitch-opt.
        from mlirstitch.passes.partitioning.device_programs import device_programs
        from mlirstitch.passes.partitioning.materialize import materialize
        from mlirstitch.passes.partitioning.simulate import simulate

        placed = read_plan(op).place()
        function = planned_function(op)
        program = materialize(placed, Target.parse(self.target), Links.parse(self.links))
        timeline = simulate(program)
        plan_attributes.clear(op, function)  # the parts of ops would carry it otherwise
        made = device_programs(program, function, timeline.sequence)
        function.erase()
        block = op.regions[0].blocks[0]
        for built in [child.operation for child in made.body.operations]:
            built.detach_from_parent()
            block.append(built)
