"""Random small programs: what is compiled and run on the emulated device is what eager PyTorch computes.

A program is text, a function of tensors, grown one line at a time from a seed; every line is run by eager as it is
added, so that shapes fit. Values stay below 64 and functions are tame, so that a small error stays small; what jumps
(comparisons, rounding to integers, argmax) reads only values without any rounding error.

Of one seed a shorter program is the beginning of a longer one, so a failure is reported for the shortest that fails.
Lines that no result depends on are left out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import mlirstitch

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor  # isort: skip

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
DIMS = (0, 1, 1, 2, 2, 3, 3, 5, 5, 7, 7, 8, 8, 16, 16, 31, 31, 33, 33, 64, 64, 70, 70)
RANKS = (0, 1, 2, 2, 3, 3, 4, 5)
LENGTH = 12
MOST_ELEMENTS = 3000
LARGEST = 64.0

SMOOTH = ("torch.tanh({})", "torch.sigmoid({})", "F.gelu({})", "torch.exp(-{}.abs())", "F.silu({})", "torch.sin({})")
EXACT_UNARY = ("-{}", "{}.abs()", "F.relu({})", "{} * 0.5", "{}.clamp(-1, 2)", "{} + 1", "{}.clone()")
INTEGER_UNARY = ("{} + 3", "{} * 2", "{} // 3", "{} % 5", "{} - 1", "{} & 6", "{} ^ 3")
SMOOTH_BINARY = ("{} * {}", "{} + {}", "{} - {}", "{} / ({}.abs() + 1)", "torch.atan2({}, {}.abs() + 1)")
EXACT_BINARY = ("torch.maximum({}, {})", "torch.minimum({}, {})")
COMPARISONS = ("{} < {}", "{} >= {}", "{} == {}", "{} != {}")
SMOOTH_REDUCTIONS = ("{}.sum({})", "{}.mean({})", "{}.var({}, correction=0)", "torch.logsumexp({}, {})")
EXACT_REDUCTIONS = ("{}.amax({})", "{}.amin({})")
ROW_FUNCTIONS = ("{}.softmax({})", "{}.log_softmax({})")


@dataclass
class Program:
    """A program that grows.

    Attributes:
        inputs: the first values; further ones follow, one a line.
        lines: right-hand sides.
        values: what eager computes for each value.
        exact: whether a value has no rounding error.
        outputs: numbers of the values that are returned.
    """

    inputs: list[Tensor]
    lines: list[str] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    @property
    def source(self) -> str:
        """Python text of a function ``program``."""
        given_ = ", ".join(f"v{k}" for k in range(len(self.inputs)))
        needed = set(self.outputs)
        for k in range(len(self.values) - 1, len(self.inputs) - 1, -1):
            if k in needed:
                needed |= self.reads(k)
        body = [f"    v{k} = {line}" for k, line in enumerate(self.lines, len(self.inputs)) if k in needed]
        returned = ", ".join(f"v{k}" for k in self.outputs)
        return "\n".join([f"def program({given_}):", *body, f"    return ({returned},)"])

    def reads(self, number: int) -> set[int]:
        """Numbers of the values that a line reads."""
        return {int(k) for k in re.findall(r"\bv(\d+)", self.lines[number - len(self.inputs)])}

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, "<random program>", "exec"), scope)
        return scope["program"]

    def add(self, line: str, *, exact: bool) -> None:
        """Append a line, unless eager refuses it or its value is large, long or not finite."""
        scope = {"torch": torch, "F": F, **{f"v{k}": v for k, v in enumerate(self.values)}}
        try:
            value = eval(line, scope)
        except (RuntimeError, IndexError, NotImplementedError):
            return
        if value.numel() > MOST_ELEMENTS or value.ndim > 5 or value.dtype not in TYPES:
            return
        if value.is_floating_point() and value.numel() and not bool((value.abs() < LARGEST).all()):
            return
        self.lines.append(line)
        self.values.append(value)
        self.exact.append(exact)

    def __repr__(self) -> str:
        kinds = ", ".join(f"v{k}: {str(t.dtype)[6:]}{list(t.shape)}" for k, t in enumerate(self.inputs))
        return f"# {kinds}\n{self.source}"


def filled(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Multiples of 1/4 between -4 and 4 (integers between 0 or -9 and 9): exact in every type."""
    source = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(np.asarray(source.integers(0, 2, shape))).to(dtype)
    if dtype in INTEGERS:
        lowest = 0 if dtype == torch.uint8 else -9
        return torch.from_numpy(np.asarray(source.integers(lowest, 10, shape))).to(dtype)
    return torch.from_numpy(np.asarray(source.integers(-16, 17, shape) / 4.0)).to(dtype)


def random_shape(rng: random.Random) -> tuple[int, ...]:
    shape: list[int] = []
    for _ in range(rng.choice(RANKS)):
        dim = rng.choice(DIMS)
        if int(np.prod(shape)) * dim <= MOST_ELEMENTS // 2:
            shape.append(dim)
    return tuple(shape)


