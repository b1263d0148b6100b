"""A kernel as one function ``run_warp(context, warp) -> i32``: runs a warp until its threads exit or wait.

Threads of a warp that took different branches are kept apart by one mask a basic block, of threads that are to run it;
the lowest block with threads goes first, so they meet again as early as the order of the blocks allows (see
:class:`ptx.ir.Kernel`). While all threads that run are together, blocks jump to each other directly.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirstitch.runtime.emulator.jit import arithmetic, atomics, logic, memory
from mlirstitch.runtime.emulator.jit.builder import Expression
from mlirstitch.runtime.emulator.jit.emit import Handler, KernelEmitter, MemorySite, Specialisation, Unsupported
from mlirstitch.runtime.emulator.jit.forms import unknown_form
from mlirstitch.runtime.emulator.jit.layout import Context, Fault, Warp
from mlirstitch.runtime.emulator.jit.memory import FAULT
from mlirstitch.runtime.emulator.jit.uniformity import diverging_registers
from mlirstitch.runtime.emulator.ptx.ir import Block, Kernel
from mlirstitch.runtime.emulator.ptx.syntax import Register

HANDLERS: dict[str, Handler] = {**arithmetic.HANDLERS, **logic.HANDLERS, **memory.HANDLERS, **atomics.HANDLERS}
"""Code of every opcode the JIT engine has, but those that end a block."""

_ROUNDS = 8
"""How often code is generated at most while looking for the scalar registers."""
_BARRIERS = 16
"""Barriers of a block."""
_DISPATCH, _LEAVE = "^dispatch", "^leave"


@dataclass(frozen=True)
class Code:
    """A kernel as text of the llvm dialect, and what is needed to run it.

    Attributes:
        text: the module.
        sites: memory instructions by number.
        symbols: module variables in the order of their addresses, which start ``symbols_at`` bytes into the parameters.
        warp_bytes: size of the structure of a warp.
        frame_at, uninitialised_bytes: part of it that is zeroed when a thread block starts.
        barriers: blocks that end with a barrier.
        serial: whether blocks must run one after the other, in order, for results that do not vary.
    """

    text: str
    sites: tuple[MemorySite, ...]
    symbols: tuple[str, ...]
    symbols_at: int
    warp_bytes: int
    frame_at: int
    uninitialised_bytes: int
    barriers: tuple[Block, ...]
    serial: bool


def generate(kernel: Kernel, special: Specialisation) -> Code:
    """Generate code. Raises :class:`Unsupported` naming the first instruction the engine has no code for."""
    cyclic = cyclic_blocks(kernel)
    # Only loops are worth the search: elsewhere hardly anything but functions of the thread number is a scalar.
    scalars = _candidates(kernel) if cyclic else frozenset[Register]()
    for _ in range(_ROUNDS):
        generator = _Generator(kernel, special, cyclic, scalars)
        code = generator.run()
        wrong = scalars & (generator.e.disproved | diverging_registers(kernel, generator.divergent))
        if not wrong:
            return code
        scalars -= wrong
    return _Generator(kernel, special, cyclic, frozenset()).run()


def _candidates(kernel: Kernel) -> frozenset[Register]:
    """Registers that live between blocks and are written before they are read."""
    live = {register for block in kernel.blocks for register in block.live_in}
    return frozenset(live - set(kernel.maybe_uninitialised))


def cyclic_blocks(kernel: Kernel) -> frozenset[int]:
    """Blocks that can be reached from themselves."""
    successors = [block.terminator.targets for block in kernel.blocks]
    found: set[int] = set()
    for start in range(len(successors)):
        seen: set[int] = set()
        stack = list(successors[start])
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(successors[node])
        if start in seen:
            found.add(start)
    return frozenset(found)


class _Generator:
    def __init__(
        self, kernel: Kernel, special: Specialisation, cyclic: frozenset[int], scalars: frozenset[Register]
    ) -> None:
        self.kernel = kernel
        self.special = special
        self.divergent: list[int] = []
        self.e = KernelEmitter(kernel, special, cyclic, scalars)
        self.b = self.e.builder
        self.barriers = tuple(block for block in kernel.blocks if block.terminator.kind == "barrier")
        self.diverges = any(block.terminator.kind in ("branch", "switch") for block in kernel.blocks)
        self.executed = self.e.executed_table

    def run(self) -> Code:
        b, e = self.b, self.e
        b.jump(_DISPATCH)
        for block in self.kernel.blocks:
            self._block(block)
        self._dispatch()
        b.start(_LEAVE)
        b.give_back(0)
        b.start(FAULT)
        b.give_back(1)
        run_warp = b.finish()
        entry = (
            "llvm.func @entry(%out: !llvm.ptr) {\n%f = llvm.mlir.addressof @run_warp : !llvm.ptr\n"
            "llvm.store %f, %out : !llvm.ptr, !llvm.ptr\nllvm.return\n}\n"
        )
        return Code(
            text=f"module {{\n{run_warp}{entry}}}\n",
            sites=tuple(e.sites),
            symbols=tuple(e.symbols),
            symbols_at=e.symbols_at,
            warp_bytes=e.warp_bytes,
            frame_at=e.frame_at,
            uninitialised_bytes=e.uninitialised_bytes,
            barriers=self.barriers,
            serial=any(i.op in ("atom", "red") for block in self.kernel.blocks for i in block.instructions),
        )

    def _block(self, block: Block) -> None:
        b, e = self.b, self.e
        (mask,) = b.start(f"^block_{block.index}", [("i32", "s")])
        e.begin_block(block, mask)
        if self.special.counting:
            b.add_field(self.executed, 8 * block.index, 1)
        if block.index in e.cyclic:
            self._spend(block)
        for instruction in block.instructions:
            e.begin_instruction(instruction)
            reason = unknown_form(instruction)
            if reason:
                raise e.unsupported(reason)
            HANDLERS[instruction.op](e, instruction)
        self._terminate(block)

    def _spend(self, block: Block) -> None:
        """Blocks inside loops count against the budget."""
        b, e = self.b, self.e
        place = b.at(e.warp, Warp.ISSUED)
        issued = b.load(place, "i64") + (len(block.instructions) + 1)
        b.store(issued, place)
        with b.leave_when(issued.gt(b.field(e.context, Context.BUDGET, "i64"), signed=True)):
            self._fail(Fault.BUDGET, block.index, e.mask)

    def _fail(self, fault: Fault, number: int, threads: Expression, address: Expression | None = None) -> None:
        """Note a finding about the first of ``threads`` and return."""
        b, e = self.b, self.e
        lane = threads.call("cttz", attributes="<{is_zero_poison = false}> ").resize("i64") & 31
        for offset, value in (
            (Context.FAULT, b.constant(fault, "i64")),
            (Context.FAULT_SITE, b.constant(number, "i64")),
            (Context.FAULT_LANE, lane),
            (Context.FAULT_WARP, b.field(e.warp, Warp.NUMBER, "i64")),
        ):
            b.set_field(e.context, offset, value)
        if address is not None:
            b.set_field(e.context, Context.FAULT_ADDRESS, address)
        b.jump(FAULT)

    # ---- ends of blocks
    def _terminate(self, block: Block) -> None:
        b, e, terminator = self.b, self.e, block.terminator
        kind = terminator.kind
        if kind == "jump":
            e.end_block()
            self._go(terminator.targets[0], e.mask)
        elif kind == "branch":
            self._branch(block)
        elif kind == "switch":
            self._switch(block)
        elif kind == "exit":
            self._stop(Warp.EXITED)
        elif kind == "barrier":
            if terminator.barrier[0] not in range(_BARRIERS):
                raise e.unsupported("a barrier that does not exist is left to the reference engine")
            e.end_block()
            b.set_field(e.context, Context.WAITING, b.constant(1, "i64"))
            self._stop(Warp.MASKS + 4 * self.barriers.index(block))
        elif kind == "trap":
            self._fail(Fault.TRAP, block.index, e.mask)
        else:
            assert terminator.instruction is not None
            e.begin_instruction(terminator.instruction)
            raise e.unsupported("is left to the reference engine")

    def _stop(self, place: int) -> None:
        """The threads do not run any more; note them in the mask at ``place`` of the warp."""
        b, e = self.b, self.e
        self._gather(place, e.mask)
        live = b.field(e.warp, Warp.LIVE, "i32") & ~e.mask
        b.set_field(e.warp, Warp.LIVE, live)
        b.branch(live.eq(0), _LEAVE, _DISPATCH)

    def _gather(self, place: int, threads: Expression) -> None:
        b, e = self.b, self.e
        where = b.at(e.warp, place)
        b.store(b.load(where, "i32") | threads, where)

    def _pend(self, target: int, threads: Expression) -> None:
        self._gather(self.e.pending_at + 4 * target, threads)

    def _go(self, target: int, threads: Expression) -> None:
        """All threads that executed the block go on at ``target``."""
        b, e = self.b, self.e
        label = f"^block_{target}"
        if not self.diverges:
            b.jump(label, threads)
            return
        apart = b.label("apart")
        b.branch(b.field(e.warp, Warp.LIVE, "i32").eq(threads), label, apart, [threads])
        b.start(apart)
        self._pend(target, threads)
        b.jump(_DISPATCH)

    def _branch(self, block: Block) -> None:
        b, e, terminator = self.b, self.e, block.terminator
        assert terminator.predicate is not None
        register, negated = terminator.predicate
        condition = e.value(register)
        yes, no = terminator.targets[:: -1 if negated else 1]
        taken = e.bits(condition.first) & e.mask if condition.first.vector else None
        e.end_block()
        to_yes, to_no = b.label("yes"), b.label("no")
        if taken is None:
            b.branch(condition.first, to_yes, to_no)
        else:
            self.divergent.append(block.index)
            some, split = b.label("some"), b.label("split")
            b.branch(taken.eq(0), to_no, some)
            b.start(some)
            b.branch(taken.eq(e.mask), to_yes, split)
            b.start(split)
            if self.special.counting and terminator.instruction is not None:
                b.add_field(e.context, Context.DIVERGENT_BRANCHES, 1)
            self._pend(yes, taken)
            self._pend(no, e.mask ^ taken)
            b.jump(_DISPATCH)
        b.start(to_yes)
        self._go(yes, e.mask)
        b.start(to_no)
        self._go(no, e.mask)

    def _switch(self, block: Block) -> None:
        b, e, terminator = self.b, self.e, block.terminator
        assert terminator.instruction is not None
        e.begin_instruction(terminator.instruction)
        self.divergent.append(block.index)
        selector = e.vector(e.integer(terminator.instruction.inputs[0], "u32"))
        e.end_block()
        outside = e.bits(selector.ge(len(terminator.targets))) & e.mask
        with b.leave_when(outside.ne(0)):
            b.store(selector, b.at(e.warp, Warp.SECOND))
            self._fail(Fault.SWITCH, block.index, outside)
        chosen: dict[int, Expression] = {}
        for number, target in enumerate(terminator.targets):
            threads = e.bits(selector.eq(number)) & e.mask
            chosen[target] = chosen[target] | threads if target in chosen else threads
        if self.special.counting:
            ways = None
            for threads in chosen.values():
                used = threads.ne(0).resize("i64")
                ways = used if ways is None else ways + used
            if ways is not None:
                b.add_field(e.context, Context.DIVERGENT_BRANCHES, ways.gt(1).resize("i64"))
        for target, threads in chosen.items():
            self._pend(target, threads)
        b.jump(_DISPATCH)

    def _dispatch(self) -> None:
        """Find the lowest block with threads and run it."""
        b, e = self.b, self.e
        b.start(_DISPATCH)
        masks = b.at(e.warp, e.pending_at)
        b.jump("^scan", b.constant(0, "i64"))
        (index,) = b.start("^scan", [("i64", "s")])
        place = b.at(masks, index * 4)
        threads = b.load(place, "i32")
        b.branch(threads.eq(0), "^scan", "^found", [index + 1])
        b.start("^found")
        b.store(b.constant(0, "i32"), place)
        if len(self.kernel.blocks) == 1:
            b.jump("^block_0", threads)
            return
        number = index.resize("i32")
        cases = ", ".join(
            f"{block.index}: ^block_{block.index}({threads.name} : i32)" for block in self.kernel.blocks[1:]
        )
        b.line(f"llvm.switch {number.name} : i32, ^block_0({threads.name} : i32) [ {cases} ]")


__all__ = ["HANDLERS", "Code", "Unsupported", "cyclic_blocks", "generate"]
