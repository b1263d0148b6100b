"""Random functions on the linalg level, and random legal plans for them.

A function is a chain of ops, each over earlier values: products, sums of two, reductions, transposes, broadcasts,
reshapes, slices, paddings, concats, ops that know their place. Sizes include 1 and primes. A plan cuts random loops of
random ops by random axes of the mesh and of time, and places random ops on parts of the mesh.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.splits import legal_splits

SIZES = (1, 2, 3, 4, 5, 6, 8)
Shape = tuple[int, ...]


@dataclass
class _Text:
    """A function under construction."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    arguments: list[tuple[str, Shape]] = field(default_factory=list)
    values: list[tuple[str, Shape]] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def argument(self, shape: Shape) -> tuple[str, Shape]:
        found = (f"%a{len(self.arguments)}", shape)
        self.arguments.append(found)
        return found

    def pick(self, rank: int | None = None) -> tuple[str, Shape]:
        fitting = [value for value in self.values if (len(value[1]) == rank if rank else value[1])]
        if fitting and self.rng.random() < 0.9:
            return self.rng.choice(fitting)
        wanted = self.rng.randint(1, 3) if rank is None else rank
        return self.argument(tuple(self.rng.choice(SIZES) for _ in range(wanted)))

    def like(self, shape: Shape) -> tuple[str, Shape]:
        """A value of a shape: one there is, or an argument."""
        fitting = [value for value in self.values if value[1] == shape]
        return self.rng.choice(fitting) if fitting and self.rng.random() < 0.7 else self.argument(shape)

    def add(self, line: str, name: str, shape: Shape) -> None:
        self.lines.append(line)
        self.values.append((name, shape))

    def empty(self, shape: Shape) -> str:
        name = self.name()
        self.lines.append(f"{name} = tensor.empty() : {tensor(shape)}")
        return name

    def filled(self, shape: Shape, value: str = "%zero") -> str:
        out, name = self.empty(shape), self.name()
        self.lines.append(f"{name} = linalg.fill ins({value} : f32) outs({out} : {tensor(shape)}) -> {tensor(shape)}")
        return name


def tensor(shape: Shape) -> str:
    return f"tensor<{'x'.join([*map(str, shape), 'f32'])}>"


def _map(loops: int, results: list[int]) -> str:
    dims = ", ".join(f"d{d}" for d in range(loops))
    return f"affine_map<({dims}) -> ({', '.join(f'd{d}' for d in results)})>"


def _generic(text: _Text, loops: int, reduced: set[int], ins: list[tuple[str, Shape, list[int]]], out: str,
             shape: Shape, results: list[int], body: str) -> None:  # fmt: skip
    maps = ", ".join([*(_map(loops, m) for _, _, m in ins), _map(loops, results)])
    kinds = ", ".join('"reduction"' if d in reduced else '"parallel"' for d in range(loops))
    names = ", ".join(name for name, _, _ in ins)
    types = ", ".join(tensor(found) for _, found, _ in ins)
    arguments = ", ".join([*(f"%x{n}: f32" for n in range(len(ins))), "%o: f32"])
    name = text.name()
    taken = f"ins({names} : {types}) " if ins else ""
    text.add(
        f"{name} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} {taken}"
        f"outs({out} : {tensor(shape)}) {{\n^bb0({arguments}):\n{body}\n}} -> {tensor(shape)}",
        name,
        shape,
    )


def _unary(text: _Text) -> None:
    value, shape = text.pick()
    op = text.rng.choice(["math.tanh %x0", "arith.negf %x0", "arith.mulf %x0, %half", "arith.addf %x0, %half"])
    dims = list(range(len(shape)))
    order = text.rng.sample(dims, len(dims))
    to = tuple(shape[d] for d in order)
    _generic(text, len(dims), set(), [(value, shape, dims)], text.empty(to), to, order,
             f"%y = {op} : f32\nlinalg.yield %y : f32")  # fmt: skip


