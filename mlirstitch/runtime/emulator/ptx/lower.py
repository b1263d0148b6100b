"""Syntax tree of a kernel to the instruction IR: inline calls, check instructions, lay out shared and local memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.ptx import opcodes
from mlirstitch.runtime.emulator.ptx.control_flow import build_blocks, maybe_uninitialised
from mlirstitch.runtime.emulator.ptx.ir import Instruction, Kernel
from mlirstitch.runtime.emulator.ptx.operands import operand_mistake
from mlirstitch.runtime.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Arguments,
    Function,
    Immediate,
    Label,
    Module,
    Negated,
    Operand,
    Parameter,
    Register,
    Sink,
    Statement,
    Symbol,
    Variable,
    Vector,
)

_ASSERT = "__assertfail"


def lower_kernel(module: Module, name: str) -> Kernel:
    """Lower one entry of the module.

    Raises :class:`LaunchError` naming kernel, PTX line and mnemonic of an instruction that is unknown or misused.
    """
    function = module.functions[name]
    lowering = _Lowering(module, function)
    lowering.function(function, prefix="", parameters={}, done=None, stack=(name,))
    items = [*_undefined_halves(lowering.items), *lowering.items]
    blocks = build_blocks(name, items, lowering.branch_targets)
    layout = _layout(module, lowering.variables, items)
    return Kernel(
        name=name,
        parameters=function.parameters,
        directives=function.directives,
        blocks=blocks,
        offsets=layout.offsets,
        variables=layout.globals,
        shared_bytes=layout.shared_bytes,
        dynamic_shared=layout.dynamic_shared,
        local_bytes=layout.local_bytes,
        maybe_uninitialised=maybe_uninitialised(blocks),
    )


def _undefined_halves(items: Sequence[Instruction | Label]) -> list[Instruction]:
    """Definitions for registers that no instruction writes and whose halves are only packed with others by ``mov``.

    So LLVM prints the undefined half of a pair of which only the other half is used, or half of an undefined pair.
    """
    instructions = [item for item in items if isinstance(item, Instruction)]
    written = {register for item in instructions for register in item.defined()}
    read = {register for item in instructions if item.op not in ("pack", "unpack") for register in item.used()}
    found: dict[Register, Instruction] = {}
    for item in instructions:
        halves = item.defined() if item.op == "unpack" else ()
        if item.op == "pack" or (item.op == "unpack" and not read.intersection(halves)):
            found.update((register, item) for register in item.used())
        else:
            read.update(item.used())
    return [
        replace(user, op="implicit", types=(), outputs=(register,), inputs=(), guard=None)
        for register, user in found.items()
        if register not in written and register not in read
    ]


class _Layout:
    def __init__(self) -> None:
        self.offsets: dict[str, tuple[str, int]] = {}
        self.globals: dict[str, Variable] = {}
        self.shared_bytes = 0
        self.local_bytes = 0
        self.dynamic_shared: int | None = None


def _layout(module: Module, own: dict[str, Variable], items: list[Instruction | Label]) -> _Layout:
    """Give offsets to the shared and local variables that the code names, in order of declaration."""
    named = {
        symbol.name
        for item in items
        if isinstance(item, Instruction)
        for operand in item.inputs
        if isinstance(symbol := getattr(operand, "base", operand), Symbol)
    }
    layout = _Layout()
    dynamic: list[Variable] = []
    for variable in [*module.variables.values(), *own.values()]:
        if variable.name not in named:
            continue
        if variable.space in ("global", "const"):
            layout.globals[variable.name] = variable
        elif variable.space == "shared" and variable.external:
            dynamic.append(variable)
        elif variable.space == "shared":
            start = -(-layout.shared_bytes // variable.align) * variable.align
            layout.offsets[variable.name] = ("shared", start)
            layout.shared_bytes = start + variable.size
        else:
            start = -(-layout.local_bytes // variable.align) * variable.align
            layout.offsets[variable.name] = ("local", start)
            layout.local_bytes = start + variable.size
    if dynamic:
        align = max(16, *(variable.align for variable in dynamic))
        layout.dynamic_shared = -(-layout.shared_bytes // align) * align
        for variable in dynamic:
            layout.offsets[variable.name] = ("shared", layout.dynamic_shared)
    return layout


class _Lowering:
    def __init__(self, module: Module, kernel: Function) -> None:
        self.module = module
        self.kernel = kernel
        self.items: list[Instruction | Label] = []
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.variables: dict[str, Variable] = {}
        self._inlined = 0
        self._negations = 0
        self._conversions = 0
        self._prefix = ""
        self._parameters: dict[str, str] = {}
        self._own: dict[str, Variable] = {}
        self._passed: dict[tuple[str, int], Register] = {}

    def _fail(self, statement: Statement, message: str) -> LaunchError:
        return LaunchError(
            f"kernel {self.kernel.name!r}, PTX line {statement.line}: {statement.mnemonic!r}: {message}",
            source=statement.location,
        )

    # ---- functions
    def function(
        self, function: Function, prefix: str, parameters: dict[str, str], done: str | None, stack: tuple[str, ...]
    ) -> None:
        """Append the body. Names get ``prefix``; ``parameters`` maps formal ones to the caller's spaces; ``ret`` jumps
        to label ``done``."""
        saved = self._prefix, self._parameters
        self._prefix, self._parameters = prefix, parameters
        for name, labels in function.branch_targets.items():
            self.branch_targets[prefix + name] = tuple(prefix + label for label in labels)
        for name, variable in function.variables.items():
            self.variables[prefix + name] = Variable(
                prefix + name, variable.space, variable.align, variable.size, variable.initial, variable.external
            )
        self._own = function.variables
        for item in function.body or ():
            if isinstance(item, Label):
                self.items.append(Label(prefix + item.name, item.line))
                continue
            op = item.mnemonic.split(".")[0]
            if op == "call":
                self._call(item, stack)
                self._own = function.variables
            elif op == "ret" and done is not None:
                self._emit(item, "bra", ("uni",), (), (), (Symbol(done),))
            elif item.mnemonic.startswith(("ld.param", "st.param")):
                self._parameter_access(item)
            else:
                self._instruction(item)
        self._prefix, self._parameters = saved

    def _call(self, statement: Statement, stack: tuple[str, ...]) -> None:
        groups = list(statement.operands)
        results = _take_arguments(groups)
        callee = groups.pop(0) if groups else None
        arguments = _take_arguments(groups)
        if not isinstance(callee, Symbol):
            raise self._fail(statement, "only direct calls are supported")
        if statement.guard is not None:
            raise self._fail(statement, "a guarded call is not supported")
        if callee.name == _ASSERT:
            self._emit(statement, "trap", ("assert",), (), (), ())
            return
        function = self.module.functions.get(callee.name)
        if function is None or function.body is None:
            raise self._fail(statement, f"function {callee.name!r} has no body in this module")
        if callee.name in stack:
            raise self._fail(statement, f"recursion through {callee.name!r} is not supported")
        if len(results) != len(function.results) or len(arguments) != len(function.parameters):
            raise self._fail(statement, f"{callee.name!r} is called with a wrong number of arguments or results")
        spaces: dict[str, str] = {}
        for formal, actual in zip([*function.results, *function.parameters], [*results, *arguments], strict=True):
            if not isinstance(actual, Symbol):
                raise self._fail(statement, "arguments must be .param variables")
            spaces[formal.name] = self._space(actual.name)
        self._inlined += 1
        prefix = f"{callee.name}#{self._inlined}."
        done = f"{prefix}return"
        self.function(function, prefix, spaces, done, (*stack, callee.name))
        self.items.append(Label(done, statement.line))

    def _space(self, name: str) -> str:
        return self._parameters.get(name, self._prefix + name)

    def _parameter_access(self, statement: Statement) -> None:
        """``ld.param`` of the kernel's own parameters stays; one of a call becomes a move of a register."""
        split = opcodes.split_mnemonic(statement.mnemonic)
        store = split.op == "st"
        operands = list(statement.operands)
        if len(operands) != 2 or not isinstance(operands[0 if store else 1], Address) or len(split.types) != 1:
            raise self._fail(statement, "malformed parameter access")
        address = operands[0 if store else 1]
        assert isinstance(address, Address)
        values = _flatten(operands[1 if store else 0])
        if not isinstance(address.base, Symbol):
            raise self._fail(statement, "a parameter must be named directly")
        width = TYPE_BYTES[split.types[0]]
        own = {p.name: p for p in self.kernel.parameters}
        if not self._prefix and address.base.name in own:
            parameter: Parameter = own[address.base.name]
            offset = address.base.offset + address.offset
            if store or offset < 0 or offset + width * len(values) > parameter.size:
                raise self._fail(statement, f"access outside parameter {parameter.name!r}")
            outputs = tuple(self._output(statement, value) for value in values)
            at = Immediate("int", parameter.offset + offset)
            self._emit(statement, "ld_param", (), split.types, outputs, (at,), len(values))
            return
        for position, value in enumerate(values):
            key = (self._space(address.base.name), address.base.offset + address.offset + position * width)
            passed = self._passed.get(key)
            if passed is None:
                if not store:
                    raise self._fail(statement, f"parameter {address.base.name!r} is read before it is passed")
                passed = Register(f"{key[0]}@{key[1]}", f"b{8 * width}")
                self._passed[key] = passed
            if passed.bytes != width:
                raise self._fail(statement, f"parameter {address.base.name!r} is passed and read with different widths")
            if store:
                self._emit(statement, "mov", (), split.types, (passed,), (self._input(value),))
            else:
                self._emit(statement, "mov", (), split.types, (self._output(statement, value),), (passed,))

    # ---- instructions
    def _register(self, register: Register) -> Register:
        return Register(self._prefix + register.name, register.type) if self._prefix else register

    def _output(self, statement: Statement, operand: Operand) -> Register | None:
        if isinstance(operand, Sink):
            return None
        if not isinstance(operand, Register):
            raise self._fail(statement, "the destination is not a register")
        return self._register(operand)

    def _input(self, operand: Operand) -> Operand:
        if isinstance(operand, Register):
            return self._register(operand)
        if isinstance(operand, Address):
            base = operand.base
            return Address(self._input(base), operand.offset) if base is not None else operand  # type: ignore[arg-type]
        if isinstance(operand, Symbol) and operand.name in self._own:
            return Symbol(self._prefix + operand.name, operand.offset)
        return operand

    def _instruction(self, statement: Statement) -> None:
        split = opcodes.split_mnemonic(statement.mnemonic)
        op, operands = split.op, list(statement.operands)
        if op in ("add", "sub", "fma") and split.types in (("f32", "f16"), ("f32", "bf16")):
            operands[1:-1] = [self._widened(statement, split.types[1], value) for value in operands[1:-1]]
            split = replace(split, types=("f32",))
        if op == "mov" and len(operands) == 2:
            if isinstance(operands[0], Vector):
                op = "unpack"
            elif isinstance(operands[1], Vector):
                op = "pack"
        if op == "bra" or op == "brx":
            operands = [Symbol(self._prefix + o.name) if isinstance(o, Symbol) else o for o in operands]
        op = _barrier_op(op, split.modifiers)
        if ".L2::cache_hint" in statement.mnemonic and operands:
            operands.pop()  # The policy: a hint for caches, which the emulated device has none of.
        operands = [self._negation(statement, o) if isinstance(o, Negated) else o for o in operands]
        form = opcodes.FORMS.get(op)
        reason = opcodes.mistake(op, split.modifiers, split.types)
        if form is None or reason:
            raise self._fail(statement, reason or "unknown instruction")
        outputs: tuple[Register | None, ...] = ()
        if opcodes.has_result(op, split.modifiers):
            if not operands:
                raise self._fail(statement, "has no destination")
            destinations = _flatten(operands.pop(0))
            outputs = tuple(self._output(statement, value) for value in destinations)
            if len(outputs) > form.outputs or (op in ("ld", "ldu") and len(outputs) != split.vector):
                raise self._fail(statement, f"has {len(outputs)} destinations")
        inputs: list[Operand] = []
        for operand in operands:
            inputs.extend(self._input(value) for value in _flatten(operand))
        least, most = form.inputs
        if not least <= len(inputs) <= most:
            raise self._fail(statement, f"has {len(inputs)} source operands")
        if op in ("st", "red") and len(inputs) != 1 + split.vector:
            raise self._fail(statement, f"stores {len(inputs) - 1} values, not {split.vector}")
        if op not in ("bra", "brx"):
            reason = operand_mistake(op, split.modifiers, split.types, outputs, tuple(inputs))
        if reason:
            raise self._fail(statement, reason)
        for operand in inputs:
            self._check_symbol(statement, op, operand)
        if op == "prmt" and not split.modifiers:
            inputs = _selected(inputs)
        self._emit(statement, op, split.modifiers, split.types, outputs, tuple(inputs), split.vector)

    def _widened(self, statement: Statement, narrow: str, operand: Operand) -> Register:
        """A float32 register that holds a narrower operand, which an instruction of mixed precision converts itself.

        Such an instruction (PTX 8.6, sm_100) rounds once, as the conversion is exact.
        """
        self._conversions += 1
        target = Register(f"widened{self._conversions}", "f32")
        self._emit(statement, "cvt", (), ("f32", narrow), (self._register(target),), (self._input(operand),))
        return target

    def _negation(self, statement: Statement, operand: Negated) -> Register:
        """A register that holds the negated predicate, written by an instruction of its own."""
        self._negations += 1
        target = Register(f"!{self._negations}", "pred")
        plain = replace(statement, guard=None)
        self._emit(plain, "not", (), ("pred",), (self._register(target),), (self._input(operand.register),))
        return target

    def _check_symbol(self, statement: Statement, op: str, operand: Operand) -> None:
        symbol = getattr(operand, "base", operand)
        if op in ("bra", "brx") or not isinstance(symbol, Symbol):
            return
        if symbol.name not in self.variables and symbol.name not in self.module.variables:
            raise self._fail(statement, f"unknown variable {symbol.name!r}")

    def _emit(
        self,
        statement: Statement,
        op: str,
        modifiers: tuple[str, ...],
        types: tuple[str, ...],
        outputs: tuple[Register | None, ...],
        inputs: tuple[Operand, ...],
        vector: int = 1,
    ) -> None:
        guard = statement.guard
        if guard is not None:
            guard = (self._register(guard[0]), guard[1])
        self.items.append(
            Instruction(
                op=op,
                modifiers=modifiers,
                types=types,
                vector=vector,
                outputs=outputs,
                inputs=inputs,
                guard=guard,
                mnemonic=statement.mnemonic,
                line=statement.line,
                location=statement.location,
                kind=opcodes.classify(op, modifiers, types),
            )
        )


