"""The instruction IR an engine executes: basic blocks of typed instructions over virtual registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlirstitch.runtime.emulator.ptx.syntax import Operand, Parameter, Register, Variable


@dataclass(frozen=True, slots=True)
class Instruction:
    """One checked instruction.

    Attributes:
        op: first part of the mnemonic; besides, ``pack`` and ``unpack`` are the vector forms of ``mov``, ``ld_param``
            reads a kernel parameter, ``implicit`` defines a register whose value does not matter, ``bar_arrive`` is
            ``bar.arrive``, ``cluster_arrive`` and ``cluster_wait`` ``barrier.cluster``, ``cp_mbarrier``
            ``cp.async.mbarrier.arrive``, ``barrier_result`` stands behind a ``bar.red`` and reads its result.
        modifiers: the other parts of the mnemonic in order, without types and vector width.
        types: the types in order of the mnemonic (destination first).
        vector: elements per lane of a vector load or store, else 1.
        outputs: destination registers, None for a result nobody wants.
        inputs: source operands, vectors flattened.
        guard: predicate, True where negated; None if always executed.
        mnemonic, line, location: as written, 1-based PTX line, ``file:line`` of the source or "".
        kind: class of the instruction for counting, see ``docs/counters.md``.
    """

    op: str
    modifiers: tuple[str, ...]
    types: tuple[str, ...]
    vector: int
    outputs: tuple[Register | None, ...]
    inputs: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    mnemonic: str
    line: int
    location: str
    kind: str

    def defined(self) -> tuple[Register, ...]:
        """Registers written."""
        return tuple(r for r in self.outputs if r is not None)

    def used(self) -> tuple[Register, ...]:
        """Registers read, the guard included."""
        found = list(registers_of(self.inputs))
        if self.guard is not None:
            found.append(self.guard[0])
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Terminator:
    """How a block ends.

    ``kind`` is "jump" (to ``targets[0]``), "branch" (``targets[0]`` where the predicate holds, else ``targets[1]``),
    "switch" (``targets[selector]``), "exit", "barrier" (wait, then ``targets[0]``), "barrier_general" (the same where
    number or thread count are in registers or predicates are reduced: the inputs of ``instruction``), "cluster_wait" or
    "trap".
    ``instruction`` is None where control just falls through. ``message`` explains a trap; ``barrier`` is number and
    thread count of a barrier (None: all threads of the block).
    """

    kind: str
    targets: tuple[int, ...]
    instruction: Instruction | None = None
    predicate: tuple[Register, bool] | None = None
    message: str = ""
    barrier: tuple[int, int | None] = (0, None)

    def used(self) -> tuple[Register, ...]:
        """Registers read."""
        found = list(registers_of(self.instruction.inputs)) if self.instruction else []
        if self.predicate:
            found.append(self.predicate[0])
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block; ``live_in`` and ``live_out`` are sorted by name."""

    index: int
    instructions: tuple[Instruction, ...]
    terminator: Terminator
    live_in: tuple[Register, ...]
    live_out: tuple[Register, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel ready for an engine.

    Blocks are numbered so that every block stands after all its predecessors except along loop back edges, and all
    blocks of a loop stand before the blocks behind it: running the lowest pending block first makes diverged threads
    meet again as early as possible.

    Attributes:
        offsets: byte offset of every shared and local variable inside its space.
        variables: the global and const variables used, by name.
        shared_bytes: static shared memory; dynamic shared memory starts at ``dynamic_shared`` (None if unused).
        local_bytes: per thread.
        maybe_uninitialised: registers that some path reads before it writes them.
    """

    name: str
    parameters: tuple[Parameter, ...]
    directives: Mapping[str, tuple[int, ...]]
    blocks: tuple[Block, ...]
    offsets: Mapping[str, tuple[str, int]]
    variables: Mapping[str, Variable]
    shared_bytes: int
    dynamic_shared: int | None
    local_bytes: int
    maybe_uninitialised: tuple[Register, ...]


def registers_of(operands: tuple[Operand, ...]) -> tuple[Register, ...]:
    """Registers among the operands, bases of addresses included."""
    found: list[Register] = []
    for operand in operands:
        base = getattr(operand, "base", operand)
        if isinstance(base, Register):
            found.append(base)
    return tuple(found)