def _binary(text: _Text) -> None:
    value, shape = text.pick()
    other, _ = text.like(shape)
    op = text.rng.choice(["addf", "subf", "mulf", "maximumf"])
    dims = list(range(len(shape)))
    _generic(text, len(dims), set(), [(value, shape, dims), (other, shape, dims)], text.empty(shape), shape, dims,
             f"%y = arith.{op} %x0, %x1 : f32\nlinalg.yield %y : f32")  # fmt: skip


def _broadcast(text: _Text) -> None:
    value, shape = text.pick()
    dim = text.rng.randrange(len(shape))
    other, _ = text.like((shape[dim],))
    dims = list(range(len(shape)))
    _generic(text, len(dims), set(), [(value, shape, dims), (other, (shape[dim],), [dim])], text.empty(shape), shape,
             dims, "%y = arith.addf %x0, %x1 : f32\nlinalg.yield %y : f32")  # fmt: skip


def _reduce(text: _Text) -> None:
    value, shape = text.pick()
    dims = list(range(len(shape)))
    gone = set(text.rng.sample(dims, text.rng.randint(1, len(dims))))
    kept = [d for d in dims if d not in gone]
    to = tuple(shape[d] for d in kept)
    op, init = text.rng.choice([("addf", "%zero"), ("addf", "%half"), ("maximumf", "%least"), ("mulf", "%one")])
    _generic(text, len(dims), gone, [(value, shape, dims)], text.filled(to, init), to, kept,
             f"%y = arith.{op} %x0, %o : f32\nlinalg.yield %y : f32")  # fmt: skip


def _matmul(text: _Text) -> None:
    left, shape = text.pick(2)
    right, other = text.like((shape[1], text.rng.choice(SIZES)))
    to = (shape[0], other[1])
    name, out = text.name(), text.filled(to)
    text.add(
        f"{name} = linalg.matmul ins({left}, {right} : {tensor(shape)}, {tensor(other)}) "
        f"outs({out} : {tensor(to)}) -> {tensor(to)}",
        name,
        to,
    )


def _index(text: _Text) -> None:
    value, shape = text.pick()
    dims = list(range(len(shape)))
    dim = text.rng.choice(dims)
    body = (
        f"%i = linalg.index {dim} : index\n%n = arith.index_cast %i : index to i32\n%f = arith.sitofp %n : i32 to f32\n"
        "%y = arith.mulf %x0, %f : f32\nlinalg.yield %y : f32"
    )
    _generic(text, len(dims), set(), [(value, shape, dims)], text.empty(shape), shape, dims, body)


def _collapse(text: _Text) -> None:
    value, shape = text.pick()
    if len(shape) < 2:
        return _unary(text)
    at = text.rng.randrange(len(shape) - 1)
    to = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    groups = [[d] for d in range(at)] + [[at, at + 1]] + [[d] for d in range(at + 2, len(shape))]
    name = text.name()
    text.add(f"{name} = tensor.collapse_shape {value} {groups} : {tensor(shape)} into {tensor(to)}", name, to)
    return None


