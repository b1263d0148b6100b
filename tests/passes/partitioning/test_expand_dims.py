"""Expanding collapsed dims keeps what a function computes, on random chains of reshapes and ops."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from graph_harness import main_of
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from mlirstitch.driver.reference.interpreter import run
from mlirstitch.passes.partitioning import PREPARE_PASSES
from mlirstitch.passes.structured import block_ops, shape_of

Draw = Callable[..., Any]


def _type(shape: Sequence[int]) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}f32>"


class Chain:
    """A function of one tensor, written op by op."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.start = self.shape = shape
        self.value = "%x"
        self.lines = ["%z = arith.constant 0.0 : f32"]

    def add(self, line: str, shape: tuple[int, ...]) -> None:
        """One more op on the current value, named %r in the line."""
        name = f"%v{len(self.lines)}"
        self.lines.append(line.replace("%r", self.value).replace("%new", name).replace("%e", f"%e{len(self.lines)}"))
        self.value, self.shape = name, shape

    def reshape(self, shape: tuple[int, ...]) -> None:
        """Through one dim to another shape."""
        groups = f"[{list(range(len(self.shape)))}]"
        flat = (math.prod(shape),)
        if len(self.shape) != 1:
            self.add(f"%new = tensor.collapse_shape %r {groups} : {_type(self.shape)} into {_type(flat)}", flat)
        if len(shape) != 1:
            listed, groups = list(shape), f"[{list(range(len(shape)))}]"
            self.add(
                f"%new = tensor.expand_shape %r {groups} output_shape {listed} : {_type(flat)} into {_type(shape)}",
                shape,
            )

    def map(self) -> None:
        """Every element plus its position in the first dim."""
        loops = ", ".join(f"d{i}" for i in range(len(self.shape)))
        kinds = ", ".join(['"parallel"'] * len(self.shape))
        type_ = _type(self.shape)
        self.add(
            f"""%e = tensor.empty() : {type_}
            %new = linalg.generic {{
              indexing_maps = [affine_map<({loops}) -> ({loops})>, affine_map<({loops}) -> ({loops})>],
              iterator_types = [{kinds}]}} ins(%r : {type_}) outs(%e : {type_}) {{
              ^bb0(%a: f32, %o: f32):
                %i = linalg.index 0 : index
                %k = arith.index_cast %i : index to i32
                %f = arith.sitofp %k : i32 to f32
                %s = arith.addf %a, %f : f32
                linalg.yield %s : f32
            }} -> {type_}""",
            self.shape,
        )

    def reduce(self, dim: int) -> None:
        """The sum along one dim, which stays with extent 1."""
        loops = ", ".join(f"d{i}" for i in range(len(self.shape)))
        kept = ", ".join("0" if i == dim else f"d{i}" for i in range(len(self.shape)))
        kinds = ", ".join('"reduction"' if i == dim else '"parallel"' for i in range(len(self.shape)))
        shape = tuple(1 if i == dim else n for i, n in enumerate(self.shape))
        self.add(
            f"""%e = tensor.empty() : {_type(shape)}
            %ef = linalg.fill ins(%z : f32) outs(%e : {_type(shape)}) -> {_type(shape)}
            %new = linalg.generic {{
              indexing_maps = [affine_map<({loops}) -> ({loops})>, affine_map<({loops}) -> ({kept})>],
              iterator_types = [{kinds}]}} ins(%r : {_type(self.shape)}) outs(%ef : {_type(shape)}) {{
              ^bb0(%a: f32, %o: f32):
                %s = arith.addf %o, %a : f32
                linalg.yield %s : f32
            }} -> {_type(shape)}""",
            shape,
        )

    def text(self) -> str:
        """The whole function."""
        body = "\n".join(self.lines)
        result = _type(self.shape)
        return f"func.func @main(%x: {_type(self.start)}) -> {result} {{\n{body}\nreturn {self.value} : {result}\n}}"


def _factors(draw: Draw, size: int) -> tuple[int, ...]:
    """A shape of ``size`` elements, units among its dims."""
    found: list[int] = []
    while size > 1:
        factor = draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0]))
        found.append(factor)
        size //= factor
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), 1)
    return tuple(found) or (1,)


@st.composite
def chains(draw: Draw) -> str:
    chain = Chain(_factors(draw, draw(st.sampled_from([24, 36, 16, 30]))))
    for _ in range(draw(st.integers(1, 4))):
        chain.reshape(_factors(draw, math.prod(chain.shape)))
        if draw(st.booleans()):
            chain.map()
        if len(chain.shape) > 1 and draw(st.booleans()):
            chain.reduce(draw(st.integers(0, len(chain.shape) - 1)))
    return chain.text()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_random_chains_compute_the_same_with_as_many_ops(text: str) -> None:
    before, after = main_of(text), main_of(text, *PREPARE_PASSES)
    assert before.parent is not None
    assert after.parent is not None
    (argument,) = before.regions[0].blocks[0].arguments
    random = np.random.default_rng(zlib.crc32(text.encode()))
    x = random.integers(-4, 5, shape_of(argument)).astype(np.float32)
    for want, got in zip(run(before.parent, [x]), run(after.parent, [x]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert _computing(after) == _computing(before)


def _computing(main: ir.Operation) -> list[str]:
    return [op.name for op in block_ops(main) if op.name.startswith("linalg.")]
