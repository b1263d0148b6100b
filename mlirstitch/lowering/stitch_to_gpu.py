"""``convert-stitch-to-gpu``: cluster functions become kernels, the host function becomes the launch plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal, source_line, without_calls
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import PassError
from mlirstitch.lowering.buffers import (
    MEMORY_TYPES,
    Buffer,
    BufferPlan,
    host_calls,
    host_function,
    read_plan,
)
from mlirstitch.lowering.canonical import canonical_text, parse_canonical
from mlirstitch.lowering.kernel import emit_kernel
from mlirstitch.lowering.kernel.resources import static_shared_bytes
from mlirstitch.lowering.launch_limits import Launch, check_launch
from mlirstitch.lowering.library_calls import library_call
from mlirstitch.lowering.ptx_target import DATA_LAYOUT, nvvm_target
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import Kind, is_pooling
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.passes.structured import functions, symbol_name
from mlirstitch.target import Target

KERNEL_MODULE = "kernels"
_KERNEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True)
class _Kernel:
    """A generated kernel, as its launches need to know it."""

    name: str
    schedule: Schedule
    kind: str
    static_shared: int
    traffic: tuple[int, ...] | None
    touched: tuple[int, ...] | None
    noalias: tuple[bool, ...]


@register_pass
@dataclass(frozen=True)
class ConvertStitchToGpu(Pass):
    """Turn a stitched module with a buffer plan into a gpu module.

    Every cluster function that is launched becomes one ``gpu.func``, emitted by the template its schedule names. The
    host function takes memrefs (inputs, outputs, tickets if any) and holds the arena, launches, library calls, copies.
    A call whose results are all empty is not launched. Launches over the target's limits are refused here.
    """

    NAME: ClassVar[str] = "convert-stitch-to-gpu"

    def run(self, op: ir.Operation) -> None:
        """Rewrite the module ``op``."""
        main = host_function(op)
        plan = read_plan(main)
        target = Target.parse(stitch.TARGET.require(op))
        clusters = {symbol_name(f): f for f in functions(op) if symbol_name(f) != "main"}
        launched = _launched(main, plan, clusters)
        old = [item.operation for item in op.regions[0].blocks[0].operations]
        kernels = _build_kernels(op, launched, target)
        _HostBuilder(op, main, plan, clusters, kernels, target).build()
        for function in old:
            function.erase()


def _launched(main: ir.Operation, plan: BufferPlan, clusters: dict[str, ir.Operation]) -> dict[str, ir.Operation]:
    """Cluster functions that need a kernel, in the order of their first call."""
    found: dict[str, ir.Operation] = {}
    for call, writes in zip(host_calls(main), plan.writes, strict=True):
        name = _callee(call)
        if name not in clusters:
            raise refusal(call, f"@{name} has no body", hint="a stitched module defines every function it calls")
        if stitch.LIBRARY.get(clusters[name]) is None and _writes_something(plan, writes):
            found[name] = clusters[name]
    return found


def _callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _writes_something(plan: BufferPlan, writes: tuple[int, ...]) -> bool:
    return any(plan.buffers[number].elements for number in writes)


def _build_kernels(module: ir.Operation, launched: dict[str, ir.Operation], target: Target) -> dict[str, _Kernel]:
    """Create the ``gpu.module`` (none if nothing is launched) with one kernel for each function."""
    if not launched:
        return {}
    canonical_module = parse_canonical(canonical_text(module))
    canonical = {symbol_name(function): function for function in functions(canonical_module)}
    module.attributes["gpu.container_module"] = ir.UnitAttr.get()
    with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
        container = ir.Operation.create(
            "gpu.module",
            attributes={
                "sym_name": stitch.STRING.write(KERNEL_MODULE),
                "targets": ir.ArrayAttr.get([ir.Attribute.parse(nvvm_target(target))]),
                "llvm.data_layout": stitch.STRING.write(DATA_LAYOUT),
            },
            regions=1,
        )
    body = container.regions[0].blocks.append()
    kernels: dict[str, _Kernel] = {}
    for name, function in launched.items():
        if not _KERNEL_NAME.fullmatch(name):
            raise refusal(function, f"{name!r} cannot be the name of a kernel", hint="use letters, digits and _")
        kernels[name] = _build_kernel(name, function, canonical[name], body, target)
    return kernels


def _build_kernel(name: str, original: ir.Operation, function: ir.Operation, body: ir.Block, target: Target) -> _Kernel:
    """Emit one kernel at the end of ``body``; ``original`` has the user's locations, ``function`` canonical ones."""
    schedule = stitch.SCHEDULE.require(original)
    cluster = Cluster.of_function(function)
    try:
        with ir.InsertionPoint(body), function.location:
            kernel = emit_kernel(cluster, schedule, name, target)
    except PassError as error:
        error.message = f"kernel of @{name}, template {schedule.template}: {error.message}"
        error.source = _user_source(error.source, original, function)
        raise
    kernel = kernel.operation
    traffic, touched = stitch.TRAFFIC.get(kernel), stitch.TOUCHED.get(kernel)
    stitch.TRAFFIC.remove(kernel)  # they describe launches
    stitch.TOUCHED.remove(kernel)
    dynamic = stitch.DYNAMIC_SHARED.get(kernel)
    stitch.DYNAMIC_SHARED.remove(kernel)
    if dynamic is not None:
        schedule = replace(schedule, shared_bytes=dynamic)
    return _Kernel(
        name,
        schedule,
        _kind(cluster),
        static_shared_bytes(kernel),
        traffic,
        touched,
        tuple("llvm.noalias" in ir.DictAttr(entry) for entry in ir.ArrayAttr(kernel.attributes["arg_attrs"])),
    )