def _expand(text: _Text) -> None:
    value, shape = text.pick()
    splits = [(d, f) for d, n in enumerate(shape) for f in (2, 3, 4) if n % f == 0 and len(shape) < 4]
    if not splits:
        return _unary(text)
    at, inner = text.rng.choice(splits)
    to = (*shape[:at], shape[at] // inner, inner, *shape[at + 1 :])
    groups = [[d] for d in range(at)] + [[at, at + 1]] + [[d + 1] for d in range(at + 1, len(shape))]
    name = text.name()
    text.add(
        f"{name} = tensor.expand_shape {value} {groups} output_shape {list(to)} : {tensor(shape)} into {tensor(to)}",
        name,
        to,
    )
    return None


def _slice(text: _Text) -> None:
    value, shape = text.pick()
    offsets = [text.rng.randrange(n) for n in shape]
    steps = [text.rng.choice([1, 1, 2]) for _ in shape]
    to = tuple(text.rng.randint(1, (n - o + s - 1) // s) for n, o, s in zip(shape, offsets, steps, strict=True))
    name = text.name()
    text.add(
        f"{name} = tensor.extract_slice {value} {offsets} {list(to)} {steps} : {tensor(shape)} to {tensor(to)}",
        name,
        to,
    )


def _pad(text: _Text) -> None:
    value, shape = text.pick()
    low, high = ([text.rng.randint(0, 2) for _ in shape] for _ in range(2))
    to = tuple(n + a + b for n, a, b in zip(shape, low, high, strict=True))
    arguments = ", ".join(f"%i{d}: index" for d in range(len(shape)))
    name = text.name()
    text.add(
        f"{name} = tensor.pad {value} low{low} high{high} {{\n^bb0({arguments}):\ntensor.yield %half : f32\n}} "
        f": {tensor(shape)} to {tensor(to)}",
        name,
        to,
    )


def _concat(text: _Text) -> None:
    value, shape = text.pick()
    dim = text.rng.randrange(len(shape))
    other_shape = (*shape[:dim], text.rng.choice(SIZES), *shape[dim + 1 :])
    other, _ = text.like(other_shape)
    to = (*shape[:dim], shape[dim] + other_shape[dim], *shape[dim + 1 :])
    name, types = text.name(), f"({tensor(shape)}, {tensor(other_shape)})"
    text.add(
        f"{name} = tensor.concat dim({dim}) {value}, {other} : {types} -> {tensor(to)}",
        name,
        to,
    )


_KINDS = (_unary, _binary, _broadcast, _reduce, _matmul, _index, _collapse, _expand, _slice, _pad, _concat)


def random_function(rng: random.Random, ops: int) -> tuple[str, list[Shape]]:
    """The text of a module with @main, and the shapes of its arguments."""
    text = _Text(rng)
    for _ in range(ops):
        rng.choice(_KINDS)(text)
    results = [value for value in text.values if value[1]][-3:] or text.values[-1:]
    signature = ", ".join(f"{name}: {tensor(shape)}" for name, shape in text.arguments)
    types = ", ".join(tensor(shape) for _, shape in results)
    constants = (
        "%zero = arith.constant 0.0 : f32\n%half = arith.constant 0.5 : f32\n%one = arith.constant 1.0 : f32\n"
        "%least = arith.constant 0xFF800000 : f32"
    )
    body = "\n".join([constants, *text.lines])
    module = (
        f"func.func @main({signature}) -> ({types}) {{\n{body}\n"
        f"return {', '.join(name for name, _ in results)} : {types}\n}}"
    )
    return module, [shape for _, shape in text.arguments]


def random_rules(rng: random.Random, plan: Plan) -> None:
    """Legal rules: every cut is one that op-trans accepts."""
    axes = list(plan.mesh.names)
    timed = rng.random() < 0.5
    parts = _random_meshes(rng, plan.mesh)
    for op in plan.graph.ops:
        mesh = rng.choice(parts)
        plan.assign([op.number], mesh)
        for loop in rng.sample(sorted(legal_splits(op)), len(legal_splits(op))):
            free = [axis for axis in axes if axis in mesh.sizes and not plan.is_cut(op.number, axis)]
            if free and rng.random() < 0.6 and plan.may_cut(op.number, loop, free[0]):
                plan.trans_op(op.number, loop, space=rng.choice(free))
            time_free = timed and not plan.is_cut(op.number, "steps")
            if time_free and rng.random() < 0.3 and _may_be_timed(plan, op.number, loop):
                plan.trans_op(op.number, loop, time=("steps", 2))


def _may_be_timed(plan: Plan, op: int, loop: int) -> bool:
    if plan.steps_of_time == 1:
        plan.trans("*", time=("steps", 2), among=())  # makes the axis
    return plan.may_cut(op, loop, "steps")


def _random_meshes(rng: random.Random, mesh: Mesh) -> list[Mesh]:
    """Mostly all devices; sometimes a part of them."""
    name, size = rng.choice(mesh.axes)
    return [mesh] * 4 + [mesh.at(**{name: place}) for place in range(size)]
