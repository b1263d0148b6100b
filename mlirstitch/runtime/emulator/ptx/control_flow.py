"""Basic blocks, their order, and liveness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.ptx.ir import Block, Instruction, Terminator
from mlirstitch.runtime.emulator.ptx.syntax import Immediate, Label, Register, Symbol


def ends_block(instruction: Instruction) -> bool:
    """Whether control leaves straight-line order here."""
    op = instruction.op
    return op in ("bra", "brx", "ret", "exit", "trap", "barrier", "cluster_wait") or (
        op == "bar" and "warp" not in instruction.modifiers
    )


def _barrier_result(instruction: Instruction) -> list[Instruction]:
    """The instruction that reads the result of a barrier once it is passed."""
    if not instruction.defined():
        return []
    return [replace(instruction, op="barrier_result", inputs=(), guard=None, kind="move")]


@dataclass
class _Draft:
    """A block in the making; where ``skip`` holds, control passes over the next block (a guarded ``ret``, say)."""

    instructions: list[Instruction] = field(default_factory=list)
    skip: tuple[Register, bool] | None = None


def build_blocks(
    kernel: str, items: Sequence[Instruction | Label], tables: Mapping[str, tuple[str, ...]]
) -> tuple[Block, ...]:
    """Cut instructions into blocks, order them (see :class:`ir.Kernel`) and compute liveness.

    A guarded instruction that ends a block and is no branch becomes a branch around it.
    """
    drafts, labels = _cut(items)
    terminators = [_terminator(kernel, draft, index, labels, tables) for index, draft in enumerate(drafts)]
    order = _order([t.targets for t in terminators])
    position = {block: index for index, block in enumerate(order)}
    bodies = [[i for i in drafts[block].instructions if not ends_block(i)] for block in order]
    ordered = [
        replace(terminators[block], targets=tuple(position[x] for x in terminators[block].targets)) for block in order
    ]
    live_in, live_out = _liveness(bodies, ordered)
    return tuple(
        Block(index, tuple(body), ordered[index], _sorted(live_in[index]), _sorted(live_out[index]))
        for index, body in enumerate(bodies)
    )


def maybe_uninitialised(blocks: Sequence[Block]) -> tuple[Register, ...]:
    """Registers that some path reads before writing them: those live where the kernel starts."""
    return blocks[0].live_in if blocks else ()


def _cut(items: Sequence[Instruction | Label]) -> tuple[list[_Draft], dict[str, int]]:
    drafts = [_Draft()]
    labels: dict[str, int] = {}
    for item in items:
        if isinstance(item, Label):
            if drafts[-1].instructions:
                drafts.append(_Draft())
            labels[item.name] = len(drafts) - 1
            continue
        if ends_block(item) and item.op != "bra" and item.guard is not None:
            register, negated = item.guard
            drafts[-1].skip = (register, not negated)
            drafts.append(_Draft())
            item = replace(item, guard=None)
        result = _barrier_result(item) if item.op in ("bar", "barrier") else []
        drafts[-1].instructions.append(replace(item, outputs=()) if result else item)
        if ends_block(item):
            drafts.append(_Draft(result))
    # Control that runs off the end of the text returns; the empty last draft stands for it.
    if drafts[-1].instructions:
        drafts.append(_Draft())
    return drafts, labels


def _terminator(
    kernel: str, draft: _Draft, index: int, labels: Mapping[str, int], tables: Mapping[str, tuple[str, ...]]
) -> Terminator:
    following = index + 1
    if draft.skip is not None:
        return Terminator("branch", (following + 1, following), None, draft.skip)
    if not draft.instructions:
        return Terminator("exit", ())
    last = draft.instructions[-1]
    if not ends_block(last):
        return Terminator("jump", (following,))

    def fail(reason: str) -> LaunchError:
        where = f"kernel {kernel!r}, PTX line {last.line}: {last.mnemonic!r}"
        return LaunchError(f"{where}: {reason}", source=last.location)

    def target(name: str) -> int:
        if name not in labels:
            raise fail(f"unknown label {name!r}")
        return labels[name]

    if last.op == "bra":
        symbol = last.inputs[0]
        if not isinstance(symbol, Symbol):
            raise fail("needs a label")
        if last.guard is None:
            return Terminator("jump", (target(symbol.name),), last)
        return Terminator("branch", (target(symbol.name), following), last, last.guard)
    if last.op == "brx":
        selector, table = last.inputs
        if not isinstance(selector, Register) or selector.type == "pred":
            raise fail("needs a register that selects the target")
        if not isinstance(table, Symbol) or table.name not in tables:
            raise fail("unknown list of branch targets")
        return Terminator("switch", tuple(target(name) for name in tables[table.name]), last)
    if last.op in ("ret", "exit"):
        return Terminator("exit", (), last)
    if last.op == "trap":
        message = "a device assertion failed" if "assert" in last.modifiers else "trap reached"
        return Terminator("trap", (), last, message=message)
    if last.op == "cluster_wait":
        return Terminator("cluster_wait", (following,), last)
    numbers = [operand.value for operand in last.inputs if isinstance(operand, Immediate)]
    if len(numbers) != len(last.inputs):
        return Terminator("barrier_general", (following,), last)
    count = numbers[1] if len(numbers) > 1 else None
    return Terminator("barrier", (following,), last, barrier=(numbers[0], count))


def _order(successors: Sequence[tuple[int, ...]]) -> list[int]:
    """Blocks reachable from 0, predecessors first, loops contiguous.

    Strongly connected components in topological order; inside one, its first entry, then the rest in the same way
    (Bourdoncle, "Efficient chaotic iteration strategies with widenings", section 4: a weak topological order).
    """
    reachable: set[int] = set()
    stack = [0]
    while stack:
        node = stack.pop()
        if node not in reachable:
            reachable.add(node)
            stack.extend(successors[node])
    order: list[int] = []

    def place(nodes: set[int], entry: int) -> None:
        for component in _components(sorted(nodes), entry, successors, nodes):
            if len(component) == 1:
                order.append(component[0])
                continue
            members = set(component)
            outside = [n for n in sorted(nodes | set(order)) if n not in members]
            entered = sorted({s for n in outside for s in successors[n] if s in members} | ({entry} & members))
            head = entered[0] if entered else min(members)
            order.append(head)
            rest = members - {head}
            first = [s for s in successors[head] if s in rest]
            place(rest, first[0] if first else min(rest))

    place(reachable, 0)
    return order


def _components(
    roots: Sequence[int], entry: int, successors: Sequence[tuple[int, ...]], nodes: set[int]
) -> list[list[int]]:
    """Strongly connected components of the subgraph, in topological order (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    for root in [entry, *roots]:
        if root in index:
            continue
        work: list[tuple[int, int]] = [(root, 0)]
        while work:
            node, edge = work.pop()
            if edge == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            descended = False
            targets = successors[node][::-1]
            for position in range(edge, len(targets)):
                target = targets[position]
                if target not in nodes:
                    continue
                if target not in index:
                    work.append((node, position + 1))
                    work.append((target, 0))
                    descended = True
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            if descended:
                continue
            if low[node] == index[node]:
                component: list[int] = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    component.append(member)
                    if member == node:
                        break
                found.append(sorted(component))
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return found[::-1]


def _liveness(
    bodies: Sequence[Sequence[Instruction]], terminators: Sequence[Terminator]
) -> tuple[list[set[Register]], list[set[Register]]]:
    """Registers live at start and end of every block. A guarded write does not end the life of the old value."""
    count = len(bodies)
    used: list[set[Register]] = [set() for _ in range(count)]
    defined: list[set[Register]] = [set() for _ in range(count)]
    for index, body in enumerate(bodies):
        for instruction in body:
            used[index].update(r for r in instruction.used() if r not in defined[index])
            if instruction.guard is None:
                defined[index].update(instruction.defined())
        used[index].update(r for r in terminators[index].used() if r not in defined[index])
    live_in: list[set[Register]] = [set() for _ in range(count)]
    live_out: list[set[Register]] = [set() for _ in range(count)]
    changed = True
    while changed:
        changed = False
        for index in range(count - 1, -1, -1):
            after: set[Register] = set()
            for successor in terminators[index].targets:
                after |= live_in[successor]
            before = used[index] | (after - defined[index])
            if after != live_out[index] or before != live_in[index]:
                live_out[index], live_in[index] = after, before
                changed = True
    return live_in, live_out


def _sorted(registers: Iterable[Register]) -> tuple[Register, ...]:
    return tuple(sorted(registers, key=lambda r: r.name))