def grow(seed: int, length: int = LENGTH) -> Program:
    """A program of up to ``length`` lines. It returns what no line reads, and one value more."""
    rng = random.Random(seed)
    first = random_shape(rng)
    inputs = [filled(first, rng.choice(TYPES), 0)]
    for number in range(1, rng.randint(1, 3)):
        # The same shape, one that broadcasts against it, or another.
        shape = rng.choice([first, tuple(rng.choice((1, n)) for n in first), first[1:], random_shape(rng)])
        inputs.append(filled(shape, rng.choice(TYPES), number))
    program = Program(inputs, values=list(inputs), exact=[True] * len(inputs))
    for _ in range(length):
        rng.choice(STEPS)(rng, program)
    numbers = range(len(program.values))
    read = {k for number in numbers[len(inputs) :] for k in program.reads(number)}
    program.outputs = [k for k in numbers if k not in read] + [rng.choice(numbers)]
    return program


def _pick(rng: random.Random, program: Program) -> int:
    """A value, a late one more often than an early one, which makes chains."""
    return max(rng.randrange(len(program.values)), rng.randrange(len(program.values)))


def _dim(rng: random.Random, value: Tensor) -> int:
    return rng.randint(-max(value.ndim, 1), max(value.ndim, 1) - 1)


def unary(rng: random.Random, program: Program) -> None:
    k = _pick(rng, program)
    if not program.values[k].is_floating_point():
        program.add(rng.choice(INTEGER_UNARY).format(f"v{k}"), exact=True)
    elif rng.random() < 0.5:
        program.add(rng.choice(SMOOTH).format(f"v{k}"), exact=False)
    else:
        program.add(rng.choice(EXACT_UNARY).format(f"v{k}"), exact=program.exact[k])


def binary(rng: random.Random, program: Program) -> None:
    a, b = _pick(rng, program), _pick(rng, program)
    both = program.exact[a] and program.exact[b]
    integers = not any(program.values[k].is_floating_point() for k in (a, b))
    if both and rng.random() < 0.5:
        program.add(rng.choice(COMPARISONS).format(f"v{a}", f"v{b}"), exact=True)
    elif rng.random() < 0.5:
        program.add(rng.choice(EXACT_BINARY).format(f"v{a}", f"v{b}"), exact=both)
    else:
        line = rng.choice(SMOOTH_BINARY[:3] if integers else SMOOTH_BINARY)
        program.add(line.format(f"v{a}", f"v{b}"), exact=integers)


def choice(rng: random.Random, program: Program) -> None:
    a, b, c = (_pick(rng, program) for _ in range(3))
    if program.exact[c]:
        program.add(f"torch.where(v{c} > 0, v{a}, v{b})", exact=program.exact[a] and program.exact[b])


def cast(rng: random.Random, program: Program) -> None:
    k = _pick(rng, program)
    # Of a negative number as unsigned eager promises nothing.
    if program.exact[k] and not (program.values[k] < 0).any():
        target = rng.choice(TYPES)
        program.add(f"v{k}.to({target})", exact=not target.is_floating_point or target == torch.float64)
    else:
        program.add(f"v{k}.to({rng.choice(FLOATS)})", exact=False)


def reduction(rng: random.Random, program: Program) -> None:
    k = _pick(rng, program)
    value = program.values[k]
    dims = sorted(rng.sample(range(max(value.ndim, 1)), rng.randint(1, min(3, max(value.ndim, 1)))))
    where = f"{tuple(dims)}, keepdim={rng.random() < 0.5}"
    if not value.is_floating_point():
        line = rng.choice(("{}.sum({})", "{}.amax({})", "{}.amin({})", "{}.any({})", "{}.all({})"))
        program.add(line.format(f"v{k}", where), exact=True)
    elif rng.random() < 0.5:
        program.add(rng.choice(SMOOTH_REDUCTIONS).format(f"v{k}", where), exact=False)
    else:
        program.add(rng.choice(EXACT_REDUCTIONS).format(f"v{k}", where), exact=program.exact[k])


def along_a_dim(rng: random.Random, program: Program) -> None:
    k = _pick(rng, program)
    dim = _dim(rng, program.values[k])
    if program.values[k].is_floating_point() and rng.random() < 0.5:
        program.add(rng.choice(ROW_FUNCTIONS).format(f"v{k}", dim), exact=False)
    elif program.values[k].is_floating_point() and program.values[k].ndim and rng.random() < 0.5:
        program.add(f"F.layer_norm(v{k}, v{k}.shape[-1:])", exact=False)
    elif program.exact[k] and program.values[k].dtype != torch.bool:
        program.add(f"v{k}.{rng.choice(('argmax', 'argmin'))}({dim})", exact=True)


