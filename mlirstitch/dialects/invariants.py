"""What the IR of each level promises, checked between stages (docs/architecture.md, "What each level promises").

A violation is a :class:`PassError` at the op that breaks the promise: a fault of the stage before, or of IR that was
edited by hand and fed back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import MlirstitchError
from mlirstitch.options import LEVELS

VIEWS = frozenset(("tensor.expand_shape", "tensor.collapse_shape"))
TENSOR_OPS = VIEWS | frozenset(
    f"tensor.{name}" for name in ("empty", "extract_slice", "insert_slice", "concat", "pad", "cast")
)
HOST_OPS = frozenset(
    ("arith.constant", "func.call", "func.return", "gpu.launch_func", "memref.alloc", "memref.copy", "memref.view")
)
_BODY_DIALECTS = ("arith.", "math.")
_BODY_OPS = frozenset(("linalg.yield", "linalg.index", "tensor.extract", "tensor.yield"))
_EARLIER = "run the stages before this level, or start with --from at the level the input has"


def check(module: ir.Module | ir.Operation, level: str) -> None:
    """Raise :class:`PassError` unless ``module`` keeps the promises of ``level``.

    ``level`` is one of :data:`mlirstitch.options.LEVELS`, or ``input`` for what may enter the ``linalg`` level before
    it is normalized. Raises MlirstitchError for another level.
    """
    if level not in _CHECKS:
        raise MlirstitchError(f"unknown level {level!r}", hint=f"levels: {', '.join(_CHECKS)}")
    operation = module if isinstance(module, ir.Operation) else module.operation
    stitch.verify(operation)
    _CHECKS[level](operation)


def main_of(module: ir.Operation) -> ir.Operation:
    """The public ``func.func @main`` with a body. Raises :class:`PassError` if there is none."""
    for op in _top_level(module):
        if op.name == "func.func" and _symbol(op) == "main":
            if not len(op.regions[0].blocks):
                raise refusal(op, "@main has no body", "define the function to compile")
            if _is_private(op):
                raise refusal(op, "@main is private", "drop the visibility of the function to compile")
            return op
    raise refusal(module, "the module has no func.func @main", "name the function to compile @main")


def _check_input(module: ir.Operation) -> None:
    _check_tensor_signature(main_of(module))


def _check_linalg(module: ir.Operation) -> None:
    _check_module_attributes(module)
    main = main_of(module)
    for op in _top_level(module):
        if op != main:
            raise refusal(op, "only @main may stand in a module of this level", "inline what @main calls")
    _check_tensor_signature(main)
    for place, value_names in ((stitch.ARGUMENT, ("name", "role", "dtype")), (stitch.RESULT, ("name", "dtype"))):
        for number, entries in enumerate(stitch.group_attributes(main, place)):
            for name in value_names:
                if stitch.PREFIX + name not in entries:
                    raise refusal(main, f"{place.partition(' ')[0]} {number} has no stitch.{name}", _EARLIER)
    _check_computation(main)


def _check_stitched(module: ir.Operation) -> None:
    _check_module_attributes(module)
    main = main_of(module)
    _check_tensor_signature(main)
    functions = {_symbol(op): op for op in _top_level(module) if op.name == "func.func"}
    for op in _body(main):
        if op.name == "func.call":
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            if callee not in functions or callee == "main" or not len(functions[callee].regions[0].blocks):
                raise refusal(op, f"@{callee} is not a cluster function of this module", _EARLIER)
        elif op.name not in VIEWS and op.name != "func.return":
            raise refusal(op, "@main of a stitched module holds calls of clusters and reshapes only", _EARLIER)
    for op in _top_level(module):
        if op.name != "func.func":
            raise refusal(op, "a stitched module holds functions only", _EARLIER)
        if op != main:
            _check_cluster(op)


def _check_cluster(function: ir.Operation) -> None:
    if not _is_private(function) or "no_inline" not in function.attributes:
        raise refusal(function, "a cluster function must be private and no_inline", "run stitch-outline")
    if stitch.CLUSTER.get(function) is None:
        raise refusal(function, "the function is no cluster: it lacks stitch.cluster", "run stitch-outline")
    if stitch.SCHEDULE.get(function) is None and stitch.LIBRARY.get(function) is None:
        raise refusal(function, "the cluster has neither stitch.schedule nor stitch.library", "run stitch-schedule")
    _check_tensor_signature(function)
    _check_computation(function)


def _check_gpu(module: ir.Operation) -> None:
    kernels = {_symbol(op): op for op in _top_level(module) if op.name == "gpu.module"}
    for container in kernels.values():
        for op in _body(container):
            if op.name not in ("gpu.func", "gpu.module_end", "memref.global", "llvm.mlir.global"):
                raise refusal(op, "a gpu.module of this level holds gpu.func and globals only", _EARLIER)
            if op.name == "gpu.func":
                _check_flat_memrefs(op, [argument.type for argument in _arguments(op)])
    _check_host(module, kernels)


def _check_nvvm(module: ir.Operation) -> None:
    kernels = {_symbol(op): op for op in _top_level(module) if op.name == "gpu.module"}
    for container in kernels.values():
        for op in walk(container):
            if op != container and not op.name.startswith(("llvm.", "nvvm.", "gpu.module_end")):
                raise refusal(op, "a kernel of the nvvm level holds llvm and nvvm ops only", _EARLIER)
    _check_host(module, kernels)


def _check_ptx(module: ir.Operation) -> None:
    for op in _top_level(module):
        if op.name == "gpu.module":
            raise refusal(op, "the kernels were not compiled: gpu.module is left", "run gpu-module-to-binary")
    binaries = {_symbol(op): op for op in _top_level(module) if op.name == "gpu.binary"}
    _check_host(module, binaries)


def _check_host(module: ir.Operation, kernel_holders: dict[str, ir.Operation]) -> None:
    """The host function of the levels gpu, nvvm and ptx: a launch plan over flat memrefs."""
    _check_module_attributes(module)
    main = main_of(module)
    _check_flat_memrefs(main, [argument.type for argument in _arguments(main)])
    if list(_signature(main).results):
        raise refusal(main, "@main returns values, but a launch plan writes its outputs into arguments", _EARLIER)
    arenas = 0
    for op in _body(main):
        if op.name not in HOST_OPS:
            raise refusal(op, "the op does not belong into a launch plan", _EARLIER)
        if op.name == "memref.alloc":
            arenas += 1
            if stitch.ARENA.get(op) is None or arenas > 1:
                raise refusal(op, "a launch plan allocates one arena, marked stitch.arena", "run plan-buffers")
        elif op.name == "gpu.launch_func":
            _check_launch(op, kernel_holders)
        elif op.name == "func.call":
            stitch.LIBRARY.require(op)
            _check_access(op, len(op.operands))


def _check_launch(op: ir.Operation, kernel_holders: dict[str, ir.Operation]) -> None:
    container, kernel = ir.SymbolRefAttr(op.attributes["kernel"]).value[:2]
    if container not in kernel_holders:
        raise refusal(op, f"the launched kernel @{container}::@{kernel} does not exist", _EARLIER)
    stitch.CLUSTER_NAME.require(op)
    sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    _check_access(op, sizes[_KERNEL_OPERANDS])


_KERNEL_OPERANDS = (
    11  # segment of gpu.launch_func: async, grid x3, block x3, cluster x3, shared memory, operands, object
)


def _check_access(op: ir.Operation, operands: int) -> None:
    access = stitch.ACCESS.require(op)
    if len(access) != operands:
        raise refusal(op, f"stitch.access has {len(access)} entries for {operands} arguments", "one entry an argument")


def _check_module_attributes(module: ir.Operation) -> None:
    for attribute in (stitch.TARGET, stitch.NUMERICS, stitch.LIBRARY_MODE):
        attribute.require(module)


def _check_tensor_signature(function: ir.Operation) -> None:
    signature = _signature(function)
    for what, types in (("argument", signature.inputs), ("result", signature.results)):
        for number, kind in enumerate(types):
            if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
                raise refusal(
                    function,
                    f"{what} {number} is {kind}, not a ranked tensor of static shape",
                    "export the model with fixed sizes; pass a scalar as a 0-d tensor",
                )


def _check_computation(function: ir.Operation) -> None:
    """The body of ``@main`` on the linalg level, or of a cluster: linalg ops with a kind, tensor ops, constants."""
    if len(function.regions[0].blocks) != 1:
        raise refusal(function, "the function has control flow between blocks", "trace the branch that is taken")
    for op in _body(function):
        is_linalg = op.name.startswith("linalg.")
        if not is_linalg and op.name not in TENSOR_OPS and op.name not in ("arith.constant", "func.return"):
            raise refusal(op, "the op does not belong on the linalg level", "run the normalize passes first")
        if is_linalg:
            stitch.KIND.require(op)
            if op.results and not any(True for result in op.results for _ in result.uses):
                raise refusal(op, "nothing uses the op's results", "run the normalize passes, which drop dead ops")
        for inner in _inside(op):
            if not inner.name.startswith(_BODY_DIALECTS) and inner.name not in _BODY_OPS:
                raise refusal(inner, f"the op may not stand in the body of {op.name}", "run the normalize passes first")


def _check_flat_memrefs(function: ir.Operation, types: list[ir.Type]) -> None:
    for number, kind in enumerate(types):
        if not isinstance(kind, ir.MemRefType):
            continue  # workgroup memory of other form is the emitter's business
        if kind.memory_space is None and (kind.rank != 1 or not kind.has_static_shape):
            raise refusal(function, f"argument {number} is {kind}, not memref<Nxelement>", _EARLIER)
        if isinstance(kind.element_type, ir.IntegerType) and kind.element_type.width == 1:
            raise refusal(function, f"argument {number} is {kind}: bools are i8 in memory", _EARLIER)


def _top_level(module: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in module.regions[0].blocks[0].operations]


def _body(op: ir.Operation) -> list[ir.Operation]:
    return [child.operation for child in op.regions[0].blocks[0].operations]


def _inside(op: ir.Operation) -> Iterator[ir.Operation]:
    inner = walk(op)
    next(inner)
    return inner


def _arguments(op: ir.Operation) -> list[ir.Value]:
    return list(op.regions[0].blocks[0].arguments)


def _signature(function: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else ""


def _is_private(op: ir.Operation) -> bool:
    visibility = op.attributes.get("sym_visibility")
    return isinstance(visibility, ir.StringAttr) and visibility.value == "private"


_CHECKS: dict[str, Callable[[ir.Operation], None]] = {
    "input": _check_input,
    "linalg": _check_linalg,
    "partitioned": _check_linalg,
    "stitched": _check_stitched,
    "gpu": _check_gpu,
    "nvvm": _check_nvvm,
    "ptx": _check_ptx,
}
if tuple(_CHECKS)[1:] != LEVELS:
    raise ImportError("dialects/invariants.py must check every level of options.LEVELS")