def _selected(inputs: list[Operand]) -> list[Operand]:
    """Inputs of a ``prmt`` with zero for a source that a constant selector takes no byte of.

    LLVM names a register there that nothing writes, where it permutes the bytes of one value.
    """
    *sources, selector = inputs
    if not isinstance(selector, Immediate) or selector.kind != "int":
        return inputs
    taken = {int(selector.value) >> 4 * place & 7 for place in range(4)}
    read = (min(taken) < 4, max(taken) >= 4)
    kept = (source if is_read else Immediate("int", 0) for source, is_read in zip(sources, read, strict=True))
    return [*kept, selector]


def _barrier_op(op: str, modifiers: tuple[str, ...]) -> str:
    """The IR's name of a barrier instruction, see :class:`ir.Instruction`."""
    if op == "cp" and "mbarrier" in modifiers:
        return "cp_mbarrier"
    if op not in ("bar", "barrier"):
        return op
    if "cluster" in modifiers:
        return "cluster_arrive" if "arrive" in modifiers else "cluster_wait"
    return "bar_arrive" if "arrive" in modifiers else op


def _take_arguments(operands: list[Operand]) -> tuple[Operand, ...]:
    """Remove and return a list in parentheses that stands first; () if there is none."""
    if operands and isinstance(operands[0], Arguments):
        first = operands.pop(0)
        return first.elements if isinstance(first, Arguments) else ()
    return ()


def _flatten(operand: Operand) -> tuple[Operand, ...]:
    return operand.elements if isinstance(operand, Vector | Arguments) else (operand,)