def movement(rng: random.Random, program: Program) -> None:
    k = _pick(rng, program)
    value = program.values[k]
    dim = _dim(rng, value)
    size = value.shape[dim] if value.ndim else 1
    low, high = sorted((rng.randint(0, size), rng.randint(0, size)))
    places = [rng.randrange(max(size, 1)) for _ in range(rng.randint(1, 4))]
    lines = [
        f"v{k}.permute({rng.sample(range(value.ndim), value.ndim)})",
        f"v{k}.reshape(-1)",
        f"v{k}.unsqueeze({dim})",
        f"v{k}.squeeze({dim})",
        f"v{k}.transpose({dim}, -1)",
        f"v{k}.narrow({dim}, {low}, {high - low})",
        f"v{k}[..., {rng.randint(0, 2)}::{rng.randint(2, 3)}]",
        f"v{k}.flip({dim})",
        f"v{k}.roll({rng.randint(-3, 3)}, {dim})",
        f"v{k}.expand({rng.randint(1, 3)}, *v{k}.shape)",
        f"v{k}.index_select({dim}, torch.tensor({places}))",
        f"torch.cat([v{k}, v{_pick(rng, program)}], {dim})",
        f"torch.stack([v{k}, v{_pick(rng, program)}], {dim})",
        f"v{k}.tril({rng.randint(-2, 2)})",
    ]
    lines += [f"v{k}.unflatten({dim}, ({n}, {size // n}))" for n in (2, 3, 7, 8) if size and size % n == 0]
    if value.dtype != torch.bool:
        lines.append(f"F.pad(v{k}, ({rng.randint(-1, 3)}, {rng.randint(-1, 3)}), value=1)")
    line = rng.choice(lines)
    program.add(line, exact=all(program.exact[j] for j in range(len(program.values)) if f"v{j}" in line))


def product(rng: random.Random, program: Program) -> None:
    a, b = _pick(rng, program), _pick(rng, program)
    if program.values[a].is_floating_point() and program.values[a].dtype == program.values[b].dtype:
        program.add(rng.choice((f"v{a} @ v{b}", f"v{a} @ v{b}.mT", f"v{a}.mT @ v{b}")), exact=False)


def vector_product(rng: random.Random, program: Program) -> None:
    """A matrix times a vector, a row times a matrix, two vectors, an outer product; also batched."""
    a, b = _pick(rng, program), _pick(rng, program)
    first, second = program.values[a], program.values[b]
    if not (first.is_floating_point() and first.dtype == second.dtype and first.ndim and second.ndim):
        return
    length = first.shape[-1]
    vector = f"(v{b}.reshape(-1)[:{length}] / {max(length, 1)})"
    lines = [f"torch.outer(v{a}.reshape(-1)[:{rng.choice(DIMS)}], v{b}.reshape(-1)[:{rng.choice(DIMS)}])"]
    if second.numel() >= length:
        lines += [f"v{a} @ {vector}", f"{vector} @ v{a}.mT", f"v{a} @ {vector}[:, None]", f"F.linear({vector}, v{a})"]
    if first.ndim > 1:
        row = rng.randrange(max(first.shape[-2], 1))
        lines += [
            f"v{a} @ v{a}[..., {row}, :, None] / {max(length, 1)}",
            f"v{a}[..., {row}, None, :] @ v{a}.mT / {max(length, 1)}",
        ]
    program.add(rng.choice(lines), exact=False)


STEPS = (*(unary, binary, reduction, along_a_dim) * 2, *(movement,) * 5, choice, cast, product, *(vector_product,) * 2)


def check(program: Program) -> None:
    """Integers are equal, floats as near to float64 as eager's allow, NaN (of empty means) where eager has it."""
    function = program.function()
    eager = function(*program.inputs)
    try:
        truth = function(*(v.double() if v.is_floating_point() else v for v in program.inputs))
    except RuntimeError:  # a product of a value that the program casts and one that float64 has replaced
        truth = eager
    got = mlirstitch.compile(function, tuple(program.inputs))(*program.inputs)
    halves = [t for t in (torch.bfloat16, torch.float16, torch.float32) if _uses(program, t)]
    epsilon = torch.finfo((halves or [torch.float64])[0]).eps
    assert len(got) == len(eager)
    for mine, theirs, exact in zip(got, eager, truth, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        if not theirs.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        assert torch.equal(mine.isnan(), theirs.isnan())
        finite = theirs.isfinite()
        assert torch.equal(mine.masked_fill(finite, 0).nan_to_num(), theirs.masked_fill(finite, 0).nan_to_num())
        if finite.any():
            own, other = ((v.double() - exact.double())[finite].abs().max() for v in (mine, theirs))
            assert own <= 8 * other + 32 * epsilon * max(1.0, float(exact[finite].abs().max()))


def _uses(program: Program, dtype: torch.dtype) -> bool:
    return any(v.dtype == dtype for v in program.values)


def check_seed(seed: int) -> None:
    try:
        check(grow(seed))
    except Exception:
        for length in range(LENGTH):
            shorter = grow(seed, length)
            try:
                check(shorter)
            except Exception as error:
                raise AssertionError(f"seed {seed}, {length} lines:\n{shorter!r}\n{error}") from error
        raise


@pytest.mark.parametrize("seed", range(40))
def test_a_random_program_computes_what_eager_computes(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 640))
def test_many_random_programs_compute_what_eager_computes(seed: int) -> None:
    check_seed(seed)