def _user_source(line: str, original: ir.Operation, function: ir.Operation) -> str:
    """The user's line for a canonical one: the op at the same place of the function that was copied.

    A refusal without a line is about the whole function.
    """
    for ours, theirs in () if not line else zip(walk(function), walk(original), strict=True):
        if source_line(ours.location) == line:
            return source_line(theirs.location)
    return source_line(original.location)


def _kind(cluster: Cluster) -> str:
    """What bounds a kernel: "compute_bound" with a contraction or convolution inside, else "memory_bound"."""
    for op in cluster.ops:
        if stitch.KIND.get(op) == Kind.COMPUTE and not is_pooling(op):
            return "compute_bound"
    return "memory_bound"


class _HostBuilder:
    """Builds the memref form of the host function from its tensor form and the buffer plan."""

    def __init__(
        self,
        module: ir.Operation,
        main: ir.Operation,
        plan: BufferPlan,
        clusters: dict[str, ir.Operation],
        kernels: dict[str, _Kernel],
        target: Target,
    ) -> None:
        self.module = module
        self.main = main
        self.plan = plan
        self.clusters = clusters
        self.kernels = kernels
        self.target = target
        self.location = without_calls(main.location)
        self.constants: dict[tuple[int, str], ir.Value] = {}
        self.libraries: dict[str, str] = {}
        self.arena: ir.Value | None = None
        outside = [n for n, buffer in enumerate(plan.buffers) if buffer.role != "temporary"]
        self.entry = self._create_function([plan.buffers[n] for n in outside])
        self.values: dict[int, ir.Value] = dict(zip(outside, self.entry.arguments, strict=True))

    def _create_function(self, buffers: list[Buffer]) -> ir.Block:
        """An empty ``@main`` taking ``buffers``; returns its block."""
        types = [_flat_type(buffer) for buffer in buffers]
        with ir.InsertionPoint(self.module.regions[0].blocks[0]):
            host = ir.Operation.create(
                "func.func",
                attributes={
                    "sym_name": stitch.STRING.write("main"),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                    "arg_attrs": ir.ArrayAttr.get(
                        [ir.DictAttr.get({"stitch.buffer": _buffer_attribute(buffer)}) for buffer in buffers]
                    ),
                    "stitch.results": stitch.INTEGERS.write(self.plan.results),
                },
                regions=1,
                loc=self.location,
            )
        return host.regions[0].blocks.append(*types, arg_locs=[self.location] * len(types))

    def build(self) -> None:
        """Fill the host function."""
        with ir.InsertionPoint(self.entry), self.location:
            self._build_arena()
            plan = self.plan
            calls = zip(host_calls(self.main), plan.reads, plan.writes, plan.workspaces, strict=True)
            for call, reads, writes, workspace in calls:
                if _writes_something(self.plan, writes):
                    with without_calls(call.location):
                        self._build_call(call, reads, writes, workspace)
            for source, target in self.plan.copies:
                if self.plan.buffers[source].elements:
                    ir.Operation.create("memref.copy", operands=[self._value(source), self._value(target)])
            ir.Operation.create("func.return")

    def _build_arena(self) -> None:
        if any(buffer.role == "temporary" for buffer in self.plan.buffers):
            kind = ir.MemRefType.get([self.plan.arena_bytes], ir.IntegerType.get_signless(8))
            marks = {"stitch.arena": ir.UnitAttr.get(), "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0])}
            self.arena = ir.Operation.create("memref.alloc", results=[kind], attributes=marks).results[0]

    def _value(self, number: int) -> ir.Value:
        """The memref of a buffer; a temporary's view of the arena is made where it is first needed."""
        if number not in self.values:
            buffer = self.plan.buffers[number]
            if self.arena is None or buffer.offset is None:
                raise PassError(f"temporary {buffer.name!r} has no offset", hint="run plan-buffers first")
            self.values[number] = ir.Operation.create(
                "memref.view",
                results=[_flat_type(buffer)],
                operands=[self.arena, self._constant(buffer.offset, "index")],
                attributes={"stitch.buffer": _buffer_attribute(buffer)},
                loc=self.location,
            ).results[0]
        return self.values[number]

    def _constant(self, value: int, kind: str) -> ir.Value:
        """An integer constant at the top of the function."""
        if (value, kind) not in self.constants:
            element = ir.Type.parse(kind)
            with ir.InsertionPoint.at_block_begin(self.entry):
                self.constants[value, kind] = ir.Operation.create(
                    "arith.constant",
                    results=[element],
                    attributes={"value": ir.IntegerAttr.get(element, value)},
                    loc=self.location,
                ).results[0]
        return self.constants[value, kind]

    def _dimensions(self, sizes: tuple[int, int, int]) -> tuple[ir.Value, ir.Value, ir.Value]:
        x, y, z = sizes
        return self._constant(x, "index"), self._constant(y, "index"), self._constant(z, "index")

    def _build_call(
        self, call: ir.Operation, reads: tuple[int, ...], writes: tuple[int, ...], workspace: tuple[int, ...]
    ) -> None:
        name = _callee(call)
        if name in self.kernels:
            self._build_launch(call, self.kernels[name], reads, writes, workspace)
        else:
            self._build_library_call(name, reads, writes)

    def _build_launch(
        self,
        call: ir.Operation,
        kernel: _Kernel,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        workspace: tuple[int, ...],
    ) -> None:
        schedule = kernel.schedule
        numbers = reads + writes + workspace
        if len(kernel.noalias) != len(numbers):
            raise refusal(call, f"{len(numbers)} buffers for {len(kernel.noalias)} arguments", "run plan-buffers again")
        check_launch(
            Launch(
                kernel.name,
                schedule.grid,
                schedule.block,
                len(numbers),
                schedule.shared_bytes,
                kernel.static_shared,
                source_line(call.location),
                schedule.thread_block_cluster,
                schedule.cooperative,
            ),
            self.target,
        )
        self._check_apart(call, kernel, reads, writes + workspace)
        shared = self._constant(schedule.shared_bytes, "i32") if schedule.shared_bytes else None
        launch = self._launch(kernel, [self._value(number) for number in numbers], shared)
        stitch.ACCESS.set(launch, _access(reads, writes) + self._workspace_access(workspace))
        stitch.CLUSTER_NAME.set(launch, kernel.name)
        stitch.TEMPLATE.set(launch, schedule.template)
        stitch.BOUND.set(launch, kernel.kind)
        if kernel.touched is not None:
            stitch.TOUCHED.set(launch, kernel.touched)
        stitch.TRAFFIC.set(launch, kernel.traffic or tuple(self.plan.buffers[number].bytes for number in numbers))

    def _launch(self, kernel: _Kernel, operands: list[ir.Value], shared: ir.Value | None) -> ir.Operation:
        """The launch op of ``kernel``; ``shared``: bytes of dynamic shared memory."""
        schedule = kernel.schedule
        sizes = [*self._dimensions(schedule.grid), *self._dimensions(schedule.block)]
        clusters = schedule.cluster_blocks > 1
        if clusters:
            sizes += self._dimensions(schedule.thread_block_cluster)
        dynamic = [] if shared is None else [shared]
        # Segments: async dependencies, sizes of grid, block and cluster, shared memory, operands, async object.
        segments = [0, *([1] * 6), *([int(clusters)] * 3), len(dynamic), len(operands), 0]
        attributes: dict[str, ir.Attribute] = {
            "kernel": ir.SymbolRefAttr.get([KERNEL_MODULE, kernel.name]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get(segments),
        }
        launch = ir.Operation.create("gpu.launch_func", operands=[*sizes, *dynamic, *operands], attributes=attributes)
        if schedule.cooperative:
            stitch.COOPERATIVE.set(launch, True)
        return launch

    def _workspace_access(self, workspace: tuple[int, ...]) -> tuple[str, ...]:
        """Scratch is written before it is read; tickets are kept from launch to launch."""
        persistent = (self.plan.buffers[number].role == "persistent" for number in workspace)
        return tuple("readwrite" if kept else "write" for kept in persistent)

    def _check_apart(
        self, call: ir.Operation, kernel: _Kernel, reads: tuple[int, ...], writes: tuple[int, ...]
    ) -> None:
        """A kernel that was promised memory of its own for an argument must get it; a plan edited by hand may not."""
        numbers = reads + writes
        for written in range(len(reads), len(numbers)):
            for other in range(written):
                promised = kernel.noalias[written] or kernel.noalias[other]
                if promised and self._overlap(numbers[written], numbers[other]):
                    names = [self.plan.buffers[numbers[number]].name for number in (other, written)]
                    raise refusal(
                        call,
                        f"arguments {other} ({names[0]}) and {written} ({names[1]}) of kernel {kernel.name} overlap, "
                        "but the kernel relies on their being apart",
                        hint="run plan-buffers again",
                    )

    def _overlap(self, one: int, two: int) -> bool:
        first, second = self.plan.buffers[one], self.plan.buffers[two]
        if one == two or first.offset is None or second.offset is None:
            return one == two and first.bytes > 0
        return first.offset < second.offset + second.bytes and second.offset < first.offset + first.bytes

    def _build_library_call(self, name: str, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        wanted = library_call(self.clusters[name])
        operands = [self._value(reads[number]) for number in wanted.operands] + [self._value(writes[0])]
        callee = f"library_{name}"
        if name not in self.libraries:
            self.libraries[name] = callee
            with ir.InsertionPoint(self.module.regions[0].blocks[0]):
                ir.Operation.create(
                    "func.func",
                    attributes={
                        "sym_name": stitch.STRING.write(callee),
                        "sym_visibility": stitch.STRING.write("private"),
                        "function_type": ir.TypeAttr.get(ir.FunctionType.get([v.type for v in operands], [])),
                        "stitch.library": stitch.STRING.write(wanted.routine),
                    },
                    regions=1,
                )
        dtypes = [self.plan.buffers[reads[number]].dtype for number in wanted.operands]
        call = ir.Operation.create(
            "func.call", operands=operands, attributes={"callee": ir.FlatSymbolRefAttr.get(callee)}
        )
        stitch.ACCESS.set(call, _access(wanted.operands, writes))
        stitch.CLUSTER_NAME.set(call, name)
        stitch.LIBRARY.set(call, wanted.routine)
        stitch.ROUTINE_ATTRIBUTES.set(call, wanted.attributes)
        stitch.ROUTINE_DTYPES.set(call, (*dtypes, self.plan.buffers[writes[0]].dtype))
        stitch.ROUTINE_SHAPES.set(call, wanted.shapes)
        if wanted.strides:
            stitch.ROUTINE_STRIDES.set(call, wanted.strides)
        if wanted.offsets:
            stitch.ROUTINE_OFFSETS.set(call, wanted.offsets)
        if wanted.epilogue:
            stitch.ROUTINE_EPILOGUE.set(call, wanted.epilogue)


def _access(reads: tuple[int, ...], writes: tuple[int, ...]) -> tuple[str, ...]:
    return ("read",) * len(reads) + ("write",) * len(writes)


def _flat_type(buffer: Buffer) -> ir.Type:
    """``memref<Nxelement>``: the buffer as kernels see it."""
    return ir.MemRefType.get([buffer.elements], ir.Type.parse(MEMORY_TYPES[buffer.dtype]))


def _buffer_attribute(buffer: Buffer) -> ir.Attribute:
    """A buffer's description without its offset, which stands in the IR itself."""
    return ir.DictAttr.get(replace(buffer, offset=None).as_attributes())
